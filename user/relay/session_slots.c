/* SPDX-License-Identifier: BSD-2-Clause */
#include "relay/session_slots.h"

int session_take_slots(struct session *s)
{
	struct worker *w = s->worker;
	struct kernel *k = w->shared->kernel;
	uint32_t pair;
	int r;

	if (s->pair != NO_PAIR)
		return 0;
	r = kernel_pair_get(k, &pair);
	if (r)
		return r;
	for (unsigned int side = 0; side < 2; side++) {
		r = kernel_admit(k, pair * 2 + side, s->sides[side].fd, &s->cookies[side]);
		if (!r)
			continue;
		if (side)
			kernel_forget(k, pair * 2, s->cookies[0], false);
		kernel_pair_put(k, pair);
		return r;
	}
	s->pair = pair;
	for (unsigned int dir = 0; dir < 2; dir++) {
		const volatile struct culvert_stat *st = kernel_stat(k, pair * 2 + dir);

		s->flows[dir].base_bytes = st->bytes;
		s->flows[dir].base_dropped = (uint32_t)st->dropped;
	}
	w->owners[pair] = s;
	if (!w->in_kernel++)
		timer_set(&w->loop, &w->sweep, w->loop.now_ms + WORKER_SWEEP_MS);
	return 0;
}

void session_give_slots(struct session *s, bool closed)
{
	struct worker *w = s->worker;
	struct kernel *k = w->shared->kernel;

	if (s->pair == NO_PAIR)
		return;
	w->owners[s->pair] = NULL;
	if (!--w->in_kernel)
		timer_cancel(&w->loop, &w->sweep);
	for (unsigned int side = 0; side < 2; side++)
		kernel_forget(k, s->pair * 2 + side, s->cookies[side], closed);
	kernel_pair_put(k, s->pair);
	s->pair = NO_PAIR;
}
