// SPDX-License-Identifier: BSD-2-Clause
/*
 * The engine of rr, crr and idle: a request of `size` bytes, a response of as many.
 *
 * Sockets are edge-triggered: a request takes one send(2) and its response one recv(2) and a share
 * of an epoll_wait(2).  So one must read until the buffer is not filled, or, once FIN may be
 * behind the data, until EOF: no other event would tell of it.
 */
#include <errno.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "generator.h"

#define PAUSE_NS (20 * NS_PER_MS)  /* of a crr loop after an error */
#define EXPIRED_NS (1 * NS_PER_S)  /* for the other side's FIN after a timeout */
#define FIN_BEHIND (EPOLLRDHUP | EPOLLHUP | EPOLLERR)

static void push(struct conn *c)
{
	while (!sender_idle(&c->out)) {
		ssize_t n = sender_push(&c->out, c->source.fd, PATTERN_PIECE);

		if (n == -EAGAIN)
			return;
		if (n < 0) {
			conn_broken(c, (int)n);
			return;
		}
	}
}

static void request(struct conn *c)
{
	c->out.left = c->wanted = c->g->o->size;
	push(c);
}

static void opened(struct conn *c)
{
	uint8_t header[PROTOCOL_HEADER];

	conn_header(c, header);
	sender_note(&c->out, header, sizeof(header));
	/* a transaction counts as one from its connect() on */
	if (c->g->o->workload == WORKLOAD_CRR)
		c->state = CONN_ACTIVE;
	request(c);
}

static void next_request(struct conn *c, uint64_t now)
{
	c->state = CONN_ACTIVE;
	c->since_ns = now;
	request(c);
}

static void record(struct conn *c, uint64_t now)
{
	struct generator *g = c->g;
	struct tally *t = g->tally;
	bool last_of_idle = g->o->workload == WORKLOAD_IDLE && g->phase == PHASE_END;

	if (!generator_measures(g, now) && !last_of_idle)
		return;
	t->requests++;
	t->bytes_up += g->o->size;
	t->bytes_down += g->o->size;
	histogram_record(&t->latency, now - c->since_ns);
}

/* Half-close, and see whether the other side ends without another byte. */
static void end_in_order(struct conn *c)
{
	c->state = CONN_ENDING;
	c->since_ns = clock_ns();
	conn_shut(c);
}

static void go(struct conn *c)
{
	if (c->g->o->workload != WORKLOAD_IDLE)
		next_request(c, clock_ns());
}

/* A whole response has come. */
static void completed(struct conn *c, uint64_t now)
{
	struct generator *g = c->g;

	if (c->state == CONN_OPENING) {
		conn_ready(c);
		return;
	}
	if (c->state == CONN_EXPIRED) {
		conn_fail(c, CAUSE_TIMEOUT);
		return;
	}
	record(c, now);
	if (g->o->workload == WORKLOAD_CRR) {
		conn_drop_socket(c);
		if (g->phase == PHASE_RUN && now < g->end_ns)
			conn_open(c);
		else
			conn_close(c);
	} else if (g->phase == PHASE_RUN && now < g->end_ns) {
		next_request(c, now);
	} else {
		end_in_order(c);
	}
}

/* The sink answers a wrong request with the complement of the byte that is due (protocol.h). */
static bool is_complaint(const struct conn *c, uint8_t byte)
{
	struct pattern due;

	pattern_open(&due, c->seed, PATTERN_DOWN);
	pattern_advance(&due, c->in.wrong_at);
	return (byte ^ *pattern_bytes(&due)) == 0xff;
}

/* N bytes have come.  False if the connection is no longer what it was. */
static bool take(struct conn *c, const uint8_t *data, size_t n, uint64_t now)
{
	uint64_t begin = c->in.at.position;

	if (n > c->wanted) {
		c->in.wrong_at = begin + c->wanted; /* more than was asked for */
		conn_wrong(c, false);
		return false;
	}
	receiver_take(&c->in, data, n, now);
	if (c->in.wrong) {
		conn_wrong(c, is_complaint(c, data[c->in.wrong_at - begin]));
		return false;
	}
	c->wanted -= n;
	if (c->wanted)
		return true;
	completed(c, now);
	return c->g->o->workload != WORKLOAD_CRR && c->state != CONN_CLOSED;
}

static void eof(struct conn *c)
{
	if (c->state == CONN_ENDING)
		conn_close(c);
	else
		conn_fail(c, CAUSE_SHORT);
}

/* One recv(2).  False if there is nothing more to read now. */
static bool pull(struct conn *c, uint32_t events)
{
	uint8_t *data = generator_data(c->g);
	ssize_t n = recv(c->source.fd, data, PATTERN_PIECE, 0);

	if (n > 0)
		return take(c, data, (size_t)n, clock_ns()) &&
		       (n == PATTERN_PIECE || (events & FIN_BEHIND));
	if (n == 0)
		eof(c);
	else if (errno != EAGAIN)
		conn_broken(c, -errno);
	return false;
}

static void event(struct conn *c, uint32_t events)
{
	if ((events & EPOLLOUT) && !sender_idle(&c->out))
		push(c);
	if (!(events & (EPOLLIN | FIN_BEHIND)) || c->source.fd < 0)
		return;
	while (pull(c, events))
		;
}

static void finish(struct conn *c)
{
	if (c->state == CONN_READY && c->g->o->workload == WORKLOAD_IDLE)
		next_request(c, clock_ns());
	else if (c->state == CONN_READY)
		end_in_order(c);
	else if (c->state == CONN_PAUSED)
		conn_close(c);
	/* what is under way ends by itself: with its response, or its timeout */
}

static void tick(struct conn *c, uint64_t now)
{
	uint64_t waited = now > c->since_ns ? now - c->since_ns : 0;
	uint64_t timeout = c->g->o->timeout_ms * NS_PER_MS;

	switch (c->state) {
	case CONN_PAUSED:
		if (waited >= PAUSE_NS)
			conn_open(c);
		break;
	case CONN_OPENING:
	case CONN_ACTIVE:
		if (waited < timeout)
			break;
		/* what is lost never comes: then a path that works ends in order after our FIN */
		c->state = CONN_EXPIRED;
		c->since_ns = now;
		conn_shut(c);
		break;
	case CONN_EXPIRED:
	case CONN_ENDING:
		if (waited >= (c->state == CONN_EXPIRED ? EXPIRED_NS : timeout))
			conn_fail(c, CAUSE_TIMEOUT);
		break;
	default:
		break;
	}
}

const struct engine exchange_engine = {
	.opened = opened,
	.go = go,
	.event = event,
	.finish = finish,
	.tick = tick,
	.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
};
