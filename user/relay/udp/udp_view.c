// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp/udp_view.h"

#include <string.h>

#include "relay/udp/udp_activate.h"

/* Why packet programs do not carry flow DIR. */
static enum reason udp_view_copied(const struct udp_session *s, unsigned int dir)
{
	static const enum reason reasons[] = {
		[UDP_ENTRY_NONE] = REASON_FIRST,
		[UDP_ENTRY_FULL] = REASON_NO_SLOT,
		[UDP_ENTRY_HELD] = REASON_START,
		[UDP_ENTRY_WAITS] = REASON_START,
	};
	enum reason why = udp_activate_hindrance(s);

	if (why != REASONS)
		return why;
	why = reasons[s->entry];
	return why == REASON_START && dir == UPSTREAM && s->state != UDP_PROVEN ? REASON_UNPROVEN :
										  why;
}

static struct flow_view udp_view_flow(const struct udp_session *s, unsigned int dir)
{
	bool active = udp_carries(s, dir);

	return (struct flow_view){
		.carrier = active ? CARRIER_GRAFT : CARRIER_COPY,
		.reason = !active                            ? udp_view_copied(s, dir) :
			  s->adopted                         ? REASON_ADOPTED :
			  s->forward->engine == ENGINE_GRAFT ? REASON_ENGINE :
							       REASON_ELIGIBLE,
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
	bool waits = s->slot != NO_UDP_SLOT && !(client && udp_carries(s, UPSTREAM));
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
		.standby = standby_text(s->worker->shared, client,
					__atomic_load_n(&f->mirrored, __ATOMIC_RELAXED) ==
						GRAFT_TOLD),
		.flows = { udp_view_flow(s, CLIENT), udp_view_flow(s, UPSTREAM) },
	};
	if (!client_addr_equal(&s->client, &s->peer))
		ret->via = s->peer;
	ret->upstream.len = sizeof(s->upstream->to);
	memcpy(&ret->upstream.ss, &s->upstream->to, sizeof(s->upstream->to));
}
