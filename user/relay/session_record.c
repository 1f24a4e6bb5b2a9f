// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_record.h"

#include <string.h>

static void set_tail(struct session_record *r, const struct addr *upstream, const char *forward)
{
	size_t align = _Alignof(struct session_record), size;

	r->upstream_len = upstream ? (uint16_t)upstream->len : 0;
	r->forward_len = (uint16_t)strnlen(forward, SESSION_FORWARD_MAX);
	if (upstream)
		memcpy(r->tail, &upstream->ss, r->upstream_len);
	memcpy(r->tail + r->upstream_len, forward, r->forward_len);
	size = sizeof(*r) + r->upstream_len + r->forward_len;
	r->size = (uint32_t)((size + align - 1) / align * align);
}

/*
 * What was read by splice and still waits in the pipe is lost with it.  All else that user space
 * has written came through buffers: copied, or passed by the program and then copied.
 */
static void set_flow(struct flow_record *r, const struct flow *f, uint64_t kernel)
{
	uint64_t spliced = f->spliced - (f->pipe ? f->pending : 0);

	r->bytes[CARRIER_SPLICE] = spliced;
	r->bytes[CARRIER_COPY] = f->user_out - spliced;
	r->bytes[CARRIER_SOCKMAP] = kernel;
	r->handovers = f->handovers;
	r->carrier = (uint8_t)flow_carrier(f);
	r->reason = f->reason;
}

/* The address that it is connected to; before that, the one that was tried last, or NULL. */
static const struct addr *upstream_address(const struct session *s)
{
	return s->addrs ? &s->addrs->addrs[s->upstream] : NULL;
}

void session_record_ended(union session_record_room *ret, const struct session *s,
			  const uint64_t kernel[2], unsigned int end)
{
	struct session_record *r = &ret->record;

	memset(r, 0, sizeof(*r));
	r->id = s->id;
	r->born_ms = s->born_ms;
	r->ended_ms = s->worker->loop.now_ms;
	r->connect_ms = s->connected_ms ? (uint32_t)(s->connected_ms - s->born_ms) :
					  SESSION_NEVER_CONNECTED;
	r->end = (uint8_t)end;
	r->client = s->client;
	if (session_via(s))
		r->via = *session_via(s);
	for (unsigned int dir = 0; dir < 2; dir++)
		set_flow(&r->flows[dir], &s->flows[dir], kernel[dir]);
	set_tail(r, upstream_address(s), forward_name(forward_of(s)));
}

void session_record_refused(union session_record_room *ret, const char *forward,
			    const struct sockaddr *client, uint64_t now_ms, enum cause why)
{
	struct session_record *r = &ret->record;

	memset(r, 0, sizeof(*r));
	r->born_ms = r->ended_ms = now_ms;
	r->connect_ms = SESSION_NEVER_CONNECTED;
	r->end = (uint8_t)why;
	client_addr_set(&r->client, client);
	set_tail(r, NULL, forward);
}
