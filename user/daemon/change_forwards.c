// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a change has two steps.  The plan may fail, and changes nothing that others
 * see.  The change itself cannot fail.
 *
 *   plan     new forwards are made; each address that some forward wants keeps its sockets, or gets
 *            new ones from the privileged process
 *   change   each worker, on its own thread: gives the clients of an address to the forward that
 *            has the address now; accepts from new sockets; closes others, after it has accepted
 *            the clients in their backlogs
 *
 * A forward with nothing changed stays as it is.  If something has changed, a new struct forward of
 * the same name replaces it, and sessions go on with the one that they began with.  Those that wait
 * for a server's place go on with the new one, each at its turn (forward_follow()).
 *
 * The start is the same change, from no forwards.  A drain is a smaller change: one forward's
 * addresses are closed, or opened.  A control thread asks for it, and waits.
 *
 * All of this runs on the thread that reloads, or at the start on the main thread.  There are two
 * exceptions: drain_forward() runs on a control thread, change_worker() on each worker's thread.
 */
#include "daemon/change_forwards.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "config/option.h"
#include "relay/balance.h"
#include "relay/health_check.h"
#include "relay/session_life.h"

#define BUCKETS 16384    /* about as many forwards as a file has room for */
#define PATIENCE_MS 2000 /* of a control thread, for a reload to come to its end */
#define LOOK_MS 2000     /* between two looks at forwards that are gone */

int change_no_memory(void)
{
	return log_complain(-ENOMEM, "out of memory: is there a limit, such as MemoryMax= of the "
				     "unit?");
}

/* --- plan: addresses --- */

static struct listening_list *change_bucket(const struct change *ch, const struct addr *a)
{
	return &ch->buckets[balance_hash(&a->ss, a->len, 0) % BUCKETS];
}

/* Find the sockets configured for A: those of F, else those of another forward, else NULL. */
static struct listening *change_find_address(const struct change *ch, const struct forward *f,
					     const struct addr *a, bool udp)
{
	struct listening *found = NULL, *l;

	LIST_FOREACH(l, change_bucket(ch, a), in_bucket) {
		if (l->udp != udp || !addr_equal(&l->asked, a))
			continue;
		if (l->forward == f)
			return l;
		found = l;
	}
	return found;
}

/* True if a socket of this daemon, also an old one of UDP, may have A's port. */
static bool change_has_own_sockets(const struct service *sv, const struct addr *a, bool udp)
{
	const struct listening *l;
	const struct forward *f;

	LIST_FOREACH(l, &sv->listening, in_service)
		if (addr_is_inet(a) && l->udp == udp && l->addr.ss.ss_family == a->ss.ss_family &&
		    addr_port(&l->addr) == addr_port(a))
			return true;
	if (udp)
		TAILQ_FOREACH(f, &sv->forwards.list, in_forwards)
			if (atomic_load(&f->old_sockets))
				return true;
	return false;
}

/* Plan new sockets at A, an address of F.  -errno, after a complaint. */
static int change_open_address(struct change *ch, struct forward *f, const struct addr *a,
			       struct listening **ret)
{
	const struct listening_maker root = { listener_sockets, NULL };
	const struct listening_maker other = { privileged_listen, ch->service->privileged };
	int e = listening_open(ch->config == ch->service->start ? &root : &other, f, a,
			       change_has_own_sockets(ch->service, a, f->conf->listen.udp),
			       ch->service->start->workers, ret);

	if (e)
		return e;
	LIST_INSERT_HEAD(&ch->opened, *ret, in_service);
	return 0;
}

/* Plan address A of F.  FC: the settings of F; BEFORE: the forward that F replaces, or NULL. */
static int change_plan_address(struct change *ch, struct forward *f, struct forward_conf *fc,
			       const struct forward *before, struct addr *a)
{
	struct listening *l = change_find_address(ch, before, a, fc->listen.udp);
	int e = 0;

	if (l && l->forward->conf->transparent != fc->transparent && !l->given)
		return log_complain(-EINVAL,
				    "forward %s: transparent: cannot change while its "
				    "sockets listen: `culvert drain` it first, or restart culvert",
				    forward_name(fc));
	if (l && !l->becomes)
		l->becomes = f;
	else
		e = change_open_address(ch, f, a, &l);
	if (!e)
		listening_adopt(l, &fc->listen, a);
	return e;
}

/* --- plan: forwards --- */

/* Plan forward number I of the configuration, with its addresses. */
static int change_plan_forward(struct change *ch, size_t i)
{
	struct forward_conf *fc = &ch->config->forwards[i];
	struct forward *before = forwards_find(&ch->service->forwards, forward_name(fc));
	bool same = before && options_same_own(before->conf, fc);
	const struct forward *of = fc->sni ? ch->forwards[fc->of] : NULL;
	struct forward *f = same ? before : forward_new(fc, ch->config, ch->next, before, of);
	bool drains;
	int e = 0;

	ch->forwards[i] = f;
	if (!f)
		return change_no_memory();
	ch->result.kept += same;
	ch->result.changed += before && !same;
	ch->result.added += !before;
	if (before)
		before->becomes = f;
	if (!same && forward_needs_privileges(fc))
		e = marked_sockets_open(&ch->service->keeper, fc, &f->stock);
	drains = ch->keeps_drains && before && before->draining;
	if (drains)
		f->draining = true;
	for (size_t j = 0; !e && !drains && j < fc->listen.n_addrs; j++)
		e = change_plan_address(ch, f, fc, before, &fc->listen.addrs[j]);
	/* last, because look-ups on the main thread use the final listening addresses */
	if (!e && !same)
		servers_add_names(&f->servers, ch->service->shared->names);
	return e;
}

static int change_plan(struct change *ch)
{
	struct listening *l;
	struct forward *f;
	int e = 0;

	ch->buckets = calloc(BUCKETS, sizeof(*ch->buckets));
	ch->forwards = calloc(ch->config->n_forwards, sizeof(struct forward *));
	if (!ch->buckets || !ch->forwards)
		return change_no_memory();
	LIST_FOREACH(l, &ch->service->listening, in_service) {
		LIST_INSERT_HEAD(change_bucket(ch, &l->asked), l, in_bucket);
		l->becomes = NULL;
	}
	TAILQ_FOREACH(f, &ch->service->forwards.list, in_forwards)
		f->becomes = NULL;
	for (size_t i = 0; !e && i < ch->config->n_forwards; i++)
		e = change_plan_forward(ch, i);
	return e;
}

/* --- change --- */

static void change_worker(struct worker *w, const void *arg)
{
	const struct change *ch = arg;
	struct listening *l;

	LIST_FOREACH(l, &ch->service->listening, in_service) {
		struct listener *ls = &l->at[w->index];

		if (l->becomes)
			listener_becomes(ls, l->becomes);
		else
			listener_end(ls);
	}
	LIST_FOREACH(l, &ch->opened, in_service)
		listener_start(l, w);
}

/*
 * Let workers accept at each address for its new forward (`becomes`).  Close each address that has
 * no new forward.  The lock of forwards is held.
 */
static void change_addresses(struct change *ch)
{
	struct listening *l, *next;

	threads_call(&ch->service->threads, change_worker, ch);
	for (l = LIST_FIRST(&ch->service->listening); l; l = next) {
		next = LIST_NEXT(l, in_service);
		if (!l->becomes) {
			LIST_REMOVE(l, in_service);
			listening_close(l);
			continue;
		}
		if (l->forward != l->becomes)
			listening_set_options(l, l->becomes->conf);
		l->forward = l->becomes;
	}
	while ((l = LIST_FIRST(&ch->opened))) {
		LIST_REMOVE(l, in_service);
		LIST_INSERT_HEAD(&ch->service->listening, l, in_service);
	}
}

/* F, which is active, is replaced or removed. */
static void change_retire(struct change *ch, struct forward *f)
{
	uint64_t timeout = f->conf->drain_timeout_ms, due = clock_ms() + timeout;

	f->state = f->becomes ? FORWARD_REPLACED : FORWARD_REMOVED;
	ch->result.removed += !f->becomes;
	if (!f->becomes)
		forward_set_sni(f, NULL, 0);
	/* an earlier deadline that an operator has set stays */
	if (!f->becomes && timeout && due < f->totals->due_ms)
		f->totals->due_ms = due;
}

static void change_list(struct change *ch)
{
	struct forward_list *all = &ch->service->forwards.list;
	struct forward_list gone = TAILQ_HEAD_INITIALIZER(gone);
	struct forward *f, *next;

	for (f = TAILQ_FIRST(all); f; f = next) {
		next = TAILQ_NEXT(f, in_forwards);
		if (f->becomes == f)
			continue;
		if (f->state == FORWARD_ACTIVE)
			change_retire(ch, f);
		TAILQ_INSERT_TAIL(&gone, f, in_forwards);
	}
	TAILQ_INIT(all);
	for (size_t i = 0; i < ch->config->n_forwards; i++) {
		f = ch->forwards[i];
		if (f->conf->hellos || f->totals->sni)
			forward_set_sni(f, ch->forwards, ch->config->n_forwards);
		if (!ch->keeps_drains) {
			f->totals->due_ms = NEVER;
			f->draining = false;
		}
		TAILQ_INSERT_TAIL(all, f, in_forwards);
	}
	TAILQ_CONCAT(all, &gone, in_forwards);
}

/* From now on, who waits for a server's place goes on with the new forward. */
static void change_names(struct change *ch)
{
	struct forward *f;

	TAILQ_FOREACH(f, &ch->service->forwards.list, in_forwards)
		if (f->state == FORWARD_ACTIVE && !f->becomes)
			forward_set_active(f, false);
	for (size_t i = 0; i < ch->config->n_forwards; i++)
		forward_set_active(ch->forwards[i], true);
}

/* The lock is held for all steps, so that other threads see the whole change or nothing of it. */
static void change_put_in_force(struct change *ch)
{
	struct service *sv = ch->service;
	struct upstream_orders before;

	pthread_mutex_lock(&sv->forwards.lock);
	change_names(ch); /* before a client of the new forward can wait */
	change_addresses(ch);
	change_list(ch);
	sv->changes++;
	before = sv->orders;
	sv->orders = ch->orders;
	ch->orders = before;
	pthread_mutex_unlock(&sv->forwards.lock);
	free(sv->text);
	sv->text = ch->config->text;
	ch->config->text = NULL;
	if (sv->shared->syn) /* a client may be denied now */
		graft_syn_forget_proofs(sv->shared->grafts);
	checks_wake(sv->shared->checks);
	log_set_level(ch->config->log_level);
	atomic_store(&sv->shared->grace_ms, ch->config->grace_ms);
	for (size_t i = 0; i < ch->config->n_forwards; i++) {
		queue_wake(&ch->forwards[i]->totals->queue); /* there may be more places */
		if (ch->forwards[i]->from == ch->next)
			forward_warn(ch->forwards[i]->conf);
	}
}

int change_forwards(struct change *ch, int e)
{
	e = e ?: change_plan(ch);
	if (e) { /* nothing has changed: free the plan */
		listening_close_all(&ch->opened);
		for (size_t i = 0; ch->forwards && i < ch->config->n_forwards; i++)
			if (ch->forwards[i] && ch->forwards[i]->from == ch->next)
				forward_free(ch->forwards[i]);
	} else {
		change_put_in_force(ch);
	}
	free(ch->forwards);
	free(ch->buckets);
	orders_close(&ch->orders);
	config_version_drop(ch->next);
	return e;
}

/* --- drain --- */

/* A drain, or its end, as a control thread asks for it. */
struct drain {
	struct change change;
	const char *name;
	bool undo;
	uint64_t due_ms;
	char *why; /* result, beside ERROR: the fault */
	int error;
};

/* Drain a forward with its [sni] sections, or end their drain.  -errno, after a complaint. */
static int drain_now(struct drain *d)
{
	struct change *ch = &d->change;
	struct forwards *all = &ch->service->forwards;
	struct forward *f = forwards_find(all, d->name), *of;
	struct listening *opened, *l;
	int e = 0;

	if (!f)
		return log_complain(-ENOENT, "no forward is named \"%.64s\"", d->name);
	if (f->conf->sni)
		return log_complain(-EINVAL,
				    "%s has no sockets: drain its forward, or its servers "
				    "(`culvert upstream`)",
				    d->name);
	if (d->undo && !f->draining)
		return 0;
	LIST_FOREACH(l, &ch->service->listening, in_service)
		l->becomes = l->forward == f && !d->undo ? NULL : l->forward;
	for (size_t i = 0; d->undo && !e && i < f->conf->listen.n_addrs; i++)
		e = change_open_address(ch, f, &f->conf->listen.addrs[i], &opened);
	if (e) {
		listening_close_all(&ch->opened);
		return e;
	}
	pthread_mutex_lock(&all->lock);
	change_addresses(ch);
	f->draining = !d->undo;
	pthread_mutex_unlock(&all->lock);
	TAILQ_FOREACH(of, &all->list, in_forwards)
		if (of->limits == f->totals)
			of->totals->due_ms = d->undo ? NEVER : d->due_ms;
	return 0;
}

static void drain_on_thread(void *arg)
{
	struct drain *d = arg;

	log_keep_complaint(d->why, DRAIN_WHY_LEN);
	d->error = drain_now(d);
	log_keep_complaint(NULL, 0);
}

int drain_forward(struct service *sv, const char *name, bool undo, uint64_t due_ms,
		  char why[DRAIN_WHY_LEN])
{
	struct drain d = { { .service = sv }, name, undo, due_ms, why, 0 };
	int e = loop_call(&sv->loop, drain_on_thread, &d, PATIENCE_MS);

	if (e)
		strcpy(why, e == -ESRCH ? SERVICE_STOPPING : "a reload is under way; ask again");
	return e ?: d.error;
}

/* --- deadlines --- */

static enum cause drain_end_session(void *arg, const struct session_view *v)
{
	const struct forward *const *f = arg;

	return v->forward == *f ? CAUSE_DRAIN_OVER : CAUSE_NONE;
}

static void drain_end_sessions(struct worker *w, const void *arg)
{
	const struct forward *f = arg;

	worker_visit_sessions(w, 0, 1, drain_end_session, &f);
}

uint64_t drain_end_due(struct service *sv)
{
	uint64_t now_ms = clock_ms(), due = NEVER;
	struct forward *f;

	TAILQ_FOREACH(f, &sv->forwards.list, in_forwards) {
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
		/* look again, to free F and its descriptors soon after its last session */
		if (f->state != FORWARD_ACTIVE && now_ms + LOOK_MS < due)
			due = now_ms + LOOK_MS;
	}
	forwards_reap(&sv->forwards);
	return due;
}
