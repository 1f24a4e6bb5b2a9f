// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: every name has one timer.  While no look-up of it is under way, that says
 * when the next one is due; else, when to stop waiting for the answer.  So there is one look-up of
 * a name at a time at most, whatever asks for it, and each has an end.
 *
 * All of this belongs to the thread; others reach it by loop_call(), and workers by a flag in the
 * upstream and a wake-up.
 */
#include "names.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"
#include "names_question.h"
#include "resolver.h"

/* It kills a look-up after RESOLVER_PATIENCE_MS, and others may wait before. */
#define ANSWER_MS (2 * RESOLVER_PATIENCE_MS)
/* After a failure a name is asked for again so soon, if its interval is not shorter. */
#define RETRY_MS 5000
#define CALL_MS 10000

struct name {
	struct names *names;
	struct upstream *upstream;
	struct timer timer;
	struct name *next;
	uint64_t asked_ms; /* the last look-up */
	uint32_t id;       /* of the one under way; 0: none is */
};

struct names {
	struct loop loop;
	struct source resolver; /* fd -1: it is gone */
	struct name *list;
	struct questions questions;
	uint32_t n, last_id;
	uint32_t chance; /* never 0 */
	pthread_t thread;
	bool started;
	bool given_up; /* names_give_up() */
	_Atomic bool gone; /* as the fd, for other threads */
};

bool names_needed(const struct config *c)
{
	if (c->file)
		return true; /* it may name one when read again, and then none can be started */
	for (size_t i = 0; i < c->n_forwards; i++)
		if (c->forwards[i].upstream.named)
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

/* --- what comes of it --- */

static void say_failed(struct name *m, const char *why)
{
	m->id = 0;
	if (upstream_not_found(m->upstream, why))
		log_limited(LOG_WARNING, "upstream %s keeps its last addresses: %s",
			    m->upstream->conf->text, why);
	look_later(m, true);
}

/* Without it nothing can be looked up any more: threads that are confined start no process. */
static void lose_resolver(struct names *n)
{
	const struct resolver_reply none = { .error = -ENOTCONN, .why = "the resolver has ended" };

	log_error("the resolver has ended: names keep the addresses that they have, until culvert "
		  "is started again");
	loop_watch(&n->loop, &n->resolver, 0, false);
	n->resolver.registered = false;
	close(n->resolver.fd);
	n->resolver.fd = -1;
	atomic_store(&n->gone, true);
	questions_settle(&n->questions, 0, &none);
	for (struct name *m = n->list; m; m = m->next) {
		m->id = 0;
		timer_cancel(&n->loop, &m->timer);
		upstream_not_found(m->upstream, "the resolver has ended");
	}
}

static void look_up(struct name *m)
{
	struct names *n = m->names;
	int r;

	if (n->resolver.fd < 0)
		return;
	m->asked_ms = n->loop.now_ms;
	m->id = ++n->last_id ?: ++n->last_id;
	r = resolver_ask(n->resolver.fd, m->id, m->upstream->conf->text, false);
	if (!r)
		timer_set(&n->loop, &m->timer, n->loop.now_ms + ANSWER_MS);
	else if (r == -EPIPE || r == -ECONNRESET)
		lose_resolver(n);
	else
		say_failed(m, r == -EAGAIN ? "too many look-ups are under way" : strerror(-r));
}

static void on_timer(struct timer *t)
{
	struct name *m = (struct name *)((char *)t - offsetof(struct name, timer));

	if (m->id)
		say_failed(m, "the resolver does not answer");
	else
		look_up(m);
}

/* The old ones are gone when it is logged, so it has been written down before. */
static void take_addresses(struct name *m, const struct resolver_reply *reply)
{
	struct addr addrs[RESOLVER_ADDRS_MAX];
	char before[ADDR_LIST_STRLEN], after[ADDR_LIST_STRLEN];
	struct upstream *u = m->upstream;
	struct addr_list *list = upstream_get(u);
	struct lookup_record record;
	int r;

	addr_list_format(list, before, sizeof(before));
	addr_list_put(list);
	resolver_addrs(reply, addrs);
	r = upstream_found(u, addrs, reply->n, m->names->loop.now_ms);
	if (r < 0) {
		upstream_record(u, &record);
		log_limited(LOG_WARNING, "upstream %s keeps its last addresses: %s", u->conf->text,
			    record.why);
	} else if (r > 0) {
		list = upstream_get(u);
		log_info("upstream %s is now %s (it was %s)", u->conf->text,
			 addr_list_format(list, after, sizeof(after)), before);
		addr_list_put(list);
	}
	look_later(m, r < 0);
}

/* One without a number is of all that wait, and then there is an error. */
static void take_reply(struct names *n, const struct resolver_reply *reply)
{
	questions_settle(&n->questions, reply->id, reply);
	for (struct name *m = n->list; m; m = m->next) {
		if (!m->id || (reply->id && m->id != reply->id))
			continue;
		m->id = 0;
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

/* What workers want.  One that asks again and again gets an answer each UPSTREAM_ASK_MS. */
static void after_batch(void *arg)
{
	struct names *n = arg;

	for (struct name *m = n->list; m; m = m->next) {
		uint64_t due = m->asked_ms + UPSTREAM_ASK_MS;

		if (!atomic_load_explicit(&m->upstream->wanted, memory_order_relaxed) ||
		    !atomic_exchange(&m->upstream->wanted, false) || m->id || n->resolver.fd < 0)
			continue;
		if (due < n->loop.now_ms)
			due = n->loop.now_ms;
		if (!m->timer.at || m->timer.due_ms > due)
			timer_set(&n->loop, &m->timer, due);
	}
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
	look_later(c->name, false);
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
	atomic_store(&u->ask, names_wake);
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

/* What a call to the thread takes along. */
struct asked {
	struct names *names;
	struct question *question;
	int r; /* why it could not be asked */
};

static void ask(void *arg)
{
	struct asked *a = arg;
	struct names *n = a->names;
	struct question *q = a->question;

	q->id = ++n->last_id ?: ++n->last_id;
	a->r = n->given_up	  ? -ECANCELED :
	       n->resolver.fd < 0 ? -ENOTCONN :
				    resolver_ask(n->resolver.fd, q->id, q->text, q->passive);
	if (!a->r)
		question_add(&n->questions, q);
}

static void withdraw(void *arg)
{
	struct asked *a = arg;

	question_withdraw(&a->names->questions, a->question);
}

int names_look_up(void *arg, const char *text, bool passive, struct endpoint *ret, char *err,
		  size_t errlen)
{
	struct names *n = arg;
	struct question *q = calloc(1, sizeof(*q));
	struct asked a = { .names = n, .question = q };
	int r;

	if (!q) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	q->text = text;
	q->passive = passive;
	r = loop_call(&n->loop, ask, &a, CALL_MS) ?: a.r;
	if (r) {
		snprintf(err, errlen, "it cannot be looked up: %s", strerror(-r));
	} else if (question_await(&n->questions, q)) {
		r = question_result(q, ret, err, errlen);
	} else {
		while (loop_call(&n->loop, withdraw, &a, CALL_MS) == -ETIMEDOUT)
			log_error("the look-up of names is slow to end");
		snprintf(err, errlen, "the resolver does not answer");
		r = -EAGAIN;
	}
	free(q);
	return r;
}

static void give_up(void *arg)
{
	const struct resolver_reply none = { .error = -ECANCELED, .why = "culvert is stopping" };
	struct names *n = arg;

	n->given_up = true;
	questions_settle(&n->questions, 0, &none);
}

void names_give_up(struct names *n)
{
	if (n->started)
		loop_call(&n->loop, give_up, n, CALL_MS);
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
	questions_open(&n->questions);
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

int names_start(struct names *n)
{
	int r = -pthread_create(&n->thread, NULL, thread_main, n);

	n->started = !r;
	return r;
}

static void stop(void *arg)
{
	((struct names *)arg)->loop.stop = true;
}

void names_close(struct names *n)
{
	if (!n)
		return;
	if (n->started) {
		while (loop_call(&n->loop, stop, n, CALL_MS) == -ETIMEDOUT)
			log_error("the look-up of names is slow to end");
		pthread_join(n->thread, NULL);
	}
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
