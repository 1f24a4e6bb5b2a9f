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
 * An address that loses its forward while another forward listens on all addresses of that port
 * keeps its sockets, for that other forward: handshakes that have begun there end there, or would
 * be reset.
 *
 * When an address that is new narrows one that there is, from 0.0.0.0:80 to 10.0.0.1:80, clients
 * come to the new sockets as soon as those are open.  If the plan failed afterwards they would be
 * reset, so such addresses are opened last.
 *
 * A drain is the same change with a smaller plan: one forward's addresses are closed, or opened.
 */
#include "daemon/reload.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "config/file.h"
#include "config/option.h"
#include "relay/session.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses sight of what is stored: it is in c->forwards, and config_close() frees it */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#define PARSE_ROOM (16 << 20) /* bytes; a file of 1 MiB becomes less */
#define TURN_PATIENCE_S 2 /* of the control thread, for a reload to come to its end */
#define STOCK_LOOK_MS 2000
#define WORKER_PATIENCE_MS 10000

struct plan {
	struct reload *r;
	struct config_version *next; /* NULL: a drain */
	uint32_t generation;         /* of the configuration that the forwards are numbered by */
	struct forward **forwards;   /* active afterwards, in order; owned */
	size_t n;
	struct listening *opened;    /* list of addresses that are new */
	struct reload_result result;
	char *err;                   /* why it is refused */
	size_t errlen;
};

static int refuse(struct plan *p, int error, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static int refuse(struct plan *p, int error, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p->err, p->errlen, fmt, ap);
	va_end(ap);
	return error;
}

static int no_memory(struct plan *p)
{
	return refuse(p, -ENOMEM, "out of memory");
}

/* --- read --- */

/* Sessions are led to these now; the name may have moved since the start. */
static int copy_current(struct upstream *from, struct endpoint *to)
{
	struct addr_list *list = upstream_get(from);
	int e = endpoint_copy_addrs(to, list->addrs, list->n);

	addr_list_put(list);
	return e;
}

/* Give a name that is known already the addresses that it had, if any. */
static int know_again(const struct reload *r, struct endpoint *e, bool listen)
{
	for (struct forward *f = r->forwards->first; f; f = f->next) {
		const struct endpoint *known = listen ? &f->conf->listen : &f->conf->upstream;

		if (f->state == FORWARD_ACTIVE && !strcmp(known->text, e->text))
			return listen ? endpoint_copy_addrs(e, known->addrs, known->n_addrs) :
					copy_current(&f->upstream, e);
	}
	return 0;
}

static int find_addresses(struct plan *p, struct config *c)
{
	for (size_t i = 0; i < c->n_forwards; i++) {
		struct endpoint *listen = &c->forwards[i].listen, *up = &c->forwards[i].upstream;
		int e = listen->n_addrs ? 0 : know_again(p->r, listen, true);

		if (!e && !up->n_addrs)
			e = know_again(p->r, up, false);
		if (e)
			return no_memory(p);
	}
	return names_find_listeners(c, true, p->err, p->errlen);
}

static int read_config(struct plan *p)
{
	struct config_source from = { 0 };
	struct reload *r = p->r;
	char *text = NULL;
	volatile void *room; /* else compilers leave the call out */
	int e;

	if (!r->start->file)
		return refuse(p, -ENOENT, "there is no configuration file to read: culvert was "
			      "started without one (--config)");
	e = privileged_read_config(r->privileged, r->generation, &text, &from.len, &p->generation,
				   p->err, p->errlen);
	if (e)
		return e;
	p->next = calloc(1, sizeof(*p->next));
	if (!p->next) {
		free(text);
		return no_memory(p);
	}
	p->next->refs = 1;
	from.text = text;
	/* to parse it ends the program where there is no memory (array.h): look first */
	room = malloc(PARSE_ROOM);
	free((void *)room);
	if (!room) {
		free(text);
		return no_memory(p);
	}
	log_keep_complaint(p->err, p->errlen);
	e = config_parse_from(r->argc, r->argv, &from, &p->next->config);
	log_keep_complaint(NULL, 0);
	free(text);
	p->next->config.generation = p->generation;
	return e ?: find_addresses(p, &p->next->config);
}

/* --- plan: forwards --- */

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
	l = listening_find(*r->listening, NULL, &fc->listen.addrs[0]);
	return l && !l->forward->conf->name ? l->forward : NULL;
}

static bool is_unchanged(const struct reload *r, struct forward *before,
			 const struct forward_conf *fc)
{
	if (!options_same_own(before->conf, fc) ||
	    fc->listen.n_addrs != before->conf->listen.n_addrs)
		return false;
	for (size_t i = 0; i < fc->listen.n_addrs; i++) {
		struct listening *l = listening_find(*r->listening, before, &fc->listen.addrs[i]);

		if (!l || l->forward != before)
			return false;
	}
	return true;
}

/* Forward number I of the new configuration, which replaces BEFORE, if any. */
static int make_forward(struct plan *p, size_t i, struct forward *before)
{
	struct config *c = &p->next->config;
	const struct forward_conf *fc = &c->forwards[i];
	char why[512];
	struct forward *f;
	int e;

	if (forward_new(fc, c, p->next, before, &f))
		return no_memory(p);
	p->forwards[i] = f;
	if (names_add(p->r->shared->names, &f->upstream))
		return no_memory(p);
	if (!forward_needs_privileges(fc))
		return 0;
	if (!p->r->keeper)
		return refuse(p, -EPERM, "forward %s: there is no privileged process, and its "
			      "sockets need it", forward_name(fc));
	e = socket_stock_open(p->r->keeper, c, i, &f->stock, why, sizeof(why));
	return e ? refuse(p, e, "forward %s: %s", forward_name(fc), why) : 0;
}

static int plan_forwards(struct plan *p)
{
	const struct config *c = &p->next->config;
	int e = 0;

	p->n = c->n_forwards;
	p->forwards = calloc(p->n, sizeof(struct forward *));
	if (!p->forwards)
		return no_memory(p);
	for (size_t i = 0; !e && i < p->n; i++) {
		struct forward *before = find_before(p->r, &c->forwards[i]);

		if (before && is_unchanged(p->r, before, &c->forwards[i])) {
			p->forwards[i] = before;
			p->result.kept++;
			continue;
		}
		e = make_forward(p, i, before);
		if (before)
			p->result.changed++;
		else
			p->result.added++;
	}
	return e;
}

/* --- plan: addresses --- */

/* A forward of a configuration that the privileged process knows. */
struct numbered {
	const struct plan *plan;
	size_t forward;
};

static int make_sockets(void *arg, struct addr *a, bool joins, unsigned int n, int *fds, char *err,
			size_t errlen)
{
	const struct numbered *at = arg;

	return privileged_listen(at->plan->r->privileged, at->plan->generation, at->forward, a,
				 joins, n, fds, err, errlen);
}

static bool same_port(const struct addr *a, const struct addr *b)
{
	return addr_is_inet(a) && a->ss.ss_family == b->ss.ss_family &&
	       addr_port(a) == addr_port(b);
}

static bool is_in_the_way(const struct reload *r, const struct addr *a)
{
	for (const struct listening *l = *r->listening; l; l = l->next)
		if (same_port(&l->addr, a))
			return true;
	return false;
}

/* Open A, an address of F, which is forward number I. */
static int open_address(struct plan *p, size_t i, struct forward *f, const struct addr *a,
			struct listening **ret)
{
	struct numbered at = { p, i };
	const struct listening_maker by = { make_sockets, &at };
	char why[512];
	int e = listening_open(&by, f->conf, f, a, is_in_the_way(p->r, a), p->r->n_workers, ret,
			       why, sizeof(why));

	if (e)
		return refuse(p, e, "forward %s: %s", forward_name(f->conf), why);
	(*ret)->next = p->opened;
	p->opened = *ret;
	return 0;
}

static bool is_planned(const struct listening *list, const struct forward *f, const struct addr *a)
{
	for (; list; list = list->next)
		if (list->becomes == f && addr_equal(&list->addr, a))
			return true;
	return false;
}

static int plan_address(struct plan *p, size_t i, struct addr *a, bool last)
{
	struct forward_conf *fc = &p->next->config.forwards[i];
	struct listening *l = listening_find(*p->r->listening, find_before(p->r, fc), a);
	struct forward *f = p->forwards[i];
	int e = 0;

	if (is_planned(*p->r->listening, f, a) || is_planned(p->opened, f, a))
		return 0;
	if (l && l->transparent != fc->transparent && !l->given)
		return refuse(p, -EINVAL, "forward %s: transparent: cannot change while its "
			      "sockets listen: `culvert drain` it first, or restart culvert",
			      forward_name(fc));
	if (l && !l->becomes)
		l->becomes = f;
	else if (last || !is_in_the_way(p->r, a))
		e = open_address(p, i, f, a, &l);
	else
		return 0;
	if (!e)
		listening_adopt(l, &fc->listen, a);
	return e;
}

static int plan_pass(struct plan *p, bool last)
{
	int e = 0;

	for (size_t i = 0; !e && i < p->n; i++) {
		struct endpoint *listen = &p->next->config.forwards[i].listen;

		for (size_t j = 0; !e && j < listen->n_addrs; j++)
			e = plan_address(p, i, &listen->addrs[j], last);
	}
	return e;
}

/* The forward that gets what comes to ONE once ONE has no sockets, or NULL. */
static struct forward *holder_of_any(const struct listening *list, const struct addr *one)
{
	for (; list; list = list->next)
		if (list->becomes && addr_is_any(&list->addr) && same_port(one, &list->addr))
			return list->becomes;
	return NULL;
}

static void keep_handshakes(struct plan *p)
{
	for (struct listening *l = *p->r->listening; l; l = l->next)
		if (!l->becomes && !l->shared && !addr_is_any(&l->addr))
			l->becomes = holder_of_any(*p->r->listening, &l->addr) ?:
				     holder_of_any(p->opened, &l->addr);
}

static int plan_addresses(struct plan *p)
{
	int e;

	for (struct listening *l = *p->r->listening; l; l = l->next)
		l->becomes = NULL;
	e = plan_pass(p, false) ?: plan_pass(p, true);
	if (e)
		return e;
	keep_handshakes(p);
	return 0;
}

/* Nothing has changed. */
static void give_up(struct plan *p)
{
	listening_close_all(p->opened);
	for (size_t i = 0; p->forwards && i < p->n; i++)
		if (p->forwards[i] && p->forwards[i]->from == p->next)
			forward_free(p->forwards[i]);
}

/* --- change --- */

struct worker_change {
	const struct plan *plan;
	struct worker *worker;
};

static void change_worker(void *arg)
{
	const struct worker_change *c = arg;

	for (struct listening *l = *c->plan->r->listening; l; l = l->next) {
		struct listener *ls = &l->at[c->worker->index];

		if (l->becomes)
			ls->forward = l->becomes;
		else
			listener_end(ls);
	}
	for (struct listening *l = c->plan->opened; l; l = l->next)
		listener_start(l, c->worker);
}

/* Waits for workers however slow they are, since half a change is none. */
static void change_addresses(struct plan *p)
{
	struct listening **at = p->r->listening;

	for (unsigned int w = 0; w < p->r->n_workers; w++) {
		struct worker_change c = { p, &p->r->workers[w] };

		while (loop_call(&c.worker->loop, change_worker, &c, WORKER_PATIENCE_MS) ==
		       -ETIMEDOUT)
			log_error("worker %u is slow, and the change of its listeners waits", w);
	}
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

/* Sessions of F, and of those that it has replaced, may go on until DUE_MS; WHAT says so. */
static void set_due(struct forward *f, uint64_t due_ms, const char *what)
{
	f->totals->due = (struct forward_due){ due_ms, what };
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

/* An earlier deadline that an operator has set stays. */
static void retire(struct plan *p, struct forward *f, uint64_t now_ms)
{
	unsigned int timeout = f->conf->drain_timeout_ms;

	if (is_replaced(p, f)) {
		f->state = FORWARD_REPLACED;
		return;
	}
	f->state = FORWARD_REMOVED;
	p->result.removed++;
	if (timeout && now_ms + timeout < f->totals->due.ms)
		set_due(f, now_ms + timeout, "drain-timeout");
}

static void change_forwards(struct plan *p)
{
	struct forward *gone = NULL, **at = &gone, *next;
	struct forwards *all = p->r->forwards;
	uint64_t now_ms = clock_ms();

	for (struct forward *f = all->first; f; f = next) {
		next = f->next;
		if (stays(p, f))
			continue;
		if (f->state == FORWARD_ACTIVE)
			retire(p, f, now_ms);
		*at = f;
		at = &f->next;
	}
	*at = NULL;
	at = &all->first;
	for (size_t i = 0; i < p->n; i++) {
		struct forward *f = p->forwards[i];

		set_due(f, UINT64_MAX, "");
		f->draining = false;
		if (f->stock)
			socket_stock_renumber(f->stock, p->generation, i);
		*at = f;
		at = &f->next;
	}
	*at = gone;
}

/* Who looks at forwards and sessions finds all of it done, or nothing. */
static void put_in_force(struct plan *p)
{
	struct reload *r = p->r;
	const struct config *c = &p->next->config;

	pthread_mutex_lock(&r->forwards->lock);
	change_addresses(p);
	change_forwards(p);
	pthread_mutex_unlock(&r->forwards->lock);
	r->generation = p->generation;
	log_set_level(c->log_level);
	atomic_store(&r->shared->grace_ms, c->grace_ms);
	for (size_t i = 0; i < p->n; i++)
		if (p->forwards[i]->from == p->next)
			forward_warn(p->forwards[i]->conf);
}

/* --- reload --- */

static int apply(struct plan *p)
{
	int e = read_config(p) ?: check_globals(p);

	if (e)
		return e;
	pthread_mutex_lock(&p->r->turn);
	e = plan_forwards(p) ?: plan_addresses(p);
	if (e)
		give_up(p);
	else
		put_in_force(p);
	pthread_mutex_unlock(&p->r->turn);
	return e;
}

static void tell_systemd(const char *state, const char *status)
{
	sd_notifyf(0, "%s\nMONOTONIC_USEC=%llu\nSTATUS=%s", state,
		   (unsigned long long)clock_ns() / 1000, status);
}

/* What `systemctl status` shows. */
static void say_status(const struct reload_result *res, const char *err, char *buf, size_t size)
{
	unsigned int n = res->added + res->changed + res->kept;

	if (err[0])
		snprintf(buf, size, "Works as before: the last reload failed: %s", err);
	else
		snprintf(buf, size, "%u forward%s; the last reload: %u added, %u changed, %u "
			 "removed", n, n == 1 ? "" : "s", res->added, res->changed, res->removed);
}

/* The lock is held. */
static void record(struct reload *r, uint64_t number, const struct reload_result *res,
		   const char *err)
{
	r->finished = number;
	r->ok = !err[0];
	snprintf(r->error, sizeof(r->error), "%s", err);
	r->result = *res;
}

static void reload_now(struct reload *r, uint64_t number)
{
	char err[sizeof(r->error)] = "", status[sizeof(err) + 80];
	struct plan p = { .r = r, .err = err, .errlen = sizeof(err) };

	tell_systemd("RELOADING=1", "Reads the configuration again");
	if (apply(&p)) {
		p.result = (struct reload_result){ 0 };
		log_error("reload: nothing has changed: %s", err);
	} else {
		log_info("reload: %u forward%s added, %u changed, %u removed, %u as before",
			 p.result.added, p.result.added == 1 ? "" : "s", p.result.changed,
			 p.result.removed, p.result.kept);
	}
	free(p.forwards);
	config_version_drop(p.next);
	say_status(&p.result, err, status, sizeof(status));
	/* systemd is told before those who wait for this reload */
	tell_systemd("READY=1", status);
	pthread_mutex_lock(&r->lock);
	record(r, number, &p.result, err);
	pthread_mutex_unlock(&r->lock);
}

/* --- drain --- */

static int open_all(struct plan *p, size_t number, struct forward *f)
{
	const struct endpoint *listen = &f->conf->listen;
	struct listening *l;
	int e = 0;

	for (size_t i = 0; !e && i < listen->n_addrs; i++)
		e = open_address(p, number, f, &listen->addrs[i], &l);
	if (e)
		listening_close_all(p->opened);
	return e;
}

/* With the turn. */
static int drain(struct plan *p, const char *name, bool undo, uint64_t due_ms)
{
	struct forwards *all = p->r->forwards;
	struct forward *f = all->first;
	size_t number = 0;
	int e = 0;

	for (; f && f->state == FORWARD_ACTIVE; f = f->next, number++)
		if (!strcmp(forward_name(f->conf), name))
			break;
	if (!f || f->state != FORWARD_ACTIVE)
		return refuse(p, -ENOENT, "no forward is named \"%.64s\"", name);
	if (undo && !f->draining)
		return 0;
	for (struct listening *l = *p->r->listening; l; l = l->next)
		l->becomes = l->forward == f && !undo ? NULL : l->forward;
	if (undo)
		e = open_all(p, number, f);
	if (e)
		return e;
	pthread_mutex_lock(&all->lock);
	change_addresses(p);
	f->draining = !undo;
	pthread_mutex_unlock(&all->lock);
	if (undo)
		set_due(f, UINT64_MAX, "");
	else
		set_due(f, due_ms, "deadline");
	return 0;
}

int reload_drain(struct reload *r, const char *name, bool undo, uint64_t due_ms, char *err,
		 size_t errlen)
{
	struct timespec until = clock_timespec(clock_real_ms() + UINT64_C(1000) * TURN_PATIENCE_S);
	struct plan p = { .r = r, .err = err, .errlen = errlen };
	int e;

	if (pthread_mutex_timedlock(&r->turn, &until))
		return refuse(&p, -EBUSY, "a reload is under way; ask again");
	p.generation = r->generation;
	e = r->ended ? refuse(&p, -ESHUTDOWN, RELOAD_STOPPING) : drain(&p, name, undo, due_ms);
	pthread_mutex_unlock(&r->turn);
	pthread_mutex_lock(&r->lock);
	r->look = true;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	return e;
}

bool reload_may_listen(const struct reload *r)
{
	return privileged_runs(r->privileged);
}

/* --- what is due --- */

struct ending {
	struct worker *worker;
	const struct forward *forward;
	unsigned int n; /* out: sessions that were reset */
};

static bool is_of(const void *arg, const struct session *s)
{
	return s->forward == arg;
}

static void end_sessions(void *arg)
{
	struct ending *e = arg;

	e->n = session_end_some(e->worker, is_of, e->forward, CAUSE_DRAIN_OVER);
}

static void end_forward(const struct reload *r, const struct forward *f)
{
	unsigned int n = atomic_load(&f->sessions);

	log_info("forward %s: its %s is over: %u session%s reset", forward_name(f->conf),
		 f->totals->due.what, n, n == 1 ? " is" : "s are");
	for (unsigned int w = 0; w < r->n_workers; w++) {
		struct ending e = { .worker = &r->workers[w], .forward = f };

		while (!loop_call(&e.worker->loop, end_sessions, &e, WORKER_PATIENCE_MS) && e.n)
			;
	}
}

/*
 * End the sessions whose time is over, and free the forwards that are gone.  When there will be
 * something to do again; UINT64_MAX: not before the next change.
 */
static uint64_t look(const struct reload *r)
{
	uint64_t now_ms = clock_ms(), due = UINT64_MAX;

	for (struct forward *f = r->forwards->first; f; f = f->next)
		if (f->totals->due.ms <= now_ms && atomic_load(&f->sessions))
			end_forward(r, f);
	for (struct forward *f = r->forwards->first; f; f = f->next) {
		if (!atomic_load(&f->sessions))
			continue;
		if (f->totals->due.ms <= now_ms) /* ask a worker that did not answer again */
			f->totals->due.ms = now_ms + WORKER_PATIENCE_MS;
		if (f->totals->due.ms < due)
			due = f->totals->due.ms;
	}
	forwards_reap(r->forwards);
	/* what is left waits for its last session, and its stock of descriptors with it */
	for (struct forward *f = r->forwards->first; f; f = f->next)
		if (f->state != FORWARD_ACTIVE && f->stock && now_ms + STOCK_LOOK_MS < due)
			due = now_ms + STOCK_LOOK_MS;
	return due;
}

/* --- the thread --- */

/* Wait until somebody asks, it is to stop, or DUE_MS.  The lock is held. */
static void wait_for_change(struct reload *r, uint64_t due_ms)
{
	struct timespec until = clock_timespec(due_ms);

	if (due_ms == UINT64_MAX)
		pthread_cond_wait(&r->change, &r->lock);
	else
		pthread_cond_timedwait(&r->change, &r->lock, &until);
}

static void *run(void *arg)
{
	struct reload *r = arg;
	uint64_t due = UINT64_MAX;

	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		uint64_t number = r->asked; /* who asks from now on asks for another */

		if (number == r->finished && !r->look && clock_ms() < due) {
			wait_for_change(r, due);
			continue;
		}
		r->look = false;
		pthread_mutex_unlock(&r->lock);
		if (number != r->finished)
			reload_now(r, number);
		pthread_mutex_lock(&r->turn);
		due = look(r);
		pthread_mutex_unlock(&r->turn);
		pthread_mutex_lock(&r->lock);
	}
	if (r->asked != r->finished) {
		log_info("reload: nothing has changed: " RELOAD_STOPPING);
		record(r, r->asked, &(struct reload_result){ 0 }, RELOAD_STOPPING);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

int reload_start(struct reload *r)
{
	int e;

	clock_cond_init(&r->change);
	pthread_mutex_init(&r->lock, NULL);
	pthread_mutex_init(&r->turn, NULL);
	r->ok = r->opened = true;
	e = -pthread_create(&r->thread, NULL, run, r);
	r->started = !e;
	return e;
}

void reload_stop(struct reload *r)
{
	if (!r->started)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	r->started = false;
	pthread_mutex_lock(&r->turn); /* a drain may be under way */
	r->ended = true;
	pthread_mutex_unlock(&r->turn);
}

void reload_close(struct reload *r)
{
	if (!r->opened)
		return;
	pthread_cond_destroy(&r->change);
	pthread_mutex_destroy(&r->lock);
	pthread_mutex_destroy(&r->turn);
}

uint64_t reload_ask(struct reload *r)
{
	uint64_t number = 0;

	pthread_mutex_lock(&r->lock);
	if (!r->stop)
		number = ++r->asked;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	return number;
}

static void add_count(struct json_object *o, const char *key, uint64_t n)
{
	json_add(o, key, json_object_new_int64((int64_t)n));
}

struct json_object *reload_json(struct reload *r)
{
	struct json_object *o = json_object_new_object();

	pthread_mutex_lock(&r->lock);
	add_count(o, "asked", r->asked);
	add_count(o, "finished", r->finished);
	json_add(o, "ok", json_object_new_boolean(r->ok));
	json_add(o, "error", json_object_new_string(r->error));
	add_count(o, "added", r->result.added);
	add_count(o, "changed", r->result.changed);
	add_count(o, "removed", r->result.removed);
	add_count(o, "kept", r->result.kept);
	pthread_mutex_unlock(&r->lock);
	return o;
}
