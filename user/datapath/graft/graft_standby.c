// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sessions that several relays know.  The threads of imports and the thread that reloads enter
 * sessions, take them out, and note addresses of this machine, under the lock of daemon/standby.c.
 * A worker gives away its own sessions (graft_part()).  Any thread finds tuples.
 *
 * Sockets.  The main thread makes the sockets of sessions that an earlier daemon has left, before
 * there are workers, and closes those that nobody took.  The thread that reloads gives sockets to
 * imported sessions.  The worker of a session takes them, while that thread waits.
 */
#include "datapath/graft/graft_slots.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"
#include "datapath/tcp_repair.h"

SYSCALLS_ALLOWED(SYSCALL_IF(PART_GRAFT, close));

/* Most sessions that begin in the kernel end sooner, without sockets. */
#define BARE_NS NS_PER_S

bool graft_table_set_address(struct graft_table *gs, const struct graft_addr *address, bool here)
{
	int addresses = bpf_map__fd(gs->skel->maps.addresses);
	uint32_t one = 1;

	if (here)
		return !bpf_map_update_elem(addresses, address, &one, BPF_ANY);
	bpf_map_delete_elem(addresses, address);
	return true;
}

bool graft_table_has_address(const struct graft_table *gs,
			     const volatile struct graft_addr *address)
{
	uint32_t one;

	return !bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.addresses), (const void *)address,
				    &one);
}

uint8_t *graft_table_unsynced_ports(const struct graft_table *gs)
{
	return gs->skel->bss->graft_unsynced;
}

void graft_table_set_way(const struct graft_table *gs, struct graft_way *w, uint32_t ifindex,
			 uint32_t mtu)
{
	uint32_t ways = __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE);

	/* only sockets know which sessions IPsec policies concern */
	if (__atomic_load_n(&gs->policies, __ATOMIC_RELAXED))
		ways = graft_ways_least(gs);
	w->via = GRAFT_VIA_LOOKUP;
	w->mtu = mtu;
	w->ifindex = ifindex;
	__atomic_store_n(&w->ways, ways - 1, __ATOMIC_RELEASE);
}

uint32_t graft_find(struct graft_table *gs, bool udp, const struct graft_tuple *tuple)
{
	return graft_index_find(&gs->index, udp, tuple);
}

bool graft_drop(struct graft_table *gs, uint32_t slot)
{
	if (!graft_change_state(gs, slot, GRAFT_STANDBY, GRAFT_FREE))
		return false;
	graft_slot_put(gs, slot);
	return true;
}

int graft_import(struct graft_table *gs, struct graft_entry *e, uint32_t *ret_slot)
{
	uint32_t was = graft_find(gs, false, &e->side[0].tuple), slot;
	bool same = was != NO_SLOT && was == graft_find(gs, false, &e->side[1].tuple);
	struct graft_entry *g;
	int r = GRAFT_NO_SLOT;

	/* look at both tuples before dropping a session: if one is taken, none must be dropped */
	for (int side = 0; side < 2; side++) {
		slot = graft_find(gs, false, &e->side[side].tuple);
		if (slot != NO_SLOT && graft_state(gs, slot) != GRAFT_STANDBY)
			return same ? -EEXIST : -EADDRINUSE;
	}
	slot = graft_slot_take(gs, &gs->queue);
	if (slot == NO_SLOT)
		return -ENOSPC;
	for (int side = 0; side < 2; side++) {
		uint32_t old = graft_find(gs, false, &e->side[side].tuple);

		if (old != NO_SLOT && !graft_drop(gs, old)) {
			graft_slot_put(gs, slot);
			return same ? -EEXIST : -EADDRINUSE;
		}
	}
	g = &gs->all[slot];
	e->loose = GRAFT_LOOSE;
	/* other threads look at the state meanwhile: it stays FREE */
	g->head.worker = GRAFT_NOBODY;
	g->head.id = e->head.id;
	g->head.forward = e->head.forward;
	g->head.source = e->head.source;
	g->head.mirrored = GRAFT_CAME;
	g->head.alone_ms = 0;
	memcpy(&g->looks, &e->looks, sizeof(*g) - sizeof(g->head));
	if (graft_index_add(&gs->index, false, slot, GRAFT_SETTING))
		r = graft_request_run(gs, GRAFT_SOCKETS, slot);
	if (r == GRAFT_IN_HAND && same) /* the session has just left: its socket is being closed */
		r = GRAFT_OK;
	graft_change_state(gs, slot, GRAFT_SETTING, r ? GRAFT_FREE : GRAFT_STANDBY);
	*ret_slot = slot;
	if (!r)
		return 0;
	graft_slot_put(gs, slot);
	return r == GRAFT_IN_HAND ? -EADDRINUSE : -ENOSPC;
}

void graft_wake(struct graft_table *gs, uint32_t slot)
{
	struct graft_entry *g = &gs->all[slot];

	/* the first probe of the sockets is to go out: both ends may be gone */
	for (int side = 0; side < 2 && graft_state(gs, slot) == GRAFT_STANDBY; side++)
		g->side[side].probed_ns = clock_ns();
	graft_change_state(gs, slot, GRAFT_STANDBY, GRAFT_ACTIVE);
}

static uint32_t standby_worker(const struct graft_table *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].head.worker, __ATOMIC_RELAXED);
}

bool graft_is_orphan(const struct graft_table *gs, uint32_t slot)
{
	return graft_carries(gs, slot) && standby_worker(gs, slot) == GRAFT_NOBODY;
}

bool graft_is_unheard(const struct graft_table *gs, uint32_t slot)
{
	const volatile struct graft_entry *g = &gs->all[slot];

	return g->head.mirrored && g->head.mirrored != GRAFT_OVER && g->loose == GRAFT_LOOSE &&
	       !g->side[0].believed && !g->side[1].believed && !g->side[0].apart &&
	       !g->side[1].apart;
}

bool graft_is_told(const struct graft_table *gs, uint32_t slot)
{
	uint32_t mirrored = gs->all[slot].head.mirrored;

	return mirrored == GRAFT_TOLD || mirrored == GRAFT_HELPED;
}

/* SLOT may get its next session meanwhile, which a worker prepares: the next look sees that one. */
__attribute__((no_sanitize("thread"))) bool graft_is_bare(const struct graft_table *gs,
							  uint32_t slot, bool *ret_waits)
{
	enum graft_state state;

	if (!__atomic_load_n(&gs->slots[slot].bare, __ATOMIC_ACQUIRE))
		return false;
	state = graft_state(gs, slot);
	*ret_waits = __atomic_load_n(&gs->slots[slot].wanted, __ATOMIC_ACQUIRE) ||
		     (gs->all[slot].syn_flags & GRAFT_SYN_BARE && gs->all[slot].looks);
	return standby_worker(gs, slot) != GRAFT_NOBODY &&
	       (*ret_waits || clock_ns() - gs->all[slot].offered_ns > BARE_NS) &&
	       (state == GRAFT_ACTIVE || state == GRAFT_RETURNING);
}

bool graft_any_is_bare(const struct graft_table *gs)
{
	for (uint32_t slot = 0; slot < gs->n_slots; slot++)
		if (__atomic_load_n(&gs->slots[slot].bare, __ATOMIC_ACQUIRE) &&
		    graft_carries(gs, slot))
			return true;
	return false;
}

bool graft_part(struct graft_table *gs, uint32_t slot, uint32_t alone_ms)
{
	struct graft_entry *g = &gs->all[slot];

	graft_return(gs, slot, false);
	gs->slots[slot].probing = false;
	/* nobody touches a SETTING session, and its packets are sent again */
	if (!graft_change_state(gs, slot, GRAFT_ACTIVE, GRAFT_SETTING) &&
	    !graft_change_state(gs, slot, GRAFT_RETURNED, GRAFT_SETTING))
		return false;
	g->head.alone_ms = alone_ms;
	g->loose = GRAFT_LOOSE; /* packets go by the other relay meanwhile */
	if (g->head.mirrored == GRAFT_YIELD || g->head.mirrored == GRAFT_HELPED)
		g->head.mirrored = GRAFT_CAME;
	__atomic_store_n(&g->head.worker, GRAFT_NOBODY, __ATOMIC_RELAXED);
	graft_change_state(gs, slot, GRAFT_SETTING, GRAFT_STANDBY);
	if (g->head.mirrored == GRAFT_OVER)
		graft_drop(gs, slot);
	return true;
}

/* --- sockets --- */

void graft_table_revive(struct graft_table *gs, uid_t uid)
{
	unsigned int without = 0;
	int why = 0;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++) {
		const struct graft_side *side = gs->all[slot].side;
		int *fds = gs->slots[slot].sockets;

		if (!gs->all[slot].head.id) /* of a trial, whose process is gone */
			continue;
		if (fds[0] >= 0) /* from the daemon before this one */
			continue;
		fds[0] = tcp_revive(&side[0], uid);
		fds[1] = fds[0] < 0 ? fds[0] : tcp_revive(&side[1], uid);
		if (fds[1] >= 0)
			continue;
		why = fds[1];
		without++;
		if (fds[0] >= 0)
			close(fds[0]);
		fds[0] = fds[1] = -1;
	}
	if (without)
		log_warning("graft: %u sessions that were left have no sockets: nothing probes "
			    "their ends, or tells them of a reset: %s",
			    without, strerror(-why));
}

void graft_give_sockets(struct graft_table *gs, uint32_t slot, const int fds[2])
{
	pthread_mutex_lock(&gs->lock);
	memcpy(gs->slots[slot].sockets, fds, sizeof(gs->slots[slot].sockets));
	gs->slots[slot].given = true;
	pthread_mutex_unlock(&gs->lock);
}

void graft_want_sockets(struct graft_table *gs, uint32_t slot)
{
	__atomic_store_n(&gs->slots[slot].wanted, true, __ATOMIC_RELEASE);
}

bool graft_has_sockets(struct graft_table *gs, uint32_t slot)
{
	bool given;

	pthread_mutex_lock(&gs->lock);
	given = gs->slots[slot].given;
	pthread_mutex_unlock(&gs->lock);
	return given;
}

void graft_take_sockets(struct graft_table *gs, uint32_t slot, int ret[2])
{
	struct slot *s = &gs->slots[slot];

	pthread_mutex_lock(&gs->lock);
	memcpy(ret, s->sockets, sizeof(s->sockets));
	s->sockets[0] = s->sockets[1] = -1;
	if (s->given) /* even in vain: the next try is not urgent */
		gs->all[slot].syn_flags &= (uint8_t)~GRAFT_SYN_BARE;
	s->given = false;
	pthread_mutex_unlock(&gs->lock);
	if (ret[0] >= 0) { /* other sockets were asked */
		s->asked = 0;
		s->probing = false;
	}
	__atomic_store_n(&s->wanted, false, __ATOMIC_RELEASE);
	__atomic_store_n(&s->bare, ret[0] < 0, __ATOMIC_RELEASE);
}

bool graft_close_sockets(struct graft_table *gs, uint32_t slot)
{
	struct slot *s = &gs->slots[slot];
	bool some;

	pthread_mutex_lock(&gs->lock);
	some = s->sockets[0] >= 0;
	for (int side = 0; side < 2 && some; side++) {
		tcp_arm_reset(s->sockets[side]);
		close(s->sockets[side]);
		s->sockets[side] = -1;
	}
	s->given = false;
	pthread_mutex_unlock(&gs->lock);
	return some;
}

void graft_table_close_sockets(struct graft_table *gs)
{
	for (uint32_t slot = 0; slot < gs->n_slots; slot++) {
		if (graft_close_sockets(gs, slot) && graft_state(gs, slot) == GRAFT_RETURNED)
			graft_put(gs, slot);
	}
}
