// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "generator.h"

#define WRONG_TOLD_MAX 5 /* lines on stderr about wrong content, per process */

static enum wire wire_of(enum workload w)
{
	switch (w) {
	case WORKLOAD_BULK_UP:
		return WIRE_UP;
	case WORKLOAD_BULK_DOWN:
	case WORKLOAD_SLOW:
		return WIRE_DOWN;
	case WORKLOAD_BULK_BOTH:
		return WIRE_BOTH;
	default:
		return WIRE_EXCHANGE;
	}
}

void conn_header(const struct conn *c, uint8_t out[PROTOCOL_HEADER])
{
	const struct options *o = c->g->o;
	const struct header h = {
		.wire = wire_of(o->workload),
		.full = o->verify == VERIFY_FULL,
		.size = o->size,
		.seed = c->seed,
		.warmup_ms = o->warmup_ms,
		.measure_ms = o->seconds_ms,
	};

	header_encode(&h, out);
}

/* --- the end --- */

void conn_drop_socket(struct conn *c)
{
	if (c->source.fd >= 0)
		close(c->source.fd); /* epoll forgets it */
	c->source.fd = -1;
	c->source.registered = false;
}

/* In flight, as generator.c counts: opening, or idle and used for the last time. */
static bool counts_as_in_flight(const struct conn *c)
{
	return c->g->phase == PHASE_OPEN || c->g->phase == PHASE_END;
}

void conn_close(struct conn *c)
{
	bool ready = c->state == CONN_READY;

	conn_drop_socket(c);
	if (c->state == CONN_CLOSED)
		return;
	c->state = CONN_CLOSED;
	c->g->n_closed++;
	if (counts_as_in_flight(c) && !ready && c->g->in_flight)
		c->g->in_flight--;
}

/* crr goes on after a pause; the others never replace a connection. */
static void end_or_pause(struct conn *c)
{
	if (c->g->phase == PHASE_OPEN && c->state != CONN_READY)
		c->g->tally->failed++;
	if (c->g->o->workload == WORKLOAD_CRR && c->g->phase == PHASE_RUN) {
		conn_drop_socket(c);
		c->state = CONN_PAUSED;
		c->since_ns = clock_ns();
		return;
	}
	conn_close(c);
}

void conn_fail(struct conn *c, enum cause cause)
{
	c->g->tally->errors[cause]++;
	end_or_pause(c);
}

void conn_broken(struct conn *c, int error)
{
	conn_fail(c, error == -ETIMEDOUT ? CAUSE_TIMEOUT : CAUSE_RESET);
}

static void connect_failed(struct conn *c, int error)
{
	if (error > 0 && error < ERRNO_MAX && !c->g->tally->connect_errno[error]++)
		bench_say("connect: %s", strerror(error));
	conn_fail(c, CAUSE_CONNECT);
}

void conn_wrong(struct conn *c, bool by_sink)
{
	uint64_t earlier = c->g->tally->wrong++;

	if (earlier < WRONG_TOLD_MAX && by_sink)
		bench_say("wrong content: found by the sink");
	else if (earlier < WRONG_TOLD_MAX)
		bench_say("wrong content at byte %llu from the sink",
			  (unsigned long long)c->in.wrong_at);
	end_or_pause(c);
}

void conn_shut(struct conn *c)
{
	if (!c->shut)
		shutdown(c->source.fd, SHUT_WR);
	c->shut = true;
}

/* --- the beginning --- */

/* Targets in turn; sources in turn as well, so that each target is reached from each source. */
static int bind_and_connect(struct conn *c, const struct addr *target, uint64_t turn)
{
	const struct options *o = c->g->o;
	const int one = 1;

	setsockopt(c->source.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (o->source.family) {
		struct addr from;

		/* the port is chosen by connect(), which knows the whole 4-tuple */
		setsockopt(c->source.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
		source_range_at(&o->source, turn / o->connect.n, &from);
		if (bind(c->source.fd, (struct sockaddr *)&from.ss, from.len))
			return -errno;
	}
	if (connect(c->source.fd, (const struct sockaddr *)&target->ss, target->len))
		return -errno;
	return 0;
}

static void streams_open(struct conn *c, uint64_t turn)
{
	c->seed = pattern_mix(c->g->seed + turn);
	sender_open(&c->out, c->seed, PATTERN_UP);
	receiver_open(&c->in, c->seed, PATTERN_DOWN, c->g->o->verify == VERIFY_FULL);
	c->wanted = 0;
	c->shut = c->tailed = false;
}

void conn_open(struct conn *c)
{
	struct generator *g = c->g;
	uint64_t turn = g->index + g->connects++ * g->processes;
	const struct addr *target = &g->o->connect.list[turn % g->o->connect.n].addrs[0];
	int r;

	streams_open(c, turn);
	c->since_ns = clock_ns();
	c->state = CONN_CONNECTING;
	c->source.fd = socket(target->ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (c->source.fd < 0) {
		connect_failed(c, errno);
		return;
	}
	r = bind_and_connect(c, target, turn);
	if (r && r != -EINPROGRESS) {
		connect_failed(c, -r);
		return;
	}
	if (!r)
		c->state = CONN_OPENING;
	r = loop_watch(&g->loop, &c->source, g->engine->events, true);
	if (r)
		connect_failed(c, -r);
	else if (c->state == CONN_OPENING)
		g->engine->opened(c);
}

void conn_connect_timeout(struct conn *c)
{
	connect_failed(c, ETIMEDOUT);
}

bool conn_connected(struct conn *c, uint32_t events)
{
	int error = 0;
	socklen_t len = sizeof(error);

	if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
		return false;
	if (events & (EPOLLERR | EPOLLHUP)) {
		getsockopt(c->source.fd, SOL_SOCKET, SO_ERROR, &error, &len);
		connect_failed(c, error ?: ECONNRESET);
		return false;
	}
	c->state = CONN_OPENING;
	c->g->engine->opened(c);
	return c->state != CONN_CLOSED && c->state != CONN_PAUSED;
}

void conn_ready(struct conn *c)
{
	c->state = CONN_READY;
	c->g->in_flight--;
	c->g->tally->opened++;
}
