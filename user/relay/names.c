// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: every name has one timer.  While no look-up of it is under way, that says
 * when the next one is due; else, when to stop waiting for the answer.  So there is one look-up of
 * a name at a time at most, whatever asks for it, and each has an end.
 *
 * All of this belongs to the thread; others reach it by loop_call(), and workers by a flag in the
 * upstream and a wake-up.  They are told in the same way: what a look-up has come to is in the
 * upstream, and if a session waits for that, the workers are woken.
 */
#include "relay/names.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/loop.h"
#include "base/new_thread.h"
#include "relay/resolver.h"
#include "relay/resolver_wait.h"

/* It kills a look-up after RESOLVER_PATIENCE_MS, and others may wait before. */
#define ANSWER_MS (2 * RESOLVER_PATIENCE_MS)
/* After a failure a name is asked for again so soon, if its interval is not shorter. */
#define RETRY_MS 5000
#define BUSY_MS 500 /* and if the resolver takes no more */
#define CALL_MS 10000
#define GONE "the resolver has ended"

struct name {
	struct names *names;
	struct upstream *upstream;
	struct timer timer;
	struct name *next;
	uint64_t asked_ms; /* the last look-up */
	uint32_t id;       /* of the one under way; 0: none is.  By set_id() */
	struct name *older, *newer; /* with an id as well */
	unsigned int hung; /* so many look-ups, up to the last one */
};

struct names {
	struct loop loop;
	struct source resolver; /* fd -1: it is gone */
	struct name *list;
	/* of those with an id: of thousands some dozen, and answers come about in their order */
	struct name *oldest, *newest;
	struct questions questions;
	uint32_t n, last_id; /* ids are below QUESTION_ID */
	uint32_t chance; /* never 0 */
	pthread_t thread;
	bool started;
	names_tell_fn *tell;
	void *tell_arg;
	_Atomic bool gone;  /* as the fd, for other threads */
	_Atomic bool asked; /* some upstream is `wanted` */
};

bool names_needed(const struct config *c)
{
	if (c->file)
		return true; /* it may name one when read again, and then none can be started */
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].upstream.named || c->forwards[i].listen.named)
			return true;
	return false;
}

/* --- when --- */

/* xorshift: enough to keep names, and gateways, from asking all at the same moment. */
static uint32_t next_chance(struct names *n)
{
	n->chance ^= n->chance << 13;
	n->chance ^= n->chance >> 17;
	n->chance ^= n->chance << 5;
	return n->chance;
}

/* The interval, less up to an eighth. */
static void look_later(struct name *m, bool failed)
{
	uint64_t wait = m->upstream->interval_ms;

	if (failed && wait > RETRY_MS)
		wait = RETRY_MS;
	wait -= next_chance(m->names) % (wait / 8 + 1);
	timer_set(&m->names->loop, &m->timer, m->names->loop.now_ms + wait);
}

/* A look-up of M begins, or has ended: 0. */
static void set_id(struct name *m, uint32_t id)
{
	struct names *n = m->names;

	if (m->id) {
		*(m->older ? &m->older->newer : &n->oldest) = m->newer;
		*(m->newer ? &m->newer->older : &n->newest) = m->older;
	}
	m->id = id;
	if (id) {
		m->older = n->newest;
		m->newer = NULL;
		*(m->older ? &m->older->newer : &n->oldest) = m;
		n->newest = m;
	}
}

/* --- what comes of it --- */

/* A look-up of M has ended. */
static void tell(struct name *m)
{
	if (upstream_awaited(m->upstream) && m->names->tell)
		m->names->tell(m->names->tell_arg);
}

static void say_unchanged(struct upstream *u)
{
	struct lookup_record record;

	upstream_record(u, &record);
	if (upstream_is_unknown(u))
		log_limited(LOG_WARNING, "upstream %s has no address yet, so its clients are "
			    "reset: %s", u->conf->text, record.why);
	else
		log_limited(LOG_WARNING, "upstream %s keeps its last addresses: %s",
			    u->conf->text, record.why);
}

static void say_failed(struct name *m, const char *why)
{
	set_id(m, 0);
	if (upstream_not_found(m->upstream, why))
		say_unchanged(m->upstream);
	look_later(m, true);
	tell(m);
}

/* Without it nothing can be looked up any more: threads that are confined start no process. */
static void lose_resolver(struct names *n)
{
	const struct resolver_reply none = { .error = -ENOTCONN, .why = GONE };

	log_error("%s: names keep the addresses that they have, until culvert is started again",
		  none.why);
	loop_watch(&n->loop, &n->resolver, 0, false);
	n->resolver.registered = false;
	close(n->resolver.fd);
	n->resolver.fd = -1;
	atomic_store(&n->gone, true);
	questions_settle(&n->questions, 0, &none);
	for (struct name *m = n->list; m; m = m->next) {
		set_id(m, 0);
		timer_cancel(&n->loop, &m->timer);
		upstream_not_found(m->upstream, none.why);
		tell(m);
	}
}

static void look_up(struct name *m)
{
	struct resolver_query query = { .text = m->upstream->conf->text, .hung = m->hung };
	struct names *n = m->names;
	int r;

	if (n->resolver.fd < 0)
		return;
	m->asked_ms = n->loop.now_ms;
	n->last_id = n->last_id + 1 < QUESTION_ID ? n->last_id + 1 : 1;
	set_id(m, n->last_id);
	query.id = m->id;
	r = resolver_ask(n->resolver.fd, &query);
	if (!r) {
		timer_set(&n->loop, &m->timer, n->loop.now_ms + ANSWER_MS);
	} else if (r == -EAGAIN) { /* a great many at the same time: it has not failed */
		set_id(m, 0);
		timer_set(&n->loop, &m->timer, n->loop.now_ms + BUSY_MS);
	} else if (r == -EPIPE || r == -ECONNRESET) {
		lose_resolver(n);
	} else {
		say_failed(m, strerror(-r));
	}
}

static void on_timer(struct timer *t)
{
	struct name *m = (struct name *)((char *)t - offsetof(struct name, timer));

	if (m->id)
		say_failed(m, "the resolver does not answer");
	else
		look_up(m);
}

/* What U is now; and, unless that is "", what it was. */
static void say_found(struct upstream *u, const char *before)
{
	struct addr_list *list = upstream_get(u);
	char after[ADDR_LIST_STRLEN];

	addr_list_format(list, after, sizeof(after));
	addr_list_put(list);
	if (before[0])
		log_info("upstream %s is now %s (it was %s)", u->conf->text, after, before);
	else
		log_info("upstream %s is %s", u->conf->text, after);
}

/* The old ones are gone when it is logged, so it has been written down before. */
static void take_addresses(struct name *m, const struct resolver_reply *reply)
{
	struct addr addrs[RESOLVER_ADDRS_MAX];
	char before[ADDR_LIST_STRLEN];
	struct upstream *u = m->upstream;
	struct addr_list *list = upstream_get(u);
	int r;

	addr_list_format(list, before, sizeof(before));
	addr_list_put(list);
	resolver_addrs(reply, addrs);
	r = upstream_found(u, addrs, reply->n, m->names->loop.now_ms);
	if (r < 0)
		say_unchanged(u);
	else if (r > 0)
		say_found(u, before);
	look_later(m, r < 0);
	tell(m);
}

/* One without a number is of all that wait, and then there is an error. */
static void take_reply(struct names *n, const struct resolver_reply *reply)
{
	questions_settle(&n->questions, reply->id, reply);
	for (struct name *m = n->oldest, *next; m; m = next) {
		next = m->newer;
		if (reply->id && m->id != reply->id)
			continue;
		set_id(m, 0);
		m->hung = reply->hung ? m->hung + 1 : 0;
		if (reply->error)
			say_failed(m, reply->why);
		else
			take_addresses(m, reply);
		if (reply->id)
			return;
	}
	/* too late, or of a name that is no longer used */
}

static void on_resolver(struct source *source, uint32_t events)
{
	struct names *n = (struct names *)((char *)source - offsetof(struct names, resolver));
	struct resolver_reply reply;
	int r;

	(void)events;
	while ((r = resolver_read(source->fd, &reply)) > 0)
		take_reply(n, &reply);
	if (r == -EBADMSG)
		log_limited(LOG_WARNING, "the resolver has sent something that is no answer");
	else if (r < 0)
		lose_resolver(n);
}

/* Somebody wants a look-up of M. */
static void hurry(struct name *m)
{
	struct loop *l = &m->names->loop;
	uint64_t due = m->asked_ms + UPSTREAM_ASK_MS;

	if (m->names->resolver.fd < 0) {
		upstream_not_found(m->upstream, GONE);
		tell(m);
		return;
	}
	if (m->id)
		return; /* one is under way */
	if (due < l->now_ms)
		due = l->now_ms;
	if (!m->timer.at || m->timer.due_ms > due)
		timer_set(l, &m->timer, due);
}

/* What workers want.  One that asks again and again gets an answer each UPSTREAM_ASK_MS. */
static void after_batch(void *arg)
{
	struct names *n = arg;

	/* there may be thousands, and a batch for each of them */
	if (!atomic_exchange(&n->asked, false))
		return;
	for (struct name *m = n->list; m; m = m->next)
		if (atomic_exchange(&m->upstream->wanted, false))
			hurry(m);
}

/* --- which names there are --- */

/* One of these for a call to the thread. */
struct change {
	struct names *names;
	struct name *name;
	struct upstream *upstream;
	int r;
};

void names_wake(void *names)
{
	loop_wake(&((struct names *)names)->loop);
}

/* A worker wants a look-up, and has said of what. */
static void be_asked(void *arg)
{
	struct names *n = arg;

	atomic_store(&n->asked, true);
	names_wake(n);
}

_Atomic uint64_t *names_turns(struct names *n)
{
	return &n->loop.turns;
}

static void forget(void *arg, struct upstream *u)
{
	names_remove(arg, u);
}

static void add(void *arg)
{
	struct change *c = arg;
	struct names *n = c->names;

	c->r = loop_reserve_timers(&n->loop, n->n + 1);
	if (c->r)
		return;
	n->n++;
	c->name->next = n->list;
	n->list = c->name;
	if (upstream_is_unknown(c->name->upstream))
		timer_set(&n->loop, &c->name->timer, n->loop.now_ms);
	else
		look_later(c->name, false);
	if (atomic_exchange(&c->name->upstream->wanted, false)) /* before it was in the list */
		hurry(c->name);
}

static void drop(void *arg)
{
	struct change *c = arg;
	struct name **p = &c->names->list;

	while (*p && (*p)->upstream != c->upstream)
		p = &(*p)->next;
	c->name = *p;
	if (!c->name)
		return;
	*p = c->name->next;
	c->names->n--;
	set_id(c->name, 0);
	timer_cancel(&c->names->loop, &c->name->timer);
}

/* Before the thread runs, whoever calls has the loop for itself. */
static int call(struct names *n, void (*fn)(void *arg), struct change *c)
{
	if (n->started)
		return loop_call(&n->loop, fn, c, CALL_MS);
	fn(c);
	return 0;
}

int names_add(struct names *n, struct upstream *u)
{
	struct change c = { .names = n, .upstream = u };
	int r;

	if (!n || !u->conf->named)
		return 0;
	c.name = calloc(1, sizeof(*c.name));
	if (!c.name)
		return -ENOMEM;
	c.name->names = n;
	c.name->upstream = u;
	c.name->timer.fire = on_timer;
	u->arg = n;
	u->forget = forget;
	atomic_store(&u->ask, be_asked);
	r = call(n, add, &c) ?: c.r;
	if (r) {
		atomic_store(&u->ask, NULL);
		free(c.name);
	}
	return r;
}

void names_remove(struct names *n, struct upstream *u)
{
	struct change c = { .names = n, .upstream = u };

	if (!n || !atomic_load(&u->ask))
		return;
	while (call(n, drop, &c) == -ETIMEDOUT)
		log_error("the look-up of names is slow to end");
	free(c.name);
	atomic_store(&u->ask, NULL);
}

/* --- questions of other threads --- */

void names_look_up_all(struct names *n, struct question *questions, size_t count)
{
	if (n->started)
		questions_ask(&n->questions, questions, count, NAMES_PATIENCE_S * 1000);
	else
		resolver_wait(n->resolver.fd, questions, count, NAMES_PATIENCE_S * 1000);
}

int names_look_up(void *arg, const char *text, bool passive, struct endpoint *ret, char *err,
		  size_t errlen)
{
	struct question *q = calloc(1, sizeof(*q));
	int r;

	if (!q) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	q->text = text;
	q->passive = passive;
	names_look_up_all(arg, q, 1);
	r = question_result(q, ret, err, errlen);
	free(q);
	return r;
}

void names_give_up(struct names *n)
{
	if (n->started)
		questions_give_up(&n->questions);
}

bool names_have_resolver(struct names *n)
{
	return !atomic_load(&n->gone);
}

/* --- beginning and end --- */

int names_open(const struct account *a, enum filter_mode filter, struct names **ret, char *err,
	       size_t errlen)
{
	struct names *n = calloc(1, sizeof(*n));
	struct timespec ts;
	int r;

	if (!n) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	clock_gettime(CLOCK_REALTIME, &ts);
	n->chance = ((uint32_t)ts.tv_nsec ^ (uint32_t)getpid()) | 1;
	n->resolver = (struct source){ .handle = on_resolver, .fd = -1 };
	r = resolver_start(a, filter, &n->resolver.fd, err, errlen);
	if (r) {
		free(n);
		return r;
	}
	questions_open(&n->questions, &n->loop, &n->resolver);
	r = loop_open(&n->loop, after_batch, n);
	r = r ?: loop_watch(&n->loop, &n->resolver, EPOLLIN, true);
	if (r) {
		snprintf(err, errlen, "no event loop for names: %s", strerror(-r));
		names_close(n);
		return r;
	}
	*ret = n;
	return 0;
}

static void *thread_main(void *arg)
{
	struct names *n = arg;
	int r = loop_run(&n->loop);

	if (r)
		log_error("names keep the addresses that they have, until culvert is started "
			  "again: %s", strerror(-r));
	return NULL;
}

int names_start(struct names *n, names_tell_fn *tell_fn, void *arg)
{
	int r;

	n->tell = tell_fn;
	n->tell_arg = arg;
	r = new_thread(&n->thread, thread_main, n);
	n->started = !r;
	return r;
}

static void stop(void *arg)
{
	((struct names *)arg)->loop.stop = true;
}

/* From then on whoever calls has the loop for itself, as before the start. */
void names_stop(struct names *n)
{
	if (!n || !n->started)
		return;
	while (loop_call(&n->loop, stop, n, CALL_MS) == -ETIMEDOUT)
		log_error("the look-up of names is slow to end");
	pthread_join(n->thread, NULL);
	n->started = false;
	n->tell = NULL;
}

void names_close(struct names *n)
{
	if (!n)
		return;
	names_stop(n);
	while (n->list) {
		struct name *next = n->list->next;

		atomic_store(&n->list->upstream->ask, NULL);
		free(n->list);
		n->list = next;
	}
	if (n->resolver.fd >= 0)
		resolver_stop(n->resolver.fd);
	loop_close(&n->loop);
	questions_close(&n->questions);
	free(n);
}
