// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: all that can fail comes first and touches nothing that runs: new forwards
 * are made, new addresses bound, memory taken (plan_*).  This may wait for the privileged process
 * or the thread for names, and holds no lock meanwhile: whoever reads the lists changes nothing,
 * and whoever changes them needs the turn, which this thread has.  Then it is put in force, which
 * cannot fail: the addresses first (serving.h), then the list of forwards.
 *
 *   a forward of the same name, nothing changed    stays as it is
 *   of the same name, something changed            a new struct forward replaces it
 *   an address that was listened on before         keeps its sockets, whoever's it is now
 *   ... and they do not fit                        gets others beside them
 *
 * A listening socket is closed only where no forward wants its address any more, or where others
 * have taken its place long before.
 */
#include "daemon/reload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config/file.h"
#include "config/option.h"
#include "relay/names.h"
#include "relay/session.h"

#define STOCK_LOOK_MS 2000
#define WORKER_PATIENCE_MS 10000

struct plan {
	const struct reload *r;
	struct config_version *next;
	struct forward **forwards; /* active afterwards, in order; the new ones are not in a list */
	size_t n;
	struct serving_plan addresses;
	struct reload_result *result;
};

static int refuse(struct plan *p, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int refuse(struct plan *p, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->result->why, sizeof(p->result->why), fmt, ap);
	va_end(ap);
	return error;
}

/* --- the plan --- */

/* What cannot be done without a new start is refused, rather than left undone. */
static int check_globals(struct plan *p)
{
	const struct config *c = &p->next->config;
	const struct option_def *o = options_fixed(p->r->start, c);
	char at[CONFIG_PLACE_LEN];

	if (o)
		return refuse(p, -EINVAL, "%s%s: cannot change while culvert runs: restart it",
			      config_option_place(c, o->name, at), o->name);
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].engine == ENGINE_SOCKMAP && !p->r->shared->kernel)
			return refuse(p, -EOPNOTSUPP, "forward %s: engine sockmap: the kernel path "
				      "was not set up at the start: restart culvert",
				      forward_name(&c->forwards[i]));
	return 0;
}

/* The forward that FC continues, or NULL. */
static struct forward *find_before(const struct reload *r, const struct forward_conf *fc)
{
	struct listening *l;

	if (fc->name)
		return forwards_find(r->forwards, fc->name);
	/* the name of one from the command line may be a port that the kernel has picked */
	l = listening_find(*r->serving->list, NULL, &fc->listen.addrs[0]);
	return l && !l->forward->conf->name ? l->forward : NULL;
}

static bool listens_alike(const struct reload *r, struct forward *before,
			  const struct forward_conf *fc)
{
	if (fc->listen.n_addrs != before->conf->listen.n_addrs)
		return false;
	for (size_t i = 0; i < fc->listen.n_addrs; i++) {
		struct listening *l =
			listening_find(*r->serving->list, before, &fc->listen.addrs[i]);

		if (!l || l->forward != before)
			return false;
	}
	return true;
}

static bool unchanged(const struct reload *r, struct forward *before, const struct forward_conf *fc)
{
	return !strcmp(before->conf->upstream.text, fc->upstream.text) &&
	       options_same_own(before->conf, fc) && listens_alike(r, before, fc);
}

/* F is the next one. */
static int fill_stock(struct plan *p, struct forward *f)
{
	char err[512];
	int r;

	if (!forward_needs_privileges(f->conf))
		return 0;
	if (!p->r->keeper)
		return refuse(p, -EPERM, "forward %s: there is no privileged process, and its "
			      "sockets need it", forward_name(f->conf));
	r = socket_stock_open(p->r->keeper, &p->next->config, p->n, &f->stock, err, sizeof(err));
	return r ? refuse(p, r, "forward %s: %s", forward_name(f->conf), err) : 0;
}

static int plan_forwards(struct plan *p)
{
	struct config *c = &p->next->config;
	int r;

	p->forwards = calloc(c->n_forwards ?: 1, sizeof(struct forward *));
	if (!p->forwards)
		return refuse(p, -ENOMEM, "out of memory");
	for (; p->n < c->n_forwards; p->n++) {
		const struct forward_conf *fc = &c->forwards[p->n];
		struct forward *before = find_before(p->r, fc), **f = &p->forwards[p->n];

		if (before && unchanged(p->r, before, fc)) {
			*f = before;
			p->result->kept++;
			continue;
		}
		if (forward_new(fc, c, p->next, before, f))
			return refuse(p, -ENOMEM, "out of memory");
		(*f)->policy.no_splice = p->r->no_splice;
		if (names_add(p->r->shared->names, &(*f)->upstream))
			return refuse(p, -ENOMEM, "out of memory");
		r = fill_stock(p, *f);
		if (r)
			return r;
		if (before)
			p->result->changed++;
		else
			p->result->added++;
	}
	return 0;
}

static bool is_planned(const struct plan *p, const struct forward *f, const struct addr *a)
{
	for (const struct listening *l = *p->r->serving->list; l; l = l->next)
		if (l->becomes == f && addr_equal(&l->addr, a))
			return true;
	for (const struct listening *l = p->addresses.opened; l; l = l->next)
		if (l->becomes == f && addr_equal(&l->addr, a))
			return true;
	return false;
}

/* LATE: those are open already that can be opened without any connection going to them. */
static int plan_address(struct plan *p, struct forward *f, struct forward_conf *fc, struct addr *a,
			bool late)
{
	struct forward *before = find_before(p->r, fc);
	struct serving *s = p->r->serving;
	struct listening *l = listening_find(*s->list, before, a);
	bool has = l && !l->becomes;
	char why[512];
	int r = 0;

	if (is_planned(p, f, a) || (!late && !has && serving_joins(s, a)))
		return 0;
	if (has && listening_fits(l, fc))
		l->becomes = f;
	else if (has)
		r = serving_replace(s, &p->addresses, p->r->maker, f, fc, l, &l, why, sizeof(why));
	else
		r = serving_open(s, &p->addresses, p->r->maker, f, fc, a, &l, why, sizeof(why));
	if (r)
		return refuse(p, r, "forward %s: %s", forward_name(fc), why);
	listening_adopt(l, &fc->listen, a);
	return 0;
}

static int plan_pass(struct plan *p, bool late)
{
	int r = 0;

	for (size_t i = 0; !r && i < p->n; i++) {
		struct forward_conf *fc = &p->next->config.forwards[i];

		for (size_t j = 0; !r && j < fc->listen.n_addrs; j++)
			r = plan_address(p, p->forwards[i], fc, &fc->listen.addrs[j], late);
	}
	return r;
}

static void plan_leaving(const struct serving *s)
{
	for (struct listening *l = *s->list; l; l = l->next) {
		struct listening *next = l->leaving ? serving_successor(s, l) : NULL;

		if (next)
			l->becomes = next->becomes;
	}
}

static int plan_addresses(struct plan *p)
{
	struct serving *s = p->r->serving;
	char why[512];
	int r;

	for (struct listening *l = *s->list; l; l = l->next)
		l->becomes = NULL;
	r = plan_pass(p, false) ?: plan_pass(p, true);
	if (r)
		return r;
	plan_leaving(s);
	serving_keep_handshakes(s, &p->addresses);
	r = serving_prepare(s, &p->addresses, why, sizeof(why));
	return r ? refuse(p, r, "%s", why) : 0;
}

static void give_up(struct plan *p)
{
	serving_give_up(p->r->serving, &p->addresses);
	/* those that were made for it are no list's */
	for (size_t i = 0; p->forwards && i < p->next->config.n_forwards; i++)
		if (p->forwards[i] && p->forwards[i]->from == p->next)
			forward_free(p->forwards[i]);
}

/* --- the change --- */

static bool stays(const struct plan *p, const struct forward *f)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->forwards[i] == f)
			return true;
	return false;
}

/* True: another has its totals, and so its name. */
static bool is_replaced(const struct plan *p, const struct forward *f)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->forwards[i]->totals == f->totals)
			return true;
	return false;
}

/* A deadline that an operator has set before stays, if it is the earlier one. */
static void limit_removed(struct forward *f, uint64_t now_ms)
{
	unsigned int drain = f->conf->drain_timeout_ms;

	if (drain && now_ms + drain < f->totals->due.ms)
		forward_set_due(f, now_ms + drain, "drain-timeout");
}

static void adopt_forwards(struct plan *p, uint64_t now_ms)
{
	struct forwards *all = p->r->forwards;
	struct forward *f = all->first, *next;

	for (; f && f->state == FORWARD_ACTIVE; f = next) {
		next = f->next;
		if (stays(p, f)) {
			forwards_take(all, f);
			continue;
		}
		if (is_replaced(p, f)) {
			forwards_retire(all, f, FORWARD_REPLACED);
			continue;
		}
		forwards_retire(all, f, FORWARD_REMOVED);
		limit_removed(f, now_ms);
		p->result->removed++;
	}
	for (size_t i = 0; i < p->n; i++) {
		forward_clear_due(p->forwards[i]); /* none drains any more */
		forwards_add(all, p->forwards[i]);
		if (p->forwards[i]->stock)
			socket_stock_renumber(p->forwards[i]->stock,
					      p->next->config.generation, i);
	}
}

/* Who looks at forwards and sessions finds all of it done, or nothing. */
static void put_in_force(struct plan *p, uint64_t now_ms)
{
	pthread_mutex_lock(&p->r->forwards->lock);
	serving_change(p->r->serving, &p->addresses);
	adopt_forwards(p, now_ms);
	pthread_mutex_unlock(&p->r->forwards->lock);
	for (size_t i = 0; i < p->n; i++)
		if (p->forwards[i]->from == p->next)
			forward_warn(p->forwards[i]->conf);
}

int reload_apply(const struct reload *r, struct config_version *next, uint64_t now_ms,
		 struct reload_result *ret)
{
	struct plan p = { .r = r, .next = next, .result = ret };
	int error;

	memset(ret, 0, sizeof(*ret));
	error = check_globals(&p) ?: plan_forwards(&p) ?: plan_addresses(&p);
	if (error)
		give_up(&p);
	else
		put_in_force(&p, now_ms);
	free(p.forwards);
	config_version_drop(next);
	return error;
}

/* --- afterwards --- */

struct drain {
	struct worker *worker;
	const struct forward *forward;
};

static bool is_of(const void *arg, const struct session *s)
{
	return s->forward == arg;
}

static void end_sessions(void *arg)
{
	struct drain *d = arg;

	session_end_many(d->worker, is_of, d->forward, CAUSE_DRAIN_OVER);
}

static void end_forward(const struct reload *r, const struct forward *f)
{
	unsigned int n = atomic_load(&f->sessions);

	log_info("forward %s: its %s is over: %u session%s reset", forward_name(f->conf),
		 f->totals->due.what, n, n == 1 ? " is" : "s are");
	for (unsigned int w = 0; w < r->serving->n_workers; w++) {
		struct drain d = { r->serving->workers[w], f };

		loop_call(&d.worker->loop, end_sessions, &d, WORKER_PATIENCE_MS);
	}
}

/* All whose time is over.  When to look again. */
static uint64_t end_due(const struct reload *r, uint64_t now_ms)
{
	uint64_t due = UINT64_MAX;

	for (struct forward *f = r->forwards->first; f; f = f->next)
		if (f->totals->due.ms <= now_ms && atomic_load(&f->sessions))
			end_forward(r, f);
	for (struct forward *f = r->forwards->first; f; f = f->next) {
		if (!atomic_load(&f->sessions))
			continue;
		if (f->totals->due.ms <= now_ms) /* a worker that did not answer is asked again */
			f->totals->due.ms = now_ms + WORKER_PATIENCE_MS;
		if (f->totals->due.ms < due)
			due = f->totals->due.ms;
	}
	return due;
}

uint64_t reload_drain(const struct reload *r, uint64_t now_ms)
{
	uint64_t due = serving_look(r->serving, now_ms), end = end_due(r, now_ms);

	if (end < due)
		due = end;
	forwards_reap(r->forwards);
	/* what is left waits for its last session, and its stock of descriptors with it */
	for (struct forward *f = r->forwards->first; f; f = f->next)
		if (f->state != FORWARD_ACTIVE && f->stock && now_ms + STOCK_LOOK_MS < due)
			due = now_ms + STOCK_LOOK_MS;
	return due;
}
