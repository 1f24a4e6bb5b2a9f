// SPDX-License-Identifier: BSD-2-Clause
/*
 * The engine of bulk-up, bulk-down, bulk-both and slow: streams, each with a tail at its end.
 *
 * Sockets are level-triggered, and an event means one send(2) and one recv(2) of up to 256 KiB:
 * so many connections get their turn, and nothing is registered anew while payload flows.
 *
 * The end takes one tail in each direction (protocol.h).  If the sink's does not come in time, we
 * half-close: a sink that waits for something lost then says what it has, or is silent for good.
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "generator.h"

static bool sends_up(const struct conn *c)
{
	return c->g->o->workload == WORKLOAD_BULK_UP || c->g->o->workload == WORKLOAD_BULK_BOTH;
}

static bool is_slow(const struct conn *c)
{
	return c->g->o->workload == WORKLOAD_SLOW;
}

static void watch(struct conn *c, uint32_t events, bool registered)
{
	if (c->source.fd < 0)
		return;
	if (loop_watch(&c->g->loop, &c->source, events, registered))
		conn_fail(c, CAUSE_RESET);
}

/* At the end of our payload. */
static void queue_tail(struct conn *c)
{
	const struct tail tail = { .sent = c->out.at.position };
	uint8_t frame[PROTOCOL_TAIL];

	tail_encode(&tail, frame);
	sender_note(&c->out, frame, sizeof(frame));
	c->tailed = true;
}

/* One send(2), and what follows from it: the tail, and for which events to wait. */
static void push(struct conn *c)
{
	ssize_t n = 0;

	if (!sender_idle(&c->out))
		n = sender_push(&c->out, c->source.fd, c->g->o->size);
	if (n < 0 && n != -EAGAIN) {
		conn_broken(c, (int)n);
		return;
	}
	if (c->state == CONN_ENDING && !c->tailed && sender_idle(&c->out))
		queue_tail(c);
	watch(c, EPOLLIN | (sender_idle(&c->out) ? 0 : EPOLLOUT), true);
}

static void opened(struct conn *c)
{
	uint8_t header[PROTOCOL_HEADER];

	conn_header(c, header);
	sender_note(&c->out, header, sizeof(header));
	c->wanted = PROTOCOL_WORD;
	push(c);
}

static void go(struct conn *c)
{
	c->state = CONN_ACTIVE;
	c->since_ns = clock_ns();
	c->in.begin_ns = c->g->begin_ns;
	c->in.end_ns = c->g->end_ns;
	sender_note(&c->out, PROTOCOL_GO, PROTOCOL_WORD);
	if (sends_up(c))
		c->out.left = SENDER_ENDLESS;
	push(c);
}

/* The sink's greeting. */
static void take_hello(struct conn *c, const uint8_t *data, size_t n)
{
	if (n > c->wanted || memcmp(data, &PROTOCOL_HELLO[PROTOCOL_WORD - c->wanted], n)) {
		conn_wrong(c, false);
		return;
	}
	c->wanted -= n;
	if (!c->wanted)
		conn_ready(c);
}

/* The sink's tail has come.  Both totals must be right: what we have received, what it has. */
static void complete(struct conn *c)
{
	struct tally *t = c->g->tally;
	const struct tail *tail = &c->in.tail;

	t->bytes_up += tail->window;
	tally_share(t, tail->window + c->in.window);
	if (tail->wrong) {
		conn_wrong(c, true);
	} else if (c->tailed && receiver_complete(&c->in) && tail->received == c->out.at.position) {
		conn_close(c);
	} else {
		conn_fail(c, CAUSE_SHORT);
	}
}

static void take(struct conn *c, uint8_t *data, size_t n)
{
	uint64_t before = c->in.window;

	receiver_stream(&c->in, data, n, clock_ns());
	c->g->tally->bytes_down += c->in.window - before;
	if (c->in.wrong)
		conn_wrong(c, false);
	else if (c->in.ended)
		complete(c);
}

/* One recv(2) of at most N bytes.  What came, or a negative number. */
static ssize_t pull(struct conn *c, size_t n)
{
	uint8_t *data = generator_data(c->g);
	ssize_t got = recv(c->source.fd, data, n, 0);

	if (got < 0) {
		if (errno != EAGAIN)
			conn_broken(c, -errno);
		return -1;
	}
	if (!got)
		conn_fail(c, CAUSE_SHORT); /* it is we who close first */
	else if (c->state == CONN_OPENING)
		take_hello(c, data, (size_t)got);
	else
		take(c, data, (size_t)got);
	return got;
}

static void finish(struct conn *c)
{
	if (c->state != CONN_ACTIVE) {
		conn_close(c); /* ended before it began */
		return;
	}
	c->state = CONN_ENDING;
	c->since_ns = clock_ns();
	c->in.end_ns = c->g->end_ns; /* earlier than planned, if a signal has come */
	sender_stop(&c->out, PROTOCOL_BLOCK);
	push(c);
}

static void event(struct conn *c, uint32_t events)
{
	if (is_slow(c) && c->state == CONN_ACTIVE) {
		watch(c, 0, false); /* an end that tick() will read */
		return;
	}
	if ((events & EPOLLOUT) && !sender_idle(&c->out))
		push(c);
	if (c->source.fd >= 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		pull(c, PATTERN_PIECE);
}

/* As many bytes as the rate allows by now. */
static void read_slowly(struct conn *c, uint64_t now)
{
	uint64_t had = c->in.at.position + c->in.held_n;
	double allowed = (double)c->g->o->rate * (double)(now - c->since_ns) / NS_PER_S;
	ssize_t n = 1;

	while (n > 0 && c->state == CONN_ACTIVE && (double)had + 1 <= allowed) {
		double more = allowed - (double)had;

		n = pull(c, more < PATTERN_PIECE ? (size_t)more : PATTERN_PIECE);
		had += n > 0 ? (uint64_t)n : 0;
	}
}

static void tick(struct conn *c, uint64_t now)
{
	if (c->state == CONN_OPENING && now >= c->since_ns + c->g->o->timeout_ms * NS_PER_MS)
		conn_fail(c, CAUSE_TIMEOUT);
	else if (c->state == CONN_ACTIVE && is_slow(c) && now > c->since_ns)
		read_slowly(c, now);
	else if (c->state == CONN_ENDING && sender_idle(&c->out) &&
		 now >= c->since_ns + DRAIN_NS / 2)
		conn_shut(c);
}

const struct engine transfer_engine = {
	.opened = opened,
	.go = go,
	.event = event,
	.finish = finish,
	.tick = tick,
	.events = EPOLLIN | EPOLLOUT,
};
