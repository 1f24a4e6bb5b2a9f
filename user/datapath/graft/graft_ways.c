// SPDX-License-Identifier: BSD-2-Clause
/*
 * Ways of translated packets, which may have changed.  The thread that reloads watches routes,
 * policies and interfaces (graft_table_...()).  Each worker asks the sockets of its own sessions
 * (graft_doubt()).
 */
#include "datapath/graft/graft_slots.h"

#include <bpf/bpf.h>
#include <limits.h>
#include <stdatomic.h>

#include "base/bits.h"
#include "base/clock.h"
#include "datapath/route.h"
#include "datapath/graft/udp_graft.h"

static uint32_t ways_of(const struct graft_table *gs, uint32_t slot, int side)
{
	return __atomic_load_n(&gs->all[slot].side[side].way.ways, __ATOMIC_ACQUIRE);
}

uint32_t graft_ways_least(const struct graft_table *gs)
{
	return __atomic_load_n(&gs->skel->bss->graft_ways_least, __ATOMIC_ACQUIRE);
}

void graft_ways_begin(struct graft_table *gs)
{
	int interfaces = bpf_map__fd(gs->skel->maps.interfaces);
	uint32_t ways = 1, policies = GRAFT_IF_POLICIES;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++)
		for (int side = 0; side < 2; side++)
			if ((int32_t)(ways_of(gs, slot, side) - ways) > 0)
				ways = ways_of(gs, slot, side);
	for (uint32_t slot = 0; udp_graft_next(gs->udp, &slot); slot++)
		for (int leg = 0; leg < 2; leg++) {
			uint32_t seen = udp_flow_of(gs->udp, slot)->leg[leg].way.ways;

			if ((int32_t)(seen - ways) > 0)
				ways = seen;
		}
	gs->skel->bss->graft_ways = ways;
	gs->skel->bss->graft_ways_least = ways - INT_MAX / 2;
	bpf_map_lookup_elem(interfaces, &policies, &gs->policies);
}

enum graft_change graft_table_find_changes(struct graft_table *gs)
{
	uint32_t routes = gs->routes, policies = gs->policies, none = 0;

	if (graft_request_run(gs, GRAFT_ROUTES, 0))
		return GRAFT_CHANGE_NONE;
	gs->routes = *(volatile __u32 *)&gs->skel->bss->graft_routes;
	__atomic_store_n(&gs->policies, *(volatile __u32 *)&gs->skel->bss->graft_policies,
			 __ATOMIC_RELAXED);
	if (policies == gs->policies)
		return routes == gs->routes ? GRAFT_CHANGE_NONE : GRAFT_CHANGE_ROUTES;
	bpf_map_update_elem(gs->attached.interfaces, &none, &gs->policies, BPF_ANY);
	return GRAFT_CHANGE_POLICIES;
}

#define LOOKS 256 /* slots in use at which a call looks */

bool graft_table_miss_programs(struct graft_table *gs)
{
	struct graft_attachments *as = &gs->attached;
	volatile __u32 *stray = &gs->skel->bss->graft_stray;
	uint32_t ports = GRAFT_IF_PORTS, one = 1;

	*stray = 0;
	for (unsigned int i = 0; i < LOOKS; i++, gs->look_from++) {
		if (!bit_next(gs->used, gs->used, gs->n_slots, &gs->look_from)) {
			gs->look_from = 0;
			break;
		}
		if (graft_state(gs, gs->look_from) == GRAFT_ACTIVE)
			graft_request_run(gs, GRAFT_STRAYS, gs->look_from);
	}
	as->stray = *stray;
	if (*(volatile __u32 *)&gs->skel->bss->graft_bridged && !as->at_ports) {
		bpf_map_update_elem(as->interfaces, &ports, &one, BPF_ANY);
		as->at_ports = true;
		return true;
	}
	return as->stray || graft_attach_is_lost(as);
}

void graft_table_doubt_ways(struct graft_table *gs, enum graft_change change)
{
	uint32_t ways = __atomic_add_fetch(&gs->skel->bss->graft_ways, 1, __ATOMIC_SEQ_CST);

	if (change == GRAFT_CHANGE_POLICIES)
		__atomic_store_n(&gs->skel->bss->graft_ways_least, ways, __ATOMIC_SEQ_CST);
}

/* No session may be grafted on one of SLOT's interfaces any more. */
static bool ways_are_unused(const struct graft_table *gs, uint32_t slot)
{
	uint32_t used = GRAFT_IF_USED, found = used;

	for (int side = 0; side < 2 && found & used; side++)
		if (bpf_map_lookup_elem(gs->attached.interfaces,
					(void *)&gs->all[slot].side[side].way.ifindex, &found))
			found = used; /* the interface is gone, and may come again */
	return !(found & used);
}

/* The older way of SLOT's two. */
static uint32_t ways_oldest(const struct graft_table *gs, uint32_t slot)
{
	uint32_t a = ways_of(gs, slot, 0), b = ways_of(gs, slot, 1);

	return (int32_t)(a - b) < 0 ? a : b;
}

/* A route or a rule refuses packets of a socket of SLOT: the socket is silent.  Note its side. */
static bool ways_are_refused(const struct graft_table *gs, uint32_t slot)
{
	uint32_t ways = gs->skel->bss->graft_ways;
	bool refused = false;

	for (int side = 0; side < 2; side++) {
		struct graft_side *s = &gs->all[slot].side[side];

		if (ways_of(gs, slot, side) == ways ||
		    !route_is_refused(&s->tuple.remote, s->way.mark))
			continue;
		__atomic_store_n(&s->refused, 1, __ATOMIC_RELEASE);
		refused = true;
	}
	return refused;
}

#define PROBE_MS 1200  /* TCP has probed by then */
#define JUDGED_MOST 16 /* after so many judgements the way counts as lost */

/*
 * The sockets of SLOT have not answered, which is a fault only after a change of policies.  PROBED:
 * the time for an answer has just run out.
 */
static enum graft_doubt ways_judge(struct graft_table *gs, uint32_t slot, bool probed)
{
	struct slot *s = &gs->slots[slot];

	if (ways_are_unused(gs, slot))
		return probed ? GRAFT_DOUBT_UNUSED : GRAFT_DOUBT_NONE;
	if (graft_request_run(gs, GRAFT_WAYS, slot))
		return GRAFT_DOUBT_LOST;
	if (ways_are_refused(gs, slot))
		return GRAFT_DOUBT_REFUSED;
	if ((int32_t)(ways_oldest(gs, slot) - graft_ways_least(gs)) >= 0)
		return probed ? GRAFT_DOUBT_ASKED : GRAFT_DOUBT_NONE;
	s->probing = true;
	return ++s->judged > JUDGED_MOST ? GRAFT_DOUBT_LOST : GRAFT_DOUBT_ASK;
}

/*
 * The doubt about a slot's ways, by four variables; "-": any.  The first row that matches counts.
 *
 *   known  probing  asked  in time   doubt       next step
 *   yes    no       -      -         SETTLED     none
 *   -      -        no     -         NEWS        ask; UNUSED if an interface is unused; LOST if
 *                                                the question before had no answer, and the way
 *                                                cannot be followed
 *   -      yes      yes    yes       WAITING     none
 *   yes    yes      yes    no        ANSWERED    ASKED; UNUSED if an interface is unused
 *   no     -        yes    -         UNANSWERED  see ways_judge()
 *
 * KNOWN: both sockets have answered since the ways may have changed.  PROBING: the sockets were
 * asked, and their keepalive is not reset yet.  ASKED: since the last change.  IN TIME: for less
 * than PROBE_MS.
 */
static enum graft_doubt ways_step(struct graft_table *gs, uint32_t slot)
{
	uint32_t ways = __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE);
	uint32_t now = (uint32_t)clock_ms();
	struct slot *s = &gs->slots[slot];
	bool known = ways_oldest(gs, slot) == ways, probing = s->probing;

	if (known && !probing)
		return GRAFT_DOUBT_NONE;
	if (s->asked != ways) {
		s->asked = ways;
		s->asked_ms = now;
		s->probing = true;
		s->judged = 0;
		if (ways_are_unused(gs, slot))
			return GRAFT_DOUBT_UNUSED;
		return probing && graft_request_run(gs, GRAFT_WAYS, slot) ? GRAFT_DOUBT_LOST :
									    GRAFT_DOUBT_ASK;
	}
	if (probing && now - s->asked_ms < PROBE_MS)
		return GRAFT_DOUBT_NONE;
	s->probing = false;
	if (known)
		return ways_are_unused(gs, slot) ? GRAFT_DOUBT_UNUSED : GRAFT_DOUBT_ASKED;
	return ways_judge(gs, slot, probing);
}

enum graft_doubt graft_doubt(struct graft_table *gs, uint32_t slot)
{
	enum graft_doubt d = ways_step(gs, slot);

	if (d != GRAFT_DOUBT_NONE || gs->slots[slot].probing)
		atomic_store_explicit(&gs->doubtful, true, memory_order_relaxed);
	return d;
}

bool graft_table_are_doubtful(struct graft_table *gs)
{
	return atomic_exchange_explicit(&gs->doubtful, false, memory_order_relaxed);
}

bool graft_forget_doubt(struct graft_table *gs, uint32_t slot)
{
	bool was = gs->slots[slot].probing;

	gs->slots[slot].probing = false;
	return was;
}

unsigned int graft_asked(const struct graft_table *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE) -
	       ways_oldest(gs, slot);
}
