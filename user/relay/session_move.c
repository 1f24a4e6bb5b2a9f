// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_move.h"

#include "relay/session.h"

static void deliver(struct worker *to, struct session *s)
{
	struct inbox *in = &to->inbox;

	pthread_mutex_lock(&in->lock);
	s->next = in->first;
	in->first = s;
	atomic_store_explicit(&in->full, true, memory_order_relaxed);
	pthread_mutex_unlock(&in->lock);
}

unsigned int session_move(struct worker *from, struct worker *to, unsigned int most)
{
	struct session *s = from->sessions, *next;
	unsigned int n = 0;

	for (; s && n < most; s = next) {
		next = s->next;
		if (!session_leave(s))
			continue;
		deliver(to, s);
		n++;
	}
	if (n) {
		count_add(&from->stats.moved, n);
		loop_wake(&to->loop);
	}
	return n;
}

void session_arrivals(struct worker *w)
{
	struct inbox *in = &w->inbox;
	struct session *s, *next;

	/* a look that comes too early is made good: loop_wake() follows what is delivered */
	if (!atomic_load_explicit(&in->full, memory_order_relaxed))
		return;
	pthread_mutex_lock(&in->lock);
	s = in->first;
	in->first = NULL;
	atomic_store_explicit(&in->full, false, memory_order_relaxed);
	pthread_mutex_unlock(&in->lock);
	for (; s; s = next) {
		next = s->next;
		session_join(s, w);
	}
}
