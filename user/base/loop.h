/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/*
 * An event loop, one a thread: epoll, timers, calls from other threads.
 *
 * Nothing is freed inside an event handler: handlers put objects on their owner's list, and the
 * owner frees them in after_batch(), when no event of the batch can still point at them.  A handler
 * may give a source another descriptor.  The old descriptor's events of the batch are then dropped.
 */

/* The TYPE whose MEMBER is at PTR: a handler's way to the owner of its source or timer. */
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* A file descriptor with a handler.  Embedded in its owner; zero it, then set fd and handle. */
struct source {
	void (*handle)(struct source *s, uint32_t events);
	int fd;
	uint32_t events; /* as registered */
	uint32_t since;  /* number of the batch in which it was registered */
	bool registered;
};

/*
 * A point in time with a handler.  Embedded in its owner; zero it, then set fire.  fire NULL: the
 * timer just wakes the loop.
 */
struct timer {
	void (*fire)(struct timer *t);
	uint64_t due_ms;
	struct timer *left, *right, **prev; /* in the heap; prev NULL: not set */
};

/*
 * The most timers that fire in one batch.  Thousands that are due at once, such as idle-timeout of
 * sessions that began together, must not hold up the sessions that are at work.
 */
#define TIMERS_A_BATCH 64

LIST_HEAD(loop_calls, loop_call); /* calls from other threads, see loop_call() */

struct loop {
	int epoll;
	struct source wake;     /* eventfd */
	uint64_t now_ms;        /* clock_ms(), read once a batch */
	_Atomic uint32_t turns; /* number of the batch; any thread may read it */
	uint32_t turns_seen;    /* of the watchdog, see daemon.c */

	struct timer *timers;  /* a heap; the root fires first */
	uint32_t full_batches; /* in a row, up to now */

	pthread_mutex_t lock; /* of calls */
	struct loop_calls calls;
	bool called; /* loop_wake() was seen in this batch, so there may be calls */

	void (*after_batch)(void *arg);
	void *arg;
	bool stop;
	bool finished; /* loop_run() has returned; guarded by lock */
};

int loop_open(struct loop *l, void (*after_batch)(void *arg), void *arg);

/* Run until l->stop is set (by a handler).  -errno of epoll_wait(2), after a message. */
int loop_run(struct loop *l);
/* The same as the function of a thread. */
void *loop_thread(void *loop);

/*
 * Make epoll watch S for EVENTS (level-triggered, unless EPOLLET is one of them; EPOLLERR and
 * EPOLLHUP always come along), or not at all when REGISTERED is false.  No system call if nothing
 * changes.
 */
int loop_watch(struct loop *l, struct source *s, uint32_t events, bool registered);

/*
 * From now on another process may have descriptors of this one open, too.  Then close(2) does not take
 * a descriptor out of epoll, and its events would go to a source that is gone.
 */
void loop_share_descriptors(void);
bool loop_descriptors_are_shared(void);
/* Close the descriptor of S, and forget its events. */
void loop_close(struct loop *l, struct source *s);

/*
 * Set, or move, T to DUE_MS on the clock of now_ms.  A timer that fires may set itself to "now": it
 * fires again in this batch or in the next one.
 */
void timer_set(struct loop *l, struct timer *t, uint64_t due_ms);
void timer_cancel(struct timer *t);

/* Make the loop run a batch soon.  Its after_batch() sees all stores before this call. */
void loop_wake(struct loop *l);

/*
 * Run FN(ARG) on the loop's thread, after the events of a batch, and wait until it has returned, at
 * most TIMEOUT_MS.  May be called from any other thread.  -ETIMEDOUT, or -ESRCH if the loop has
 * ended: FN has not run, and will not.
 */
int loop_call(struct loop *l, void (*fn)(void *arg), void *arg, int timeout_ms);
