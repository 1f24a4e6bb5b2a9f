// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: all that can fail comes first and touches nothing that runs: new forwards
 * are made, new addresses bound, memory taken (plan_*).  Then each worker, on its own thread, gives
 * its listeners their new forwards, ends those that are no longer wanted and starts the new ones
 * (commit), which cannot fail.  Last, the lists follow (adopt).
 *
 *   a forward of the same name, nothing changed    stays as it is
 *   of the same name, something changed            a new struct forward replaces it
 *   an address that was listened on before         keeps its sockets, whoever's it is now
 *
 * A listening socket is closed only where no forward wants its address any more.
 */
#include "reload.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance.h"
#include "listener.h"
#include "log.h"
#include "names.h"
#include "option.h"
#include "session.h"
#include "session_move.h"

#define STOCK_LOOK_MS 2000
#define WORKER_PATIENCE_MS 10000

struct plan {
	const struct reload *r;
	struct config_version *next;
	struct forward **forwards; /* active afterwards, in order; the new ones are not in a list */
	size_t n;
	struct listening *opened; /* list */
	size_t n_opened;
	struct listener **listeners; /* [place in OPENED][worker] */
	struct reload_result *result;
};

static unsigned int n_workers(const struct reload *r)
{
	return r->start->workers;
}

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

	if (o)
		return refuse(p, -EINVAL, "%s: cannot change while culvert runs: restart it",
			      o->name);
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
	l = listening_find(*r->listening, NULL, &fc->listen.addrs[0]);
	return l && !l->forward->conf->name ? l->forward : NULL;
}

static bool listens_alike(const struct reload *r, struct forward *before,
			  const struct forward_conf *fc)
{
	if (fc->listen.n_addrs != before->conf->listen.n_addrs)
		return false;
	for (size_t i = 0; i < fc->listen.n_addrs; i++) {
		struct listening *l =
			listening_find(*r->listening, before, &fc->listen.addrs[i]);

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

static bool same_port(const struct addr *a, const struct addr *b)
{
	/* the port of sockaddr_in6 is at the same place */
	return addr_is_inet(a) && a->ss.ss_family == b->ss.ss_family &&
	       ((const struct sockaddr_in *)&a->ss)->sin_port ==
		       ((const struct sockaddr_in *)&b->ss)->sin_port;
}

/*
 * From 0.0.0.0:80 to 10.0.0.1:80 the one is in the way of the other until it is closed; as they are
 * of one user, SO_REUSEPORT lets both be for that while.
 */
static int open_address(struct plan *p, const struct forward_conf *fc, struct addr *a,
			struct listening **ret)
{
	char text[ADDR_STRLEN], why[256];
	bool joins = false;
	int r;

	for (const struct listening *l = *p->r->listening; l; l = l->next)
		joins = joins || same_port(&l->addr, a);
	r = listening_open(p->r->maker, fc, a, joins, n_workers(p->r), ret, why, sizeof(why));
	if (!r)
		return 0;
	addr_format((struct sockaddr *)&a->ss, a->len, text, sizeof(text));
	return refuse(p, r, "forward %s: cannot listen on %s: %s", forward_name(fc), text, why);
}

static int plan_address(struct plan *p, struct forward *f, struct forward_conf *fc, struct addr *a)
{
	struct forward *before = find_before(p->r, fc);
	struct listening *l = listening_find(*p->r->listening, before, a);
	int r;

	if (l && !l->becomes && l->transparent == fc->transparent) {
		l->becomes = f;
		listening_adopt(l, &fc->listen, a);
		return 0;
	}
	r = open_address(p, fc, a, &l);
	if (r)
		return r;
	listening_adopt(l, &fc->listen, a);
	l->forward = l->becomes = f;
	l->next = p->opened;
	p->opened = l;
	p->n_opened++;
	listening_steer(l, atomic_load(&p->r->shared->balance->active));
	return 0;
}

static int plan_addresses(struct plan *p)
{
	int r = 0;

	for (struct listening *l = *p->r->listening; l; l = l->next)
		l->becomes = NULL;
	for (size_t i = 0; !r && i < p->n; i++) {
		struct forward_conf *fc = &p->next->config.forwards[i];

		for (size_t j = 0; !r && j < fc->listen.n_addrs; j++)
			r = plan_address(p, p->forwards[i], fc, &fc->listen.addrs[j]);
	}
	return r;
}

struct own_timers {
	struct worker *worker;
	int n, error;
};

static void take_timers(void *arg)
{
	struct own_timers *t = arg;

	t->error = worker_own_timers(t->worker, t->n);
}

/* On each worker room for the timers of N listeners; all or none. */
static int call_timers(const struct reload *r, int n)
{
	for (unsigned int w = 0; w < n_workers(r); w++) {
		struct own_timers t = { r->workers[w], n, 0 };
		int error = loop_call(&r->workers[w]->loop, take_timers, &t, WORKER_PATIENCE_MS);

		if (!error)
			error = t.error;
		if (!error)
			continue;
		for (t.n = -n; w-- > 0;) {
			t.worker = r->workers[w];
			loop_call(&t.worker->loop, take_timers, &t, WORKER_PATIENCE_MS);
		}
		return error;
	}
	return 0;
}

static int plan_listeners(struct plan *p)
{
	size_t i = 0;
	int r;

	p->listeners = calloc(p->n_opened * n_workers(p->r) + 1, sizeof(struct listener *));
	if (!p->listeners)
		return refuse(p, -ENOMEM, "out of memory");
	for (struct listening *l = p->opened; l; l = l->next)
		for (unsigned int w = 0; w < n_workers(p->r); w++, i++) {
			p->listeners[i] = listener_new(p->r->workers[w], l, l->forward);
			if (!p->listeners[i])
				return refuse(p, -ENOMEM, "out of memory");
		}
	r = call_timers(p->r, (int)p->n_opened);
	return r ? refuse(p, r, "a worker: %s", strerror(-r)) : 0;
}

static void give_up(struct plan *p)
{
	for (size_t i = 0; p->listeners && i < p->n_opened * n_workers(p->r); i++)
		free(p->listeners[i]);
	listening_close_all(p->opened);
	/* those that were made for it are no list's */
	for (size_t i = 0; p->forwards && i < p->next->config.n_forwards; i++)
		if (p->forwards[i] && p->forwards[i]->from == p->next)
			forward_free(p->forwards[i]);
}

/* --- the change --- */

struct change {
	struct plan *plan;
	struct worker *worker;
};

static void commit(void *arg)
{
	struct change *t = arg;
	struct worker *w = t->worker;
	size_t i = w->index;

	for (struct listening *l = *t->plan->r->listening; l; l = l->next) {
		struct listener *ls = listener_find(w, l);

		if (l->becomes) {
			ls->forward = l->becomes;
			continue;
		}
		listener_end(ls);
		worker_own_timers(w, -1);
	}
	for (struct listening *l = t->plan->opened; l; l = l->next, i += n_workers(t->plan->r))
		listener_start(t->plan->listeners[i]);
}

/* Half a change is none: a worker that is slow is waited for. */
static void commit_all(struct plan *p)
{
	for (unsigned int w = 0; w < n_workers(p->r); w++) {
		struct change t = { p, p->r->workers[w] };

		while (loop_call(&t.worker->loop, commit, &t, WORKER_PATIENCE_MS) == -ETIMEDOUT)
			log_error("reload: worker %u is slow", w);
	}
}

static void adopt_addresses(struct plan *p)
{
	struct listening **at = p->r->listening;

	while (*at) {
		struct listening *l = *at;

		if (!l->becomes) {
			*at = l->next;
			listening_close(l);
			continue;
		}
		if (l->forward != l->becomes)
			listening_set_options(l, l->becomes->conf);
		l->forward = l->becomes;
		at = &l->next;
	}
	*at = p->opened;
}

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

static void adopt_forwards(struct plan *p, uint64_t now_ms)
{
	struct forwards *all = p->r->forwards;
	struct forward *f = all->first, *next;

	for (; f && f->state == FORWARD_ACTIVE; f = next) {
		unsigned int drain = f->conf->drain_timeout_ms;

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
		f->drain_due_ms = drain ? now_ms + drain : UINT64_MAX;
		p->result->removed++;
	}
	for (size_t i = 0; i < p->n; i++) {
		forwards_add(all, p->forwards[i]);
		if (p->forwards[i]->stock)
			socket_stock_renumber(p->forwards[i]->stock,
					      p->next->config.generation, i);
	}
}

int reload_apply(const struct reload *r, struct config_version *next, uint64_t now_ms,
		 struct reload_result *ret)
{
	struct plan p = { .r = r, .next = next, .result = ret };
	int error;

	memset(ret, 0, sizeof(*ret));
	/* in this order, like all who need both; who moves sessions steers listeners, too */
	pthread_mutex_lock(&r->forwards->lock);
	balance_hold(r->shared->balance);
	error = check_globals(&p) ?: plan_forwards(&p) ?: plan_addresses(&p) ?: plan_listeners(&p);
	if (error) {
		give_up(&p);
	} else {
		commit_all(&p);
		adopt_forwards(&p, now_ms);
		adopt_addresses(&p);
	}
	balance_release(r->shared->balance);
	pthread_mutex_unlock(&r->forwards->lock);
	free(p.listeners);
	free(p.forwards);
	config_version_drop(next);
	return error;
}

/* --- afterwards --- */

struct drain {
	struct worker *worker;
	const struct forward *forward;
};

static void end_sessions(void *arg)
{
	struct drain *d = arg;
	struct session *s, *next;

	session_arrivals(d->worker);
	for (s = d->worker->sessions; s; s = next) {
		next = s->next;
		if (s->forward == d->forward)
			session_reset(s, CAUSE_DRAIN_OVER);
	}
}

static void end_forward(const struct reload *r, const struct forward *f)
{
	log_info("forward %s: its drain-timeout is over: %u sessions are reset",
		 forward_name(f->conf), atomic_load(&f->sessions));
	balance_hold(r->shared->balance);
	for (unsigned int w = 0; w < n_workers(r); w++) {
		struct drain d = { r->workers[w], f };

		loop_call(&d.worker->loop, end_sessions, &d, WORKER_PATIENCE_MS);
	}
	balance_release(r->shared->balance);
}

uint64_t reload_drain(const struct reload *r, uint64_t now_ms)
{
	uint64_t due = UINT64_MAX;

	for (struct forward *f = r->forwards->first; f; f = f->next) {
		if ((f->state != FORWARD_REMOVED && !f->draining) || !atomic_load(&f->sessions))
			continue;
		if (f->drain_due_ms <= now_ms) {
			end_forward(r, f);
			/* a worker that did not answer is asked again */
			f->drain_due_ms = now_ms + WORKER_PATIENCE_MS;
		}
		if (f->drain_due_ms < due)
			due = f->drain_due_ms;
	}
	pthread_mutex_lock(&r->forwards->lock);
	forwards_reap(r->forwards);
	pthread_mutex_unlock(&r->forwards->lock);
	/* what is left waits for its last session, and its stock of descriptors with it */
	for (struct forward *f = r->forwards->first; f; f = f->next)
		if (f->state != FORWARD_ACTIVE && f->stock && now_ms + STOCK_LOOK_MS < due)
			due = now_ms + STOCK_LOOK_MS;
	return due;
}
