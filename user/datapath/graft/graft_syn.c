// SPDX-License-Identifier: BSD-2-Clause
/*
 * Slots that SYNs take, by any thread.  The caller has a lock for each stock.
 *
 * The first slots of the table, gs->n_syn, are for sessions from the SYN on alone.  Each of them
 * owns one local port: the number that the port has sent last, and its last clock, stay in the
 * entry.  So the next connection from the port begins above both (graft_isn(), graft_tsval()), for
 * whatever server, and after a restart of the daemon.
 */
#include "datapath/graft/graft_slots.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <string.h>

#include "base/clock.h"

#define SYN_TRIES 256

/* The next number that E's port may send, and its last clock. */
static uint32_t syn_next_number(const struct graft_entry *e, uint32_t *ret_tsval)
{
	const struct graft_side *b = &e->side[1];
	uint64_t silent_ns = e->ended_ns ? clock_ns() - e->ended_ns : 0;

	*ret_tsval = b->tsval_sent;
	if (!e->shifted)
		return (uint32_t)e->side[0].end + e->side[0].seq_add;
	*ret_tsval += (uint32_t)(silent_ns / 1000000) + 1000; /* its socket's clock ran on */
	return b->frozen_write + b->back_write;
}

/* False: a session that another relay knows has the port. */
static bool syn_slot_prepare(struct graft_table *gs, uint32_t slot,
			     const struct graft_tuple *server, uint64_t id, uint32_t tag,
			     uint32_t near_us)
{
	struct graft_entry *g = &gs->all[slot];
	uint32_t number, tsval;
	uint8_t known;

	number = syn_next_number(g, &tsval);
	known = g->side[1].tuple.local_port == graft_syn_port(gs, slot) ?
			g->syn_flags & (GRAFT_SYN_KNOWN_SEQ | GRAFT_SYN_KNOWN_TSVAL) :
			0;
	/* other threads look at the head meanwhile */
	memset((char *)g + sizeof(g->head), 0, sizeof(*g) - sizeof(g->head));
	__atomic_store_n(&g->head.worker, GRAFT_NOBODY, __ATOMIC_RELAXED);
	g->head.id = id;
	g->head.forward = tag;
	g->head.source = 0;
	g->head.mirrored = GRAFT_UNKNOWN;
	g->head.alone_ms = 0;
	g->syn_flags = known;
	g->syn.near_us = near_us;
	g->side[0].end = number;
	g->side[1].tsval_sent = tsval;
	g->side[1].tuple = *server;
	g->side[1].tuple.local_port = graft_syn_port(gs, slot);
	g->side[1].ipv6 = (uint8_t)graft_addr_is_ipv6(&server->remote);
	return graft_index_add(&gs->index, false, slot, GRAFT_PREPARED);
}

uint32_t graft_syn_prepare(struct graft_table *gs, const struct graft_tuple *server, uint64_t id,
			   uint32_t tag, uint32_t near_us)
{
	/* another relay may have used many ports, one after the other */
	for (int i = 0; i < SYN_TRIES; i++) {
		uint32_t slot = graft_slot_take(gs, &gs->syn_queue);

		if (slot == NO_SLOT || syn_slot_prepare(gs, slot, server, id, tag, near_us))
			return slot;
		graft_slot_put(gs, slot);
	}
	return NO_SLOT;
}

uint16_t graft_syn_port(const struct graft_table *gs, uint32_t slot)
{
	return htons((uint16_t)(gs->syn_port + slot));
}

uint32_t graft_table_syn_slots(const struct graft_table *gs)
{
	return gs->n_syn;
}

struct graft_stock *graft_stock(const struct graft_table *gs, unsigned int i)
{
	return &gs->stocks[i];
}

void graft_syn_push(struct graft_stock *k, uint32_t slot)
{
	k->slot[k->last % GRAFT_STOCK] = slot;
	__atomic_store_n(&k->last, k->last + 1, __ATOMIC_SEQ_CST);
}

uint32_t graft_syn_left(const struct graft_stock *k)
{
	uint32_t last = __atomic_load_n(&k->last, __ATOMIC_SEQ_CST);
	int32_t n = (int32_t)(last - __atomic_load_n(&k->first, __ATOMIC_SEQ_CST));

	return n > 0 ? (uint32_t)n : 0;
}

uint32_t graft_syn_first(const struct graft_stock *k)
{
	return __atomic_load_n(&k->first, __ATOMIC_SEQ_CST);
}

uint32_t graft_syn_take(struct graft_table *gs, struct graft_stock *k)
{
	uint32_t first = graft_syn_first(k), slot;

	while ((int32_t)(k->last - first) > 0) {
		slot = k->slot[first % GRAFT_STOCK];
		if (__atomic_compare_exchange_n(&k->first, &first, first + 1, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
			graft_change_state(gs, slot, GRAFT_PREPARED, GRAFT_FREE);
			return slot;
		}
	}
	return NO_SLOT;
}

/* The session of SLOT, in STATE, is half open no more, and becomes TO. */
static bool syn_end_half_open(struct graft_table *gs, uint32_t slot, enum graft_state state,
			      enum graft_state to)
{
	if (!graft_change_state(gs, slot, state, to))
		return false;
	__atomic_fetch_sub(&gs->skel->bss->graft_half, 1, __ATOMIC_SEQ_CST);
	return true;
}

bool graft_syn_expire(struct graft_table *gs, uint32_t slot)
{
	struct graft_entry *g = &gs->all[slot];

	/* the state first: a packet may open the session just now, and must find no trace of this */
	if (syn_end_half_open(gs, slot, GRAFT_SYN_SENT, GRAFT_GAVE_UP))
		g->why_back = GRAFT_PAST_SILENT;
	else if (syn_end_half_open(gs, slot, GRAFT_ANSWERED, GRAFT_DONE))
		g->side[0].reset = 1; /* the client has vanished: the session log says so */
	else
		return false;
	g->ended_ns = clock_ns();
	return true;
}

bool graft_syn_awake(struct graft_table *gs, unsigned int worker, bool awake)
{
	return __atomic_exchange_n(&gs->skel->bss->graft_awake[worker], awake, __ATOMIC_SEQ_CST);
}

void graft_syn_forget_client(const struct graft_table *gs, const struct graft_tuple *client)
{
	struct graft_proof_key key;

	graft_set_proof_key(&key, client, 0);
	bpf_map_delete_elem(bpf_map__fd(gs->skel->maps.proofs), &key);
}

void graft_syn_forget_proofs(struct graft_table *gs)
{
	gs->skel->bss->graft_proven_from = clock_ns();
}

uint64_t graft_syn_past(const struct graft_table *gs, enum graft_past why)
{
	return __atomic_load_n(&gs->skel->bss->graft_past[why], __ATOMIC_RELAXED);
}

unsigned int graft_syn_hooks(const struct graft_table *gs)
{
	return __atomic_load_n(&gs->skel->bss->graft_hooks, __ATOMIC_RELAXED);
}

uint64_t graft_syn_half_open(const struct graft_table *gs)
{
	int64_t n = __atomic_load_n(&gs->skel->bss->graft_half, __ATOMIC_RELAXED);

	return n > 0 ? (uint64_t)n : 0;
}

const char *graft_past_name(enum graft_past why)
{
	static const char *const names[GRAFT_PASTS] = {
		[GRAFT_PAST_UNPROVEN] = "unproven",
		[GRAFT_PAST_ODD] = "odd",
		[GRAFT_PAST_HALF_OPEN] = "half-open",
		[GRAFT_PAST_STOCK] = "stock",
		[GRAFT_PAST_UNPROVEN_SERVER] = "unproven-server",
		[GRAFT_PAST_TUPLE] = "tuple",
		[GRAFT_PAST_NETFILTER] = "netfilter",
		[GRAFT_PAST_INTERFACE] = "interface",
		[GRAFT_PAST_REFUSED] = "refused",
		[GRAFT_PAST_UNREACHABLE] = "unreachable",
		[GRAFT_PAST_CHALLENGED] = "challenged",
		[GRAFT_PAST_SILENT] = "silent",
		[GRAFT_PAST_CLIENT] = "client",
	};

	return names[why];
}
