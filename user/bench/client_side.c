// SPDX-License-Identifier: BSD-2-Clause
#include "client_side.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/exit_codes.h"
#include "generator.h"
#include "report.h"
#include "team.h"

#define OTHER_DESCRIPTORS 32               /* of a process, beside its connections */
#define START_DELAY_NS (10 * NS_PER_MS)    /* so that all processes hear of the start before it */

struct course {
	const struct options *o;
	struct team team;
	struct tally *tallies;
	unsigned int processes;
	unsigned int ready;
	int signal; /* that ended it early; 0: none */
	bool started, stopped, killed;
};

uint64_t raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return 1024;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	return limit.rlim_max;
}

unsigned int processes_needed(uint32_t connections, uint64_t limit, unsigned int wanted)
{
	uint64_t each = limit > OTHER_DESCRIPTORS ? limit - OTHER_DESCRIPTORS : 0;
	uint64_t n;

	if (!each)
		return 0;
	n = (connections + each - 1) / each;
	if (n < wanted)
		n = wanted < connections ? wanted : connections;
	return n <= PROCESSES_MAX ? (unsigned int)n : 0;
}

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
 * of its own; there errors are only counted.)
 */
static uint64_t lost(const struct course *c, const struct tally *sum)
{
	uint64_t errors = 0;

	for (int i = 0; c->o->workload != WORKLOAD_CRR && i < N_CAUSES; i++)
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
		.options = c->o, .tallies = c->tallies, .processes = c->processes,
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
	report_client(c->o, sum, c->processes);
	return verdict(c, sum);
}

int client_side_run(const struct options *o)
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
