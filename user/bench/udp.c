// SPDX-License-Identifier: BSD-2-Clause
/*
 * The engine of --protocol udp: questions (rr, crr), of which one is under way on each socket, and
 * bursts one way (bulk-up).  A question without an answer in time is an error, and the next
 * question is asked.  A late answer does not count.
 */
#include <err.h>
#include <poll.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "conn.h"
#include "datagram.h"

#define TRIES 8 /* for a first answer */
#define WRONG_TOLD_MAX 5

/* Ask.  A question that cannot be sent gets no answer. */
static void ask(struct conn *c, size_t size)
{
	const struct datagram d = { DATAGRAM_QUESTION, (uint32_t)++c->wanted, c->seed, 0 };

	datagram_write(c->g->buffer, size, &d);
	send(c->source.fd, c->g->buffer, size, 0);
}

/* Whether what has come is the answer to the last question. */
static bool hear(struct conn *c, struct datagram *ret)
{
	ssize_t n = recv(c->source.fd, c->g->buffer, PATTERN_PIECE, 0);

	if (n <= 0) /* rinetd also sends empty datagrams */
		return false;
	if (datagram_read(c->g->buffer, (size_t)n, ret) && ret->kind == DATAGRAM_ANSWER &&
	    ret->flow == c->seed)
		return ret->number == (uint32_t)c->wanted;
	if (c->g->tally->wrong++ < WRONG_TOLD_MAX)
		warnx("a wrong answer, of %zd bytes", n);
	return false;
}

/* --- bursts --- */

/*
 * Each rate is tried for STEP_NS.  A rate is low enough if less than one datagram in LOSS_SHARE is
 * lost.  A rate is too high if more are lost two times running.  Halving finds the border.  The
 * remaining time tries rates at the border, so a rate that was low enough by luck is given up.
 */
#define BURST 40
#define BURST_BYTES 65000
#define LOSS_SHARE 1000
#define LOWEST 5000.0 /* datagrams a second */
#define STEP 1.05
#define STEPS 128 /* up to 2.6 million */
#define STEP_NS (50 * NS_PER_MS)
#define REST_MS 2 /* until what is under way has come */
#define COUNT_MS 20
#define COUNTS 25

static uint64_t flood(struct conn *c, double rate, size_t burst, uint64_t begin)
{
	uint64_t sent = 0;

	for (uint64_t now = begin; now < begin + STEP_NS; now = clock_ns()) {
		double ahead = (double)sent / rate - (double)(now - begin) / NS_PER_S;
		const struct timespec pause = { .tv_nsec = (long)(ahead * NS_PER_S) };

		if (ahead > 0)
			nanosleep(&pause, NULL);
		else if (send(c->source.fd, c->g->buffer, burst * c->g->o->size, 0) > 0)
			sent += burst;
	}
	return sent;
}

/* Ask the sink how many datagrams have come; ask again if the sink is too busy to answer. */
static uint64_t count(struct conn *c)
{
	struct pollfd p = { .fd = c->source.fd, .events = POLLIN };
	struct datagram d = { 0 };

	poll(NULL, 0, REST_MS);
	for (int i = 0; i < COUNTS; i++) {
		ask(c, sizeof(d));
		while (poll(&p, 1, COUNT_MS) > 0)
			if (hear(c, &d))
				return d.loads;
	}
	return 0;
}

/* Send at RATE for STEP_NS.  True: RATE is low enough. */
static bool try_rate(struct conn *c, double rate)
{
	size_t size = c->g->o->size,
	       burst = BURST_BYTES / size < BURST ? BURST_BYTES / size : BURST;
	uint64_t begin = clock_ns(), took, sent, came;
	struct tally *t = c->g->tally;

	c->seed = pattern_mix(c->seed);
	for (size_t i = 0; i < burst; i++) {
		const struct datagram d = { DATAGRAM_LOAD, (uint32_t)i, c->seed, 0 };

		datagram_write(c->g->buffer + i * size, size, &d);
	}
	sent = flood(c, rate, burst, begin);
	took = clock_ns() - begin;
	came = count(c);
	t->wrong += came > sent;
	if (begin >= c->g->begin_ns) {
		t->requests += came;
		t->bytes_up += came * size;
	}
	if ((sent - came) * LOSS_SHARE >= sent)
		return false;
	t->lossless = (uint64_t)((double)came * NS_PER_S / (double)took);
	return true;
}

/* Send bursts until the measured time is over; the loop does not run meanwhile. */
static void bursts(struct conn *c)
{
	int low = 0, high = STEPS, failed = 0, size = (int)c->g->o->size;

	setsockopt(c->source.fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof(size));
	prctl(PR_SET_TIMERSLACK, 1);
	while (clock_ns() < c->g->end_ns) {
		int step = high - low > 1 ? (low + high) / 2 : low;
		bool enough = try_rate(c, LOWEST * __builtin_powi(STEP, step));

		if (enough) {
			low = step;
		} else if (failed) {
			high = step;
			low = step <= low && step ? step - 1 : low;
		}
		failed = !enough && !failed;
	}
	conn_close(c);
}

/* --- the engine --- */

static void datagrams_opened(struct conn *c)
{
	if (c->g->o->workload == WORKLOAD_CRR)
		c->state = CONN_ACTIVE;
	ask(c, c->g->o->size);
}

static void next(struct conn *c, uint64_t now)
{
	if (c->g->phase != PHASE_RUN || now >= c->g->end_ns) {
		conn_close(c);
	} else if (c->g->o->workload == WORKLOAD_CRR) {
		conn_open(c);
	} else if (is_transfer(c->g->o->workload)) {
		bursts(c);
	} else {
		c->state = CONN_ACTIVE;
		c->since_ns = now;
		ask(c, c->g->o->size);
	}
}

static void datagrams_event(struct conn *c, uint32_t events)
{
	uint64_t now = clock_ns();
	struct datagram d;

	(void)events;
	if (!hear(c, &d) || c->state == CONN_READY)
		return;
	if (c->state == CONN_OPENING) {
		conn_ready(c);
	} else {
		conn_record(c, now);
		next(c, now);
	}
}

static void datagrams_finish(struct conn *c)
{
	if (c->state != CONN_ACTIVE)
		conn_close(c);
}

static void datagrams_tick(struct conn *c, uint64_t now)
{
	if ((c->state != CONN_OPENING && c->state != CONN_ACTIVE) ||
	    now < c->since_ns + c->g->o->timeout_ms * NS_PER_MS)
		return;
	if (c->state == CONN_ACTIVE) {
		c->g->tally->errors[CAUSE_TIMEOUT]++;
		next(c, now);
	} else if (c->wanted < TRIES) {
		c->since_ns = now;
		ask(c, c->g->o->size);
	} else {
		conn_fail(c, CAUSE_TIMEOUT);
	}
}

const struct engine datagrams_engine = {
	.opened = datagrams_opened,
	.go = next,
	.event = datagrams_event,
	.finish = datagrams_finish,
	.tick = datagrams_tick,
	.events = EPOLLIN,
};
