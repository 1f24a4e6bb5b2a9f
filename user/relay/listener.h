/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LISTENER_H
#define CULVERT_LISTENER_H

#include "base/loop.h"
#include "relay/forward.h"
#include "relay/listening.h"
#include "relay/worker.h"

/*
 * What one worker accepts at one address, in w->listeners.  All of these are for the worker's own
 * thread, or for when it does not run.
 *
 * Out of descriptors, memory or sessions, a listener pauses: clients wait in the backlog.
 */
struct listener {
	struct source source;
	struct timer resume;
	struct worker *worker;
	struct listener *next;
	struct listening *on;
	struct forward *forward; /* whose sessions it opens; a reload puts another in its place */
	bool paused;             /* since the last accepted connection */
	unsigned int burst;      /* connections to accept at the next event */
	unsigned int streak;     /* events in a row that had so many */
};

/*
 * W's listener at ON, for F.  NULL: no memory.  Any thread may make it.  It needs one timer: see
 * worker_own_timers().
 */
struct listener *listener_new(struct worker *w, struct listening *on, struct forward *f);
/* Begin to accept.  If epoll has no memory for it, that is tried again. */
void listener_start(struct listener *ls);
/* W's at ON, or NULL. */
struct listener *listener_find(const struct worker *w, const struct listening *on);
/*
 * Stop accepting.  Connections that the kernel has completed already are taken first: a client that
 * saw its connect succeed is served.  It is freed later, since more events for it may be at hand.
 */
void listener_end(struct listener *ls);
/* Free those that have ended. */
void listeners_reap(struct worker *w);
/* When the worker's loop has ended, or never ran: the sockets stay those of struct listening. */
void listeners_free(struct worker *w);

#endif
