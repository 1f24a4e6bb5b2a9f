// SPDX-License-Identifier: BSD-2-Clause
#include "drain.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance.h"
#include "listener.h"
#include "log.h"

#define WORKER_PATIENCE_MS 10000

/* What a worker does at its turn. */
struct drain_turn {
	struct worker *worker;
	const struct forward *forward;
	struct listening *list;
	int error;
};

/* Half of it is none: a worker that is slow is waited for. */
static int call_workers(const struct reload *r, void (*fn)(void *arg), struct drain_turn turn)
{
	int error = 0;

	for (unsigned int w = 0; w < r->start->workers; w++) {
		turn.worker = r->workers[w];
		turn.error = 0;
		while (loop_call(&turn.worker->loop, fn, &turn, WORKER_PATIENCE_MS) == -ETIMEDOUT)
			log_error("drain: worker %u is slow", w);
		error = error ?: turn.error;
	}
	return error;
}

static void set_draining(const struct reload *r, struct forward *f, bool draining, uint64_t due_ms)
{
	pthread_mutex_lock(&r->forwards->lock);
	f->draining = draining;
	f->drain_due_ms = due_ms;
	pthread_mutex_unlock(&r->forwards->lock);
}

/* --- begin --- */

static void end_listeners(void *arg)
{
	struct drain_turn *t = arg;

	for (struct listening *l = t->list; l; l = l->next) {
		struct listener *ls = l->forward == t->forward ? listener_find(t->worker, l) : NULL;

		if (!ls)
			continue;
		listener_end(ls);
		worker_own_timers(t->worker, -1);
	}
}

/* With the balance held: who moves sessions steers listeners, too. */
static void close_all(const struct reload *r, const struct forward *f)
{
	struct listening **at = r->listening;

	call_workers(r, end_listeners, (struct drain_turn){ .forward = f, .list = *at });
	while (*at) {
		struct listening *l = *at;

		if (l->forward != f) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		listening_close(l);
	}
}

void drain_begin(const struct reload *r, struct forward *f, uint64_t due_ms)
{
	balance_hold(r->shared->balance);
	close_all(r, f);
	balance_release(r->shared->balance);
	set_draining(r, f, true, due_ms);
}

/* --- end --- */

static void start_listeners(void *arg)
{
	struct drain_turn *t = arg;

	for (struct listening *l = t->list; l && !t->error; l = l->next) {
		struct listener *ls;

		if (l->forward != t->forward)
			continue;
		ls = listener_new(t->worker, l, l->forward);
		if (ls && !worker_own_timers(t->worker, 1)) {
			listener_start(ls);
			continue;
		}
		free(ls);
		t->error = -ENOMEM;
	}
}

/* Before *LIST. */
static int open_address(const struct reload *r, struct forward *f, const struct addr *a,
			const struct listening_maker *by, struct listening **list, char *err,
			size_t errlen)
{
	char text[ADDR_STRLEN], why[256];
	struct listening *l;
	int error;

	error = listening_open(by, f->conf, a, true, r->start->workers, &l, why, sizeof(why));
	if (error) {
		addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
		snprintf(err, errlen, "cannot listen on %s: %s", text, why);
		return error;
	}
	l->forward = l->becomes = f;
	l->next = *list;
	*list = l;
	listening_steer(l, atomic_load(&r->shared->balance->active));
	return 0;
}

int drain_end(const struct reload *r, struct forward *f, const struct listening_maker *by,
	      char *err, size_t errlen)
{
	int error = 0;

	balance_hold(r->shared->balance);
	for (size_t i = 0; !error && i < f->conf->listen.n_addrs; i++)
		error = open_address(r, f, &f->conf->listen.addrs[i], by, r->listening, err,
				     errlen);
	if (!error) {
		error = call_workers(r, start_listeners,
				     (struct drain_turn){ .forward = f, .list = *r->listening });
		if (error)
			snprintf(err, errlen, "a worker: %s", strerror(-error));
	}
	if (error)
		close_all(r, f);
	balance_release(r->shared->balance);
	if (!error)
		set_draining(r, f, false, UINT64_MAX);
	return error;
}
