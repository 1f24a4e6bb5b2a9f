// SPDX-License-Identifier: BSD-2-Clause
/*
 * Slots and states, by any thread: the queue of free slots has a lock, states change atomically.
 *
 * A slot that was given back is used again only after all others: until then its tuples stay in
 * `flows`, and what comes late is translated (CLOSED), or shifted (RETURNED).  The offer program
 * removes them when the slot gets its next session.
 */
#include "datapath/graft/graft_slots.h"

#include "base/array.h"
#include "base/bits.h"
#include "base/clock.h"

/* TIME_WAIT, and then some: so long are packets of a closed session that is back shifted. */
#define RETURNED_MS 70000

/* --- the queue of free slots --- */

uint32_t graft_slot_take(struct graft_table *gs)
{
	uint32_t slot = NO_SLOT;

	pthread_mutex_lock(&gs->lock);
	if (gs->n_free && (graft_state(gs, gs->first) != GRAFT_RETURNED ||
			   (uint32_t)clock_ms() - gs->slots[gs->first].put_ms >= RETURNED_MS)) {
		slot = gs->first;
		gs->first = gs->slots[slot].next;
		gs->n_free--;
		__atomic_store_n(&gs->all[slot].state, GRAFT_FREE, __ATOMIC_SEQ_CST);
		__atomic_store_n(&gs->slots[slot].bare, false, __ATOMIC_RELEASE);
		bit_set(gs->used, slot, true);
	}
	pthread_mutex_unlock(&gs->lock);
	return slot;
}

void graft_slot_put(struct graft_table *gs, uint32_t slot)
{
	pthread_mutex_lock(&gs->lock);
	bit_set(gs->used, slot, false);
	gs->slots[slot].put_ms = (uint32_t)clock_ms();
	*(gs->n_free++ ? &gs->slots[gs->last].next : &gs->first) = slot;
	gs->last = slot;
	pthread_mutex_unlock(&gs->lock);
}

void graft_table_skip_slot(struct graft_table *gs)
{
	if (!gs->n_free)
		return;
	gs->first = gs->slots[gs->first].next;
	gs->n_free--;
}

void graft_slots_fill(struct graft_table *gs)
{
	gs->slots = allocated(calloc(gs->n_slots, sizeof(*gs->slots)));
	for (uint32_t i = 0; i < gs->n_slots; i++) {
		gs->slots[i].sockets[0] = gs->slots[i].sockets[1] = -1;
		graft_withdraw(gs, i);
		graft_return(gs, i, false);
		if (graft_state(gs, i) == GRAFT_STANDBY || graft_carries(gs, i))
			bit_set(gs->used, i, true);
		else if (graft_state(gs, i) != GRAFT_RETURNED)
			graft_slot_put(gs, i);
	}
	/* last: the first of the queue would keep all others waiting while it rests */
	for (uint32_t i = 0; i < gs->n_slots; i++)
		if (graft_state(gs, i) == GRAFT_RETURNED)
			graft_slot_put(gs, i);
}

/* --- states --- */

static uint32_t slot_raw_state(const struct graft_table *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].state, __ATOMIC_ACQUIRE);
}

enum graft_state graft_state(const struct graft_table *gs, uint32_t slot)
{
	uint32_t state = slot_raw_state(gs, slot) & GRAFT_STATE_MASK;

	if (state == GRAFT_LOCKED)
		return GRAFT_OFFERED;
	return state == GRAFT_LOCKED_2 ? GRAFT_RETURNING : (enum graft_state)state;
}

bool graft_carries(const struct graft_table *gs, uint32_t slot)
{
	enum graft_state state = graft_state(gs, slot);

	return state == GRAFT_ACTIVE || state == GRAFT_RETURNING || state == GRAFT_DONE;
}

volatile struct graft_entry *graft_of(const struct graft_table *gs, uint32_t slot)
{
	return &gs->all[slot];
}

bool graft_change_state(struct graft_table *gs, uint32_t slot, enum graft_state from,
			enum graft_state to)
{
	while (graft_state(gs, slot) == from) {
		uint32_t state = from;

		if (__atomic_compare_exchange_n(&gs->all[slot].state, &state, (uint32_t)to, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

bool graft_withdraw(struct graft_table *gs, uint32_t slot)
{
	return graft_change_state(gs, slot, GRAFT_OFFERED,
				  gs->all[slot].shifted ? GRAFT_RETURNED : GRAFT_FREE);
}

void graft_hold(struct graft_table *gs, uint32_t slot)
{
	gs->all[slot].held_ms = (uint32_t)clock_ms();
	__atomic_store_n(&gs->all[slot].hold, 1, __ATOMIC_RELEASE);
}

bool graft_return(struct graft_table *gs, uint32_t slot, bool back)
{
	return back ? graft_change_state(gs, slot, GRAFT_ACTIVE, GRAFT_RETURNING) :
		      graft_change_state(gs, slot, GRAFT_RETURNING, GRAFT_ACTIVE);
}

void graft_put(struct graft_table *gs, uint32_t slot)
{
	graft_change_state(gs, slot, GRAFT_DONE, GRAFT_CLOSED);
	gs->all[slot].over = 1;
	gs->slots[slot].probing = false;
	graft_slot_put(gs, slot);
}

bool graft_next(const struct graft_table *gs, uint32_t *at)
{
	while (*at < gs->n_slots && !graft_carries(gs, *at))
		++*at;
	return *at < gs->n_slots;
}

/* --- counts --- */

uint64_t graft_bytes(const struct graft_table *gs, uint32_t slot, unsigned int dir)
{
	const volatile struct graft_side *from = &gs->all[slot].side[dir];
	uint32_t state;
	uint64_t n;

	/* both numbers change when a graft begins */
	do {
		state = slot_raw_state(gs, slot);
		n = from->end - from->begun - (from->fin != 0);
	} while ((state & GRAFT_STATE_MASK) == GRAFT_LOCKED || slot_raw_state(gs, slot) != state);
	return n;
}

const uint64_t *graft_table_used(const struct graft_table *gs)
{
	return gs->used;
}

unsigned int graft_table_total(const struct graft_table *gs)
{
	return gs->n_slots;
}

struct udp_table *graft_table_udp(const struct graft_table *gs)
{
	return gs ? gs->udp : NULL;
}

const struct bpf_rings *graft_rings(const struct graft_table *gs)
{
	return &gs->rings;
}
