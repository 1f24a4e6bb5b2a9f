// SPDX-License-Identifier: BSD-2-Clause
#include "relay/names_question.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "relay/resolver_wait.h"

#define CALL_MS 10000

void questions_open(struct questions *all, struct loop *loop, const struct source *resolver)
{
	*all = (struct questions){ .loop = loop, .resolver = resolver, .last_id = QUESTION_ID };
	pthread_mutex_init(&all->lock, NULL);
	clock_cond_init(&all->answered);
}

void questions_close(struct questions *all)
{
	pthread_cond_destroy(&all->answered);
	pthread_mutex_destroy(&all->lock);
}

/* --- by the thread of names.c --- */

/* The other thread may free it as soon as it is told. */
static void settle(struct questions *all, struct question *q, const struct resolver_reply *reply)
{
	pthread_mutex_lock(&all->lock);
	q->reply = *reply;
	q->done = true;
	pthread_cond_broadcast(&all->answered);
	pthread_mutex_unlock(&all->lock);
}

void questions_settle(struct questions *all, uint32_t id, const struct resolver_reply *reply)
{
	struct question **p = &all->first;

	while (*p) {
		struct question *q = *p;

		if (id && q->id != id) {
			p = &q->next;
			continue;
		}
		*p = q->next;
		settle(all, q, reply);
	}
}

/* What a call to the thread takes along. */
struct call {
	struct questions *all;
	struct question *question;
	int r; /* why it could not be asked */
};

static void ask(void *arg)
{
	struct call *c = arg;
	struct questions *all = c->all;
	struct question *q = c->question;
	struct resolver_query query = { .text = q->text, .passive = q->passive };

	all->last_id = (all->last_id + 1) | QUESTION_ID;
	q->id = query.id = all->last_id;
	q->done = false;
	c->r = all->given_up	     ? -ECANCELED :
	       all->resolver->fd < 0 ? -ENOTCONN :
				       resolver_ask(all->resolver->fd, &query);
	if (c->r)
		return;
	q->next = all->first;
	all->first = q;
}

static void withdraw(void *arg)
{
	struct call *c = arg;
	struct question **p = &c->all->first;

	while (*p && *p != c->question)
		p = &(*p)->next;
	if (*p)
		*p = c->question->next;
}

static void give_up(void *arg)
{
	const struct resolver_reply none = { .error = -ECANCELED, .why = "culvert is stopping" };
	struct questions *all = arg;

	all->given_up = true;
	questions_settle(all, 0, &none);
}

/* --- by another --- */

/* False: until UNTIL nothing has come. */
static bool await(struct questions *all, const struct question *q, const struct timespec *until)
{
	bool done;
	int r = 0;

	pthread_mutex_lock(&all->lock);
	while (!q->done && !r)
		r = pthread_cond_timedwait(&all->answered, &all->lock, until);
	done = q->done;
	pthread_mutex_unlock(&all->lock);
	return done;
}

static void ask_all(struct questions *all, struct question *questions, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct call c = { .all = all, .question = &questions[i] };
		int r = loop_call(all->loop, ask, &c, CALL_MS) ?: c.r;
		char why[LOOKUP_WHY_LEN];

		if (!r)
			continue;
		snprintf(why, sizeof(why), "it cannot be looked up: %s", strerror(-r));
		question_fail(&questions[i], r, why);
	}
}

void questions_ask(struct questions *all, struct question *questions, size_t count,
		   unsigned int patience_ms)
{
	const struct timespec until = clock_timespec(clock_ms() + patience_ms);

	ask_all(all, questions, count);
	for (size_t i = 0; i < count; i++) {
		struct call c = { .all = all, .question = &questions[i] };

		if (await(all, c.question, &until))
			continue;
		while (loop_call(all->loop, withdraw, &c, CALL_MS) == -ETIMEDOUT)
			log_error("the look-up of names is slow to end");
		if (!c.question->done) /* it may have come just before */
			question_fail(c.question, -EAGAIN, RESOLVER_SILENT);
	}
}

void questions_give_up(struct questions *all)
{
	loop_call(all->loop, give_up, all, CALL_MS);
}

/* --- one of them --- */

void question_fail(struct question *q, int error, const char *why)
{
	q->reply = (struct resolver_reply){ .id = q->id, .error = error };
	snprintf(q->reply.why, sizeof(q->reply.why), "%s", why);
	q->done = true;
}

int question_result(const struct question *q, struct endpoint *ret, char *err, size_t errlen)
{
	struct addr *addrs;

	if (q->reply.error) {
		snprintf(err, errlen, "%s", q->reply.why);
		return q->reply.error;
	}
	addrs = calloc(q->reply.n, sizeof(*addrs));
	if (!addrs) {
		snprintf(err, errlen, "out of memory");
		return -ENOMEM;
	}
	resolver_addrs(&q->reply, addrs);
	memset(ret, 0, sizeof(*ret));
	snprintf(ret->text, sizeof(ret->text), "%s", q->text);
	ret->addrs = addrs;
	ret->n_addrs = q->reply.n;
	return 0;
}
