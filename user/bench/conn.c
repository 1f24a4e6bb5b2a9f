// SPDX-License-Identifier: BSD-2-Clause
/* The connections of a generator: how they begin and end, and the engines that use them. */
#include "conn.h"

#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/minmax.h"

#define FIRST_PORT 16384 /* the first of the local ports that UDP with crr uses in turn */
#define PORTS (65536 - FIRST_PORT)
#define TOLD_MAX 5 /* lines on stderr about wrong content or errors, per process */

/* --- the end --- */

static void drop_socket(struct conn *c)
{
	if (c->source.fd >= 0)
		close(c->source.fd); /* epoll forgets it */
	c->source.fd = -1;
	c->source.registered = false;
}

void conn_close(struct conn *c)
{
	bool ready = c->state == CONN_READY;

	drop_socket(c);
	if (c->state == CONN_CLOSED)
		return;
	c->state = CONN_CLOSED;
	c->g->n_closed++;
	/*
	 * client.c has counted C in g->in_flight: when it opened C (PHASE_OPEN), or when it began
	 * to finish C (PHASE_END).
	 */
	if (c->g->phase != PHASE_RUN && !ready && c->g->in_flight)
		c->g->in_flight--;
}

/* crr goes on with the next tick; the others never replace a connection. */
static void end_or_retry(struct conn *c)
{
	if (c->g->phase == PHASE_OPEN && c->state != CONN_READY)
		c->g->tally->failed++;
	if (c->g->o->workload == WORKLOAD_CRR && c->g->phase == PHASE_RUN) {
		drop_socket(c);
		c->state = CONN_NEW;
		return;
	}
	conn_close(c);
}

void conn_fail(struct conn *c, enum cause cause)
{
	c->g->tally->errors[cause]++;
	end_or_retry(c);
}

static void conn_broken(struct conn *c, int error)
{
	conn_fail(c, error == -ETIMEDOUT ? CAUSE_TIMEOUT : CAUSE_RESET);
}

void conn_connect_failed(struct conn *c, int error)
{
	if (c->g->tally->errors[CAUSE_CONNECT] < TOLD_MAX)
		warnx("connect: %s", strerror(error));
	conn_fail(c, CAUSE_CONNECT);
}

static void conn_wrong(struct conn *c)
{
	if (c->g->tally->wrong++ < TOLD_MAX)
		warnx("wrong content: byte %llu from the sink differs, or the sink has reported it",
		      (unsigned long long)c->in.wrong_at);
	end_or_retry(c);
}

/* --- the beginning --- */

/* Targets in turn; sources in turn as well, so that each target is reached from each source. */
static int bind_and_connect(struct conn *c, const struct addr *target, uint64_t turn)
{
	const struct options *o = c->g->o;
	const int one = 1;

	if (!o->udp) {
		setsockopt(c->source.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		/* the port is chosen by connect(), which knows the whole 4-tuple */
		setsockopt(c->source.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
	}
	if (o->source.count) {
		struct addr from;

		source_range_at(&o->source, o->udp ? turn + turn / PORTS : turn / o->n_addresses,
				&from);
		/* UDP has no TIME_WAIT: take the port that was used longest ago */
		if (o->udp && o->workload == WORKLOAD_CRR)
			addr_set_port(&from, htons((in_port_t)(FIRST_PORT + turn % PORTS)));
		if (bind(c->source.fd, (struct sockaddr *)&from.ss, from.len))
			return -errno;
	}
	if (connect(c->source.fd, (const struct sockaddr *)&target->ss, target->len))
		return -errno;
	return 0;
}

void conn_open(struct conn *c)
{
	struct generator *g = c->g;
	uint64_t turn = g->index + g->connects++ * g->processes;
	const struct addr *target = &g->o->addresses[turn % g->o->n_addresses];
	int r;

	drop_socket(c);
	c->seed = pattern_mix(g->seed + turn);
	sender_open(&c->out, c->seed, PATTERN_UP);
	receiver_open(&c->in, c->seed, PATTERN_DOWN, g->o->sample);
	c->wanted = 0;
	c->tailed = false;
	c->ends = g->o->ends == ENDS_EACH ? turn % N_ENDS : g->o->ends;
	c->since_ns = clock_ns();
	c->state = CONN_CONNECTING;
	c->source.fd = socket(target->ss.ss_family,
			      (g->o->udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC,
			      0);
	if (c->source.fd < 0) {
		conn_connect_failed(c, errno);
		return;
	}
	r = bind_and_connect(c, target, turn);
	if (r && r != -EINPROGRESS) {
		conn_connect_failed(c, -r);
		return;
	}
	if (!r)
		c->state = CONN_OPENING;
	r = loop_watch(&g->loop, &c->source, g->engine->events, true);
	if (r)
		conn_connect_failed(c, -r);
	else if (c->state == CONN_OPENING)
		g->engine->opened(c);
}

void conn_connected(struct conn *c, uint32_t events)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (events & (EPOLLERR | EPOLLHUP)) {
		getsockopt(c->source.fd, SOL_SOCKET, SO_ERROR, &error, &len);
		conn_connect_failed(c, error ?: ECONNRESET);
	} else if (events & EPOLLOUT) {
		c->state = CONN_OPENING;
		c->g->engine->opened(c);
	}
}

void conn_ready(struct conn *c)
{
	c->state = CONN_READY;
	c->g->in_flight--;
	c->g->tally->opened++;
}

static void note_header(struct conn *c)
{
	const struct options *o = c->g->o;
	struct frame f = {
		.header = {
			.seed = c->seed,
			.workload = o->workload,
			.sample = o->sample,
			.ends = (uint16_t)c->ends,
			.size = (uint32_t)o->size,
			.warmup_ms = (uint32_t)o->warmup_ms,
			.seconds_ms = o->seconds_ms,
		},
	};

	frame_seal(&f, FRAME_HEADER);
	sender_note(&c->out, &f, sizeof(f));
}

/* --- messages --- */

/*
 * The engine of rr, crr and idle: a request of `size` bytes, a response of as many.
 *
 * Sockets are edge-triggered: a request takes one send(2) and its response one recv(2) and a share
 * of an epoll_wait(2).  So the engine reads until recv(2) does not fill the buffer.  Once FIN may
 * be behind the data, the engine reads until EOF, because no further event would report the FIN.
 */

#define EXPIRED_NS (1 * NS_PER_S) /* for the other side's FIN after a timeout */
#define ASK_AGAIN_NS (1 * NS_PER_S)
#define FIN_BEHIND (EPOLLRDHUP | EPOLLHUP | EPOLLERR)

static void exchange_push(struct conn *c)
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
	if (c->ends == ENDS_CLIENT_HALF)
		shutdown(c->source.fd, SHUT_WR);
}

static void request(struct conn *c)
{
	c->out.left = c->wanted = c->g->o->size;
	exchange_push(c);
}

static void exchange_opened(struct conn *c)
{
	note_header(c);
	/* a transaction of crr is ACTIVE from its connect(2) on */
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

void conn_record(struct conn *c, uint64_t now)
{
	struct generator *g = c->g;
	struct tally *t = g->tally;
	bool last_of_idle = g->o->workload == WORKLOAD_IDLE && g->phase == PHASE_END;

	if ((now < g->begin_ns || now >= g->end_ns) && !last_of_idle)
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
	shutdown(c->source.fd, SHUT_WR);
}

/* The connection of C, of crr, is over. */
static void crr_ended(struct conn *c, uint64_t now)
{
	if (c->g->phase == PHASE_RUN && now < c->g->end_ns)
		conn_open(c);
	else
		conn_close(c);
}

/* End the connection of C, of crr, which has its response. */
static void crr_end(struct conn *c, uint64_t now)
{
	const struct linger reset = { .l_onoff = 1 };

	if (c->ends == ENDS_CLIENT_RESET)
		setsockopt(c->source.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (c->ends == ENDS_CLIENT || c->ends == ENDS_CLIENT_RESET) {
		crr_ended(c, now);
		return;
	}
	c->state = CONN_ENDING;
	c->since_ns = now;
	if (c->ends == ENDS_SERVER_RESET) {
		request(c);
		c->wanted = 0;
	}
}

/* A whole response has come. */
static void completed(struct conn *c, uint64_t now)
{
	bool more = c->g->phase == PHASE_RUN && now < c->g->end_ns;

	if (c->state == CONN_OPENING) {
		conn_ready(c);
		return;
	}
	if (c->state == CONN_EXPIRED) {
		conn_fail(c, CAUSE_TIMEOUT);
		return;
	}
	conn_record(c, now);
	if (c->g->o->workload == WORKLOAD_CRR)
		crr_end(c, now);
	else if (more)
		next_request(c, now);
	else
		end_in_order(c);
}

/* N bytes have come.  False if C is closed, wrong, or begins anew (crr). */
static bool exchange_take(struct conn *c, const uint8_t *data, size_t n, uint64_t now)
{
	if (n > c->wanted) /* more than was asked for */
		receiver_wrong(&c->in);
	else
		receiver_take(&c->in, data, n, now);
	if (c->in.wrong) {
		conn_wrong(c);
		return false;
	}
	c->wanted -= n;
	if (c->wanted)
		return true;
	completed(c, now);
	return c->state == CONN_ENDING ||
	       (c->g->o->workload != WORKLOAD_CRR && c->state != CONN_CLOSED);
}

/* The other side has said its last, in order or, if it was a RESET, by that. */
static void exchange_ended(struct conn *c, bool reset)
{
	if (c->state != CONN_ENDING || reset != (c->ends == ENDS_SERVER_RESET)) {
		conn_fail(c, reset ? CAUSE_RESET : CAUSE_SHORT);
		return;
	}
	if (c->ends == ENDS_SERVER_HALF)
		request(c);
	if (c->g->o->workload == WORKLOAD_CRR)
		crr_ended(c, clock_ns());
	else
		conn_close(c);
}

/* One recv(2).  False if there is nothing more to read now. */
static bool exchange_pull(struct conn *c, uint32_t events)
{
	uint8_t *data = c->g->buffer + sizeof(struct frame);
	ssize_t n = recv(c->source.fd, data, PATTERN_PIECE, 0);

	if (n > 0)
		return exchange_take(c, data, (size_t)n, clock_ns()) &&
		       (n == PATTERN_PIECE || (events & FIN_BEHIND));
	if (n == 0 || errno == ECONNRESET)
		exchange_ended(c, n < 0);
	else if (errno != EAGAIN)
		conn_broken(c, -errno);
	return false;
}

static void exchange_event(struct conn *c, uint32_t events)
{
	if ((events & EPOLLOUT) && !sender_idle(&c->out))
		exchange_push(c);
	if (!(events & (EPOLLIN | FIN_BEHIND)) || c->source.fd < 0)
		return;
	while (exchange_pull(c, events))
		;
}

static void exchange_finish(struct conn *c)
{
	if (c->state == CONN_READY && c->g->o->workload == WORKLOAD_IDLE)
		next_request(c, clock_ns());
	else if (c->state == CONN_READY)
		end_in_order(c);
	/* a request under way ends by its response, or its timeout */
}

static void exchange_tick(struct conn *c, uint64_t now)
{
	uint64_t waited = now > c->since_ns ? now - c->since_ns : 0;
	uint64_t timeout = c->g->o->timeout_ms * NS_PER_MS;

	switch (c->state) {
	case CONN_OPENING:
	case CONN_ACTIVE:
		if (waited < timeout)
			break;
		/* if only bytes were lost, the path still works, and answers our FIN by a FIN */
		c->state = CONN_EXPIRED;
		c->since_ns = now;
		shutdown(c->source.fd, SHUT_WR);
		break;
	case CONN_EXPIRED:
	case CONN_ENDING:
		/* a reset that was lost is repeated if asked for */
		if (c->ends == ENDS_SERVER_RESET && waited >= ASK_AGAIN_NS &&
		    send(c->source.fd, "", 1, MSG_NOSIGNAL) < 0 && errno == ECONNRESET) {
			exchange_ended(c, true);
			break;
		}
		if (waited >= (c->state == CONN_EXPIRED ? EXPIRED_NS : timeout))
			conn_fail(c, CAUSE_TIMEOUT);
		break;
	default:
		break;
	}
}

const struct engine exchange_engine = {
	.opened = exchange_opened,
	.go = next_request,
	.event = exchange_event,
	.finish = exchange_finish,
	.tick = exchange_tick,
	.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
};

/* --- streams --- */

/*
 * The engine of bulk-up, bulk-down, bulk-both and slow: streams, each with a tail at its end.
 *
 * Sockets are level-triggered, and an event means one send(2) and one recv(2) of up to 256 KiB.
 * So all connections get their turn, and no socket is registered anew while payload flows.
 *
 * The end takes one tail in each direction (wire.h).  If the sink's tail does not come in time, we
 * half-close.  Then a sink that waits for lost bytes sends its tail, which counts the bytes that
 * have come.  If no tail comes even then, the connection fails (CAUSE_TIMEOUT).
 */

/* One send(2), and what follows from it: the tail, and for which events to wait. */
static void transfer_push(struct conn *c)
{
	ssize_t n = 0;
	int r;

	if (!sender_idle(&c->out))
		n = sender_push(&c->out, c->source.fd, c->g->o->size);
	if (n < 0 && n != -EAGAIN) {
		conn_broken(c, (int)n);
		return;
	}
	if (c->state == CONN_ENDING && !c->tailed && sender_idle(&c->out)) {
		struct frame f = { .tail = { .sent = c->out.at.position } };

		frame_seal(&f, FRAME_TAIL);
		sender_note(&c->out, &f, sizeof(f));
		c->tailed = true;
	}
	r = loop_watch(&c->g->loop, &c->source, EPOLLIN | (sender_idle(&c->out) ? 0 : EPOLLOUT),
		       true);
	if (r)
		conn_broken(c, r);
}

static void transfer_opened(struct conn *c)
{
	note_header(c);
	c->wanted = PROTOCOL_WORD;
	transfer_push(c);
}

static void transfer_go(struct conn *c, uint64_t now)
{
	c->state = CONN_ACTIVE;
	c->since_ns = now;
	c->in.begin_ns = c->g->begin_ns;
	c->in.end_ns = c->g->end_ns;
	sender_note(&c->out, PROTOCOL_GO, PROTOCOL_WORD);
	if (sends_up(c->g->o->workload))
		c->out.left = SENDER_ENDLESS;
	transfer_push(c);
}

/* The sink's greeting. */
static void take_hello(struct conn *c, const uint8_t *data, size_t n)
{
	if (n > c->wanted || memcmp(data, &PROTOCOL_HELLO[PROTOCOL_WORD - c->wanted], n)) {
		conn_wrong(c);
		return;
	}
	c->wanted -= n;
	if (!c->wanted)
		conn_ready(c);
}

/* The sink's tail has come.  Both ends must have received all bytes. */
static void complete(struct conn *c)
{
	struct tally *t = c->g->tally;
	const struct tail *tail = &c->in.end.tail;

	t->bytes_up += tail->window;
	tally_share(t, tail->window + c->in.window);
	if (tail->wrong) {
		conn_wrong(c);
	} else if (c->tailed && receiver_complete(&c->in) && tail->received == c->out.at.position) {
		conn_close(c);
	} else {
		conn_fail(c, CAUSE_SHORT);
	}
}

static void transfer_take(struct conn *c, uint8_t *data, size_t n)
{
	uint64_t before = c->in.window;

	receiver_stream(&c->in, data, n, clock_ns());
	c->g->tally->bytes_down += c->in.window - before;
	if (c->in.wrong)
		conn_wrong(c);
	else if (c->in.ended)
		complete(c);
}

/* One recv(2) of at most N bytes.  Returns the bytes that came, or a negative number. */
static ssize_t transfer_pull(struct conn *c, size_t n)
{
	uint8_t *data = c->g->buffer + sizeof(struct frame);
	ssize_t got = recv(c->source.fd, data, n, 0);

	if (got < 0) {
		if (errno != EAGAIN)
			conn_broken(c, -errno);
		return -1;
	}
	if (!got)
		conn_fail(c, CAUSE_SHORT); /* a sink never closes first */
	else if (c->state == CONN_OPENING)
		take_hello(c, data, (size_t)got);
	else
		transfer_take(c, data, (size_t)got);
	return got;
}

static void transfer_finish(struct conn *c)
{
	if (c->state != CONN_ACTIVE) {
		conn_close(c); /* ended before it began */
		return;
	}
	c->state = CONN_ENDING;
	c->since_ns = clock_ns();
	c->in.end_ns = c->g->end_ns; /* earlier than planned, if a signal has come */
	sender_stop(&c->out);
	transfer_push(c);
}

static void transfer_event(struct conn *c, uint32_t events)
{
	if (c->g->o->workload == WORKLOAD_SLOW && c->state == CONN_ACTIVE) {
		loop_watch(&c->g->loop, &c->source, 0, false); /* transfer_tick() will read */
		return;
	}
	if ((events & EPOLLOUT) && !sender_idle(&c->out))
		transfer_push(c);
	if (c->source.fd >= 0 && (events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		transfer_pull(c, PATTERN_PIECE);
}

/* As many bytes as the rate allows by now. */
static void read_slowly(struct conn *c, uint64_t now)
{
	uint64_t had = c->in.at.position + c->in.held_n;
	uint64_t allowed = (now - c->since_ns) / NS_PER_MS * c->g->o->rate / 1000;

	while (c->state == CONN_ACTIVE && had < allowed) {
		ssize_t n = transfer_pull(c, smaller(allowed - had, PATTERN_PIECE));

		if (n <= 0)
			return;
		had += (uint64_t)n;
	}
}

static void transfer_tick(struct conn *c, uint64_t now)
{
	if (c->state == CONN_OPENING && now >= c->since_ns + c->g->o->timeout_ms * NS_PER_MS)
		conn_fail(c, CAUSE_TIMEOUT);
	else if (c->state == CONN_ACTIVE && c->g->o->workload == WORKLOAD_SLOW && now > c->since_ns)
		read_slowly(c, now);
	else if (c->state == CONN_ENDING && sender_idle(&c->out) &&
		 now >= c->since_ns + DRAIN_NS / 2)
		shutdown(c->source.fd, SHUT_WR);
}

const struct engine transfer_engine = {
	.opened = transfer_opened,
	.go = transfer_go,
	.event = transfer_event,
	.finish = transfer_finish,
	.tick = transfer_tick,
	.events = EPOLLIN | EPOLLOUT,
};
