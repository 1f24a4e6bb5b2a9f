// SPDX-License-Identifier: BSD-2-Clause
/* The client side: the processes that generate load, and their parent, which prints the result. */
#include "client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "conn.h"
#include "team.h"

#define TICK_MS 20             /* while ticks do work */
#define TICK_REST_MS 200       /* while they only look for timeouts */
#define STOP_NS (2 * NS_PER_S) /* to end in order after a signal */
#define IDLE_DRAIN_NS (60 * NS_PER_S)
#define START_DELAY_NS (10 * NS_PER_MS) /* so that all processes hear of the start before it */

struct generator_job {
	const struct options *options;
	struct tally *tallies; /* one a process, shared */
	unsigned int processes;
	uint64_t seed;
};

/* --- a process --- */

/* Connections of process INDEX. */
static uint32_t generator_share(uint32_t connections, unsigned int index, unsigned int processes)
{
	return connections / processes + (index < connections % processes);
}

/* --- phases --- */

static void say_ready(struct generator *g)
{
	const struct order o = { .kind = ORDER_READY };

	g->phase = PHASE_READY;
	order_send(g->control.fd, &o);
}

/* The measured time is over, at its end or because of a signal. */
static void begin_end(struct generator *g, uint64_t now, uint64_t drain_ns)
{
	g->phase = PHASE_END;
	g->next = g->in_flight = 0;
	g->give_up_ns = now + drain_ns;
	timer_cancel(&g->loop, &g->end);
	if (now < g->end_ns)
		g->end_ns = now;
	if (g->end_ns > g->begin_ns) {
		g->tally->began_ns = g->begin_ns;
		g->tally->measured_ns = g->end_ns - g->begin_ns;
	}
	if (g->o->workload != WORKLOAD_IDLE)
		g->limit = UINT32_MAX; /* all at once */
}

static uint64_t drain_of(const struct generator *g)
{
	if (g->o->workload == WORKLOAD_IDLE)
		return IDLE_DRAIN_NS;
	if (workload_is_transfer(g->o->workload))
		return DRAIN_NS;
	return 2 * g->o->timeout_ms * NS_PER_MS + DRAIN_NS; /* each one has its own timeout */
}

static void measuring_ends(struct timer *t)
{
	struct generator *g = container_of(t, struct generator, end);

	begin_end(g, clock_ns(), drain_of(g));
}

/* For struct timer: the first millisecond that is not before NS. */
static uint64_t clock_ms_after(uint64_t ns)
{
	return ns / NS_PER_MS + (ns % NS_PER_MS ? 1 : 0);
}

static void generator_start(struct generator *g, uint64_t start_ns)
{
	g->phase = PHASE_RUN;
	g->begin_ns = start_ns + g->o->warmup_ms * NS_PER_MS;
	if (g->o->seconds_ms) {
		g->end_ns = g->begin_ns + g->o->seconds_ms * NS_PER_MS;
		timer_set(&g->loop, &g->end, clock_ms_after(g->end_ns));
	}
	if (g->o->workload == WORKLOAD_CRR)
		return; /* after_batch() opens them */
	for (uint32_t i = 0; i < g->n_conns; i++)
		if (g->conns[i].state == CONN_READY)
			g->engine->go(&g->conns[i]);
}

static void generator_stop(struct generator *g)
{
	if (g->phase == PHASE_RUN)
		begin_end(g, clock_ns(), g->o->workload == WORKLOAD_IDLE ? IDLE_DRAIN_NS : STOP_NS);
	else
		g->loop.stop = true;
}

static void hear_parent(struct source *s, uint32_t events)
{
	struct generator *g = container_of(s, struct generator, control);
	struct order o;
	int r = order_receive(s->fd, &o);

	(void)events;
	if (r == -EAGAIN)
		return;
	if (r)
		g->loop.stop = true;
	else if (o.kind == ORDER_START && g->phase == PHASE_READY)
		generator_start(g, o.start_ns);
	else if (o.kind == ORDER_STOP)
		generator_stop(g);
}

/* --- the loop --- */

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

		if (c->state == CONN_CLOSED)
			continue;
		if (c->state == CONN_NEW) { /* crr, stopped early */
			conn_close(c);
			continue;
		}
		g->in_flight += c->state == CONN_READY;
		g->engine->finish(c);
	}
}

/* Whatever has not ended by now is not going to. */
static void give_up(struct generator *g)
{
	for (uint32_t i = 0; i < g->n_conns; i++)
		if (g->conns[i].state != CONN_CLOSED)
			conn_fail(&g->conns[i], CAUSE_TIMEOUT);
}

static void after_batch(void *arg)
{
	struct generator *g = arg;

	if (g->phase == PHASE_OPEN || (g->phase == PHASE_RUN && g->next < g->n_conns))
		open_more(g);
	if (g->phase == PHASE_OPEN && g->next == g->n_conns && !g->in_flight)
		say_ready(g);
	if (g->phase == PHASE_END)
		finish_more(g);
	/* nothing will come any more, perhaps long before the time is over */
	if (g->phase >= PHASE_RUN && g->n_closed == g->n_conns) {
		if (g->phase == PHASE_RUN)
			begin_end(g, clock_ns(), 0);
		g->loop.stop = true;
	}
}

static uint64_t tick_ms(const struct generator *g)
{
	if (g->o->workload == WORKLOAD_CRR || g->o->workload == WORKLOAD_SLOW || g->o->udp)
		return TICK_MS;
	return TICK_REST_MS;
}

static void tick_conns(struct generator *g, uint64_t now)
{
	if (g->o->workload == WORKLOAD_IDLE && g->phase == PHASE_RUN)
		return; /* nothing is awaited: do not disturb what is measured meanwhile */
	for (uint32_t i = 0; i < g->next || (g->phase == PHASE_END && i < g->n_conns); i++) {
		struct conn *c = &g->conns[i];

		if (c->state != CONN_CONNECTING)
			g->engine->tick(c, now);
		else if (now >= c->since_ns + g->o->timeout_ms * NS_PER_MS)
			conn_connect_timeout(c);
	}
}

static void tick(struct timer *t)
{
	struct generator *g = container_of(t, struct generator, tick);
	uint64_t now = clock_ns();

	tick_conns(g, now);
	if (g->phase == PHASE_END && now >= g->give_up_ns)
		give_up(g);
	timer_set(&g->loop, &g->tick, g->loop.now_ms + tick_ms(g));
}

static void handle_conn(struct source *s, uint32_t events)
{
	struct conn *c = container_of(s, struct conn, source);

	if (c->state == CONN_CONNECTING && !conn_connected(c, events))
		return;
	c->g->engine->event(c, events);
}

static int generator_open(struct generator *g, unsigned int index, int control,
			  const struct generator_job *job)
{
	uint32_t in_flight = job->options->in_flight / job->processes;
	int r;

	*g = (struct generator){
		.o = job->options,
		.index = index,
		.processes = job->processes,
		.tally = &job->tallies[index],
		.seed = job->seed,
		.limit = in_flight ?: 1,
		.engine = job->options->udp                            ? &datagrams_engine :
			  workload_is_transfer(job->options->workload) ? &transfer_engine :
									 &exchange_engine,
		.begin_ns = NEVER,
		.end_ns = NEVER,
		.control = { .handle = hear_parent, .fd = control },
		.tick = { .fire = tick },
		.end = { .fire = measuring_ends },
	};
	g->n_conns = generator_share(g->o->connections, index, g->processes);
	g->conns = calloc(g->n_conns ?: 1, sizeof(*g->conns));
	g->buffer = malloc(PROTOCOL_TAIL + PATTERN_PIECE);
	r = loop_open(&g->loop, after_batch, g);
	if (r)
		return r;
	if (!g->conns || !g->buffer)
		return -ENOMEM;
	for (uint32_t i = 0; i < g->n_conns; i++)
		g->conns[i] = (struct conn){
			.source = { .handle = handle_conn, .fd = -1 },
			.g = g,
		};
	timer_set(&g->loop, &g->tick, g->loop.now_ms + TICK_MS);
	return loop_watch(&g->loop, &g->control, EPOLLIN, true);
}

static void generator_close(struct generator *g)
{
	for (uint32_t i = 0; g->conns && i < g->n_conns; i++)
		if (g->conns[i].source.fd >= 0)
			close(g->conns[i].source.fd);
	loop_close(&g->loop);
	free(g->conns);
	free(g->buffer);
	close(g->control.fd);
}

/* A team_work; ARG is a struct generator_job. */
static int generator_work(unsigned int index, int control, void *arg)
{
	struct generator g;
	int r = generator_open(&g, index, control, arg);

	if (!r) {
		if (g.o->workload == WORKLOAD_CRR)
			say_ready(&g);
		else
			open_more(&g);
		r = loop_run(&g.loop);
	}
	if (r)
		bench_say("process %u: %s", index + 1, strerror(-r));
	generator_close(&g);
	return r ? 1 : 0;
}

/* --- the parent --- */

struct course {
	const struct options *o;
	struct team team;
	struct tally *tallies;
	unsigned int processes;
	unsigned int ready;
	int signal; /* that ended it early; 0: none */
	bool started, stopped, killed;
};

static void total(const struct course *c, struct tally *ret)
{
	tally_open(ret);
	for (unsigned int i = 0; i < c->processes; i++)
		tally_add(ret, &c->tallies[i]);
}

/* All processes have opened their connections. */
static void start(struct course *c, struct tally *sum)
{
	const struct order o = { .kind = ORDER_START, .start_ns = clock_ns() + START_DELAY_NS };

	c->started = true;
	if (c->o->workload == WORKLOAD_IDLE) {
		total(c, sum);
		report_ready(sum);
	}
	team_tell(&c->team, &o);
}

/* Holding idle connections ends this way: that is no interruption. */
static bool is_regular_end(const struct course *c)
{
	return c->o->workload == WORKLOAD_IDLE && c->started && !c->stopped;
}

/* False if it is enough. */
static bool on_signal(struct course *c, int number)
{
	const struct order o = { .kind = ORDER_STOP };

	if (!is_regular_end(c))
		c->signal = number;
	if (c->stopped) {
		c->killed = true;
		return false;
	}
	c->stopped = true;
	team_tell(&c->team, &o);
	return true;
}

static void attend(struct course *c, struct tally *sum)
{
	int number;

	while (c->team.running) {
		switch (team_next(&c->team, &number)) {
		case TEAM_READY:
			if (++c->ready == c->processes)
				start(c, sum);
			break;
		case TEAM_GONE:
			break;
		case TEAM_SIGNAL:
			if (!on_signal(c, number))
				return;
			break;
		}
		if (c->team.died)
			return; /* the others would be told to start, or not, in vain */
	}
}

/*
 * Of the connections that were open, those that did not live to the end.  If one in a hundred did
 * not, the rate is that of another load, for a shorter time.  (A transaction of crr is a connection
 * of its own, and datagrams may be lost; there errors are only counted.)
 */
static uint64_t lost(const struct course *c, const struct tally *sum)
{
	uint64_t errors = 0;

	for (int i = 0; c->o->workload != WORKLOAD_CRR && !c->o->udp && i < N_CAUSES; i++)
		errors += sum->errors[i];
	return errors > sum->failed ? errors - sum->failed : 0;
}

static int verdict(const struct course *c, const struct tally *sum)
{
	bool measured = sum->requests || sum->bytes_up || sum->bytes_down;
	uint64_t n = lost(c, sum);

	if (n)
		bench_say("%llu of %llu connections were lost", (unsigned long long)n,
			  (unsigned long long)sum->opened);
	if (c->signal)
		return 128 + c->signal;
	if ((n && n * 100 >= sum->opened) || sum->wrong || !measured || c->team.died)
		return EXIT_CODE_FAILURE;
	return EXIT_CODE_OK;
}

static int run(struct course *c, struct tally *sum)
{
	struct generator_job job = {
		.options = c->o,
		.tallies = c->tallies,
		.processes = c->processes,
	};
	int r;

	for (unsigned int i = 0; i < c->processes; i++)
		tally_open(&c->tallies[i]);
	if (getrandom(&job.seed, sizeof(job.seed), 0) != sizeof(job.seed))
		job.seed = clock_ns();
	r = team_start(&c->team, c->processes, generator_work, &job);
	if (r) {
		bench_say("cannot start %u processes: %s", c->processes, strerror(-r));
		return EXIT_CODE_FAILURE;
	}
	attend(c, sum);
	if (c->team.died)
		bench_say("a process has died");
	r = c->team.died;
	team_close(&c->team);
	c->team.died = r; /* and not those that were killed on purpose just now */
	total(c, sum);
	report_client(c->o, sum);
	return verdict(c, sum);
}

int load_run(const struct options *o)
{
	uint64_t limit = raise_descriptor_limit();
	struct course c = { .o = o };
	struct tally *sum;
	int r = EXIT_CODE_FAILURE;

	c.processes = processes_needed(o->connections, limit, o->processes);
	if (!c.processes) {
		bench_say("%u connections are too many for %d processes of %llu descriptors each",
			  o->connections, PROCESSES_MAX, (unsigned long long)limit);
		return EXIT_CODE_FAILURE;
	}
	c.tallies = team_memory(c.processes, sizeof(*c.tallies));
	sum = malloc(sizeof(*sum));
	if (c.tallies && sum)
		r = run(&c, sum);
	else
		bench_say("out of memory");
	if (c.tallies)
		munmap(c.tallies, c.processes * sizeof(*c.tallies));
	free(sum);
	return r;
}
