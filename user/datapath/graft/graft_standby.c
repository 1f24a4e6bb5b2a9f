// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sessions that are at one of several relays at a time.  The threads of imports and the thread that
 * reloads enter and take out, and say which addresses are here, under the lock of daemon/standby.c.
 * A worker gives away its own sessions (graft_part()).  Any thread finds tuples.
 */
#include "datapath/graft/graft_slots.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "base/bits.h"
#include "base/clock.h"

bool graft_table_set_address(struct graft_table *gs, const struct graft_addr *address, bool here)
{
	int addresses = bpf_map__fd(gs->skel->maps.addresses);
	uint32_t one = 1;

	if (here)
		return !bpf_map_update_elem(addresses, address, &one, BPF_ANY);
	bpf_map_delete_elem(addresses, address);
	return true;
}

bool graft_table_has_address(const struct graft_table *gs, const volatile struct graft_addr *address)
{
	uint32_t one;

	return !bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.addresses), (const void *)address,
				    &one);
}

uint8_t *graft_table_unsynced_ports(const struct graft_table *gs)
{
	return gs->skel->bss->graft_unsynced;
}

void graft_table_set_way(const struct graft_table *gs, struct graft_way *w, uint32_t ifindex, uint32_t mtu)
{
	uint32_t ways = __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE);

	/* whom policies of IPsec concern, only sockets know */
	if (__atomic_load_n(&gs->policies, __ATOMIC_RELAXED))
		ways = graft_ways_least(gs);
	w->via = GRAFT_VIA_LOOKUP;
	w->mtu = mtu;
	w->ifindex = ifindex;
	__atomic_store_n(&w->ways, ways - 1, __ATOMIC_RELEASE);
}

uint32_t graft_find(const struct graft_table *gs, const struct graft_tuple *tuple)
{
	struct graft_place place;

	if (bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.flows), tuple, &place) ||
	    memcmp(&gs->all[place.slot].side[place.side].tuple, tuple, sizeof(*tuple)) != 0)
		return NO_SLOT;
	return bit_is(gs->used, place.slot) ? place.slot : NO_SLOT; /* else it is over */
}

static void standby_free(struct graft_table *gs, uint32_t slot)
{
	graft_request_run(gs, GRAFT_FORGET, slot);
	__atomic_store_n(&gs->all[slot].state, GRAFT_FREE, __ATOMIC_SEQ_CST);
	graft_slot_put(gs, slot);
}

bool graft_drop(struct graft_table *gs, uint32_t slot)
{
	if (!graft_change_state(gs, slot, GRAFT_STANDBY, GRAFT_SETTING))
		return false;
	standby_free(gs, slot);
	return true;
}

int graft_import(struct graft_table *gs, struct graft_entry *e, uint32_t *ret_slot)
{
	uint32_t was = graft_find(gs, &e->side[0].tuple), slot;
	bool same = was != NO_SLOT && was == graft_find(gs, &e->side[1].tuple);
	struct graft_entry *g;
	int r;

	for (int side = 0; side < 2; side++) {
		slot = graft_find(gs, &e->side[side].tuple);
		if (slot != NO_SLOT && !graft_drop(gs, slot))
			return same ? -EEXIST : -EADDRINUSE;
	}
	slot = graft_slot_take(gs);
	if (slot == NO_SLOT)
		return -ENOSPC;
	g = &gs->all[slot];
	e->loose = GRAFT_LOOSE;
	e->worker = GRAFT_NOBODY;
	e->mirrored = GRAFT_CAME;
	__atomic_store_n(&g->state, GRAFT_SETTING, __ATOMIC_SEQ_CST);
	graft_request_run(gs, GRAFT_FORGET, slot);
	/* all but the state, which others look at meanwhile */
	memcpy(&g->looks, &e->looks, sizeof(*g) - offsetof(struct graft_entry, looks));
	r = graft_request_run(gs, GRAFT_ENTER, slot);
	if (r == GRAFT_IN_HAND && same) /* it has just left, and its socket is being closed */
		r = 0;
	if (r) {
		standby_free(gs, slot);
		return r == GRAFT_IN_HAND ? -EADDRINUSE : -ENOSPC;
	}
	__atomic_store_n(&g->state, GRAFT_STANDBY, __ATOMIC_SEQ_CST);
	*ret_slot = slot;
	return 0;
}

void graft_wake(struct graft_table *gs, uint32_t slot)
{
	graft_change_state(gs, slot, GRAFT_STANDBY, GRAFT_ACTIVE);
}

static uint32_t standby_worker(const struct graft_table *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].worker, __ATOMIC_RELAXED);
}

bool graft_is_orphan(const struct graft_table *gs, uint32_t slot)
{
	return graft_carries(gs, slot) && standby_worker(gs, slot) == GRAFT_NOBODY;
}

bool graft_is_bare(const struct graft_table *gs, uint32_t slot)
{
	enum graft_state state = graft_state(gs, slot);

	return __atomic_load_n(&gs->slots[slot].bare, __ATOMIC_ACQUIRE) &&
	       standby_worker(gs, slot) != GRAFT_NOBODY &&
	       (state == GRAFT_ACTIVE || state == GRAFT_RETURNING);
}

bool graft_part(struct graft_table *gs, uint32_t slot)
{
	struct graft_entry *g = &gs->all[slot];

	graft_return(gs, slot, false);
	gs->slots[slot].probing = false;
	/* nobody touches it in between, and packets are sent again */
	if (!graft_change_state(gs, slot, GRAFT_ACTIVE, GRAFT_SETTING))
		return false;
	g->alone_ms = 0;
	__atomic_store_n(&g->worker, GRAFT_NOBODY, __ATOMIC_RELAXED);
	graft_change_state(gs, slot, GRAFT_SETTING, GRAFT_STANDBY);
	if (__atomic_load_n(&g->mirrored, __ATOMIC_RELAXED) == GRAFT_OVER)
		graft_drop(gs, slot);
	return true;
}
