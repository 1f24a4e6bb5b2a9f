/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/loop.h"

/*
 * Sessions that wait until a server of their forward has a place (`max-sessions` of a server), in
 * their order.  One lock guards all queues: none is on the way of a payload.
 */

struct session;
struct woken;

struct waiter {
	TAILQ_ENTRY(waiter) in_queue, in_woken;
	struct session *session;
	struct woken *to;  /* of the session's worker */
	uint64_t since_ms; /* when its wait began */
	uint64_t id;       /* of the session; orders those of one millisecond */
	uint64_t due_ms;   /* when the session gives up */
	bool woken;
};

TAILQ_HEAD(waiter_list, waiter);

/* Sessions of one worker that are to look for a place. */
struct woken {
	struct waiter_list list;
	_Atomic bool any;
	struct loop *loop; /* of the worker */
};

/* Of all forwards of one name: who waits goes on with the forward that replaces its own. */
struct server_queue {
	struct waiter_list waiters; /* by since_ms and id */
	struct waiter *last;        /* that has begun to wait; NULL: it has left */
	_Atomic unsigned int n;     /* written with the lock */
};

void queue_init(struct server_queue *q);
void woken_init(struct woken *w, struct loop *loop);
/* W waits from now on, behind those whose wait began before.  False: MOST wait already. */
bool queue_wait(struct server_queue *q, struct waiter *w, unsigned int most);
/* W waits no more.  If it was the first one, the next is woken. */
void queue_leave(struct server_queue *q, struct waiter *w);
/* True if nobody waits before W; NULL: nobody waits. */
bool queue_is_first(struct server_queue *q, const struct waiter *w);
/* A place may be free: the first one is to look.  Q may be NULL.  By any thread. */
void queue_wake(struct server_queue *q);
/* The next session of W; NULL: there is none.  By the thread of the worker. */
struct session *woken_take(struct woken *w);
