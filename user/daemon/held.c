// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/held.h"

#include <errno.h>

#include "base/bits.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/graft/udp_graft.h"
#include "relay/admission.h"
#include "relay/forward.h"
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

static struct held held_session(struct graft_table *gs, uint32_t slot)
{
	struct graft_entry *g = (struct graft_entry *)graft_of(gs, slot);

	return (struct held){ .at = slot,
			      .slot = slot,
			      .grafts = gs,
			      .state = graft_carries(gs, slot)                ? HELD_ACTIVE :
				       graft_state(gs, slot) == GRAFT_STANDBY ? HELD_STANDBY :
										HELD_NOTHING,
			      .leg = { &g->side[0].leg, &g->side[1].leg },
			      .forward = (void *)&g->forward,
			      .source = (void *)&g->source,
			      .mirrored = (void *)&g->mirrored,
			      .alone_ms = (void *)&g->alone_ms,
			      .id = (void *)&g->id };
}

static struct held held_flow(struct graft_table *gs, uint32_t slot)
{
	struct udp_flow *f = (struct udp_flow *)udp_flow_of(graft_table_udp(gs), slot);
	uint32_t used = __atomic_load_n(&f->used, __ATOMIC_ACQUIRE);

	return (struct held){ .at = held_place(gs, true, slot),
			      .udp = true,
			      .slot = slot,
			      .grafts = gs,
			      .state = used == UDP_SESSION ? HELD_ACTIVE :
				       used == UDP_STANDBY ? HELD_STANDBY :
							     HELD_NOTHING,
			      .leg = { &f->leg[0], &f->leg[1] },
			      .forward = (void *)&f->forward,
			      .source = (void *)&f->source,
			      .mirrored = (void *)&f->mirrored,
			      .alone_ms = (void *)&f->left_ms,
			      .id = (void *)&f->id };
}

struct held held_at(struct graft_table *gs, uint32_t at)
{
	uint32_t n = graft_table_total(gs);

	return at < n ? held_session(gs, at) : held_flow(gs, at - n);
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
	return held_place(gs, udp,
			  udp ? udp_graft_find(graft_table_udp(gs), client) : graft_find(gs, client));
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
		return *h.id == r->flow.id;
	for (int i = 0; i < 2; i++)
		if (have[i].seq_add != new[i].seq_add || have[i].tsval_add != new[i].tsval_add ||
		    have[i].fin != new[i].fin)
			return false;
	return *h.id == r->tcp.id;
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
	/* only now, or a new session could take the port; a flow that was here keeps its own */
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

static void held_client(const struct held *h, union client_addr *ret)
{
	struct addr a = graft_tuple_address(&h->leg[CLIENT]->tuple, false);

	client_addr_set(ret, (struct sockaddr *)&a.ss);
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
	struct forward *f = forward_with_tag(all, *h->forward);
	union client_addr client;
	int r;

	held_client(h, &client);
	if (!f || f->conf->listen.udp != h->udp)
		return -ENOENT;
	if (admission_enter_with(w->shared, f, &client.sa, !h->udp) != CAUSES)
		return -EUSERS;
	r = h->udp ? udp_session_adopt(w, f, h->slot) : session_adopt(w, f, &client.sa, h->slot);
	if (r)
		admission_leave(w->shared, f, &client.sa);
	return r;
}
