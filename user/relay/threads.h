/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_THREADS_H
#define CULVERT_THREADS_H

#include "relay/listening.h"
#include "relay/worker.h"

/* The workers, each on a thread of its own.  Zeroed, it has none. */
struct threads {
	struct thread *list;     /* owned */
	struct worker **workers; /* theirs; owned */
	unsigned int n;
};

/* As many as the configuration says, which accept at the addresses of LIST.  -errno. */
int threads_open(struct threads *ts, struct shared *shared, struct listening *list);
/* Let them run.  -errno: some may. */
int threads_start(struct threads *ts);
/* Accept no more, and give the sessions shared->grace_ms; a worker ends with its last one. */
void threads_stop(struct threads *ts);
/* Stopping: have all ended?  Waits for nothing. */
bool threads_ended(struct threads *ts);
/* Stopping: reset the sessions that are left. */
void threads_hurry(struct threads *ts);
/* Wait until all have ended. */
void threads_join(struct threads *ts);
void threads_close(struct threads *ts);

#endif
