// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * The hash of a tuple gives its bucket.  A bucket has places, and a place says which slot and side
 * have a tuple.  The daemon writes places under the lock; a SYN that begins a session writes its
 * client's (syn_owns() in bpf/graft_from_syn.h); find_place() in bpf/graft_packet.h reads them.  A
 * place may be old: find_place() passes by a place if its slot has another tuple.  But no place is
 * lost:
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
 * Two writers.  A SYN that has TAKEN a slot writes its client's place, without the lock.  SYN and
 * import first write, and then look: the SYN at both tuples in TAKEN, the import in SETTING.  So at
 * least one of the two sees the other, and gives up.  For that, each must leave the other's place
 * alone: the SYN that of a FREE session, and the import that of a PREPARED one, since both may
 * begin.  tests/model/syn.pml has all orders of these steps.
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

/*
 * True if no packet finds the session of SLOT, or only late packets do.  FOR_GOOD: and no session of
 * SLOT begins while the caller has the lock.
 */
static bool index_is_over(const struct graft_index *ix, bool udp, uint32_t slot, bool for_good)
{
	uint32_t state = __atomic_load_n(index_state(ix, udp, slot), __ATOMIC_ACQUIRE);

	if (state == GRAFT_PREPARED)
		return !for_good;
	return state == GRAFT_FREE || state == GRAFT_GAVE_UP ||
	       (!udp && __atomic_load_n(&ix->grafts[slot].over, __ATOMIC_ACQUIRE) != GRAFT_KEPT);
}

/* The bucket of T: GRAFT_PLACES places, which packet programs write, too. */
static uint32_t *index_bucket(const struct graft_index *ix, const struct graft_tuple *t)
{
	uint32_t hash = graft_hash(t, ix->buckets[ix->n_buckets].place[0]);

	return ix->buckets[hash & (ix->n_buckets - 1)].place;
}

static uint32_t index_load(const uint32_t *at)
{
	return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static bool index_swap(uint32_t *at, uint32_t was, uint32_t is)
{
	return __atomic_compare_exchange_n(at, &was, is, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Does PLACE lead to a session of T? */
static bool index_leads(const struct graft_index *ix, bool udp, uint32_t place,
			const struct graft_tuple *t)
{
	return (place & GRAFT_PLACE_KIND) == graft_place(udp, 0, 0) &&
	       !memcmp(index_tuple(ix, udp, place), t, sizeof(*t));
}

/* The place of a session of T, other than OWN, that is not over; 0: there is none. */
static uint32_t index_live(const struct graft_index *ix, bool udp, const struct graft_tuple *t,
			   uint32_t own)
{
	uint32_t *at = index_bucket(ix, t);

	for (uint32_t *end = at + GRAFT_PLACES; at < end; at++) {
		uint32_t place = index_load(at);

		if (place && place != own && index_leads(ix, udp, place, t) &&
		    !index_is_over(ix, udp, place >> GRAFT_PLACE_SLOT, false))
			return place;
	}
	return 0;
}

/* Where PLACE stands in its bucket; NULL: nowhere. */
static uint32_t *index_find(const struct graft_index *ix, bool udp, uint32_t place)
{
	uint32_t *at = index_bucket(ix, index_tuple(ix, udp, place));

	for (uint32_t *end = at + GRAFT_PLACES; at < end; at++)
		if (index_load(at) == place)
			return at;
	return NULL;
}

/* Let the tuple of PLACE lead to PLACE.  False: another session has it, or there is no room. */
static bool index_add(struct graft_index *ix, bool udp, uint32_t place)
{
	const struct graft_tuple *t = index_tuple(ix, udp, place);
	uint32_t *at = index_bucket(ix, t), *end = at + GRAFT_PLACES, *to = NULL;

	if (index_live(ix, udp, t, place))
		return false;
	if (index_find(ix, udp, place))
		return true;
	for (; at < end; at++) {
		uint32_t was = index_load(at);

		/* not of a slot that a SYN takes meanwhile: the second look would miss that one */
		if (was && index_leads(ix, udp, was, t) &&
		    index_is_over(ix, udp, was >> GRAFT_PLACE_SLOT, true))
			return index_swap(at, was, place);
		if (!was && !to)
			to = at;
	}
	return to && index_swap(to, 0, place);
}

static void index_remove(struct graft_index *ix, bool udp, uint32_t slot)
{
	for (uint32_t side = 0; side < 2; side++) {
		uint32_t place = graft_place(udp, slot, side);
		uint32_t *at = index_find(ix, udp, place);

		if (at)
			index_swap(at, place, 0);
	}
}

/* Does the index lead to PLACE, and to no other session of its tuple? */
static bool index_has(const struct graft_index *ix, bool udp, uint32_t place)
{
	return index_find(ix, udp, place) &&
	       !index_live(ix, udp, index_tuple(ix, udp, place), place);
}

bool graft_index_add(struct graft_index *ix, bool udp, uint32_t slot, enum graft_state state)
{
	uint32_t client = graft_place(udp, slot, 0), server = graft_place(udp, slot, 1);
	bool bound = state == GRAFT_PREPARED; /* a SYN enters its client's tuple */
	bool added;

	pthread_mutex_lock(&ix->lock);
	added = (bound || index_add(ix, udp, client)) && index_add(ix, udp, server);
	if (added) {
		__atomic_store_n(index_state(ix, udp, slot), state, __ATOMIC_SEQ_CST);
		/* a SYN may have taken one of the tuples before it could see the state */
		if (!udp && !bound && (!index_has(ix, udp, client) || !index_has(ix, udp, server)))
			added = !index_swap(index_state(ix, udp, slot), state, GRAFT_FREE);
	}
	if (!added && !udp)
		index_remove(ix, udp, slot);
	pthread_mutex_unlock(&ix->lock);
	return added;
}

void graft_index_remove(struct graft_index *ix, bool udp, uint32_t slot)
{
	pthread_mutex_lock(&ix->lock);
	index_remove(ix, udp, slot);
	pthread_mutex_unlock(&ix->lock);
}

uint32_t graft_index_find(struct graft_index *ix, bool udp, const struct graft_tuple *t)
{
	uint32_t place;

	pthread_mutex_lock(&ix->lock);
	place = index_live(ix, udp, t, 0);
	pthread_mutex_unlock(&ix->lock);
	return place ? place >> GRAFT_PLACE_SLOT : NO_SLOT;
}
