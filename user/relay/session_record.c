// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/minmax.h"
#include "base/tls_hello.h"
#include "datapath/carrier_copy.h"
#include "datapath/graft/graft.h"
#include "relay/session_connect.h"
#include "relay/session_graft.h"
#include "relay/session_header.h"
#include "relay/session_sockmap.h"

struct flow_record {
	uint64_t user_in, user_out, spliced; /* of struct flow; with bytes that sockmap carried */
	uint32_t handovers;
	uint32_t pending; /* bytes in hand */
	bool done;
};

/* A field is only ever added at the end (base/bundle.h). */
struct session_record {
	uint64_t id, born_ms, due_ms;
	uint32_t graft,
		pins; /* slot of a session that has returned, and its maps; NO_GRAFT: none */
	uint32_t connect_ms;
	uint16_t port_offset, header_in;
	uint8_t header_out, shaped, graft_refusal, nodelay_due;
	uint8_t state;            /* as of session_record_apply() */
	uint8_t admitted, told;   /* bool */
	union client_addr client; /* the rest of struct told follows */
	struct flow_record flows[2];
	struct addr upstream; /* of the server that is connected */
	union client_addr peer;
	struct proxy_header header;
	char server_name[TLS_NAME_MAX + 1];
	uint8_t postgres; /* bool: its client has asked for TLS */
	uint8_t answers_in, answers_out;
	uint64_t waits_since_ms; /* for a server's place; 0: it does not */
};

/* The fields that both structs have. */
#define SAME(to, from)                                                                             \
	do {                                                                                       \
		(to)->id = (from)->id;                                                             \
		(to)->born_ms = (from)->born_ms;                                                   \
		(to)->connect_ms = (from)->connect_ms;                                             \
		(to)->port_offset = (from)->port_offset;                                           \
		(to)->header_in = (from)->header_in;                                               \
		(to)->header_out = (from)->header_out;                                             \
		(to)->answers_in = (from)->answers_in & 1U;                                        \
		(to)->answers_out = (from)->answers_out & 3U;                                      \
		(to)->shaped = (from)->shaped & 7U;                                                \
		(to)->graft_refusal = (from)->graft_refusal;                                       \
		(to)->nodelay_due = (from)->nodelay_due;                                           \
	} while (0)

/* --- the session that is handed over --- */

/* User space carries flow DIR, or has carried it to its end. */
static bool record_may_have(const struct session *s, unsigned int dir)
{
	return s->flows[dir].phase == FLOW_USER || s->flows[dir].phase == FLOW_DONE;
}

static bool record_flow(struct session *s, unsigned int dir, struct flow_record *ret)
{
	struct flow *f = &s->flows[dir];
	/* the counts of sockmap's programs stay with this daemon */
	uint64_t kernel = session_sockmap_bytes(s, dir);

	*ret = (struct flow_record){ .user_in = f->user_in + kernel,
				     .user_out = f->user_out + kernel,
				     .spliced = f->spliced,
				     .handovers = f->handovers,
				     .done = f->phase == FLOW_DONE };
	if (carrier_leave_pipe(f, &s->worker->pool))
		return false;
	ret->pending = f->pending;
	return true;
}

bool session_record_is_settled(const struct session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++)
		if (!record_may_have(s, dir) || s->flows[dir].pending)
			return false;
	return s->state == SESSION_OPEN && s->graft == NO_GRAFT && !s->ending;
}

bool session_record_put(struct session *s, bool same, struct bundle *b)
{
	bool connected = s->state >= SESSION_OPEN;
	struct session_record r;
	int fds[2] = { s->sides[CLIENT].fd, s->sides[UPSTREAM].fd };
	struct record to = { .kind = HANDED_SESSION,
			     .of = s->forward->tag,
			     .at = (uint8_t *)&r,
			     .size = sizeof(r),
			     .fds = fds,
			     .n_fds = connected ? 2 : 1 };
	uint8_t *bytes;

	memset(&r, 0, sizeof(r)); /* with its padding: records are compared */
	r.state = connected;
	r.client = s->client;
	r.told = !!s->told;
	r.waits_since_ms = session_connect_waits(s);
	SAME(&r, s);
	if (s->ending || !record_may_have(s, CLIENT) || !record_may_have(s, UPSTREAM) ||
	    (connected && (!s->addrs || !session_graft_withdraw(s))))
		return false;
	s->graft_refusal = r.graft_refusal; /* not that it closes */
	if (connected)
		r.upstream = session_address(s, s->upstream);
	r.graft = connected ? s->graft : NO_GRAFT;
	if (r.graft != NO_GRAFT && !same)
		return false;
	if (r.graft != NO_GRAFT)
		r.pins = (uint32_t)graft_table_pins(s->worker->shared->grafts);
	if (s->state == SESSION_PARTING)
		r.state = (uint8_t)(2 + s->parted);
	for (unsigned int dir = 0; dir < 2 && connected; dir++)
		if (!record_flow(s, dir, &r.flows[dir]))
			return false;
	if (s->told) {
		r.admitted = s->told->admitted;
		r.due_ms = s->told->due_ms;
		r.peer = s->told->peer;
		r.postgres = s->told->postgres != POSTGRES_NOT;
		r.header = s->told->header;
		strcpy(r.server_name, s->told->server_name);
	}
	to.n_more = r.flows[0].pending + r.flows[1].pending;
	bytes = bundle_put(b, &to);
	for (unsigned int dir = 0; dir < 2 && bytes && to.n_more; dir++) {
		carrier_get_pending(&s->flows[dir], bytes);
		bytes += r.flows[dir].pending;
	}
	return bytes;
}

void session_record_frozen(const struct session *s, struct bundle *b)
{
	int fds[2] = { s->sides[CLIENT].fd, s->sides[UPSTREAM].fd };
	uint32_t slot = s->graft;

	if (fds[CLIENT] >= 0) /* else it is too young to have some */
		bundle_put(b, &(struct record){
				      .kind = HANDED_FROZEN,
				      .of = (uint32_t)graft_table_pins(s->worker->shared->grafts),
				      .at = (uint8_t *)&slot,
				      .size = sizeof(slot),
				      .fds = fds,
				      .n_fds = 2 });
}

/* --- the session that is taken over --- */

uint64_t session_record_id(const struct record *r)
{
	uint64_t id; /* the first field */

	record_read(r, &id, sizeof(id));
	return id;
}

struct session_record *session_record_read(const struct graft_table *gs, const struct record *from)
{
	struct session_record *r = malloc(sizeof(*r));

	if (!r)
		return NULL;
	record_read(from, r, sizeof(*r));
	r->server_name[TLS_NAME_MAX] = '\0';
	r->upstream.len = (socklen_t)smaller(r->upstream.len, sizeof(r->upstream.ss));
	if (from->n_fds == (r->state ? 2 : 1) && r->state <= 2 + UPSTREAM &&
	    from->n_more == (uint64_t)r->flows[0].pending + r->flows[1].pending &&
	    (r->graft == NO_GRAFT || (gs && r->pins == (uint32_t)graft_table_pins(gs))))
		return r;
	free(r);
	return NULL;
}

const union client_addr *session_record_client(const struct session_record *r, bool *ret_admitted)
{
	*ret_admitted = r->admitted || !r->told;
	return &r->client;
}

uint64_t session_record_waits(const struct session_record *r)
{
	return r->state ? 0 : r->waits_since_ms;
}

/* In place of session_header_expect(). */
static int record_apply_told(struct session *s, const struct session_record *r)
{
	struct told *told = r->told ? calloc(1, sizeof(*told) + strlen(r->server_name) + 1) : NULL;

	if (!told)
		return r->told ? -ENOMEM : 0;
	told->peer = r->peer;
	told->header = r->header;
	told->due_ms = r->due_ms;
	told->admitted = r->admitted;
	told->postgres = r->postgres ? POSTGRES_CLIENT : POSTGRES_NOT;
	strcpy(told->server_name, r->server_name);
	s->told = told;
	return 0;
}

static int record_apply_flow(struct session *s, unsigned int dir, const struct flow_record *r,
			     const uint8_t *bytes)
{
	struct flow *f = &s->flows[dir];

	f->user_in = r->user_in;
	f->user_out = r->user_out;
	f->spliced = r->spliced;
	f->handovers = r->handovers;
	if (r->pending && carrier_put_pending(f, &s->worker->pool, bytes, r->pending))
		return -ENOMEM;
	if (r->done)
		flow_set_phase(f, FLOW_DONE);
	return 0;
}

int session_record_apply(struct session *s, const struct session_record *r,
			 const struct record *from)
{
	int e = record_apply_told(s, r);

	SAME(s, r);
	shared_saw_id(s->worker->shared, s->id);
	s->sides[CLIENT].fd = from->fds[0];
	if (!r->state)
		return e;
	s->sides[UPSTREAM].fd = from->fds[1];
	s->addrs = addr_list_new(&r->upstream, 1);
	if (!s->addrs)
		return -ENOMEM;
	s->port_offset = 0; /* it is in that address */
	s->server = servers_find(&s->forward->servers, &r->upstream);
	s->graft = r->graft;
	e = e ?: record_apply_flow(s, CLIENT, &r->flows[CLIENT], from->more);
	e = e     ?:
		    record_apply_flow(s, UPSTREAM, &r->flows[UPSTREAM],
				      from->more + r->flows[CLIENT].pending);
	return e ?: r->state;
}
