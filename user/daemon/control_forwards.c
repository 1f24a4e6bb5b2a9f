// SPDX-License-Identifier: BSD-2-Clause
/* On a control thread. */
#include "daemon/control_forwards.h"

#include "base/clock.h"
#include "base/json_add.h"
#include "relay/names.h"

#define SUM(forward, field) forward_sum(forward, offsetof(struct forward_stats, field))

static struct json_object *lookup_json(struct lookup *l)
{
	struct json_object *o = json_object_new_object();
	struct lookup_record record;

	lookup_record(l, &record);
	json_add_int(o, "interval_ms", l->forward->resolve_interval_ms);
	json_add_int(o, "age_ms", clock_ms() - record.resolved_ms);
	json_add_int(o, "lookups", record.lookups);
	json_add_int(o, "failures", record.failures);
	json_add_text(o, "error", record.why);
	return o;
}

/* Add the addresses of M to LIST, in the order in which new sessions try them. */
static void server_append_addresses(struct json_object *list, const struct member *m)
{
	char text[ADDR_STRLEN];

	for (size_t i = 0; i < m->list->n; i++) {
		const struct addr *a = &m->list->addrs[i];

		addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
		json_append(list, json_object_new_string(text));
	}
}

static struct json_object *server_json(const struct member *m)
{
	struct json_object *o = json_object_new_object(), *addresses = json_object_new_array();
	struct server *s = m->server;
	enum server_state state = health_state(&s->health, clock_ms());

	server_append_addresses(addresses, m);
	json_add_text(o, "server", s->name);
	json_add_text(o, "state", m->list->n ? server_state_names[state] : "no-address");
	json_add_int(o, "weight", m->conf->weight);
	json_add_bool(o, "backup", m->conf->backup);
	json_add_int(o, "live", atomic_load(&s->live));
	json_add_int(o, "sessions", s->sessions);
	json_add_int(o, "failures", s->failures);
	json_add_text(o, "last_error", s->error);
	json_add_int(o, "last_error_age_ms", s->error_ms ? clock_ms() - s->error_ms : 0);
	json_add(o, "addresses", addresses);
	return o;
}

static void forward_add_servers(struct json_object *o, struct servers *ss)
{
	struct json_object *list = json_object_new_array(), *addresses = json_object_new_array();
	struct lookup *name = servers_first_name(ss);

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++) {
		server_append_addresses(addresses, &ss->members[i]);
		json_append(list, server_json(&ss->members[i]));
	}
	pthread_mutex_unlock(ss->lock);
	json_add(o, "addresses", addresses);
	if (name)
		json_add(o, "lookup", lookup_json(name));
	else
		json_add_null(o, "lookup");
	json_add(o, "servers", list);
}

/* Taken from the sender of direction DIR, by whatever carries it. */
static uint64_t forward_bytes(const struct forward *f, unsigned int dir)
{
	uint64_t n = 0;

	for (unsigned int c = 0; c < CARRIERS; c++)
		n += SUM(f, carried[dir][c]);
	return n;
}

static struct json_object *forward_json(struct forward *f, const struct config *c)
{
	const struct forward_conf *fc = f->conf;
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", forward_name(fc));
	json_add_text(o, "protocol", protocol_name(fc->listen.udp));
	json_add_text(o, "listen", fc->listen.text);
	json_add_text(o, "names", fc->sni ?: "");
	json_add_text(o, "upstream", fc->upstream.text);
	json_add_text(o, "balance", balance_names[fc->balance]);
	forward_add_servers(o, &f->servers);
	json_add_text(o, "engine", engine_name(f->engine));
	json_add_text(o, "engine_configured", engine_name(fc->engine));
	json_add_text(o, "state", forward_state_name(f));
	json_add_text(o, "proxy_protocol", proxy_use_names[fc->proxy_protocol]);
	json_add_int(o, "max_sessions", fc->max_sessions ?: c->max_sessions);
	json_add_int(o, "max_sessions_per_client",
		     fc->max_sessions_per_client ?: c->max_sessions_per_client);
	json_add_int(o, "accept_rate", fc->accept_rate);
	json_add_int(o, "bandwidth", fc->bandwidth);
	json_add_int(o, "bandwidth_per_client", fc->bandwidth_per_client);
	/* where a reload has changed it the totals are those of the name */
	json_add_int(o, "live", atomic_load(&f->totals->live));
	/* before accepted: a session that comes and goes meanwhile must not make it exceed that */
	json_add_int(o, "finished", SUM(f, finished));
	json_add_int(o, "moved", SUM(f, moved));
	json_add_int(o, "accepted", SUM(f, accepted));
	json_add_int(o, "adopted", SUM(f, adopted));
	json_add_int(o, "denied", SUM(f, denied));
	json_add_int(o, "bytes_to_upstream", forward_bytes(f, CLIENT));
	json_add_int(o, "bytes_to_client", forward_bytes(f, UPSTREAM));
	json_add_int(o, "datagrams_to_upstream", SUM(f, datagrams[CLIENT]));
	json_add_int(o, "datagrams_to_client", SUM(f, datagrams[UPSTREAM]));
	return o;
}

struct json_object *forwards_json(struct round *r)
{
	struct json_object *list = json_object_new_array();

	for (struct forward *f = r->actions->service->forwards.first; f; f = f->next)
		if ((f->state == FORWARD_ACTIVE ||
		     (f->state == FORWARD_REMOVED && atomic_load(&f->totals->live))) &&
		    round_names(r, f))
			json_append(list, forward_json(f, r->shared->config));
	return list;
}

struct json_object *forwards_command(struct round *r)
{
	round_ask(r, round_count);
	json_add(r->answer, "forwards", forwards_json(r));
	json_add_int(r->answer, "workers_silent", r->silent);
	return NULL;
}
