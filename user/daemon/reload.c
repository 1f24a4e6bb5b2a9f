// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a change is planned first, which may fail and which nobody notices, and
 * then made, which cannot fail.
 *
 *   read     the privileged process reads the file again; the daemon parses the same text
 *   plan     new forwards are made; each address that some forward wants keeps its sockets, or gets
 *            new ones from the privileged process
 *   change   each worker, on its own thread: what it accepts at an address belongs to the forward
 *            that has the address now; new sockets are accepted from; others are closed, after
 *            what waits in their backlogs has been accepted
 *
 * A forward with nothing changed stays as it is.  If something has changed, a new struct forward of
 * the same name replaces it, and sessions go on with what they began with.
 *
 * The start is the same change, of nothing.  A drain is one with a smaller plan: one forward's
 * addresses are closed, or opened.
 */
#include "daemon/reload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "config/option.h"
#include "config/read.h"
#include "relay/balance.h"
#include "relay/health_check.h"
#include "relay/session_log.h"
#include "relay/worker_sessions.h"

#define PARSE_ROOM (64 << 20)  /* bytes; a file of 1 MiB becomes less */
#define DRAIN_PATIENCE_MS 2000 /* of a control thread, for a reload to come to its end */
#define LOOK_MS 2000

#define BUCKETS 16384 /* about as many forwards as a file has room for */

struct plan {
	struct reload *r;
	struct listening **buckets;  /* what listens, by the hash of what it was asked for; owned */
	struct config *config;       /* NULL: a drain */
	struct config_version *next; /* has it; NULL: it is that of the start */
	struct forward **forwards;   /* active afterwards, in the order of CONFIG; owned */
	struct listening *opened;    /* list of addresses that are new */
	struct reload_result result;
};

static int no_memory(void)
{
	return log_complain(-ENOMEM, "out of memory: is there a limit, such as MemoryMax= of the "
				     "unit?");
}

/* --- read --- */

/* A name to listen at that is known already has the addresses that it had. */
static int find_addresses(struct plan *p)
{
	struct config *c = p->config;

	for (size_t i = 0; i < c->n_forwards; i++) {
		struct endpoint *e = &c->forwards[i].listen;

		for (struct forward *f = p->r->forwards.first; f && !e->n_addrs; f = f->next) {
			const struct endpoint *known = &f->conf->listen;

			if (!strcmp(known->text, e->text))
				endpoint_copy_addrs(e, known);
		}
	}
	return names_find_listeners(c, true);
}

/* To parse a file ends the program where there is no memory (array.h): look first. */
static bool have_memory(void)
{
	volatile void *room = malloc(PARSE_ROOM); /* else compilers leave the call out */

	free((void *)room);
	return room; /* cppcheck-suppress deallocret ; only whether there was some */
}

static int read_config(struct plan *p)
{
	struct reload *r = p->r;
	int fds[PRIVILEGED_FILES], e;

	p->next = have_memory() ? calloc(1, sizeof(*p->next)) : NULL;
	if (!p->next)
		return no_memory();
	p->next->refs = 1;
	p->config = &p->next->config;
	e = privileged_open_config(r->privileged, r->took, fds, p->result.error,
				   sizeof(p->result.error));
	r->took = false;
	if (e)
		return e;
	/* where there is a privileged process there are names: a reload may bring one */
	names_read_again(r->shared->names, &fds[PRIVILEGED_NAMES]);
	e = config_read(r->argc, r->argv, fds[PRIVILEGED_CONFIG], p->config);
	close(fds[PRIVILEGED_CONFIG]);
	return e ?: find_addresses(p);
}

/* --- plan: forwards --- */

/* What cannot be done without a new start is refused, rather than left undone. */
static int check_globals(struct plan *p)
{
	const struct shared *shared = p->r->shared;
	const struct config *c = p->config;
	const struct option_def *o = options_fixed(p->r->start, c);
	bool sockmap = shared->kernel && shared->sockmap_trial != TRIAL_FAILED;
	bool graft = shared->grafts && shared->graft_trial != TRIAL_FAILED;

	if (o)
		return config_complain(config_place(c, &c->defaults, o->name),
				       "%s: cannot change while culvert runs: restart it", o->name);
	for (const struct forward_conf *f = c->forwards; f < c->forwards + c->n_forwards; f++)
		if ((f->engine == ENGINE_SOCKMAP && !sockmap) ||
		    (f->engine == ENGINE_GRAFT && !graft))
			return log_complain(-EOPNOTSUPP,
					    "forward %s: engine %s: the kernel path "
					    "was not set up at the start: restart culvert",
					    forward_name(f), engine_name(f->engine));
	return 0;
}

static struct listening **bucket_of(const struct plan *p, const struct addr *a)
{
	return &p->buckets[balance_hash(&a->ss, a->len, 0) % BUCKETS];
}

/* Find F's on A, as configured; if F is NULL or has none there, another forward's; or NULL. */
static struct listening *find_address(const struct plan *p, const struct forward *f,
				      const struct addr *a, bool udp)
{
	struct listening *found = NULL;

	for (struct listening *l = *bucket_of(p, a); l; l = l->in_bucket) {
		if (l->udp != udp || !addr_equal(&l->asked, a))
			continue;
		if (l->forward == f)
			return l;
		found = l;
	}
	return found;
}

/* --- plan: addresses --- */

/* Do culvert's own sockets listen on A's port? */
static bool is_in_the_way(const struct reload *r, const struct addr *a, bool udp)
{
	for (const struct listening *l = r->listening; l; l = l->next)
		if (addr_is_inet(a) && l->udp == udp && l->addr.ss.ss_family == a->ss.ss_family &&
		    addr_port(&l->addr) == addr_port(a))
			return true;
	for (const struct forward *f = r->forwards.first; f && udp; f = f->next)
		if (atomic_load(&f->old_sockets))
			return true;
	return false;
}

/* Open A, an address of F. */
static int open_address(struct plan *p, struct forward *f, const struct addr *a,
			struct listening **ret)
{
	const struct listening_maker root = { listener_sockets, NULL };
	const struct listening_maker other = { privileged_listen, p->r->privileged };
	int e = listening_open(p->config == p->r->start ? &root : &other, f, a,
			       is_in_the_way(p->r, a, f->conf->listen.udp), p->r->start->workers,
			       ret);

	if (e)
		return e;
	(*ret)->next = p->opened;
	p->opened = *ret;
	return 0;
}

/* Address A of F, which FC describes and which replaces BEFORE, if any. */
static int plan_address(struct plan *p, struct forward *f, struct forward_conf *fc,
			const struct forward *before, struct addr *a)
{
	struct listening *l = find_address(p, before, a, fc->listen.udp);
	int e = 0;

	if (l && l->forward->conf->transparent != fc->transparent && !l->given)
		return log_complain(-EINVAL,
				    "forward %s: transparent: cannot change while its "
				    "sockets listen: `culvert drain` it first, or restart culvert",
				    forward_name(fc));
	if (l && !l->becomes)
		l->becomes = f;
	else
		e = open_address(p, f, a, &l);
	if (!e)
		listening_adopt(l, &fc->listen, a);
	return e;
}

/* Forward number I of the configuration, with its addresses. */
static int plan_forward(struct plan *p, size_t i)
{
	struct forward_conf *fc = &p->config->forwards[i];
	struct forward *before = forwards_find(&p->r->forwards, forward_name(fc));
	bool same = before && options_same_own(before->conf, fc);
	const struct forward *of = fc->sni ? p->forwards[fc->of] : NULL;
	struct forward *f = same ? before : forward_new(fc, p->config, p->next, before, of);
	int e = 0;

	p->forwards[i] = f;
	if (!f)
		return no_memory();
	p->result.kept += same;
	p->result.changed += before && !same;
	p->result.added += !before;
	if (before)
		before->becomes = f;
	if (!same && forward_needs_privileges(fc))
		e = marked_sockets_open(&p->r->keeper, fc, &f->stock);
	for (size_t j = 0; !e && j < fc->listen.n_addrs; j++)
		e = plan_address(p, f, fc, before, &fc->listen.addrs[j]);
	/* last: from then on the main thread reads the addresses to listen at */
	if (!e && !same)
		servers_add_names(&f->servers, p->r->shared->names);
	return e;
}

static int plan_all(struct plan *p)
{
	int e = 0;

	p->buckets = calloc(BUCKETS, sizeof(struct listening *));
	p->forwards = calloc(p->config->n_forwards, sizeof(struct forward *));
	if (!p->buckets || !p->forwards)
		return no_memory();
	for (struct listening *l = p->r->listening; l; l = l->next) {
		struct listening **bucket = bucket_of(p, &l->asked);

		l->in_bucket = *bucket;
		*bucket = l;
		l->becomes = NULL;
	}
	for (struct forward *f = p->r->forwards.first; f; f = f->next)
		f->becomes = NULL;
	for (size_t i = 0; !e && i < p->config->n_forwards; i++)
		e = plan_forward(p, i);
	return e;
}

/* Nothing has changed. */
static void give_up(struct plan *p)
{
	listening_close_all(p->opened);
	for (size_t i = 0; p->forwards && i < p->config->n_forwards; i++)
		if (p->forwards[i] && p->forwards[i]->from == p->next)
			forward_free(p->forwards[i]);
}

/* --- change --- */

static void change_worker(struct worker *w, const void *arg)
{
	const struct plan *p = arg;

	for (struct listening *l = p->r->listening; l; l = l->next) {
		struct listener *ls = &l->at[w->index];

		if (l->becomes)
			listener_becomes(ls, l->becomes);
		else
			listener_end(ls);
	}
	for (struct listening *l = p->opened; l; l = l->next)
		listener_start(l, w);
}

static void change_addresses(struct plan *p)
{
	struct listening **at = &p->r->listening;

	threads_call(&p->r->threads, change_worker, p);
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

/* The active F goes. */
static void retire(struct plan *p, struct forward *f)
{
	uint64_t timeout = f->conf->drain_timeout_ms, due = clock_ms() + timeout;

	f->state = f->becomes ? FORWARD_REPLACED : FORWARD_REMOVED;
	p->result.removed += !f->becomes;
	if (!f->becomes)
		forward_set_names(f, NULL, 0);
	/* an earlier deadline that an operator has set stays */
	if (!f->becomes && timeout && due < f->totals->due_ms)
		f->totals->due_ms = due;
}

static void change_forwards(struct plan *p)
{
	struct forward *gone = NULL, **at = &gone, *next;
	struct forwards *all = &p->r->forwards;

	for (struct forward *f = all->first; f; f = next) {
		next = f->next;
		if (f->becomes == f)
			continue;
		if (f->state == FORWARD_ACTIVE)
			retire(p, f);
		*at = f;
		at = &f->next;
	}
	*at = NULL;
	at = &all->first;
	for (size_t i = 0; i < p->config->n_forwards; i++) {
		struct forward *f = p->forwards[i];

		if (f->conf->hellos || f->totals->names)
			forward_set_names(f, p->forwards, p->config->n_forwards);
		f->totals->due_ms = NEVER;
		f->draining = false;
		*at = f;
		at = &f->next;
	}
	*at = gone;
}

/* Who looks at forwards and sessions finds all of it done, or nothing. */
static void put_in_force(struct plan *p)
{
	struct reload *r = p->r;

	pthread_mutex_lock(&r->forwards.lock);
	change_addresses(p);
	change_forwards(p);
	pthread_mutex_unlock(&r->forwards.lock);
	checks_wake(r->shared->checks);
	r->took = true;
	log_set_level(p->config->log_level);
	atomic_store(&r->shared->grace_ms, p->config->grace_ms);
	for (size_t i = 0; i < p->config->n_forwards; i++) {
		if (p->forwards[i]->from == p->next)
			forward_warn(p->forwards[i]->conf);
	}
}

/* E: what has been found wrong already. */
static int apply(struct plan *p, int e)
{
	e = e ?: plan_all(p);
	if (e)
		give_up(p);
	else
		put_in_force(p);
	free(p->forwards);
	free(p->buckets);
	config_version_drop(p->next);
	return e;
}

int reload_first(struct reload *r)
{
	return apply(&(struct plan){ .r = r, .config = r->start }, 0);
}

/* --- reload --- */

static void tell_systemd(const char *state, const char *status)
{
	sd_notifyf(0, "%s\nMONOTONIC_USEC=%llu\nSTATUS=%s", state,
		   (unsigned long long)clock_ns() / 1000, status);
}

static void reload_now(struct reload *r, uint64_t number)
{
	struct plan p = { .r = r };
	char said[sizeof(p.result.error) + 80];
	int e;

	tell_systemd("RELOADING=1", "Reads the configuration again");
	log_keep_complaint(p.result.error, sizeof(p.result.error));
	e = apply(&p, read_config(&p) ?: check_globals(&p));
	log_keep_complaint(NULL, 0);
	if (e) {
		snprintf(said, sizeof(said), "reload: nothing has changed: %s", p.result.error);
	} else {
		snprintf(said, sizeof(said),
			 "reload: %u forward%s added, %u changed, %u removed, %u as before",
			 p.result.added, p.result.added == 1 ? "" : "s", p.result.changed,
			 p.result.removed, p.result.kept);
	}
	log_write(e ? LOG_ERR : LOG_INFO, "%s", said);
	/* systemd is told before those who wait for this reload */
	tell_systemd("READY=1", said);
	pthread_mutex_lock(&r->lock);
	r->finished = number;
	r->last = p.result;
	pthread_mutex_unlock(&r->lock);
}

/* --- drain --- */

/* A drain, or its end, as a control thread asks for it. */
struct drain {
	struct plan plan;
	const char *name;
	bool undo;
	uint64_t due_ms;
	int error; /* out */
};

static int drain_now(struct drain *d)
{
	struct plan *p = &d->plan;
	struct forwards *all = &p->r->forwards;
	struct forward *f = forwards_find(all, d->name);
	struct listening *opened;
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
	for (struct listening *l = p->r->listening; l; l = l->next)
		l->becomes = l->forward == f && !d->undo ? NULL : l->forward;
	for (size_t i = 0; d->undo && !e && i < f->conf->listen.n_addrs; i++)
		e = open_address(p, f, &f->conf->listen.addrs[i], &opened);
	if (e) {
		listening_close_all(p->opened);
		return e;
	}
	pthread_mutex_lock(&all->lock);
	change_addresses(p);
	f->draining = !d->undo;
	pthread_mutex_unlock(&all->lock);
	/* itself, and its [sni] sections */
	for (struct forward *of = all->first; of; of = of->next)
		if (of->limits == f->totals)
			of->totals->due_ms = d->undo ? NEVER : d->due_ms;
	return 0;
}

static void drain(void *arg)
{
	struct drain *d = arg;

	log_keep_complaint(d->plan.result.error, sizeof(d->plan.result.error));
	d->error = drain_now(d);
	log_keep_complaint(NULL, 0);
}

int reload_drain(struct reload *r, const char *name, bool undo, uint64_t due_ms)
{
	struct drain d = { .plan.r = r, .name = name, .undo = undo, .due_ms = due_ms };
	int e = loop_call(&r->loop, drain, &d, DRAIN_PATIENCE_MS);

	if (e == -ESRCH)
		return log_complain(-ESHUTDOWN, RELOAD_STOPPING);
	if (e)
		return log_complain(-EBUSY, "a reload is under way; ask again");
	return d.error ? log_complain(d.error, "%s", d.plan.result.error) : 0;
}

/* --- what is due --- */

static bool is_of(const void *arg, const struct session_view *v)
{
	return v->forward == arg;
}

static void end_sessions(struct worker *w, const void *arg)
{
	worker_end_sessions(w, is_of, arg, CAUSE_DRAIN_OVER);
}

/*
 * End the sessions whose time is over, and free the forwards that are gone.  When there will be
 * something to do again; NEVER: not before the next change.
 */
static uint64_t look(struct reload *r)
{
	uint64_t now_ms = clock_ms(), due = NEVER;

	for (struct forward *f = r->forwards.first; f; f = f->next) {
		uint64_t ms = f->totals->due_ms;
		unsigned int n = atomic_load(&f->sessions);

		if (ms <= now_ms && n) {
			log_cause(CAUSE_DRAIN_OVER, LOG_INFO,
				  "forward %s: its time to drain is over: %u session%s reset",
				  forward_name(f->conf), n, n == 1 ? " is" : "s are");
			threads_call(&r->threads, end_sessions, f);
		}
		if (ms > now_ms && ms < due)
			due = ms;
		/* it waits for its last session, and its stock of descriptors with it */
		if (f->state != FORWARD_ACTIVE && now_ms + LOOK_MS < due)
			due = now_ms + LOOK_MS;
	}
	forwards_reap(&r->forwards);
	return due;
}

/* --- the thread --- */

/* Reload if somebody has asked for it, and see to what is due. */
static void after_batch(void *arg)
{
	struct reload *r = arg;
	uint64_t number; /* who asks from now on asks for another */
	bool stop;

	pthread_mutex_lock(&r->lock);
	number = r->asked;
	stop = r->stop;
	if (stop && number != r->finished) {
		log_info("reload: nothing has changed: " RELOAD_STOPPING);
		r->finished = number;
		r->last = (struct reload_result){ .error = RELOAD_STOPPING };
	}
	pthread_mutex_unlock(&r->lock);
	r->loop.stop = stop;
	if (number != r->finished)
		reload_now(r, number);
	timer_set(&r->loop, &r->look, look(r));
}

/* after_batch() looks. */
static void on_look(struct timer *t)
{
	(void)t;
}

static void *run(void *arg)
{
	struct reload *r = arg;
	int e = loop_run(&r->loop);

	if (e)
		log_error("the thread that reloads has ended: %s", strerror(-e));
	return NULL;
}

int reload_open(struct reload *r)
{
	forwards_init(&r->forwards);
	pthread_mutex_init(&r->lock, NULL);
	r->look.fire = on_look;
	return loop_open(&r->loop, after_batch, r);
}

int reload_start(struct reload *r)
{
	int e = -pthread_create(&r->thread, NULL, run, r);

	r->started = !e;
	return e;
}

void reload_stop(struct reload *r)
{
	if (!r->started)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_mutex_unlock(&r->lock);
	loop_wake(&r->loop);
	pthread_join(r->thread, NULL);
	r->started = false;
}

void reload_close(struct reload *r)
{
	loop_close(&r->loop);
	forwards_close(&r->forwards);
	socket_keeper_after_batch(&r->keeper);
	listening_close_all(r->listening);
	pthread_mutex_destroy(&r->lock);
}

uint64_t reload_ask(struct reload *r)
{
	uint64_t number = 0;

	if (r->shared->session_log)
		session_log_reopen(r->shared->session_log);
	pthread_mutex_lock(&r->lock);
	if (!r->stop)
		number = ++r->asked;
	pthread_mutex_unlock(&r->lock);
	loop_wake(&r->loop);
	return number;
}

struct json_object *reload_json(struct reload *r)
{
	struct json_object *o = json_object_new_object();
	char error[256] = "";

	if (r->shared->session_log)
		session_log_not_reopened(r->shared->session_log, error, sizeof(error));
	json_add_text(o, "session_log_error", error);
	pthread_mutex_lock(&r->lock);
	json_add_int(o, "asked", r->asked);
	json_add_int(o, "finished", r->finished);
	json_add_bool(o, "ok", !r->last.error[0]);
	json_add_text(o, "error", r->last.error);
	json_add_int(o, "added", r->last.added);
	json_add_int(o, "changed", r->last.changed);
	json_add_int(o, "removed", r->last.removed);
	json_add_int(o, "kept", r->last.kept);
	pthread_mutex_unlock(&r->lock);
	return o;
}
