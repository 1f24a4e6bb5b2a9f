// SPDX-License-Identifier: BSD-2-Clause
#include "base/loop.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"

#define BATCH 128        /* events */
#define FULL_BATCHES 100 /* late timers wait for so many full batches in a row at most */
#define LATE_MS 100      /* a timer that is so late shows that the thread did not run */

SYSCALLS_ALLOWED(
	SYSCALL(epoll_wait),
	SYSCALL(epoll_pwait), /* where there is no epoll_wait(2) */
	SYSCALL(epoll_ctl),
	SYSCALL(read), /* the eventfd */
	SYSCALL(write));

/* On the caller's stack until its state is CALL_DONE.  Guarded by loop.lock. */
struct loop_call {
	LIST_ENTRY(loop_call) in_loop;
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
	struct loop_call *c;

	l->called = false;
	pthread_mutex_lock(&l->lock);
	while ((c = LIST_FIRST(&l->calls))) {
		LIST_REMOVE(c, in_loop);
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
	*l = (struct loop){
		.epoll = epoll_create1(EPOLL_CLOEXEC),
		.wake = { .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .handle = on_wake },
		.now_ms = clock_ms(),
		.after_batch = after_batch,
		.arg = arg,
	};
	pthread_mutex_init(&l->lock, NULL);
	if (l->epoll < 0 || l->wake.fd < 0)
		return -errno;
	return loop_watch(l, &l->wake, EPOLLIN, true);
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
		s->since = l->turns;
	s->registered = registered;
	s->events = events;
	return 0;
}

static bool descriptors_are_shared; /* written before threads have handed or taken any */

void loop_share_descriptors(void)
{
	__atomic_store_n(&descriptors_are_shared, true, __ATOMIC_RELAXED);
}

bool loop_descriptors_are_shared(void)
{
	return __atomic_load_n(&descriptors_are_shared, __ATOMIC_RELAXED);
}

void loop_close(struct loop *l, struct source *s)
{
	if (loop_descriptors_are_shared())
		loop_watch(l, s, 0, false);
	s->registered = false; /* close(2) takes it out of epoll, which saves a system call */
	close(s->fd);
	s->fd = -1;
}

/* --- timers: a skew heap, so it needs no memory of its own, and to set one cannot fail --- */

/*
 * Merge the heaps A and B into *AT.  Swapping the sides of timers on the path keeps paths short.
 */
static void meld(struct timer **at, struct timer *a, struct timer *b)
{
	while (a && b) {
		struct timer *first = b->due_ms < a->due_ms ? b : a;

		b = first == a ? b : a;
		a = first->right;
		first->right = first->left;
		if (first->right)
			first->right->prev = &first->right;
		first->prev = at;
		*at = first;
		at = &first->left;
	}
	*at = a ?: b;
	if (*at)
		(*at)->prev = at;
}

void timer_set(struct loop *l, struct timer *t, uint64_t due_ms)
{
	if (t->prev && t->due_ms == due_ms)
		return;
	timer_cancel(t);
	t->due_ms = due_ms;
	t->left = t->right = NULL;
	meld(&l->timers, l->timers, t);
}

void timer_cancel(struct timer *t)
{
	if (t->prev)
		meld(t->prev, t->left, t->right);
	t->prev = NULL;
}

static void fire_timers(struct loop *l)
{
	for (int n = 0; n < TIMERS_A_BATCH && l->timers && l->timers->due_ms <= l->now_ms; n++) {
		struct timer *t = l->timers;

		timer_cancel(t);
		if (t->fire)
			t->fire(t);
	}
}

static int next_timeout(const struct loop *l)
{
	if (!l->timers)
		return -1;
	return (int)smaller(larger(l->timers->due_ms, l->now_ms) - l->now_ms, 60000);
}

static int run_batches(struct loop *l)
{
	struct epoll_event ev[BATCH];

	while (!l->stop) {
		int n;

		l->turns++;
		n = (int)TEMP_FAILURE_RETRY(epoll_wait(l->epoll, ev, BATCH, next_timeout(l)));
		if (n < 0)
			return log_failure(-errno, "a thread serves nobody any more, restart "
						   "culvert: epoll_wait: %m");
		l->now_ms = clock_ms();
		for (int i = 0; i < n; i++) {
			struct source *s = ev[i].data.ptr;

			/*
			 * If S was registered in this batch, the event is of its old descriptor, and
			 * is dropped.  Events of the new one, edge-triggered ones too, come in the
			 * next batch.
			 */
			if (s->registered && s->since != l->turns)
				s->handle(s, ev[i].events);
		}
		/*
		 * After SIGSTOP, say, timers are due while many events wait.  A time-out must not
		 * end a session whose answer is among these events.
		 */
		l->full_batches = n < BATCH ? 0 : l->full_batches + 1;
		if (!l->full_batches || l->full_batches > FULL_BATCHES ||
		    (l->timers && l->now_ms < l->timers->due_ms + LATE_MS))
			fire_timers(l);
		if (l->called)
			run_calls(l);
		if (l->after_batch)
			l->after_batch(l->arg);
		l->now_ms = clock_ms(); /* for the time-out: handlers take time, too */
	}
	return 0;
}

int loop_run(struct loop *l)
{
	int r = run_batches(l);
	struct loop_call *c;

	/* no thread runs these calls any more */
	pthread_mutex_lock(&l->lock);
	l->finished = true;
	LIST_FOREACH(c, &l->calls, in_loop)
		pthread_cond_signal(&c->done);
	pthread_mutex_unlock(&l->lock);
	return r;
}

void *loop_thread(void *loop)
{
	loop_run(loop);
	return NULL;
}

/* --- calls from other threads --- */

void loop_wake(struct loop *l)
{
	uint64_t one = 1;

	/* EAGAIN: the counter is full, so the loop will wake up; there is no other error */
	(void)!write(l->wake.fd, &one, sizeof(one));
}

int loop_call(struct loop *l, void (*fn)(void *arg), void *arg, int timeout_ms)
{
	struct loop_call c = { .fn = fn, .arg = arg, .done = PTHREAD_COND_INITIALIZER };
	struct timespec until = clock_timespec(clock_ms() + (uint64_t)timeout_ms);
	int r = 0;

	pthread_mutex_lock(&l->lock);
	/* cppcheck-suppress autoVariables ; taken off the list again before we return */
	LIST_INSERT_HEAD(&l->calls, &c, in_loop);
	loop_wake(l);
	while (!r && c.state != CALL_DONE) {
		if (l->finished && c.state == CALL_WAITING)
			r = -ESRCH;
		else
			r = -pthread_cond_clockwait(&c.done, &l->lock, CLOCK_MONOTONIC, &until);
	}
	/* a call that has begun must end first: it uses this stack */
	while (c.state == CALL_RUNNING)
		pthread_cond_wait(&c.done, &l->lock);
	if (c.state == CALL_DONE)
		r = 0;
	else
		LIST_REMOVE(&c, in_loop);
	pthread_mutex_unlock(&l->lock);
	pthread_cond_destroy(&c.done);
	return r;
}
