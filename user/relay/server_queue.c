// SPDX-License-Identifier: BSD-2-Clause
#include "relay/server_queue.h"

#include <pthread.h>

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;

void queue_init(struct server_queue *q)
{
	*q = (struct server_queue){ 0 };
	TAILQ_INIT(&q->waiters);
}

void woken_init(struct woken *w, struct loop *loop)
{
	*w = (struct woken){ .loop = loop };
	TAILQ_INIT(&w->list);
}

/* With the lock. */
static void queue_wake_first(struct server_queue *q)
{
	struct waiter *w = TAILQ_FIRST(&q->waiters);

	if (!w || w->woken)
		return;
	w->woken = true;
	TAILQ_INSERT_TAIL(&w->to->list, w, in_woken);
	atomic_store(&w->to->any, true);
	loop_wake(w->to->loop);
}

static bool is_before(const struct waiter *a, const struct waiter *b)
{
	return a->since_ms != b->since_ms ? a->since_ms < b->since_ms : a->id < b->id;
}

/*
 * Put W into its place, which is mostly the last one.  Sessions of another daemon come in the order
 * of its workers, forwards or backwards: the place is near that of the one before.  With the lock.
 */
static void queue_insert(struct server_queue *q, struct waiter *w)
{
	struct waiter *at = q->last ?: TAILQ_LAST(&q->waiters, waiter_list), *next;

	while (at && is_before(w, at))
		at = TAILQ_PREV(at, waiter_list, in_queue);
	next = at ? TAILQ_NEXT(at, in_queue) : TAILQ_FIRST(&q->waiters);
	while (next && !is_before(w, next))
		next = TAILQ_NEXT(next, in_queue);
	if (next)
		TAILQ_INSERT_BEFORE(next, w, in_queue);
	else
		TAILQ_INSERT_TAIL(&q->waiters, w, in_queue);
	q->last = w;
}

bool queue_wait(struct server_queue *q, struct waiter *w, unsigned int most)
{
	bool room;

	pthread_mutex_lock(&queue_lock);
	room = atomic_load(&q->n) < most;
	if (room) {
		queue_insert(q, w);
		atomic_fetch_add(&q->n, 1);
	}
	pthread_mutex_unlock(&queue_lock);
	return room;
}

void queue_leave(struct server_queue *q, struct waiter *w)
{
	bool first;

	pthread_mutex_lock(&queue_lock);
	first = TAILQ_FIRST(&q->waiters) == w;
	TAILQ_REMOVE(&q->waiters, w, in_queue);
	atomic_fetch_sub(&q->n, 1);
	if (q->last == w)
		q->last = NULL;
	if (w->woken)
		TAILQ_REMOVE(&w->to->list, w, in_woken);
	if (first)
		queue_wake_first(q);
	pthread_mutex_unlock(&queue_lock);
}

bool queue_is_first(struct server_queue *q, const struct waiter *w)
{
	bool first;

	if (!q || !atomic_load(&q->n))
		return true;
	pthread_mutex_lock(&queue_lock);
	first = TAILQ_FIRST(&q->waiters) == w;
	pthread_mutex_unlock(&queue_lock);
	return first;
}

void queue_wake(struct server_queue *q)
{
	if (!q || !atomic_load(&q->n))
		return;
	pthread_mutex_lock(&queue_lock);
	queue_wake_first(q);
	pthread_mutex_unlock(&queue_lock);
}

struct session *woken_take(struct woken *w)
{
	struct waiter *first;

	if (!atomic_load(&w->any))
		return NULL;
	pthread_mutex_lock(&queue_lock);
	first = TAILQ_FIRST(&w->list);
	if (first) {
		TAILQ_REMOVE(&w->list, first, in_woken);
		first->woken = false;
	}
	atomic_store(&w->any, first);
	pthread_mutex_unlock(&queue_lock);
	return first ? first->session : NULL;
}
