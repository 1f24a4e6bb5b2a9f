/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

#include "relay/worker.h"

/* The workers, each on a thread of its own, and calls to all of them. */

struct listening_list;

struct threads {
	struct worker *workers; /* owned */
	unsigned int n;         /* that are open, the last of them perhaps in part */
};

/* As many as the configuration says, which accept at the addresses of LIST.  -errno. */
int threads_open(struct threads *ts, struct shared *shared, const struct listening_list *list);
/* Let them run.  -errno: some may. */
int threads_start(struct threads *ts);
/*
 * Run FN(W, ARG) on the thread of each worker W that runs, one after the other.  Waits for them
 * however slow they are, since half a change is none.
 */
void threads_call(struct threads *ts, void (*fn)(struct worker *w, const void *arg),
		  const void *arg);
/* The sum over all workers of the counter that is AT bytes behind the beginning of their stats. */
uint64_t threads_sum(const struct threads *ts, size_t at);
/* Each worker looks at its grafted sessions soon: these may have ended, or are to leave. */
void threads_tell_of_grafts(struct threads *ts);
/*
 * Accept no more, and give the sessions shared->grace_ms; a worker ends with its last one.  Another
 * call gives the sessions that are left the grace_ms of now.
 */
void threads_stop(struct threads *ts);
/* Stopping: have all ended?  Waits for nothing. */
bool threads_ended(struct threads *ts);
/* All have ended. */
void threads_close(struct threads *ts);
