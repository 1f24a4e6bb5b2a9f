/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

#include "relay/worker.h"

/* The workers, each on a thread of its own, and calls to all of them. */

struct listening_list;

struct threads {
	struct worker *workers; /* owned */
	unsigned int n;         /* open workers; the last one may be open in part */
};

/*
 * Open as many workers as the configuration says, which accept at the addresses of LIST.
 * -errno.
 */
int threads_open(struct threads *ts, struct shared *shared, const struct listening_list *list);
/* Let the workers, which do not run yet, take the events of graft_table_begin().  -errno. */
int threads_follow_grafts(struct threads *ts);
/* Start the workers.  -errno: some of them may run. */
int threads_start(struct threads *ts);
/*
 * Run FN(W, ARG) on the thread of each worker W that runs, one after the other.  Waits as long as
 * the slowest worker takes: a change must reach all workers.
 */
void threads_call(struct threads *ts, void (*fn)(struct worker *w, const void *arg),
		  const void *arg);
/* The sum of one counter over all workers.  AT is its offset in struct stats. */
uint64_t threads_sum(const struct threads *ts, size_t at);
/*
 * Stop accepting.  Sessions get shared->grace_ms to end, and a worker ends with its last session.
 * Another call starts that time anew, with the present grace_ms.
 */
void threads_stop(struct threads *ts);
/* After threads_stop(): have all workers ended?  Does not wait. */
bool threads_ended(struct threads *ts);

/*
 * Let all workers wait between two batches of events, until threads_resume().  The caller may then do
 * all that a worker may do.  One caller at a time, and not while the workers stop.
 */
void threads_pause(struct threads *ts);
void threads_resume(struct threads *ts);
