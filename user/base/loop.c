// SPDX-License-Identifier: BSD-2-Clause
#include "base/loop.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"

#define BATCH 128 /* events */
#define PAUSE_MS 100
#define CATCH_UP_MS 1000 /* at most; longer than the events of all sessions take */

SYSCALLS_ALLOWED(
	SYSCALL(epoll_wait),
	SYSCALL(epoll_pwait), /* where there is no epoll_wait(2) */
	SYSCALL(epoll_ctl),
	SYSCALL(read), /* the eventfd */
	SYSCALL(write));

/* On the caller's stack; `state` says who may still touch it.  Guarded by loop.lock. */
struct loop_call {
	struct loop_call *next;
	void (*fn)(void *arg);
	void *arg;
	pthread_cond_t done;
	enum { CALL_WAITING, CALL_RUNNING, CALL_DONE } state;
};

static void on_wake(struct source *s, uint32_t events)
{
	struct loop *l = container_of(s, struct loop, wake);
	uint64_t n;

	(void)events;
	l->called = read(s->fd, &n, sizeof(n)) > 0;
}

static void run_calls(struct loop *l)
{
	l->called = false;
	pthread_mutex_lock(&l->lock);
	while (l->calls) {
		struct loop_call *c = l->calls;

		l->calls = c->next;
		c->state = CALL_RUNNING;
		pthread_mutex_unlock(&l->lock);
		c->fn(c->arg);
		pthread_mutex_lock(&l->lock);
		c->state = CALL_DONE;
		pthread_cond_signal(&c->done);
	}
	pthread_mutex_unlock(&l->lock);
}

int loop_open(struct loop *l, void (*after_batch)(void *arg), void *arg)
{
	int r;

	*l = (struct loop){
		.epoll = -1, .wake = { .fd = -1 }, .after_batch = after_batch, .arg = arg
	};
	pthread_mutex_init(&l->lock, NULL);
	l->now_ms = clock_ms();
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0)
		return -errno;
	l->wake.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->wake.fd < 0)
		return -errno;
	l->wake.handle = on_wake;
	r = loop_reserve_timers(l, 16);
	return r ?: loop_watch(l, &l->wake, EPOLLIN, true);
}

void loop_close(struct loop *l)
{
	if (l->wake.fd >= 0)
		close(l->wake.fd);
	if (l->epoll >= 0)
		close(l->epoll);
	free(l->heap);
	pthread_mutex_destroy(&l->lock);
	*l = (struct loop){ .epoll = -1, .wake = { .fd = -1 } };
}

int loop_watch(struct loop *l, struct source *s, uint32_t events, bool registered)
{
	struct epoll_event ev = { .events = events, .data.ptr = s };
	int op;

	if (registered == s->registered && (!registered || events == s->events))
		return 0;
	op = !registered ? EPOLL_CTL_DEL : s->registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	if (epoll_ctl(l->epoll, op, s->fd, &ev))
		return -errno;
	if (op == EPOLL_CTL_ADD)
		s->since = l->batch;
	s->registered = registered;
	s->events = events;
	return 0;
}

/* --- timers: a binary heap, ordered by due_ms --- */

static void heap_put(struct loop *l, uint32_t i, struct timer *t)
{
	l->heap[i] = t;
	t->at = i + 1;
}

static void sift_up(struct loop *l, uint32_t i, struct timer *t)
{
	while (i && l->heap[(i - 1) / 2]->due_ms > t->due_ms) {
		heap_put(l, i, l->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_put(l, i, t);
}

static void sift_down(struct loop *l, uint32_t i, struct timer *t)
{
	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= l->n_timers)
			break;
		if (child + 1 < l->n_timers && l->heap[child + 1]->due_ms < l->heap[child]->due_ms)
			child++;
		if (l->heap[child]->due_ms >= t->due_ms)
			break;
		heap_put(l, i, l->heap[child]);
		i = child;
	}
	heap_put(l, i, t);
}

int loop_reserve_timers(struct loop *l, uint32_t n)
{
	uint32_t size = l->heap_size ?: 16;
	struct timer **heap;

	if (n <= l->heap_size)
		return 0;
	while (size < n)
		size *= 2;
	heap = realloc(l->heap, size * sizeof(struct timer *));
	if (!heap)
		return -ENOMEM;
	l->heap = heap;
	l->heap_size = size;
	return 0;
}

void timer_set(struct loop *l, struct timer *t, uint64_t due_ms)
{
	if (t->at && t->due_ms == due_ms)
		return;
	timer_cancel(l, t);
	assert(l->n_timers < l->heap_size); /* see loop_reserve_timers() */
	t->due_ms = due_ms;
	sift_up(l, l->n_timers++, t);
}

void timer_cancel(struct loop *l, struct timer *t)
{
	struct timer *last;

	if (!t->at)
		return;
	last = l->heap[--l->n_timers];
	if (last != t) {
		sift_down(l, t->at - 1, last);
		sift_up(l, last->at - 1, last);
	}
	t->at = 0;
}

static void fire_timers(struct loop *l)
{
	for (int n = 0; n < TIMERS_A_BATCH && l->n_timers && l->heap[0]->due_ms <= l->now_ms; n++) {
		struct timer *t = l->heap[0];

		timer_cancel(l, t);
		t->fire(t);
	}
}

static int next_timeout(const struct loop *l)
{
	uint64_t wait;

	if (!l->n_timers)
		return -1;
	if (l->heap[0]->due_ms <= l->now_ms)
		return 0;
	wait = l->heap[0]->due_ms - l->now_ms;
	return wait > 60000 ? 60000 : (int)wait;
}

/*
 * May timers fire after this batch of N events?  If the batch before, of BEFORE_MS, is long ago, the
 * machine was suspended, or the daemon stopped, and many batches may still be to come: who gave up
 * now would not have looked at an answer that is there.  After a batch that is not full all of them
 * are handled.
 */
static bool has_caught_up(struct loop *l, int n, uint64_t before_ms)
{
	if (!l->catches_up_ms && l->now_ms - before_ms > PAUSE_MS)
		l->catches_up_ms = l->now_ms + CATCH_UP_MS;
	else if (n < BATCH || l->now_ms >= l->catches_up_ms)
		l->catches_up_ms = 0;
	return !l->catches_up_ms;
}

static int run_batches(struct loop *l)
{
	struct epoll_event ev[BATCH];
	uint64_t before_ms = clock_ms();

	while (!l->stop) {
		int n;

		l->batch++;
		n = (int)TEMP_FAILURE_RETRY(epoll_wait(l->epoll, ev, BATCH, next_timeout(l)));
		if (n < 0)
			return -errno;
		l->now_ms = clock_ms();
		for (int i = 0; i < n; i++) {
			struct source *s = ev[i].data.ptr;

			/* what is of the new one comes in the next batch, even if edge-triggered */
			if (s->registered && s->since != l->batch)
				s->handle(s, ev[i].events);
		}
		if (has_caught_up(l, n, before_ms))
			fire_timers(l);
		before_ms = l->now_ms;
		if (l->called)
			run_calls(l);
		if (l->after_batch)
			l->after_batch(l->arg);
		atomic_store_explicit(&l->turns, l->turns + 1, memory_order_relaxed);
		l->now_ms = clock_ms(); /* for the time-out: handlers take time, too */
	}
	return 0;
}

int loop_run(struct loop *l)
{
	int r = run_batches(l);

	/* nobody will run these calls any more */
	pthread_mutex_lock(&l->lock);
	l->finished = true;
	for (struct loop_call *c = l->calls; c; c = c->next)
		pthread_cond_signal(&c->done);
	pthread_mutex_unlock(&l->lock);
	return r;
}

/* --- calls from other threads --- */

void loop_wake(struct loop *l)
{
	uint64_t one = 1;

	/* EAGAIN: so often that the counter is full, so it will wake up */
	if (write(l->wake.fd, &one, sizeof(one)) < 0 && errno != EAGAIN)
		log_limited(LOG_ERR, "a thread cannot be woken: error %d", errno);
}

static void unlink_call(struct loop *l, struct loop_call *c)
{
	struct loop_call **p = &l->calls;

	while (*p && *p != c)
		p = &(*p)->next;
	if (*p)
		*p = c->next;
}

int loop_call(struct loop *l, void (*fn)(void *arg), void *arg, int timeout_ms)
{
	struct loop_call c = { .fn = fn, .arg = arg, .state = CALL_WAITING };
	struct timespec until = clock_timespec(clock_ms() + (uint64_t)timeout_ms);
	int r = 0;

	clock_cond_init(&c.done);

	pthread_mutex_lock(&l->lock);
	c.next = l->calls;
	/* cppcheck-suppress autoVariables ; taken off the list again before we return */
	l->calls = &c;
	loop_wake(l);
	while (!r && c.state != CALL_DONE)
		r = l->finished && c.state == CALL_WAITING
			    ? -ESRCH
			    : -pthread_cond_timedwait(&c.done, &l->lock, &until);
	/* once it runs, the call is allowed to end: it uses the caller's stack */
	while (c.state == CALL_RUNNING)
		pthread_cond_wait(&c.done, &l->lock);
	if (c.state == CALL_DONE)
		r = 0;
	else
		unlink_call(l, &c);
	pthread_mutex_unlock(&l->lock);
	pthread_cond_destroy(&c.done);
	return r;
}
