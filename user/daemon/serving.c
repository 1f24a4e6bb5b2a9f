// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: sockets that listen on an address are kept as long as some forward wants it.
 * Where they cannot be kept, since a forward has become transparent, which takes a privilege that
 * only the maker of new sockets has, the new ones join the SO_REUSEPORT group of the old ones:
 *
 *   [old 0, old 1]                 the group's program picks among these, from before there are
 *                                  others: what the plan opens gets no connection that a plan that
 *                                  fails would have to reset
 *   [old 0, old 1, new 0, new 1]   with the change it picks among the new ones.  The old ones are
 *                                  leaving: each still accepts what waits in its backlog, and
 *                                  those whose handshake had begun there
 *   [new 0, new 1]                 some time later no handshake can be under way there
 *
 * From 10.0.0.1:80 to 0.0.0.0:80 its sockets stay, for whoever has all addresses: what comes for
 * 10.0.0.1 goes to them as long as there are any, since the kernel looks these up first, and a
 * handshake ends where it has begun, or is reset; so no moment is known in which none would be.
 *
 * When a socket leaves the group, the last one takes its place (reuseport_detach_sock()).  So the
 * old ones are closed from the last worker's to the first one's, after which each new one has the
 * place of its worker; meanwhile that of the first worker stays where it is, and the program picks
 * that one alone.
 */
#include "daemon/serving.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "relay/listener.h"

#define WORKER_PATIENCE_MS 10000
/* A SYN-ACK that nobody acknowledges is given up after 63 s (net.ipv4.tcp_synack_retries: 5). */
#define HANDSHAKE_MS 64000

void serving_init(struct serving *s, struct listening **list)
{
	*s = (struct serving){ .list = list };
	pthread_mutex_init(&s->turn, NULL);
}

void serving_destroy(struct serving *s)
{
	pthread_mutex_destroy(&s->turn);
}

/* --- turns --- */

void serving_take_turn(struct serving *s)
{
	pthread_mutex_lock(&s->turn);
	s->taken = true;
}

int serving_ask_turn(struct serving *s, unsigned int seconds)
{
	struct timespec until = clock_timespec(clock_real_ms() + UINT64_C(1000) * seconds);

	if (pthread_mutex_timedlock(&s->turn, &until))
		return -EBUSY;
	if (s->stopped) {
		pthread_mutex_unlock(&s->turn);
		return -ESHUTDOWN;
	}
	s->taken = true;
	return 0;
}

void serving_end_turn(struct serving *s)
{
	s->taken = false;
	pthread_mutex_unlock(&s->turn);
}

void serving_stop(struct serving *s)
{
	serving_take_turn(s);
	s->stopped = true;
	serving_end_turn(s);
}

/* --- the plan --- */

void serving_keep_all(struct serving *s)
{
	assert(s->taken);
	for (struct listening *l = *s->list; l; l = l->next)
		l->becomes = l->forward;
}

static bool same_port(const struct addr *a, const struct addr *b)
{
	return addr_is_inet(a) && a->ss.ss_family == b->ss.ss_family &&
	       addr_port(a) == addr_port(b);
}

/*
 * From 0.0.0.0:80 to 10.0.0.1:80 the one is in the way of the other until it is closed; as they are
 * of one user, SO_REUSEPORT lets both be for that while.
 */
static bool is_part(const struct addr *one, const struct addr *any)
{
	return same_port(one, any) && addr_is_any(any) && !addr_is_any(one);
}

/* Whose forward has, after the change, every local address at that port; NULL: nobody's. */
static struct forward *holder_of_any(const struct serving *s, const struct serving_plan *p,
				     const struct addr *one)
{
	for (const struct listening *l = *s->list; l; l = l->next)
		if (l->becomes && !l->leaving && is_part(one, &l->addr))
			return l->becomes;
	for (const struct listening *l = p->opened; l; l = l->next)
		if (is_part(one, &l->addr))
			return l->becomes;
	return NULL;
}

void serving_keep_handshakes(struct serving *s, const struct serving_plan *p)
{
	for (struct listening *l = *s->list; l; l = l->next) {
		struct forward *f;

		if (l->becomes || l->leaving || l->shared)
			continue;
		f = holder_of_any(s, p, &l->addr);
		if (f && listening_fits(l, f->conf))
			l->becomes = f;
	}
}

bool serving_joins(const struct serving *s, const struct addr *a)
{
	for (const struct listening *l = *s->list; l; l = l->next)
		if (same_port(&l->addr, a))
			return true;
	return false;
}

int serving_open(struct serving *s, struct serving_plan *p, const struct listening_maker *by,
		 struct forward *f, const struct forward_conf *fc, const struct addr *a,
		 struct listening **ret, char *err, size_t errlen)
{
	char text[ADDR_STRLEN], why[256];
	struct listening *l;
	int r;

	assert(s->taken);
	r = listening_open(by, fc, a, serving_joins(s, a), s->n_workers, &l, why, sizeof(why));
	if (r) {
		addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
		snprintf(err, errlen, "cannot listen on %s: %s", text, why);
		return r;
	}
	l->forward = l->becomes = f;
	l->next = p->opened;
	p->opened = l;
	p->n++;
	*ret = l;
	return 0;
}

static void end_leaving(struct serving *s, struct listening *l);

/* The order of a group is known while one at most is leaving. */
static void end_leaving_at(struct serving *s, const struct addr *a)
{
	struct listening *l = *s->list;

	while (l && !(l->leaving && addr_equal(&l->addr, a)))
		l = l->next;
	if (l)
		end_leaving(s, l);
}

int serving_replace(struct serving *s, struct serving_plan *p, const struct listening_maker *by,
		    struct forward *f, const struct forward_conf *fc, struct listening *old,
		    struct listening **ret, char *err, size_t errlen)
{
	int r;

	assert(s->taken);
	end_leaving_at(s, &old->addr);
	listening_steer(old, s->n_workers);
	r = serving_open(s, p, by, f, fc, &old->addr, ret, err, errlen);
	if (r)
		return r;
	(*ret)->asked = old->asked;
	(*ret)->replaces = old;
	(*ret)->place = s->n_workers;
	old->becomes = f;
	return 0;
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
static int call_timers(const struct serving *s, int n)
{
	for (unsigned int w = 0; w < s->n_workers; w++) {
		struct own_timers t = { s->workers[w], n, 0 };
		int error = loop_call(&s->workers[w]->loop, take_timers, &t, WORKER_PATIENCE_MS);

		if (!error)
			error = t.error;
		if (!error)
			continue;
		for (t.n = -n; w-- > 0;) {
			t.worker = s->workers[w];
			loop_call(&t.worker->loop, take_timers, &t, WORKER_PATIENCE_MS);
		}
		return error;
	}
	return 0;
}

int serving_prepare(struct serving *s, struct serving_plan *p, char *err, size_t errlen)
{
	size_t i = 0;
	int r;

	p->listeners = calloc(p->n * s->n_workers + 1, sizeof(struct listener *));
	if (!p->listeners) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	for (struct listening *l = p->opened; l; l = l->next)
		for (unsigned int w = 0; w < s->n_workers; w++, i++) {
			p->listeners[i] = listener_new(s->workers[w], l, l->forward);
			if (!p->listeners[i]) {
				snprintf(err, errlen, "out of memory");
				return -ENOMEM;
			}
		}
	r = call_timers(s, (int)p->n);
	if (r)
		snprintf(err, errlen, "a worker: %s", strerror(-r));
	return r;
}

void serving_give_up(struct serving *s, struct serving_plan *p)
{
	for (size_t i = 0; p->listeners && i < p->n * s->n_workers; i++)
		free(p->listeners[i]);
	free(p->listeners);
	listening_close_all(p->opened);
	*p = (struct serving_plan){ 0 };
}

/* --- the change --- */

struct change {
	struct serving *serving;
	struct serving_plan *plan;
	const struct listening *ends; /* end_one() */
	struct worker *worker;
};

/* In the order in which sockets have to leave their group.  A worker that is slow is waited for. */
static void call_workers(void (*fn)(void *arg), struct change c)
{
	for (unsigned int w = c.serving->n_workers; w-- > 0;) {
		c.worker = c.serving->workers[w];
		while (loop_call(&c.worker->loop, fn, &c, WORKER_PATIENCE_MS) == -ETIMEDOUT)
			log_error("worker %u is slow, and the change of its listeners waits", w);
	}
}

static void commit(void *arg)
{
	struct change *c = arg;
	struct worker *w = c->worker;
	size_t i = w->index;

	for (struct listening *l = *c->serving->list; l; l = l->next) {
		struct listener *ls = listener_find(w, l);

		if (l->becomes) {
			ls->forward = l->becomes;
			continue;
		}
		listener_end(ls);
		worker_own_timers(w, -1);
	}
	for (struct listening *l = c->plan->opened; l; l = l->next, i += c->serving->n_workers)
		listener_start(c->plan->listeners[i]);
}

static void adopt(struct serving *s, struct serving_plan *p)
{
	struct listening **at = s->list;

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

/* From here on no handshake begins where one is replaced. */
static void steer_to_opened(const struct serving *s, struct listening *opened)
{
	for (struct listening *l = opened; l; l = l->next) {
		if (l->replaces) {
			l->replaces->leaving = true;
			l->replaces->leaves_ms = clock_ms() + HANDSHAKE_MS;
			l->replaces = NULL;
		}
		listening_steer(l, s->n_workers);
	}
}

void serving_change(struct serving *s, struct serving_plan *p)
{
	assert(s->taken);
	steer_to_opened(s, p->opened);
	call_workers(commit, (struct change){ .serving = s, .plan = p });
	adopt(s, p);
	free(p->listeners);
	*p = (struct serving_plan){ 0 };
}

/* --- what is leaving --- */

static void end_one(void *arg)
{
	struct change *c = arg;

	listener_end(listener_find(c->worker, c->ends));
	worker_own_timers(c->worker, -1);
}

struct listening *serving_successor(const struct serving *s, const struct listening *l)
{
	struct listening *next = *s->list;

	while (next && (next->leaving || !addr_equal(&next->addr, &l->addr)))
		next = next->next;
	return next;
}

static void end_leaving(struct serving *s, struct listening *l)
{
	struct listening *next = serving_successor(s, l), **at = s->list;

	if (next)
		listening_steer(next, 1);
	call_workers(end_one, (struct change){ .serving = s, .ends = l });
	if (next) {
		next->place = 0;
		listening_steer(next, s->n_workers);
	}
	while (*at != l)
		at = &(*at)->next;
	*at = l->next;
	listening_close(l);
}

uint64_t serving_look(struct serving *s, uint64_t now_ms)
{
	uint64_t due = UINT64_MAX;
	struct listening *next;

	assert(s->taken);
	for (struct listening *l = *s->list; l; l = next) {
		next = l->next;
		if (!l->leaving)
			continue;
		if (l->leaves_ms <= now_ms)
			end_leaving(s, l);
		else if (l->leaves_ms < due)
			due = l->leaves_ms;
	}
	return due;
}
