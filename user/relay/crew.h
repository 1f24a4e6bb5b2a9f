/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CREW_H
#define CULVERT_CREW_H

#include <stdbool.h>

/*
 * How many of the workers carry sessions.  Pure: what was measured goes in, a number comes out.
 *
 * Where client, relay and server share the CPUs, and with short messages, fewer are faster: one
 * that seldom sleeps finds the events of many flows at each wake-up, and two preempt each other and
 * everybody else.  Measured on 2 CPUs (docs/results.md): one worker carries 5 to 12 % more requests
 * than two, at 0.00 instead of 0.3 to 1.0 switches of context each.  But where CPUs are left over,
 * or each event is much work (bulk), a second one carries more: 13 % with 8 streams.
 */
struct crew {
	unsigned int active; /* workers 0 to ACTIVE - 1 carry sessions; at least 1 */
	unsigned int most;
	unsigned int needy, crowded, calm; /* looks in a row */
	unsigned int patience; /* needy looks in a row before it grows into idle CPUs; at least 1 */
	unsigned int steady;   /* looks since it was crowded, or since patience was halved */
};

/* Since the last look.  CPU time in permille of one CPU. */
struct crew_load {
	unsigned int busiest;  /* of the active workers */
	unsigned int sum;      /* of all of them */
	unsigned int idle;     /* what all CPUs together have left */
	unsigned int event_us; /* CPU time of the workers for one event */
};

/* How often it should be asked. */
#define CREW_LOOK_MS 200

void crew_init(struct crew *c, unsigned int most);

/* One look.  True: c->active has changed. */
bool crew_judge(struct crew *c, const struct crew_load *l);

#endif
