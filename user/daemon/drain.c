// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a drain is a change (change.h) of one forward's addresses.  A control thread
 * asks for it, and waits; the thread that reloads makes it, and looks at deadlines.
 */
#include "daemon/drain.h"

#include <errno.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/change.h"
#include "relay/worker_sessions.h"

#define PATIENCE_MS 2000 /* of a control thread, for a reload to come to its end */
#define LOOK_MS 2000     /* between two looks at forwards that are gone */

/* A drain, or its end, as a control thread asks for it. */
struct drain {
	struct change change;
	const char *name;
	bool undo;
	uint64_t due_ms;
	int error; /* out */
};

/* Of F, and of its [sni] sections. */
static int drain_change(struct drain *d, struct forward *f)
{
	struct change *ch = &d->change;
	struct forwards *all = &ch->service->forwards;
	struct listening *opened;
	int e = 0;

	for (struct listening *l = ch->service->listening; l; l = l->next)
		l->becomes = l->forward == f && !d->undo ? NULL : l->forward;
	for (size_t i = 0; d->undo && !e && i < f->conf->listen.n_addrs; i++)
		e = change_open_address(ch, f, &f->conf->listen.addrs[i], &opened);
	if (e) {
		listening_close_all(ch->opened);
		return e;
	}
	pthread_mutex_lock(&all->lock);
	change_addresses(ch);
	f->draining = !d->undo;
	pthread_mutex_unlock(&all->lock);
	for (struct forward *of = all->first; of; of = of->next)
		if (of->limits == f->totals)
			of->totals->due_ms = d->undo ? NEVER : d->due_ms;
	return 0;
}

static int drain_now(struct drain *d)
{
	struct forward *f = forwards_find(&d->change.service->forwards, d->name);

	if (!f)
		return log_complain(-ENOENT, "no forward is named \"%.64s\"", d->name);
	if (f->conf->sni)
		return log_complain(-EINVAL,
				    "%s has no sockets: drain its forward, or its servers "
				    "(`culvert upstream`)",
				    d->name);
	return d->undo && !f->draining ? 0 : drain_change(d, f);
}

static void drain_on_thread(void *arg)
{
	struct drain *d = arg;

	log_keep_complaint(d->change.result.error, sizeof(d->change.result.error));
	d->error = drain_now(d);
	log_keep_complaint(NULL, 0);
}

int drain_forward(struct service *sv, const char *name, bool undo, uint64_t due_ms)
{
	struct drain d = { .change.service = sv, .name = name, .undo = undo, .due_ms = due_ms };
	int e = loop_call(&sv->loop, drain_on_thread, &d, PATIENCE_MS);

	if (e == -ESRCH)
		return log_complain(-ESHUTDOWN, SERVICE_STOPPING);
	if (e)
		return log_complain(-EBUSY, "a reload is under way; ask again");
	return d.error ? log_complain(d.error, "%s", d.change.result.error) : 0;
}

/* --- deadlines --- */

static bool drain_is_of(const void *arg, const struct session_view *v)
{
	return v->forward == arg;
}

static void drain_end_sessions(struct worker *w, const void *arg)
{
	worker_end_sessions(w, drain_is_of, arg, CAUSE_DRAIN_OVER);
}

uint64_t drain_look(struct service *sv)
{
	uint64_t now_ms = clock_ms(), due = NEVER;

	for (struct forward *f = sv->forwards.first; f; f = f->next) {
		uint64_t ms = f->totals->due_ms;
		unsigned int n = atomic_load(&f->sessions);

		if (ms <= now_ms && n) {
			log_cause(CAUSE_DRAIN_OVER, LOG_INFO,
				  "forward %s: its time to drain is over: %u session%s reset",
				  forward_name(f->conf), n, n == 1 ? " is" : "s are");
			threads_call(&sv->threads, drain_end_sessions, f);
		}
		if (ms > now_ms && ms < due)
			due = ms;
		/* it waits for its last session, and its stock of descriptors with it */
		if (f->state != FORWARD_ACTIVE && now_ms + LOOK_MS < due)
			due = now_ms + LOOK_MS;
	}
	forwards_reap(&sv->forwards);
	return due;
}
