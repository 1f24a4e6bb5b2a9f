// SPDX-License-Identifier: BSD-2-Clause
/* By any thread, but for functions whose comment in grafted.h names one. */
#include "daemon/grafted.h"

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
#include "relay/udp/udp_upstream_socket.h"

uint32_t grafted_places(const struct graft_table *gs)
{
	return 2 * graft_table_total(gs);
}

static uint32_t grafted_place(const struct graft_table *gs, bool udp, uint32_t slot)
{
	return slot == NO_SLOT ? NO_SLOT : slot + udp * graft_table_total(gs);
}

static enum grafted_state grafted_state(const struct graft_head *head)
{
	enum graft_state state = graft_state_of(head);

	if (state == GRAFT_STANDBY)
		return GRAFTED_STANDBY;
	return graft_state_carries(state) ? GRAFTED_ACTIVE : GRAFTED_NOTHING;
}

struct grafted grafted_at(struct graft_table *gs, uint32_t at)
{
	uint32_t n = graft_table_total(gs), slot = at < n ? at : at - n;
	struct graft_entry *g = (struct graft_entry *)graft_of(gs, slot);
	struct udp_flow *f = (struct udp_flow *)udp_flow_of(graft_table_udp(gs), slot);
	struct grafted h = { .at = at, .udp = at >= n, .slot = slot, .grafts = gs };

	/* loops over thousands of sessions wait for memory more than for anything else */
	__builtin_prefetch((const char *)g + 16 * sizeof(*g));
	h.head = h.udp ? &f->head : &g->head;
	h.leg[0] = h.udp ? &f->leg[0] : &g->side[0].leg;
	h.leg[1] = h.udp ? &f->leg[1] : &g->side[1].leg;
	h.state = grafted_state(h.head);
	/* packets have led it back to sockets that were handed over */
	if (!h.udp && graft_state_of(h.head) == GRAFT_RETURNED && graft_has_sockets(gs, slot))
		h.state = GRAFTED_ACTIVE;
	return h;
}

bool grafted_next(struct graft_table *gs, struct grafted *h)
{
	const uint64_t *used = graft_table_used(gs);

	if (!bit_next(used, used, grafted_places(gs), &h->at))
		return false;
	*h = grafted_at(gs, h->at);
	return true;
}

uint32_t grafted_find(struct graft_table *gs, bool udp, const struct graft_tuple *client)
{
	return grafted_place(gs, udp, graft_find(gs, udp, client));
}

bool grafted_is_here(const struct grafted *h)
{
	return graft_table_has_address(h->grafts, &h->leg[0]->tuple.local);
}

bool grafted_is_same(struct graft_table *gs, uint32_t at, const struct graft_record *r)
{
	struct grafted h = grafted_at(gs, at);
	const volatile struct graft_side *have = graft_of(gs, h.slot)->side;
	const struct graft_side *new = r->tcp.side;

	if (h.state != GRAFTED_STANDBY)
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

__attribute__((no_sanitize("thread"))) static void grafted_copy(void *to, const volatile void *from,
								size_t size)
{
	for (size_t i = 0; i < size / sizeof(word); i++)
		((word *)to)[i] = ((const volatile word *)from)[i];
}

void grafted_record(const struct grafted *h, struct graft_record *ret)
{
	ret->kind = h->udp ? RECORD_UDP : RECORD_TCP;
	if (h->udp)
		grafted_copy(&ret->flow, udp_flow_of(graft_table_udp(h->grafts), h->slot),
			     sizeof(ret->flow));
	else
		grafted_copy(&ret->tcp, graft_of(h->grafts, h->slot), sizeof(ret->tcp));
}

int grafted_import(struct graft_table *gs, struct graft_record *r, bool same_source, uint32_t *at)
{
	bool udp = record_is_udp(r), is_new = *at == NO_SLOT;
	uint32_t slot;
	struct grafted h;
	int e = udp ? udp_graft_import(graft_table_udp(gs), &r->flow, &slot) :
		      graft_import(gs, &r->tcp, &slot);

	if (e)
		return e;
	*at = grafted_place(gs, udp, slot);
	/*
	 * the port is tested after the import, because from then on no new session takes it; a
	 * known flow keeps its port
	 */
	if (!udp || !is_new || !same_source ||
	    !udp_port_is_used(record_leg(r, 1)->tuple.local_port))
		return 0;
	h = grafted_at(gs, *at);
	grafted_end(&h);
	return -EADDRINUSE;
}

void grafted_end(const struct grafted *h)
{
	if (h->udp) {
		udp_graft_put(graft_table_udp(h->grafts), h->slot);
	} else if (!graft_drop(h->grafts, h->slot)) {
		graft_kill(h->grafts, h->slot);
		graft_close_sockets(h->grafts, h->slot);
		graft_put(h->grafts, h->slot);
	}
}

void grafted_stand_by(const struct grafted *h)
{
	if (h->udp)
		udp_graft_part(graft_table_udp(h->grafts), h->slot);
	else
		graft_part(h->grafts, h->slot, ALONE_NEVER);
}

void grafted_rest_ports(struct graft_table *gs)
{
	for (uint32_t slot = 0; slot < graft_table_total(gs); slot++)
		udp_port_put(udp_flow_of(graft_table_udp(gs), slot)->leg[UPSTREAM].tuple.local_port,
			     clock_ms() + UDP_PORT_OWED_MS);
}

static void grafted_client(const struct grafted *h, union client_addr *ret)
{
	struct addr a = graft_tuple_address(&h->leg[CLIENT]->tuple, false);

	client_addr_set(ret, &a.sa);
}

bool grafted_is_of(const struct grafted *h, const struct worker *w)
{
	unsigned int workers = w->shared->config->workers;
	union client_addr client;

	if (!h->udp)
		return h->slot % workers == w->index;
	grafted_client(h, &client);
	return udp_worker(&client, workers) == w->index;
}

int grafted_adopt(const struct grafted *h, struct worker *w, const struct forwards *all)
{
	struct forward *f = forward_with_tag(all, h->head->forward);
	union client_addr client;
	int r;

	grafted_client(h, &client);
	if (!f || f->conf->listen.udp != h->udp)
		return -ENOENT;
	if (!admission_adopt(w->shared, f, &client, !h->udp))
		return -ENOMEM;
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

bool grafted_is_unowned(const struct grafted *h)
{
	return !h->udp && h->state == GRAFTED_ACTIVE && graft_is_orphan(h->grafts, h->slot);
}

bool grafted_is_helped(const struct grafted *h)
{
	const volatile struct udp_flow *f = udp_flow_of(graft_table_udp(h->grafts), h->slot);

	if (h->udp)
		return h->state == GRAFTED_STANDBY && (f->at[0].packets || f->at[1].packets);
	return grafted_is_unowned(h);
}

void grafted_hear(const struct grafted *h, struct graft_heard ret[2])
{
	if (h->udp)
		udp_graft_hear(graft_table_udp(h->grafts), h->slot, ret);
	else
		graft_hear(h->grafts, h->slot, ret);
}

enum grafted_arrival grafted_arrival(const struct grafted *h, bool revives)
{
	const volatile struct udp_flow *f = udp_flow_of(graft_table_udp(h->grafts), h->slot);
	bool waits;

	if (!h->udp && graft_is_bare(h->grafts, h->slot, &waits) && (revives || waits))
		return ARRIVAL_BARE;
	if (!grafted_is_helped(h) &&
	    !(h->udp && h->state == GRAFTED_STANDBY &&
	      (udp_graft_word(f, 0) != UDP_ACTIVE || udp_graft_word(f, 1) != UDP_ACTIVE)))
		return ARRIVAL_NONE;
	return graft_state_of(h->head) == GRAFT_DONE || grafted_is_here(h) ? ARRIVAL_DUE :
									     ARRIVAL_STRAY;
}

bool grafted_wants_sockets(const struct grafted *h)
{
	return !h->udp && !graft_has_sockets(h->grafts, h->slot);
}

void grafted_revive(const struct grafted *h, const struct worker *w)
{
	if (!h->udp && graft_has_sockets(h->grafts, h->slot) && w->grafted[h->slot])
		session_revive(w->grafted[h->slot]);
}

void grafted_wake(const struct grafted *h)
{
	if (!h->udp)
		graft_wake(h->grafts, h->slot);
}
