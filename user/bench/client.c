// SPDX-License-Identifier: BSD-2-Clause
/* The client side: the processes that generate load, and their parent, which prints the result. */
#include "client.h"

#include <err.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/minmax.h"
#include "conn.h"
#include "team.h"

#define TICK_MS 20       /* while ticks do work */
#define TICK_REST_MS 200 /* while they only look for timeouts */
#define IDLE_DRAIN_NS (60 * NS_PER_S)
#define START_DELAY_NS (10 * NS_PER_MS) /* so that each process hears of the start in time */

/* --- a process: its phases --- */

static void say_ready(struct generator *g)
{
	g->phase = PHASE_READY;
	team_ready();
}

/* The measured time is over, at its end or because of a signal. */
static void begin_end(struct generator *g, uint64_t now)
{
	bool idle = g->o->workload == WORKLOAD_IDLE;

	g->phase = PHASE_END;
	g->next = g->in_flight = 0;
	/* each connection has its own timeout */
	g->give_up_ns = now + (idle ? IDLE_DRAIN_NS : DRAIN_NS + 2 * g->o->timeout_ms * NS_PER_MS);
	g->end_ns = smaller(g->end_ns, now);
	if (g->end_ns > g->begin_ns) {
		g->tally->began_ns = g->begin_ns;
		g->tally->measured_ns = g->end_ns - g->begin_ns;
	}
	if (!idle)
		g->limit = UINT32_MAX; /* all at once */
}

static void generator_start(struct generator *g, uint64_t start_ns)
{
	g->phase = PHASE_RUN;
	g->begin_ns = start_ns + g->o->warmup_ms * NS_PER_MS;
	if (g->o->seconds_ms)
		g->end_ns = g->begin_ns + g->o->seconds_ms * NS_PER_MS;
	/* idle connections stay as they are; after_batch() opens those of crr */
	for (uint32_t i = 0; i < g->n_conns && g->o->workload != WORKLOAD_IDLE; i++)
		if (g->conns[i].state == CONN_READY)
			g->engine->go(&g->conns[i], clock_ns());
}

static void hear_parent(struct source *s, uint32_t events)
{
	struct generator *g = container_of(s, struct generator, control);
	uint64_t start_ns;

	(void)events;
	if (!team_hear(s->fd, &start_ns))
		return;
	if (start_ns)
		generator_start(g, start_ns);
	else if (g->phase == PHASE_RUN)
		begin_end(g, clock_ns());
	else if (g->phase != PHASE_END)
		g->loop.stop = true;
}

/* --- a process: its loop --- */

static void open_more(struct generator *g)
{
	uint32_t batch = 0;

	for (; g->next < g->n_conns && g->in_flight < g->limit && batch < g->limit; batch++) {
		if (g->phase == PHASE_OPEN)
			g->in_flight++;
		conn_open(&g->conns[g->next++]);
	}
}

static void finish_more(struct generator *g)
{
	while (g->next < g->n_conns && g->in_flight < g->limit) {
		struct conn *c = &g->conns[g->next++];

		g->in_flight += c->state == CONN_READY;
		if (c->state == CONN_NEW) /* crr: the next tick would have opened it */
			conn_close(c);
		else if (c->state != CONN_CLOSED)
			g->engine->finish(c);
	}
}

static void after_batch(void *arg)
{
	struct generator *g = arg;

	if (g->phase == PHASE_OPEN || g->phase == PHASE_RUN)
		open_more(g);
	if (g->phase == PHASE_OPEN && g->next == g->n_conns && !g->in_flight)
		say_ready(g);
	if (g->phase == PHASE_END)
		finish_more(g);
	/* no connection is left, perhaps long before the time is over */
	if (g->phase >= PHASE_RUN && g->n_closed == g->n_conns) {
		if (g->phase == PHASE_RUN)
			begin_end(g, clock_ns());
		g->loop.stop = true;
	}
}

static void tick_conn(struct generator *g, struct conn *c, uint64_t now)
{
	if (g->phase == PHASE_END && now >= g->give_up_ns && c->state != CONN_CLOSED)
		conn_fail(c, CAUSE_TIMEOUT); /* the time for an orderly end is over */
	else if (c->state == CONN_NEW && g->phase == PHASE_RUN)
		conn_open(c); /* crr reconnects after an error */
	else if (c->state != CONN_CONNECTING)
		g->engine->tick(c, now);
	else if (now >= c->since_ns + g->o->timeout_ms * NS_PER_MS)
		conn_connect_failed(c, ETIMEDOUT);
}

static void tick(struct timer *t)
{
	struct generator *g = container_of(t, struct generator, tick);
	enum workload w = g->o->workload;
	uint32_t n = g->phase == PHASE_END ? g->n_conns : g->next;
	uint64_t now = clock_ns(), due;

	/* while connections are idle nothing is awaited: do not disturb what is measured */
	for (uint32_t i = 0; i < n && (w != WORKLOAD_IDLE || g->phase != PHASE_RUN); i++)
		tick_conn(g, &g->conns[i], now);
	if (g->phase == PHASE_RUN && now >= g->end_ns)
		begin_end(g, now);
	due = w == WORKLOAD_CRR || w == WORKLOAD_SLOW || g->o->udp ? TICK_MS : TICK_REST_MS;
	due += g->loop.now_ms;
	if (g->phase == PHASE_RUN)
		due = smaller(due, g->end_ns / NS_PER_MS + 1);
	timer_set(&g->loop, &g->tick, due);
}

static void handle_conn(struct source *s, uint32_t events)
{
	struct conn *c = container_of(s, struct conn, source);

	if (c->state == CONN_CONNECTING)
		conn_connected(c, events);
	if (c->state > CONN_CONNECTING && c->state < CONN_CLOSED)
		c->g->engine->event(c, events);
}

static int generator_open(struct generator *g, unsigned int index)
{
	int r = loop_open(&g->loop, after_batch, g);

	if (r)
		return r;
	g->index = index;
	g->tally += index;
	g->n_conns = g->o->connections / g->processes + (index < g->o->connections % g->processes);
	g->limit = (uint32_t)larger(g->o->in_flight / g->processes, 1);
	g->engine = g->o->udp                   ? &datagrams_engine :
		    is_transfer(g->o->workload) ? &transfer_engine :
						  &exchange_engine;
	g->begin_ns = g->end_ns = NEVER;
	g->conns = calloc(g->n_conns, sizeof(*g->conns));
	if (!g->conns)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_conns; i++) {
		g->conns[i].source = (struct source){ .handle = handle_conn, .fd = -1 };
		g->conns[i].g = g;
	}
	g->tick.fire = tick;
	timer_set(&g->loop, &g->tick, g->loop.now_ms + TICK_MS);
	g->control = (struct source){ .handle = hear_parent, .fd = team_listen() };
	return loop_watch(&g->loop, &g->control, EPOLLIN, true);
}

/* A team_work; ARG is a struct generator. */
static int generator_work(unsigned int index, void *arg)
{
	struct generator *g = arg;
	int r = generator_open(g, index);

	if (!r) {
		if (g->o->workload == WORKLOAD_CRR)
			say_ready(g);
		else
			open_more(g);
		r = loop_run(&g->loop);
	}
	if (r)
		warnx("process %u: %s", index + 1, strerror(-r));
	return r ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}

/* --- the parent --- */

static struct team team;
static struct tally *tallies; /* one a process */
static struct tally sum;

static void total(void)
{
	tally_open(&sum);
	for (unsigned int i = 0; i < team.n; i++)
		tally_add(&sum, &tallies[i]);
}

/* All processes have opened their connections. */
static void start(const struct options *o)
{
	if (o->workload == WORKLOAD_IDLE) {
		total();
		report_ready(&sum);
	}
	team_tell(&team, clock_ns() + START_DELAY_NS);
}

/* Wait until all processes have ended.  Returns the signal that interrupted them, or 0. */
static int attend(const struct options *o)
{
	bool stopped = false;
	unsigned int ready = 0;
	int interrupted = 0;

	while (team.running && !team.died) {
		int number = team_next(&team);

		if (number == TEAM_READY && ++ready == team.n)
			start(o);
		if (number != SIGINT && number != SIGTERM)
			continue;
		/* holding idle connections ends this way: that is no interruption */
		if (o->workload != WORKLOAD_IDLE || ready < team.n || stopped)
			interrupted = number;
		if (stopped)
			break;
		stopped = true;
		team_tell(&team, 0);
	}
	return interrupted;
}

/*
 * Returns the number of open connections that failed before the end.  If one in a hundred failed,
 * the load was not the one asked for, and the rate says nothing about it.  (crr and UDP have 0: a
 * transaction of crr is a connection of its own, and datagrams may be lost.)
 */
static uint64_t lost(const struct options *o)
{
	uint64_t errors = 0;

	for (int i = 0; o->workload != WORKLOAD_CRR && !o->udp && i < N_CAUSES; i++)
		errors += sum.errors[i];
	return errors - smaller(errors, sum.failed);
}

static int verdict(const struct options *o, int interrupted)
{
	bool measured = sum.requests || sum.bytes_up || sum.bytes_down;
	uint64_t n = lost(o);

	if (team.died)
		warnx("a process has died");
	if (n)
		warnx("%llu of %llu connections were lost", (unsigned long long)n,
		      (unsigned long long)sum.opened);
	if (interrupted)
		return 128 + interrupted;
	if ((n && n * 100 >= sum.opened) || sum.wrong || !measured || team.died)
		return EXIT_CODE_FAILURE;
	return EXIT_CODE_OK;
}

int load_run(const struct options *o)
{
	static struct generator g;
	int r;

	raise_descriptor_limit();
	g.o = o;
	g.seed = clock_ns();
	g.processes = (unsigned int)smaller(o->processes, o->connections);
	g.tally = tallies = team_memory(g.processes, sizeof(*tallies));
	for (unsigned int i = 0; tallies && i < g.processes; i++)
		tally_open(&tallies[i]);
	r = tallies ? team_start(&team, g.processes, generator_work, &g) : -ENOMEM;
	if (r) {
		warnx("cannot start %u processes: %s", g.processes, strerror(-r));
		return EXIT_CODE_FAILURE;
	}
	r = attend(o);
	team_close(&team);
	total();
	report_client(o, &sum);
	return verdict(o, r);
}
