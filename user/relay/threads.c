// SPDX-License-Identifier: BSD-2-Clause
#include "relay/threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/new_thread.h"
#include "relay/listener.h"
#include "relay/session.h"
#include "relay/session_connect.h"
#include "relay/session_ending.h"

#define STOP_TIMEOUT_MS 10000
#define HURRY_TIMEOUT_MS 1000

struct thread {
	struct worker worker;
	struct timer grace;
	pthread_t id;
	bool open, started, stopping;
};

/* A stopping worker ends with its last session. */
static void after_batch(void *arg)
{
	struct worker *w = arg;
	struct thread *t = (struct thread *)((char *)w - offsetof(struct thread, worker));

	session_connect_news(w);
	listeners_reap(w);
	session_reap(w); /* last: of those above, some may have died */
	if (t->stopping && !w->n_sessions)
		w->loop.stop = true;
}

static void on_kernel_event(void *arg, const struct culvert_event *ev)
{
	session_kernel_event(arg, ev);
}

static const struct worker_hooks hooks = {
	.kernel_event = on_kernel_event,
	.sweep = session_sweep,
	.review = session_review,
	.after_batch = after_batch,
};

static bool any(const void *arg, const struct session *s)
{
	(void)arg;
	(void)s;
	return true;
}

static void on_grace_over(struct timer *timer)
{
	struct thread *t = (struct thread *)((char *)timer - offsetof(struct thread, grace));

	session_ending_begin(&t->worker, any, NULL, CAUSE_GRACE_OVER);
}

static void stop_thread(void *arg)
{
	struct thread *t = arg;

	while (t->worker.listeners)
		listener_end(t->worker.listeners);
	t->stopping = true;
	t->grace.fire = on_grace_over;
	timer_set(&t->worker.loop, &t->grace,
		  t->worker.loop.now_ms + atomic_load(&t->worker.shared->grace_ms));
}

static void hurry_thread(void *arg)
{
	struct thread *t = arg;

	timer_set(&t->worker.loop, &t->grace, t->worker.loop.now_ms);
}

static void *thread_main(void *arg)
{
	struct thread *t = arg;
	int r = loop_run(&t->worker.loop);

	if (r)
		log_error("worker %u serves nobody any more, restart culvert: %s", t->worker.index,
			  strerror(-r));
	return NULL;
}

/* --- all of them --- */

static int start_listener(struct worker *w, struct listening *on)
{
	struct listener *ls = listener_new(w, on, on->forward);

	if (!ls || worker_own_timers(w, 1)) {
		free(ls);
		return -ENOMEM;
	}
	listener_start(ls);
	return 0;
}

int threads_open(struct threads *ts, struct shared *shared, struct listening *list)
{
	int r = 0;

	ts->n = shared->config->workers;
	ts->list = calloc(ts->n, sizeof(*ts->list));
	ts->workers = calloc(ts->n, sizeof(struct worker *));
	if (!ts->list || !ts->workers)
		return -ENOMEM;
	for (unsigned int i = 0; !r && i < ts->n; i++) {
		struct thread *t = &ts->list[i];

		t->open = true;
		ts->workers[i] = &t->worker;
		r = worker_open(&t->worker, shared, i, &hooks);
		for (struct listening *l = list; !r && l; l = l->next)
			r = start_listener(&t->worker, l);
	}
	return r;
}

int threads_start(struct threads *ts)
{
	int r = 0;

	for (unsigned int i = 0; !r && i < ts->n; i++) {
		r = new_thread(&ts->list[i].id, thread_main, &ts->list[i]);
		ts->list[i].started = !r;
	}
	return r;
}

void threads_stop(struct threads *ts)
{
	for (unsigned int i = 0; ts->list && i < ts->n; i++) {
		struct thread *t = &ts->list[i];

		while (t->started && loop_call(&t->worker.loop, stop_thread, t, STOP_TIMEOUT_MS) ==
					     -ETIMEDOUT)
			log_error("worker %u has not stopped for %d s, and is waited for", i,
				  STOP_TIMEOUT_MS / 1000);
	}
}

bool threads_ended(struct threads *ts)
{
	bool all = true;

	for (unsigned int i = 0; ts->list && i < ts->n; i++) {
		struct thread *t = &ts->list[i];

		if (t->started && !pthread_tryjoin_np(t->id, NULL))
			t->started = false;
		all = all && !t->started;
	}
	return all;
}

void threads_hurry(struct threads *ts)
{
	for (unsigned int i = 0; ts->list && i < ts->n; i++)
		if (ts->list[i].started &&
		    loop_call(&ts->list[i].worker.loop, hurry_thread, &ts->list[i],
			      HURRY_TIMEOUT_MS) == -ETIMEDOUT)
			log_error("worker %u does not answer, and is waited for", i);
}

void threads_join(struct threads *ts)
{
	for (unsigned int i = 0; ts->list && i < ts->n; i++) {
		struct thread *t = &ts->list[i];

		if (t->started)
			pthread_join(t->id, NULL);
		listeners_free(&t->worker);
		t->started = false;
	}
}

void threads_close(struct threads *ts)
{
	for (unsigned int i = 0; ts->list && i < ts->n; i++)
		if (ts->list[i].open)
			worker_close(&ts->list[i].worker);
	free(ts->workers);
	free(ts->list);
}
