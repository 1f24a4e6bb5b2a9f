// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/held.h"

#include <errno.h>
#include <string.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/log.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/graft/udp_graft.h"
#include "relay/admission.h"
#include "relay/session_life.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_upstream.h"

uint32_t held_places(const struct graft_table *gs)
{
	return 2 * graft_table_total(gs);
}

static uint32_t held_place(const struct graft_table *gs, bool udp, uint32_t slot)
{
	return slot == NO_SLOT ? NO_SLOT : slot + udp * graft_table_total(gs);
}

static enum held_state held_state(const struct graft_head *head)
{
	enum graft_state state = graft_state_of(head);

	if (state == GRAFT_STANDBY)
		return HELD_STANDBY;
	return graft_state_carries(state) ? HELD_ACTIVE : HELD_NOTHING;
}

struct held held_at(struct graft_table *gs, uint32_t at)
{
	uint32_t n = graft_table_total(gs), slot = at % n;
	struct graft_entry *g = (struct graft_entry *)graft_of(gs, slot);
	struct udp_flow *f = (struct udp_flow *)udp_flow_of(graft_table_udp(gs), slot);
	struct held h = { .at = at, .udp = at >= n, .slot = slot, .grafts = gs };

	h.head = h.udp ? &f->head : &g->head;
	h.leg[0] = h.udp ? &f->leg[0] : &g->side[0].leg;
	h.leg[1] = h.udp ? &f->leg[1] : &g->side[1].leg;
	h.state = held_state(h.head);
	return h;
}

bool held_next(struct graft_table *gs, struct held *h)
{
	const uint64_t *used = graft_table_used(gs);

	if (!bit_next(used, used, held_places(gs), &h->at))
		return false;
	*h = held_at(gs, h->at);
	return true;
}

uint32_t held_find(struct graft_table *gs, bool udp, const struct graft_tuple *client)
{
	return held_place(gs, udp, graft_find(gs, udp, client));
}

bool held_is_here(const struct held *h)
{
	return graft_table_has_address(h->grafts, &h->leg[0]->tuple.local);
}

bool held_is_same(struct graft_table *gs, uint32_t at, const struct graft_record *r)
{
	struct held h = held_at(gs, at);
	const volatile struct graft_side *have = graft_of(gs, h.slot)->side;
	const struct graft_side *new = r->tcp.side;

	if (h.state != HELD_STANDBY)
		return false;
	if (h.udp)
		return h.head->id == r->head.id;
	for (int i = 0; i < 2; i++)
		if (have[i].seq_add != new[i].seq_add || have[i].tsval_add != new[i].tsval_add ||
		    have[i].fin != new[i].fin)
			return false;
	return h.head->id == r->head.id;
}

typedef uint64_t __attribute__((may_alias)) word;

__attribute__((no_sanitize("thread"))) static void held_copy(void *to, const volatile void *from,
							     size_t size)
{
	for (size_t i = 0; i < size / sizeof(word); i++)
		((word *)to)[i] = ((const volatile word *)from)[i];
}

void held_record(const struct held *h, struct graft_record *ret)
{
	ret->kind = h->udp ? RECORD_UDP : RECORD_TCP;
	if (h->udp)
		held_copy(&ret->flow, udp_flow_of(graft_table_udp(h->grafts), h->slot),
			  sizeof(ret->flow));
	else
		held_copy(&ret->tcp, graft_of(h->grafts, h->slot), sizeof(ret->tcp));
}

int held_import(struct graft_table *gs, struct graft_record *r, uint32_t *at)
{
	bool udp = r->kind == RECORD_UDP, is_new = *at == NO_SLOT;
	uint32_t slot;
	struct held h;
	int e = udp ? udp_graft_import(graft_table_udp(gs), &r->flow, &slot) :
		      graft_import(gs, &r->tcp, &slot);

	if (e)
		return e;
	*at = held_place(gs, udp, slot);
	/*
	 * the port is tested after the import, because from then on no new session takes it; a
	 * known flow keeps its port
	 */
	if (!udp || !is_new || !udp_port_is_used(record_leg(r, 1)->tuple.local_port))
		return 0;
	h = held_at(gs, *at);
	held_end(&h);
	return -EADDRINUSE;
}

void held_end(const struct held *h)
{
	if (h->udp) {
		udp_graft_put(graft_table_udp(h->grafts), h->slot);
	} else if (!graft_drop(h->grafts, h->slot)) {
		graft_kill(h->grafts, h->slot);
		graft_close_sockets(h->grafts, h->slot);
		graft_put(h->grafts, h->slot);
	}
}

void held_stand_by(const struct held *h)
{
	if (h->udp)
		udp_graft_part(graft_table_udp(h->grafts), h->slot);
	else
		graft_part(h->grafts, h->slot);
}

void held_rest_ports(struct graft_table *gs)
{
	for (uint32_t slot = 0; slot < graft_table_total(gs); slot++)
		udp_port_put(udp_flow_of(graft_table_udp(gs), slot)->leg[UPSTREAM].tuple.local_port,
			     clock_ms() + UDP_PORT_OWED_MS);
}

static void held_client(const struct held *h, union client_addr *ret)
{
	struct addr a = graft_tuple_address(&h->leg[CLIENT]->tuple, false);

	client_addr_set(ret, &a.sa);
}

bool held_is_of(const struct held *h, const struct worker *w)
{
	unsigned int workers = w->shared->config->workers;
	union client_addr client;

	if (!h->udp)
		return h->slot % workers == w->index;
	held_client(h, &client);
	return udp_worker(&client, workers) == w->index;
}

int held_adopt(const struct held *h, struct worker *w, const struct forwards *all)
{
	struct forward *f = forward_with_tag(all, h->head->forward);
	union client_addr client;
	int r;

	held_client(h, &client);
	if (!f || f->conf->listen.udp != h->udp)
		return -ENOENT;
	if (admission_enter_with(w->shared, f, &client, !h->udp) != CAUSE_NONE)
		return -EUSERS;
	r = h->udp ? udp_session_adopt(w, f, h->slot) : session_adopt(w, f, &client, h->slot);
	if (r)
		admission_leave(w->shared, f, &client);
	if (!r || !h->udp || r == -ENOENT)
		return r;
	/* the address at the server's side may come a moment later */
	log_limited(LOG_WARNING, "graft: an imported session has no socket yet: %s", strerror(-r));
	return -EAGAIN;
}

/* --- sessions that arrive --- */

enum held_arrival held_arrival(const struct held *h, bool revives)
{
	const volatile struct udp_flow *f = udp_flow_of(graft_table_udp(h->grafts), h->slot);
	bool arrived;

	if (revives && !h->udp && graft_is_bare(h->grafts, h->slot))
		return ARRIVAL_BARE;
	if (h->udp)
		arrived = h->state == HELD_STANDBY && (f->at[0].packets || f->at[1].packets ||
						       udp_graft_word(f, 0) != UDP_ACTIVE ||
						       udp_graft_word(f, 1) != UDP_ACTIVE);
	else
		arrived = graft_is_orphan(h->grafts, h->slot);
	if (!arrived)
		return ARRIVAL_NONE;
	return graft_state_of(h->head) == GRAFT_DONE || held_is_here(h) ? ARRIVAL_DUE :
									  ARRIVAL_STRAY;
}

bool held_wants_sockets(const struct held *h)
{
	return !h->udp && !graft_has_sockets(h->grafts, h->slot);
}

void held_revive(const struct held *h, const struct worker *w)
{
	if (!h->udp && graft_has_sockets(h->grafts, h->slot) && w->grafted[h->slot])
		session_revive(w->grafted[h->slot]);
}

void held_wake(const struct held *h)
{
	if (!h->udp)
		graft_wake(h->grafts, h->slot);
}

/* --- the key of an export --- */

/* A session, and which of its ends have sent FIN. */
static uint32_t held_key_session(const struct held *h, uint64_t now_ns, uint64_t after_ns)
{
	const volatile struct graft_entry *g = graft_of(h->grafts, h->slot);
	uint64_t offered = g->offered_ns;
	uint32_t fins = g->side[1].fin << 2 | g->side[0].fin;

	if (graft_state_of(h->head) == GRAFT_DONE || now_ns < offered + after_ns)
		return KEY_NONE;
	return (((uint32_t)(offered / 1000) ^ (uint32_t)h->head->id << 20) << 4 | fins) << 1 |
	       KEY_OWNED;
}

/*
 * A flow that its sockets carry again stays exported: the record keeps the flow's port reserved at
 * the peer.
 */
static uint32_t held_key_flow(const struct held *h, uint64_t now_ns, uint64_t after_ns)
{
	const struct udp_table *us = graft_table_udp(h->grafts);
	uint32_t age = (uint32_t)(now_ns >> UDP_TICK_SHIFT) - udp_flow_of(us, h->slot)->born;

	if (age < after_ns >> UDP_TICK_SHIFT ||
	    !(h->head->mirrored || udp_graft_carries(us, h->slot, 0) ||
	      udp_graft_carries(us, h->slot, 1)))
		return KEY_NONE;
	return (uint32_t)h->head->id << 1 | KEY_OWNED;
}

uint32_t held_key(const struct held *h, uint64_t now_ns, uint64_t after_ns)
{
	return h->udp ? held_key_flow(h, now_ns, after_ns) : held_key_session(h, now_ns, after_ns);
}
