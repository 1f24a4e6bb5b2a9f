// SPDX-License-Identifier: BSD-2-Clause
#include "relay/idle.h"

/* TCP's clock for these has ticks of up to 10 ms (CONFIG_HZ=100). */
#define TICK_MS 10

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/*
 * What was sent, and is owed, may be what TCP sends again and again to an end that is gone: only
 * what the end has taken counts then.  When that was is not known exactly, so it counts as late as
 * it can have been.
 */
static uint64_t last_byte(const struct idle *i, const struct idle_side *side, unsigned int which)
{
	if (!side->owed && !i->owed[which])
		return later(side->heard_ms, side->sent_ms);
	if (side->taken != i->taken[which])
		return later(side->heard_ms, side->took_ms);
	return side->heard_ms;
}

void idle_look(struct idle *i, const struct idle_side sides[2])
{
	i->since_ms = later(i->since_ms, i->read_ms);
	for (unsigned int which = 0; which < 2; which++) {
		const struct idle_side *side = &sides[which];

		i->since_ms = later(i->since_ms, last_byte(i, side, which));
		i->taken[which] = side->taken;
		i->owed[which] = side->owed;
	}
}

void idle_update(struct idle *i, bool half, uint64_t now_ms)
{
	if (i->since_ms && half == i->half)
		return;
	i->since_ms = now_ms;
	i->half = half;
}

uint64_t idle_ago(uint64_t now_ms, uint32_t ago_ms)
{
	if (ago_ms <= TICK_MS)
		return now_ms;
	ago_ms -= TICK_MS;
	return ago_ms < now_ms ? now_ms - ago_ms : 0;
}

uint64_t idle_turn(struct idle_turns *t, uint32_t batch, uint64_t now_ms)
{
	if (batch != t->batch && now_ms != t->now_ms) {
		t->batch = batch;
		t->now_ms = now_ms;
		t->looks = 0;
	}
	if (t->looks < IDLE_LOOKS) {
		t->looks++;
		return now_ms;
	}
	if (t->last_ms <= now_ms || t->at_last == IDLE_LOOKS) {
		t->last_ms = (t->last_ms > now_ms ? t->last_ms : now_ms) + 1;
		t->at_last = 0;
	}
	t->at_last++;
	return t->last_ms;
}
