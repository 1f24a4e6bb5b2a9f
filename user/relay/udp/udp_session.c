// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp/udp_session.h"

#include <assert.h>
#include <string.h>

#define TO(state) (1U << (state))

static const uint8_t allowed[UDP_STATES] = {
	[UDP_ASKED] = TO(UDP_ANSWERED) | TO(UDP_DEAD),
	[UDP_ANSWERED] = TO(UDP_PROVEN) | TO(UDP_DEAD),
	[UDP_PROVEN] = TO(UDP_DEAD),
};

void udp_session_set_state(struct udp_session *s, enum udp_state to)
{
	assert(allowed[s->state] & TO(to));
	s->state = (uint8_t)to;
}

void udp_session_end(struct udp_session *s, unsigned int end)
{
	if (!s->ends)
		s->end = (uint8_t)end;
	s->ends = true;
}

struct udp_session_list *udp_session_bucket(struct worker *w, const struct graft_tuple *tuple)
{
	return &w->udp->buckets[graft_hash(tuple, w->udp->seed) & w->udp->mask];
}

struct udp_session *udp_session_find(struct worker *w, const struct graft_tuple *tuple,
				     const union client_addr *client)
{
	struct udp_session *s;

	LIST_FOREACH(s, udp_session_bucket(w, tuple), in_bucket)
		if (!memcmp(&s->tuple, tuple, sizeof(*tuple)) &&
		    client_addr_equal(&s->client, client))
			break;
	return s;
}

/* --- counters --- */

struct udp_count udp_grafted(const struct udp_session *s, unsigned int dir)
{
	const volatile struct udp_leg *at = &udp_slot_of(s)->at[dir];

	if (s->slot == NO_SLOT)
		return s->counted[dir];
	return (struct udp_count){ .bytes = at->bytes, .datagrams = at->packets };
}

uint64_t udp_all_datagrams(const struct udp_session *s, unsigned int dir)
{
	return s->copied[dir].datagrams + udp_grafted(s, dir).datagrams;
}

void udp_session_count(struct udp_session *s, unsigned int dir, enum carrier c,
		       struct udp_count more)
{
	struct forward_stats *fs = forward_stats(s->forward, s->worker->index);
	struct udp_count *total = c == CARRIER_GRAFT ? &s->counted[dir] : &s->copied[dir];

	total->bytes += more.bytes;
	total->datagrams += more.datagrams;
	count_add(&s->worker->stats.carrier_bytes[c], more.bytes);
	count_add(&fs->carried[dir][c], more.bytes);
	count_add(&fs->datagrams[dir], more.datagrams);
}

void udp_session_count_kernel(struct udp_session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct udp_count more = udp_grafted(s, dir);

		more.bytes -= s->counted[dir].bytes;
		more.datagrams -= s->counted[dir].datagrams;
		udp_session_count(s, dir, CARRIER_GRAFT, more);
	}
}

/* --- as others see it --- */

enum reason udp_session_hindrance(const struct udp_session *s)
{
	const struct forward_conf *fc = s->forward->conf;
	enum engine engine = s->forward->engine;

	if (!forward_grafts(s->forward))
		return engine == ENGINE_COPY || engine == ENGINE_AUTO ? REASON_ENGINE :
									REASON_NOT_TCP;
	if (!udp_table_of(s))
		return REASON_NO_KERNEL;
	if (s->pace)
		return REASON_BANDWIDTH;
	if (fc->responses)
		return REASON_RESPONSES;
	if (fc->proxy_protocol)
		return REASON_PROXY_HEADERS;
	/* link-local addresses are not unique: the same tuple may be in use on another link */
	if (s->peer.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&s->peer.in6.sin6_addr))
		return REASON_REFUSED;
	return REASONS;
}

static struct flow_view udp_view_flow(const struct udp_session *s, unsigned int dir)
{
	bool active = udp_carries(s, dir);
	enum reason why = udp_session_hindrance(s);

	if (active)
		why = s->adopted                         ? REASON_ADOPTED :
		      s->forward->engine == ENGINE_GRAFT ? REASON_ENGINE :
							   REASON_ELIGIBLE;
	else if (why == REASONS)
		why = s->entry == UDP_ENTRY_FULL                ? REASON_NO_SLOT :
		      s->entry == UDP_ENTRY_NONE                ? REASON_FIRST :
		      dir == UPSTREAM && s->state != UDP_PROVEN ? REASON_UNPROVEN :
								  REASON_START;
	return (struct flow_view){
		.carrier = active ? CARRIER_GRAFT : CARRIER_COPY,
		.reason = why,
		.phase = active ? FLOW_KERNEL : FLOW_USER,
		.handovers = active,
		.copied = s->copied[dir].bytes,
		.kernel = udp_grafted(s, dir).bytes,
		.datagrams = udp_all_datagrams(s, dir),
	};
}

void udp_view(const struct udp_session *s, struct session_view *ret)
{
	uint64_t now = udp_now(s);
	const volatile struct udp_flow *f = udp_slot_of(s);
	bool client = udp_carries(s, CLIENT);
	bool waits = s->slot != NO_SLOT && !(client && udp_carries(s, UPSTREAM));
	uint8_t why = f->at[CLIENT].why ?: f->at[UPSTREAM].why;

	*ret = (struct session_view){
		.id = s->id,
		.forward = s->forward,
		.server = s->server,
		.worker = s->worker->index,
		.state = SESSION_OPEN,
		.age_ms = now > s->born_ms ? now - s->born_ms : 0,
		.connect_ms = s->connect_ms,
		.client = s->client,
		.not_grafted = waits ? graft_refusal_name((enum graft_refusal)why) : "",
		.standby = standby_text(s->worker->shared, client, f->head.mirrored == GRAFT_TOLD),
		.flows = { udp_view_flow(s, CLIENT), udp_view_flow(s, UPSTREAM) },
	};
	if (!client_addr_equal(&s->client, &s->peer))
		ret->via = s->peer;
	ret->upstream.len = sizeof(s->upstream->to);
	memcpy(&ret->upstream.ss, &s->upstream->to, sizeof(s->upstream->to));
}
