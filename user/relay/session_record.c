// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "datapath/carrier_copy.h"
#include "datapath/graft/graft.h"
#include "relay/session_graft.h"
#include "relay/session_sockmap.h"

/* --- packing --- */

void record_client(struct codec *c, union client_addr *a)
{
	uint8_t kind = a->sa.sa_family == AF_INET ? 4 : a->sa.sa_family == AF_INET6 ? 6 : 0;

	CODEC_FIELD(c, kind, 1);
	if (kind == 4) {
		a->in.sin_family = AF_INET;
		codec_bytes(c, &a->in.sin_addr, sizeof(a->in.sin_addr));
		codec_bytes(c, &a->in.sin_port, sizeof(a->in.sin_port));
	} else if (kind == 6) {
		a->in6.sin6_family = AF_INET6;
		codec_bytes(c, &a->in6.sin6_addr, sizeof(a->in6.sin6_addr));
		codec_bytes(c, &a->in6.sin6_port, sizeof(a->in6.sin6_port));
		CODEC_FIELD(c, a->in6.sin6_scope_id, 4);
	} else {
		a->sa.sa_family = AF_UNIX;
	}
}

static void record_flow(struct codec *c, struct flow_record *f)
{
	CODEC_FIELD(c, f->user_in, 8);
	CODEC_FIELD(c, f->user_out, 8);
	CODEC_FIELD(c, f->spliced, 8);
	CODEC_FIELD(c, f->handovers, 4);
	CODEC_FIELD(c, f->pending, 4);
	CODEC_FIELD(c, f->done, 1);
}

static void record_told(struct codec *c, struct session_record *r)
{
	struct proxy_header *h = &r->header;

	record_client(c, &r->peer);
	CODEC_FIELD(c, h->size, 4);
	CODEC_FIELD(c, h->version, 1);
	CODEC_FIELD(c, h->has_addresses, 1);
	record_client(c, &h->source);
	record_client(c, &h->destination);
	codec_text(c, r->server_name, sizeof(r->server_name));
}

void session_record_code(struct codec *c, struct session_record *r)
{
	CODEC_FIELD(c, r->id, 8);
	r->born_ns = codec_moment(c, r->born_ns);
	CODEC_FIELD(c, r->forward, 4);
	CODEC_FIELD(c, r->slot, 4);
	CODEC_FIELD(c, r->open, 1);
	CODEC_FIELD(c, r->has_told, 1);
	CODEC_FIELD(c, r->admitted, 1);
	CODEC_FIELD(c, r->nodelay_due, 1);
	CODEC_FIELD(c, r->shaped, 1);
	CODEC_FIELD(c, r->refusal, 1);
	CODEC_FIELD(c, r->port_offset, 2);
	CODEC_FIELD(c, r->header_in, 2);
	CODEC_FIELD(c, r->header_out, 1);
	CODEC_FIELD(c, r->connect_ms, 4);
	record_client(c, &r->client);
	for (int dir = 0; dir < 2; dir++)
		record_flow(c, &r->flows[dir]);
	if (r->has_told)
		record_told(c, r);
}

/* --- the session that is handed over --- */

/* True if user space carries flow DIR, or has carried it to its end. */
static bool record_may_have(const struct session *s, unsigned int dir)
{
	const struct flow *f = &s->flows[dir];

	return f->phase == FLOW_USER || f->phase == FLOW_DONE;
}

bool session_record_of(struct session *s, struct session_record *ret)
{
	*ret = (struct session_record){
		.id = s->id,
		.born_ns = s->born_ms * NS_PER_MS,
		.forward = s->forward->tag,
		.open = s->state == SESSION_OPEN,
		.nodelay_due = s->nodelay_due,
		.shaped = s->shaped,
		.port_offset = s->port_offset,
		.header_in = s->header_in,
		.header_out = s->header_out,
		.connect_ms = s->connect_ms,
		.client = s->client,
		.has_told = s->told,
	};
	ret->refusal = s->graft_refusal;
	if (s->state > SESSION_OPEN || s->ending || !record_may_have(s, CLIENT) ||
	    !record_may_have(s, UPSTREAM) || (ret->open && !session_graft_withdraw(s)))
		return false;
	s->graft_refusal = ret->refusal; /* not that it closes */
	ret->slot = s->graft;
	for (unsigned int dir = 0; dir < 2 && ret->open; dir++) {
		struct flow *f = &s->flows[dir];
		/* the counts of sockmap's programs stay with this daemon */
		uint64_t kernel = session_sockmap_bytes(s, dir);

		if (carrier_leave_pipe(f, &s->worker->pool))
			return false;
		ret->flows[dir] = (struct flow_record){
			.user_in = f->user_in + kernel,
			.user_out = f->user_out + kernel,
			.spliced = f->spliced,
			.handovers = f->handovers,
			.pending = f->pending,
			.done = f->phase == FLOW_DONE,
		};
	}
	if (s->told) {
		ret->admitted = s->told->admitted;
		ret->peer = s->told->peer;
		ret->header = s->told->header;
		strcpy(ret->server_name, s->told->server_name);
	}
	return true;
}

/* --- the session that is taken over --- */

static int record_apply_told(struct session *s, const struct session_record *r)
{
	size_t size = sizeof(*s->told) + strlen(r->server_name) + 1;
	struct told *told = calloc(1, size);

	if (!told)
		return -ENOMEM;
	told->peer = r->peer;
	told->header = r->header;
	told->admitted = r->admitted;
	strcpy(told->server_name, r->server_name);
	free(s->told);
	s->told = told;
	return 0;
}

int session_record_apply(struct session *s, const struct session_record *r,
			 const uint8_t *const bytes[2])
{
	s->id = r->id;
	s->born_ms = r->born_ns / NS_PER_MS;
	s->nodelay_due = r->nodelay_due;
	s->shaped = r->shaped & 7;
	s->graft = r->open ? r->slot : NO_GRAFT;
	s->connect_ms = r->connect_ms;
	s->graft_refusal = r->refusal;
	s->port_offset = r->port_offset;
	s->header_in = r->header_in;
	s->header_out = r->header_out;
	for (unsigned int dir = 0; dir < 2 && r->open; dir++) {
		const struct flow_record *from = &r->flows[dir];
		struct flow *f = &s->flows[dir];

		f->user_in = from->user_in;
		f->user_out = from->user_out;
		f->spliced = from->spliced;
		f->handovers = from->handovers;
		if (from->pending &&
		    carrier_put_pending(f, &s->worker->pool, bytes[dir], from->pending))
			return -ENOMEM;
		if (from->done)
			flow_set_phase(f, FLOW_DONE);
	}
	return r->has_told ? record_apply_told(s, r) : 0;
}
