// SPDX-License-Identifier: BSD-2-Clause
/*
 * All of this runs on a control thread, with two exceptions.  sessions_take() runs on the thread of
 * each worker, and takes a snapshot of the worker's sessions as plain structs, of which the control
 * thread makes JSON afterwards.  status_descriptors() also runs on threads of metrics, and on the
 * main thread.
 */
#include "daemon/control_round.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/syscalls_allowed.h"
#include "relay/names.h"
#include "relay/session_json.h"
#include "relay/session_log.h"
#include "relay/session_life.h"
#include "relay/session_syn.h"
#include "version.h"

#define PIECE 1024             /* sessions in a piece, on average */
#define PIECE_ROOM (4 * PIECE) /* the most sessions in a piece */
#define SLICE 65536            /* bytes of a piece that a client must take in CONTROL_ANSWER_MS */
#define SUM(forward, field) forward_sum(forward, offsetof(struct forward_stats, field))

SYSCALLS_ALLOWED(
	SYSCALL(getpid), SYSCALL(fstat), SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)),
	SYSCALL(lseek), /* /proc/self/fd is read again and again, for it cannot be opened again */
	SYSCALL(getdents64));

/* --- sessions --- */

static enum cause sessions_take_view(void *arg, const struct session_view *v)
{
	struct round *r = arg;

	if (r->n_views < r->room && round_matches(r, v))
		r->views[r->n_views++] = *v;
	return CAUSE_NONE;
}

static void sessions_take(void *arg)
{
	struct round *r = arg;

	worker_visit_sessions(r->worker, r->piece, r->pieces, sessions_take_view, r);
}

static void sessions_take_other(void *arg, const struct session_view *v, const struct grafted *h)
{
	(void)h;
	sessions_take_view(arg, v);
}

/* The lock guards what the views point to.  The lock is not held while the client reads. */
static char *sessions_piece(struct round *r)
{
	struct forwards *all = &r->actions->service->forwards;
	bool locked = lock_within(&all->lock, ROUND_TIMEOUT_MS);
	size_t size = 0, len;
	char *text = NULL;
	FILE *out = open_memstream(&text, &size);

	r->n_views = 0;
	if (locked)
		round_ask(r, sessions_take);
	if (locked && request_has(r->req, KEY_ALL) && r->actions->standby)
		standby_visit(r->actions->standby, r->piece, r->pieces, sessions_take_other, r);
	if (out && !r->piece)
		fputs("{\"sessions\":\t", out);
	for (size_t i = 0; out && i < r->n_views; i++) {
		struct json_object *o = session_json(&r->views[i]);
		const char *one = json_line(o, JSON_C_TO_STRING_NOSLASHESCAPE, &len);

		if (one)
			fprintf(out, "%c%s", r->n++ ? ',' : '[', one);
		json_object_put(o);
	}
	if (locked)
		pthread_mutex_unlock(&all->lock);
	else
		r->pieces = r->piece + 1; /* end the answer: a reload has the lock, and waits */
	if (out)
		fputc('\t', out); /* where a client can cut the answer */
	if (out && r->piece + 1 == r->pieces)
		fprintf(out, "%s],\"workers_silent\":%u}\n", r->n ? "" : "[\t",
			r->silent + !locked);
	if (out)
		fclose(out);
	return text;
}

/* No more sessions than that are to be shown. */
static unsigned int sessions_most(const struct actions *a, const struct request *req)
{
	const struct shared *shared = a->service->shared;
	unsigned int n = atomic_load(&shared->live);

	for (struct grafted h = { 0 };
	     request_has(req, KEY_ALL) && a->standby && grafted_next(shared->grafts, &h); h.at++)
		n++;
	return n;
}

/*
 * The remainder of a session's id, divided by the number of pieces, chooses the session's piece.  A
 * piece has PIECE sessions on average.  So no position in a list, which may change, is kept between
 * pieces, and no session is sent twice.
 */
void sessions_stream(const struct actions *a, const struct control *c, const struct request *req,
		     int fd)
{
	struct round r = { .actions = a,
			   .req = req,
			   .name = req->values[KEY_FORWARD].text,
			   .shared = a->service->shared,
			   .views = calloc(PIECE_ROOM, sizeof(*r.views)),
			   .room = PIECE_ROOM,
			   .pieces = sessions_most(a, req) / PIECE + 1 };
	int e = r.views ? 0 : -ENOMEM;

	for (; !e && r.piece < r.pieces; r.piece++) {
		char *text = sessions_piece(&r);
		size_t len = 0;

		e = text ? 0 : -ENOMEM;
		for (const char *at = text; !e && *at; at += len) {
			len = strnlen(at, SLICE);
			e = control_send(c, fd, CONTROL_ANSWER_MS, at, len);
		}
		free(text);
	}
	free(r.views);
}

/* --- forwards --- */

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

	for (const struct addr *a = m->list->addrs; a < m->list->addrs + m->list->n; a++) {
		addr_format(&a->sa, a->len, text, sizeof(text));
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
	json_add_int(o, "weight", member_weight(m));
	json_add_int(o, "weight_configured", m->conf->weight);
	json_add_bool(o, "backup", m->conf->backup);
	json_add_int(o, "live", atomic_load(&s->live));
	json_add_int(o, "sessions", s->sessions);
	json_add_int(o, "failures", s->failures);
	json_add_text(o, "last_error", s->error);
	json_add_int(o, "last_error_age_ms", s->error_ms ? clock_ms() - s->error_ms : 0);
	json_add_text(o, "check", s->answer);
	json_add_text(o, "agent", s->agent);
	json_add_int(o, "max_sessions", m->conf->max_sessions);
	json_add_int(o, "check_age_ms", s->answer_ms ? clock_ms() - s->answer_ms : 0);
	json_add(o, "addresses", addresses);
	return o;
}

static void order_append(struct json_object *list, const char *order, const char *server,
			 const char *words)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "order", order);
	json_add_text(o, "server", server);
	json_add_text(o, "words", words ?: "");
	json_append(list, o);
}

static void server_append_orders(struct json_object *list, const struct server *s)
{
	char number[16];

	if (s->health.order != ORDER_READY)
		order_append(list, s->health.order == ORDER_DOWN ? "down" : "drain", s->name, NULL);
	snprintf(number, sizeof(number), "%u", s->weight);
	if (s->weight)
		order_append(list, "weight", s->name, number);
}

static void forward_add_servers(struct json_object *o, struct servers *ss,
				const struct upstream_orders *all)
{
	struct json_object *list = json_object_new_array(), *addresses = json_object_new_array();
	struct json_object *orders = json_object_new_array();
	struct lookup *name = servers_first_name(ss);

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++) {
		server_append_addresses(addresses, &ss->members[i]);
		json_append(list, server_json(&ss->members[i]));
		server_append_orders(orders, ss->members[i].server);
	}
	pthread_mutex_unlock(ss->lock);
	json_add(o, "addresses", addresses);
	if (name)
		json_add(o, "lookup", lookup_json(name));
	else
		json_add_null(o, "lookup");
	json_add(o, "servers", list);
	for (const struct upstream_order *its = all->list; its < all->list + all->n; its++)
		if (!strcmp(its->forward, forward_name(ss->conf)))
			order_append(orders, its->words ? "add" : "remove", its->server,
				     its->words);
	json_add(o, "orders", orders);
}

/* Bytes from the sender of direction DIR, by all carriers. */
static uint64_t forward_bytes(const struct forward *f, unsigned int dir)
{
	uint64_t n = 0;

	for (unsigned int c = 0; c < CARRIERS; c++)
		n += SUM(f, carried[dir][c]);
	return n;
}

static struct json_object *forward_json(struct forward *f, const struct round *round)
{
	const struct shared *shared = round->shared;
	const struct config *c = shared->config;
	const struct forward_conf *fc = f->conf;
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", forward_name(fc));
	json_add_text(o, "protocol", protocol_name(fc->listen.udp));
	json_add_text(o, "listen", fc->listen.text);
	json_add_text(o, "names", fc->sni ?: "");
	json_add_text(o, "upstream", fc->upstream.text);
	json_add_text(o, "balance", balance_names[fc->balance]);
	forward_add_servers(o, &f->servers, &round->actions->service->orders);
	json_add_text(o, "engine", engine_name(f->engine));
	json_add_text(o, "engine_configured", engine_name(fc->engine));
	json_add_text(o, "set_up_hindrance", session_syn_hindrance(shared, f) ?: "");
	json_add_text(o, "state", forward_state_name(f));
	json_add_text(o, "proxy_protocol", proxy_use_names[fc->proxy_protocol]);
	json_add_int(o, "max_sessions", fc->max_sessions ?: c->max_sessions);
	json_add_int(o, "max_sessions_per_client",
		     fc->max_sessions_per_client ?: c->max_sessions_per_client);
	json_add_int(o, "accept_rate", fc->accept_rate);
	json_add_int(o, "bandwidth", fc->bandwidth);
	json_add_int(o, "bandwidth_per_client", fc->bandwidth_per_client);
	/* totals belong to the forward's name, so they include sessions from before a reload */
	json_add_int(o, "live", session_syn_forward_live(shared, f));
	json_add_int(o, "waiting", atomic_load(&f->totals->queue.n));
	/* read first, so that `finished` never exceeds `accepted` */
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

/*
 * The forwards that the request names.  A forward that a reload has replaced is counted in its
 * successor, so only removed forwards are added to those of the configuration.
 */
static struct json_object *forwards_json(struct round *r)
{
	struct json_object *list = json_object_new_array();
	struct forward *f;

	TAILQ_FOREACH(f, &r->actions->service->forwards.list, in_forwards)
		if ((f->state == FORWARD_ACTIVE ||
		     (f->state == FORWARD_REMOVED && atomic_load(&f->totals->live))) &&
		    round_names(r, f))
			json_append(list, forward_json(f, r));
	return list;
}

struct json_object *forwards_command(struct round *r)
{
	round_ask(r, round_count);
	json_add(r->answer, "forwards", forwards_json(r));
	json_add_int(r->answer, "workers_silent", r->silent);
	return NULL;
}

/* --- status --- */

/* Flows and bytes by carrier, handovers, and errors by cause. */
static void status_add_sums(struct round *r)
{
	struct json_object *carriers = json_object_new_array();
	struct json_object *handovers = json_object_new_object();
	struct json_object *errors = json_object_new_object();
	const struct threads *ts = &r->actions->service->threads;

	for (unsigned int c = 0; c < CARRIERS; c++) {
		struct json_object *o = json_object_new_object();

		json_add_text(o, "carrier", carrier_names[c]);
		json_add_int(o, "flows", r->flows[c]);
		json_add_int(o, "bytes", threads_sum(ts, offsetof(struct stats, carrier_bytes[c])));
		json_append(carriers, o);
	}
	for (unsigned int i = 0; i < HANDOVERS; i++) {
		char name[16] = "failed";
		uint64_t n = 0;

		for (unsigned int why = 0; why < REASONS; why++)
			n += threads_sum(ts, offsetof(struct stats, handovers[i][why]));
		if (i < CARRIERS)
			snprintf(name, sizeof(name), "to_%s", carrier_names[i]);
		json_add_int(handovers, name, n);
	}
	for (unsigned int c = 0; c < CAUSES; c++)
		json_add_int(errors, cause_names[c],
			     threads_sum(ts, offsetof(struct stats, errors[c])));
	json_add(r->answer, "carriers", carriers);
	json_add(r->answer, "handovers", handovers);
	json_add(r->answer, "errors", errors);
}

static struct json_object *status_set_up_json(const struct shared *shared)
{
	struct json_object *o = json_object_new_object(), *past = json_object_new_object();

	json_add_int(o, "prepared", session_syn_prepared(shared));
	json_add_int(o, "half_open", graft_syn_half_open(shared->grafts));
	for (enum graft_past why = 0; why < GRAFT_PASTS; why++)
		json_add_int(past, graft_past_name(why), graft_syn_past(shared->grafts, why));
	json_add(o, "past", past);
	return o;
}

/* A feature that may be missing, and why. */
static void status_add_feature(struct json_object *list, const char *name, bool available,
			       const char *reason)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", name);
	json_add_bool(o, "available", available);
	json_add_text(o, "reason", reason);
	json_append(list, o);
}

static struct json_object *status_kernel_json(struct round *r)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	const struct probe_start *p = r->shared->probe;
	const char *no_sockmap = probe_hindrance(p, ENGINE_SOCKMAP);
	const char *no_splice = probe_hindrance(p, ENGINE_SPLICE);
	const char *no_graft = probe_hindrance(p, ENGINE_GRAFT);
	struct sockmap *k = r->shared->kernel;

	json_add_bool(o, "available", !no_sockmap);
	json_add_text(o, "reason", no_sockmap ?: "");
	status_add_feature(list, "splice", !no_splice, no_splice ?: p->of[ENGINE_SPLICE].why);
	status_add_feature(list, "graft", !no_graft, no_graft ?: "");
	status_add_feature(list, "tried at the start", p->tried, p->runs ? "not yet" : p->summary);
	json_add(o, "features", list);
	json_add_int(o, "events_lost", k ? *k->rings.lost : 0);
	return o;
}

/*
 * Since Linux 6.2 the size of the directory is the number of descriptors.  Before, count the
 * entries except "." and "..".  The directory's own descriptor is left out.  0: there is no /proc.
 */
unsigned int status_descriptors(const struct actions *a)
{
	DIR *d = a->descriptors;
	struct stat st;
	unsigned int n = 0;

	if (!d)
		return 0;
	if (!fstat(dirfd(d), &st) && st.st_size > 0)
		return (unsigned int)st.st_size - 1;
	rewinddir(d);
	while (readdir(d))
		n++;
	return n > 3 ? n - 3 : 0;
}

static struct json_object *status_resources_json(const struct round *r)
{
	struct json_object *o = json_object_new_object();
	struct sockmap *k = r->shared->kernel;

	json_add_int(o, "sessions", session_syn_live(r->shared));
	json_add_int(o, "clients", atomic_load(&r->shared->clients.n));
	json_add_int(o, "slots_used", k ? (k->n_pairs - k->n_free) * 2 : 0);
	json_add_int(o, "slots_total", k ? k->n_pairs * 2 : 0);
	json_add_int(o, "kernel_memory", k ? sockmap_memory(k) : 0);
	json_add_int(o, "kernel_memory_limit", k ? k->memory_limit : 0);
	json_add_int(o, "pipes", r->pipes);
	json_add_int(o, "pipes_idle", r->pipes_idle);
	json_add_int(o, "buffers", r->buffers);
	json_add_int(o, "fds", status_descriptors(r->actions));
	return o;
}

struct json_object *status_command(struct round *r)
{
	const struct config *c = r->shared->config;

	round_ask(r, round_count);
	json_add_text(r->answer, "version", CULVERT_VERSION);
	json_add_int(r->answer, "pid", (uint64_t)getpid());
	json_add_int(r->answer, "uptime_ms", clock_ms() - r->actions->started_ms);
	json_add_text(r->answer, "engine", engine_name(c->defaults.engine));
	json_add_int(r->answer, "workers", r->actions->service->threads.n);
	json_add_int(r->answer, "workers_silent", r->silent);
	json_add_int(r->answer, "max_sessions", c->max_sessions);
	json_add_int(r->answer, "max_sessions_per_client", c->max_sessions_per_client);
	json_add_text(r->answer, "resolver", r->shared->names ? "running" : "not needed");
	if (!request_has(r->req, KEY_BRIEF))
		json_add(r->answer, "forwards", forwards_json(r));
	json_add(r->answer, "reload", reload_json(r->actions->service));
	status_add_sums(r);
	json_add(r->answer, "kernel", status_kernel_json(r));
	if (r->shared->session_log)
		json_add(r->answer, "session_log", session_log_json(r->shared->session_log));
	else
		json_add_null(r->answer, "session_log");
	if (r->actions->standby)
		json_add(r->answer, "standby", standby_json(r->actions->standby));
	else
		json_add_null(r->answer, "standby");
	if (r->shared->syn)
		json_add(r->answer, "set_up", status_set_up_json(r->shared));
	else
		json_add_null(r->answer, "set_up");
	json_add(r->answer, "resources", status_resources_json(r));
	return NULL;
}
