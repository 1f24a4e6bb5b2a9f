// SPDX-License-Identifier: BSD-2-Clause
#include "names_question.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MORE_S 5 /* than a look-up may take */

void questions_open(struct questions *all)
{
	pthread_condattr_t attr;

	all->first = NULL;
	pthread_mutex_init(&all->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&all->answered, &attr);
	pthread_condattr_destroy(&attr);
}

void questions_close(struct questions *all)
{
	pthread_cond_destroy(&all->answered);
	pthread_mutex_destroy(&all->lock);
}

void question_add(struct questions *all, struct question *q)
{
	q->next = all->first;
	all->first = q;
}

void question_withdraw(struct questions *all, struct question *q)
{
	struct question **p = &all->first;

	while (*p && *p != q)
		p = &(*p)->next;
	if (*p)
		*p = q->next;
}

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

bool question_await(struct questions *all, struct question *q)
{
	struct timespec until;
	bool done;
	int r = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += RESOLVER_PATIENCE_MS / 1000 + MORE_S;
	pthread_mutex_lock(&all->lock);
	while (!q->done && !r)
		r = pthread_cond_timedwait(&all->answered, &all->lock, &until);
	done = q->done;
	pthread_mutex_unlock(&all->lock);
	return done;
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
