// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp/udp_record.h"

#include "base/clock.h"
#include "relay/session_record.h"
#include "relay/udp/udp_activate.h"

void udp_record_code(struct codec *c, struct udp_record *r)
{
	CODEC_FIELD(c, r->id, 8);
	r->born_ns = codec_moment(c, r->born_ns);
	CODEC_FIELD(c, r->forward, 4);
	CODEC_FIELD(c, r->state, 1);
	CODEC_FIELD(c, r->connect_ms, 4);
	CODEC_FIELD(c, r->asked, 8);
	for (int i = 0; i < 2; i++) {
		r->heard_ns[i] = codec_moment(c, r->heard_ns[i]);
		CODEC_FIELD(c, r->copied[i].bytes, 8);
		CODEC_FIELD(c, r->copied[i].datagrams, 8);
	}
	record_client(c, &r->client);
	record_client(c, &r->destination);
	record_client(c, &r->peer);
	record_client(c, &r->local);
}

bool udp_record_of(struct udp_session *s, struct udp_record *ret)
{
	if (s->ends || !s->upstream || udp_carries(s, CLIENT))
		return false;
	udp_activate_leave(s);
	*ret = (struct udp_record){
		.id = s->id,
		.born_ns = s->born_ms * NS_PER_MS,
		.heard_ns = { s->heard_ms[0] * NS_PER_MS, s->heard_ms[1] * NS_PER_MS },
		.forward = s->forward->tag,
		.state = s->state,
		.connect_ms = s->connect_ms,
		.asked = s->asked,
		.copied = { s->copied[0], s->copied[1] },
		.client = s->client,
		.destination = s->destination,
		.peer = s->peer,
		.local = s->local,
	};
	return true;
}
