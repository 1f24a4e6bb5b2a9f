// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_json.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/minmax.h"
#include "relay/session_graft.h"

/* Why F is grafted.  F->reason may still be the reason of the carrier that F had before. */
static enum reason graft_reason(const struct flow *f)
{
	if (f->reason == REASON_ADOPTED || f->reason == REASON_FROM_SYN ||
	    f->reason == REASON_ENGINE)
		return (enum reason)f->reason;
	return REASON_ELIGIBLE;
}

/* The bytes of flow DIR that the kernel has carried, and how many of them are counted. */
static uint64_t kernel_bytes(const struct session *s, unsigned int dir,
			     volatile __u64 **ret_counted)
{
	struct shared *shared = s->worker->shared;
	uint32_t slot = s->pair * 2 + dir;

	if (s->graft != NO_GRAFT) {
		*ret_counted = &graft_of(shared->grafts, s->graft)->counted[dir];
		return graft_bytes(shared->grafts, s->graft, dir);
	}
	if (s->pair == NO_PAIR)
		return 0;
	*ret_counted = &shared->kernel->ctls[slot].counted;
	return shared->kernel->stats[slot].bytes;
}

void session_count_kernel(struct session *s)
{
	bool grafted = !s->graft_counted && session_is_grafted(s);
	/* a session never has a graft and slots of sockmap at a time */
	enum carrier carrier = s->graft != NO_GRAFT ? CARRIER_GRAFT : CARRIER_SOCKMAP;
	counter *handovers = s->worker->stats.handovers[CARRIER_GRAFT];

	for (unsigned int dir = 0; dir < 2; dir++) {
		volatile __u64 *counted = NULL;
		uint64_t bytes = kernel_bytes(s, dir, &counted);

		/* a graft that returns to its sockets takes unacknowledged bytes off its count */
		if (bytes && bytes > *counted) {
			session_count_carried(s, dir, carrier, bytes - *counted);
			*counted = bytes;
		}
		if (grafted)
			count_add(&handovers[graft_reason(&s->flows[dir])], 1);
	}
	s->graft_counted = s->graft_counted || grafted;
}

void session_count_copied(struct session *s, unsigned int dir, enum carrier c, uint64_t bytes)
{
	volatile __u64 *counted;
	uint64_t again = 0, carried;

	if (s->graft != NO_GRAFT) {
		carried = kernel_bytes(s, dir, &counted);
		again = *counted > carried ? smaller(*counted - carried, bytes) : 0;
		*counted -= again;
	}
	session_count_carried(s, dir, c, bytes - again);
}

/*
 * GRAFTED: session_is_grafted(), which the caller has called once, so that carrier and reason agree
 * in both flows.
 */
static struct flow_view view_flow(const struct session *s, unsigned int dir, bool grafted)
{
	const struct flow *f = &s->flows[dir];
	const struct shared *shared = s->worker->shared;
	uint32_t slot = s->pair * 2 + dir;
	/*
	 * Bytes that wait in the pipe of splice are not delivered yet.  All other bytes that user
	 * space has written were copied, even those that the program had passed.
	 */
	uint64_t spliced = f->spliced - (f->pipe ? f->pending : 0);
	volatile __u64 *counted;

	return (struct flow_view){
		.carrier = grafted ? CARRIER_GRAFT : flow_carrier(f),
		.reason = grafted ? graft_reason(f) : (enum reason)f->reason,
		/* a session that is RETURNING may be at its sockets at any moment */
		.phase = !grafted ? (enum flow_phase)f->phase :
			 graft_state(shared->grafts, s->graft) == GRAFT_RETURNING ? FLOW_LEAVING :
										    FLOW_KERNEL,
		.eof = f->phase == FLOW_DONE,
		.handovers = f->handovers + grafted,
		.copied = f->user_out - spliced,
		.spliced = spliced,
		.kernel = kernel_bytes(s, dir, &counted),
		.backlog_max = s->pair == NO_PAIR ? 0 : shared->kernel->stats[slot].backlog_max,
	};
}

void session_view(const struct session *s, struct session_view *ret)
{
	uint64_t now = s->worker->loop.now_ms;
	bool grafted = session_is_grafted(s);
	const struct shared *shared = s->worker->shared;

	*ret = (struct session_view){
		.id = s->id,
		.forward = s->forward,
		.server = s->server,
		.worker = s->worker->index,
		.state = (enum session_state)s->state,
		.age_ms = now > s->born_ms ? now - s->born_ms : 0,
		.connect_ms = s->connect_ms,
		.client = s->client,
		.not_grafted = session_graft_hindrance(s),
		.shaped = s->shaped,
		.standby = standby_text(shared, grafted,
					grafted && graft_is_told(shared->grafts, s->graft)),
		.flows = { view_flow(s, CLIENT, grafted), view_flow(s, UPSTREAM, grafted) },
	};
	if (s->told && s->told->header.has_addresses)
		ret->via = s->told->peer;
	if (s->told)
		snprintf(ret->server_name, sizeof(ret->server_name), "%s", s->told->server_name);
	if (s->addrs)
		ret->upstream = session_address(s, s->upstream);
}

/* --- JSON: fields of living and of ended sessions --- */

static void add_identity(struct json_object *o, const struct session_view *v)
{
	char text[ADDR_STRLEN];

	if (v->id)
		json_add_int(o, "id", v->id);
	else
		json_add_null(o, "id");
	json_add_text(o, "forward", forward_name(v->forward->conf));
	json_add_text(o, "protocol", protocol_name(v->forward->conf->listen.udp));
	json_add_text(o, "client", client_addr_text(&v->client, text, sizeof(text)));
	if (v->via.sa.sa_family != AF_UNSPEC)
		json_add_text(o, "via", client_addr_text(&v->via, text, sizeof(text)));
}

/* OTHERWISE is for a session that has tried no address; it may be NULL. */
static void add_upstream(struct json_object *o, const struct session_view *v, const char *otherwise)
{
	const struct addr *to = &v->upstream;
	char text[ADDR_STRLEN];

	if (to->len)
		otherwise = addr_format(&to->sa, to->len, text, sizeof(text));
	if (otherwise)
		json_add_text(o, "upstream", otherwise);
	else
		json_add_null(o, "upstream");
}

static struct json_object *flow_json(const struct flow_view *f, unsigned int dir, bool ended)
{
	static const char *const directions[] = { "client-to-upstream", "upstream-to-client" };
	struct json_object *o = json_object_new_object();

	json_add_text(o, "direction", directions[dir]);
	json_add_text(o, "carrier", carrier_names[f->carrier]);
	if (!ended)
		json_add_text(o, "phase", flow_phase_names[f->phase]);
	json_add_text(o, "reason", reason_names[f->reason]);
	json_add_int(o, "handovers", f->handovers);
	if (ended) {
		json_add_int(o, "copy_bytes", f->copied);
		json_add_int(o, "splice_bytes", f->spliced);
	}
	json_add_int(o, "kernel_bytes", f->kernel);
	json_add_int(o, "datagrams", f->datagrams);
	if (!ended) {
		json_add_int(o, "bytes", flow_view_bytes(f));
		json_add_int(o, "backlog_max", f->backlog_max);
		json_add_bool(o, "eof", f->eof);
	}
	return o;
}

/* A client that was turned away had no connection, and so no flows. */
static void add_flows(struct json_object *o, const struct session_view *v, bool ended)
{
	struct json_object *flows = json_object_new_array();

	for (unsigned int dir = 0; dir < 2 && (!ended || v->connect_ms); dir++)
		json_append(flows, flow_json(&v->flows[dir], dir, ended));
	json_add(o, "flows", flows);
}

/* --- JSON: a session that lives --- */

static struct json_object *shaped_json(uint8_t shaped)
{
	static const char *const names[] = { "mss", "timestamps", "ecn" }; /* of enum shaped */
	struct json_object *list = json_object_new_array();

	for (unsigned int i = 0; i < 3; i++)
		if (shaped & 1 << i)
			json_append(list, json_object_new_string(names[i]));
	return list;
}

struct json_object *session_json(const struct session_view *v)
{
	static const char *const states[SESSION_STATES] = {
		[SESSION_HEADER] = "header", [SESSION_CONNECTING] = "connecting",
		[SESSION_OPEN] = "open",     [SESSION_PARTING] = "parting",
		[SESSION_DEAD] = "dead",
	};
	struct json_object *o = json_object_new_object();

	add_identity(o, v);
	add_upstream(o, v, v->forward->conf->upstream.text); /* all servers, before one is chosen */
	json_add_int(o, "worker", v->worker);
	json_add_text(o, "state", states[v->state]);
	json_add_int(o, "age_ms", v->age_ms);
	json_add_text(o, "not_grafted", v->not_grafted);
	json_add(o, "shaped", shaped_json(v->shaped));
	json_add_text(o, "standby", v->standby);
	json_add_text(o, "server_name", v->server_name);
	add_flows(o, v, false);
	return o;
}

/* --- JSON: a session that has ended --- */

struct json_object *session_ended_json(const struct session_view *v, unsigned int end)
{
	struct json_object *o = json_object_new_object();
	uint64_t now = clock_real_ms();
	char text[ADDR_STRLEN];

	json_add_text(o, "time", log_time(now, text));
	json_add_text(o, "start", log_time(now - v->age_ms, text));
	add_identity(o, v);
	if (v->server_name[0])
		json_add_text(o, "server_name", v->server_name);
	add_upstream(o, v, NULL);
	json_add_text(o, "end", session_end_name(end));
	json_add_int(o, "duration_ms", v->age_ms);
	if (v->connect_ms)
		json_add_int(o, "connect_ms", v->connect_ms - 1);
	else
		json_add_null(o, "connect_ms");
	json_add_int(o, "bytes_to_upstream", flow_view_bytes(&v->flows[CLIENT]));
	json_add_int(o, "bytes_to_client", flow_view_bytes(&v->flows[UPSTREAM]));
	add_flows(o, v, true);
	return o;
}
