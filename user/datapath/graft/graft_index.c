// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * The hash of a tuple gives its bucket.  A bucket has places, and a place says which slot and side
 * have a tuple.  The daemon alone writes places, under the lock; find_place() in bpf/graft_packet.h
 * reads them.  A place may be old: find_place() passes by a place if its slot has another tuple.
 * But no place is lost:
 *
 *   (1) A place of a slot is in the bucket of the slot's tuple, or nowhere: the places of a slot
 *       are removed before its tuple changes.  TCP removes them when the slot is taken, since late
 *       packets find the session until then.  UDP removes them when the slot is put; the slot then
 *       rests.
 *   (2) A tuple of TCP, or of UDP, has one place.  A new session takes the place of a session that
 *       is over.
 *
 * States of a new session of TCP
 *
 *   FREE      graft_slot_take() sets FREE, and removes the places of the last session
 *   FREE      the offer program sets up the entry, or the daemon copies it from a record
 *   OFFERED   graft_index_add() adds both places, and sets the state
 *   SETTING   the same for another relay's session; then STANDBY, if no socket has its tuples
 *
 * Packets.  No packet finds a FREE session: a packet between two of these steps goes to its socket,
 * as before the first step.  That does no harm: `passed` and `left` lack the packet's numbers, so
 * the next packet that looks gets GRAFT_UNSEEN or GRAFT_ORDER.  Packets of a SETTING session are
 * dropped, and sent again.
 *
 * Memory order.  A place is stored with release, after its entry, and each load of find_place()
 * depends on the load before.  So the tuple is that of the place, or a newer one.  The state is
 * stored after both places.
 *
 * A packet may read a place just before the place is removed.  The packet then compares the tuple
 * while the entry changes, and mostly finds another tuple, or FREE.  Else the packet works on while
 * the slot gets its next session.  Such a packet is late, since slots are used first in, first out,
 * and a late packet changes states by compare-and-swap alone.
 *
 * Two threads.  Two workers cannot offer the same tuple, because one socket has it.  An import can
 * have the tuple of a session that a worker offers at the same time.  The first at the lock gets
 * the tuple, because its state is not FREE any more when the lock is free again.  The child that
 * tries the packet programs (probe.c) has a slot of its own, but only a copy of the lock.  So a
 * place is added by compare-and-swap.
 *
 * An import that replaces a STANDBY session frees that session first.  The places stay until the
 * new session takes them.  The new session is SETTING, with its places, before the daemon asks
 * whether a socket has one of its tuples; and upstream_connect() has a socket before it asks the
 * index.  If the daemon is first at the lock, upstream_connect() finds the session; if not, the
 * daemon finds the socket.
 *
 * A daemon may be killed between any two steps.  The session then is FREE, or has both places until
 * its slot is taken again.  The next daemon frees SETTING sessions.  A flow of UDP may lack places,
 * which the next daemon adds (udp_slots_find_left()).  By (1) each place that is left is removed
 * when its slot is used again.
 */
#include "datapath/graft/graft_index.h"

#include <string.h>

static const struct graft_tuple *index_tuple(const struct graft_index *ix, bool udp, uint32_t place)
{
	uint32_t slot = place >> GRAFT_PLACE_SLOT, side = !!(place & GRAFT_PLACE_SIDE);

	return udp ? &ix->flows[slot].leg[side].tuple : &ix->grafts[slot].side[side].tuple;
}

static uint32_t *index_state(const struct graft_index *ix, bool udp, uint32_t slot)
{
	return udp ? &ix->flows[slot].head.state : &ix->grafts[slot].head.state;
}

/* True if no packet finds the session of SLOT, or only late packets do. */
static bool index_is_over(const struct graft_index *ix, bool udp, uint32_t slot)
{
	return __atomic_load_n(index_state(ix, udp, slot), __ATOMIC_ACQUIRE) == GRAFT_FREE ||
	       (!udp && __atomic_load_n(&ix->grafts[slot].over, __ATOMIC_ACQUIRE) != GRAFT_KEPT);
}

/* The place of T; or, if EMPTY, a place that T may get.  NULL: there is none. */
static uint32_t *index_place(const struct graft_index *ix, bool udp, const struct graft_tuple *t,
			     bool empty)
{
	uint32_t hash = graft_hash(t, ix->buckets[ix->n_buckets].place[0]);
	uint32_t *at = ix->buckets[hash & (ix->n_buckets - 1)].place;

	for (uint32_t *end = at + GRAFT_PLACES; at < end; at++)
		if (empty ? !*at :
			    (*at & GRAFT_PLACE_KIND) == graft_place(udp, 0, 0) &&
				    !memcmp(index_tuple(ix, udp, *at), t, sizeof(*t)))
			return at;
	return NULL;
}

/* Let the tuple of PLACE lead to PLACE.  False: another session has it, or there is no room. */
static bool index_add(struct graft_index *ix, bool udp, uint32_t place)
{
	const struct graft_tuple *t = index_tuple(ix, udp, place);
	uint32_t *at = index_place(ix, udp, t, false), was = at ? *at : 0;

	if (was && was != place && !index_is_over(ix, udp, was >> GRAFT_PLACE_SLOT))
		return false;
	at = at ?: index_place(ix, udp, t, true);
	return at && __atomic_compare_exchange_n(at, &was, place, false, __ATOMIC_RELEASE,
						 __ATOMIC_RELAXED);
}

bool graft_index_add(struct graft_index *ix, bool udp, uint32_t slot, enum graft_state state)
{
	bool added;

	pthread_mutex_lock(&ix->lock);
	added = index_add(ix, udp, graft_place(udp, slot, 0)) &&
		index_add(ix, udp, graft_place(udp, slot, 1));
	if (added)
		__atomic_store_n(index_state(ix, udp, slot), state, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&ix->lock);
	return added;
}

void graft_index_remove(struct graft_index *ix, bool udp, uint32_t slot)
{
	pthread_mutex_lock(&ix->lock);
	for (uint32_t side = 0; side < 2; side++) {
		uint32_t place = graft_place(udp, slot, side);
		uint32_t *at = index_place(ix, udp, index_tuple(ix, udp, place), false);

		if (at && *at == place)
			__atomic_store_n(at, 0, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&ix->lock);
}

uint32_t graft_index_find(struct graft_index *ix, bool udp, const struct graft_tuple *t)
{
	uint32_t *at, slot;

	pthread_mutex_lock(&ix->lock);
	at = index_place(ix, udp, t, false);
	slot = at ? *at >> GRAFT_PLACE_SLOT : NO_SLOT;
	if (at && index_is_over(ix, udp, slot))
		slot = NO_SLOT;
	pthread_mutex_unlock(&ix->lock);
	return slot;
}
