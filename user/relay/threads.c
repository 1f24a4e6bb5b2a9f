// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A worker is a thread with an event loop, which has its own listening sockets, and keeps each
 * session that it has accepted.  No other thread touches these sockets and sessions.  Another
 * thread that wants to know or to change something calls a function on the worker's thread
 * (loop_call()), between two batches of events.  After each batch the worker frees the sessions
 * that have died in it.
 *
 * To stop, a worker ends its listeners, and its loop ends with its last session.
 */
#include "relay/threads.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "base/array.h"
#include "base/log.h"
#include "relay/listener.h"
#include "relay/session_life.h"
#include "relay/session_syn.h"
#include "relay/udp/udp_life.h"

#define PATIENCE_MS 10000

/*
 * Events are taken after each batch.  After a graft event, the events of the next GRAFT_QUIET_MS
 * wake nobody.  So a timer makes a batch for them.  The timer adds 2 ms, since now_ms may be 1 ms
 * late.
 */
static void worker_on_ring(struct source *source, uint32_t events)
{
	struct worker *w = container_of(source, struct worker, ring_source);

	(void)events;
	if (w->grafted)
		timer_set(&w->loop, &w->catch_up, w->loop.now_ms + GRAFT_QUIET_MS + 2);
}

/*
 * Once a second, while sessions are in the kernel, look whether a sweep is needed:
 *
 * Events were lost: the ring was full.  The program counts the events that it could not send.
 *
 * Kernel memory is short: flows with a backlog must leave.  A quiet flow may be charged for a
 * backlog that has drained.
 */
static void worker_on_sweep(struct timer *timer)
{
	struct worker *w = container_of(timer, struct worker, sweep);
	uint64_t lost = *w->shared->kernel->rings.lost;

	if (lost != w->events_lost_seen || sockmap_memory_short(w->shared->kernel)) {
		w->events_lost_seen = lost;
		session_kernel_sweep(w);
	}
	if (w->shared->kernel->n_free < w->shared->kernel->n_pairs)
		timer_set(&w->loop, &w->sweep, w->loop.now_ms + WORKER_SWEEP_MS);
}

static void worker_free_leftovers(struct worker *w)
{
	while (!SLIST_EMPTY(&w->leftovers)) {
		struct leftover *first = SLIST_FIRST(&w->leftovers);

		SLIST_REMOVE_HEAD(&w->leftovers, in_worker);
		free(first);
	}
}

static void worker_after_batch(void *arg)
{
	struct worker *w = arg;

	if (atomic_load(&w->shared->pauses)) {
		pthread_barrier_wait(&w->shared->pause); /* of threads_pause() */
		pthread_barrier_wait(&w->shared->pause); /* of threads_resume() */
	}
	session_catch_up(w);
	worker_follow_news(w);
	session_wake_waiting(w);
	listeners_follow_servers(w);
	session_syn_fill(w);
	worker_free_leftovers(w); /* last: sessions may have died in the calls above */
}

/* HANDLE gets the events of W's ring of RINGS. */
static int worker_add_ring(struct worker *w, const struct bpf_rings *rings,
			   ring_buffer_sample_fn handle)
{
	if (w->ring)
		return ring_buffer__add(w->ring, rings->fds[w->index], handle, w);
	w->ring = ring_buffer__new(rings->fds[w->index], handle, w, NULL);
	if (!w->ring)
		return -errno;
	w->ring_source.fd = ring_buffer__epoll_fd(w->ring);
	w->ring_source.handle = worker_on_ring;
	return loop_watch(&w->loop, &w->ring_source, EPOLLIN, true);
}

static int worker_open(struct worker *w, struct shared *shared, unsigned int index)
{
	struct sockmap *k = shared->kernel;
	struct graft_table *gs = shared->grafts;
	int r;

	w->shared = shared;
	w->index = index;
	w->sweep.fire = worker_on_sweep;
	w->syn_sweep.fire = session_syn_on_sweep;
	/* pages are taken as they are needed */
	if (k)
		w->owners = allocated(calloc(k->n_pairs, sizeof(struct session *)));
	if (gs)
		w->grafted = allocated(calloc(graft_table_total(gs), sizeof(struct session *)));
	woken_init(&w->woken, &w->loop);
	udp_worker_open(w);
	r = loop_open(&w->loop, worker_after_batch, w);
	if (!r && k)
		r = worker_add_ring(w, &k->rings, session_kernel_event);
	if (!r && gs && graft_rings(gs)->fds) /* else threads_follow_grafts() comes later */
		r = worker_add_ring(w, graft_rings(gs), session_graft_event);
	return r;
}

/* --- starting --- */

int threads_open(struct threads *ts, struct shared *shared, const struct listening_list *list)
{
	int r = 0;

	ts->workers = allocated(calloc(shared->config->workers, sizeof(*ts->workers)));
	shared->workers = ts->workers;
	while (!r && ts->n < shared->config->workers) {
		struct worker *w = &ts->workers[ts->n];

		struct listening *l;

		r = worker_open(w, shared, ts->n++);
		if (!r)
			LIST_FOREACH(l, list, in_service)
				listener_start(l, w);
	}
	return r;
}

int threads_follow_grafts(struct threads *ts)
{
	int r = 0;

	for (struct worker *w = ts->workers; !r && w < ts->workers + ts->n; w++)
		r = worker_add_ring(w, graft_rings(w->shared->grafts), session_graft_event);
	return r;
}

int threads_start(struct threads *ts)
{
	int r = 0;

	for (struct worker *w = ts->workers; !r && w < ts->workers + ts->n; w++) {
		r = -pthread_create(&w->thread, NULL, loop_thread, &w->loop);
		w->started = !r;
	}
	return r;
}

/* --- a pause of all of them --- */

void threads_pause(struct threads *ts)
{
	struct shared *shared = ts->workers->shared;

	pthread_barrier_init(&shared->pause, NULL, ts->n + 1);
	atomic_store(&shared->pauses, true);
	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++)
		loop_wake(&w->loop);
	pthread_barrier_wait(&shared->pause);
}

void threads_resume(struct threads *ts)
{
	struct shared *shared = ts->workers->shared;

	atomic_store(&shared->pauses, false);
	pthread_barrier_wait(&shared->pause);
}

/* --- calls to all of them --- */

struct call {
	struct worker *worker;
	void (*fn)(struct worker *w, const void *arg);
	const void *arg;
};

static void threads_call_one(void *arg)
{
	const struct call *c = arg;

	c->fn(c->worker, c->arg);
}

void threads_call(struct threads *ts, void (*fn)(struct worker *w, const void *arg),
		  const void *arg)
{
	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++) {
		struct call c = { w, fn, arg };

		while (w->started &&
		       loop_call(&w->loop, threads_call_one, &c, PATIENCE_MS) == -ETIMEDOUT)
			log_error("worker %u does not answer; waiting for it", w->index);
	}
}

uint64_t threads_sum(const struct threads *ts, size_t at)
{
	uint64_t n = 0;

	for (unsigned int w = 0; w < ts->n; w++)
		n += count_get((counter *)((char *)&ts->workers[w].stats + at));
	return n;
}

/* --- stopping --- */

static enum cause worker_end_session(void *arg, const struct session_view *v)
{
	(void)arg;
	(void)v;
	return CAUSE_GRACE_OVER;
}

/*
 * Sessions that can be grafted go on without the daemon; some need a moment for that.  The loop
 * ends with the last session.
 */
static void worker_on_leave(struct timer *timer)
{
	struct worker *w = container_of(timer, struct worker, leave_behind);

	session_syn_sweep(w, true);
	worker_leave_behind(w);
	if (w->loop.now_ms >= w->grace_ms)
		worker_visit_sessions(w, 0, 1, worker_end_session, NULL);
	timer_set(&w->loop, timer, w->loop.now_ms + WORKER_LEAVE_MS);
	w->loop.stop = !w->n_sessions;
}

static void worker_stop(struct worker *w, const void *arg)
{
	(void)arg;
	listeners_end(w);
	w->grace_ms = w->loop.now_ms + atomic_load(&w->shared->grace_ms);
	w->leave_behind.fire = worker_on_leave;
	timer_set(&w->loop, &w->leave_behind, w->loop.now_ms);
}

void threads_stop(struct threads *ts)
{
	threads_call(ts, worker_stop, NULL);
}

bool threads_ended(struct threads *ts)
{
	bool all = true;

	for (struct worker *w = ts->workers; w < ts->workers + ts->n; w++) {
		if (w->started && !pthread_tryjoin_np(w->thread, NULL))
			w->started = false;
		all = all && !w->started;
	}
	return all;
}
