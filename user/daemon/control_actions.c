// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the actions, one function for each command of a request; the table is at the
 * end.  What looks at sessions or changes them runs on their workers' threads, one after the other,
 * between two batches of events, so there are no locks on the payload path.  A look takes a
 * snapshot of plain structs, of which the JSON is made afterwards, on a control thread.  A worker
 * that does not answer in time is counted, and what it has is missing.
 */
#include "daemon/control_actions.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "config/config.h"
#include "daemon/drain.h"
#include "daemon/reload.h"
#include "relay/names.h"
#include "relay/session_json.h"
#include "relay/session_log.h"
#include "relay/worker_sessions.h"
#include "version.h"

#define ROUND_TIMEOUT_MS 2000  /* for all workers together, */
#define ROUND_LEAST_MS 20      /* ... but for each at least */
#define PIECE 1024             /* sessions, by the mean, that are shown at a time, */
#define PIECE_ROOM (4 * PIECE) /* and at most */
#define SLICE 65536            /* bytes of that for which a client has CONTROL_ANSWER_MS */

SYSCALLS_ALLOWED(
	SYSCALL(getpid),
	SYSCALL(fstat),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)),
	SYSCALL(lseek), /* /proc/self/fd is read again and again, for it cannot be opened again */
	SYSCALL(getdents64));

/* --- rounds --- */

/*
 * A request, and what all workers have found for it, each in its turn.  The lock of forwards is
 * held, so no forward that a session points to is freed.
 */
struct round {
	const struct actions *actions;
	const struct request *req;
	struct json_object *answer; /* what was done and seen; the caller's */
	const char *name;           /* of a forward, in the request; NULL: none is given */
	struct forward *named;      /* that forward: the active one, if there is one */
	struct shared *shared;
	const struct server *server; /* NULL: the request is not about one */
	struct worker *worker;       /* whose turn it is */
	unsigned int silent;         /* workers that have not answered */
	unsigned int n;              /* sessions that were reset, or flows that move */
	struct session_view *views;  /* owned; of sessions that the filter matches */
	size_t n_views, room;        /* no room: only sums are wanted */
	unsigned int piece, pieces;  /* views are of the sessions whose number has the rest PIECE */
	bool deaf[WORKERS_MAX];      /* workers that have not answered, and are asked no more */
	uint64_t flows[CARRIERS];
	uint64_t pipes, pipes_idle, buffers;
};

/* Run FN on the thread of each worker; one that has ended has no sessions. */
static void ask_workers(struct round *r, void (*fn)(void *arg))
{
	const struct reload *reload = r->actions->reload;
	uint64_t end_ms = clock_ms() + ROUND_TIMEOUT_MS;

	for (unsigned int i = 0; i < reload->threads.n; i++) {
		uint64_t now = clock_ms();
		int e, left = end_ms > now + ROUND_LEAST_MS ? (int)(end_ms - now) : ROUND_LEAST_MS;

		if (r->deaf[i])
			continue;
		r->worker = &reload->threads.workers[i];
		e = loop_call(&r->worker->loop, fn, r, left);
		r->deaf[i] = e && e != -ESRCH;
		r->silent += r->deaf[i];
	}
}

static bool has_id(struct json_object *ids, uint64_t id)
{
	if (!json_object_is_type(ids, json_type_array))
		return json_object_get_uint64(ids) == id;
	for (size_t i = 0; i < json_object_array_length(ids); i++)
		if (json_object_get_uint64(json_object_array_get_idx(ids, i)) == id)
			return true;
	return false;
}

/* Has F the name in the request, if there is one in it? */
static bool is_named(const struct round *r, const struct forward *f)
{
	return !r->name || !strcmp(forward_name(f->conf), r->name);
}

/* Is it one of those that the request is about?  On the thread of its worker. */
static bool is_meant(const void *arg, const struct session_view *v)
{
	const struct round *r = arg;
	const struct request *req = r->req;
	uint64_t carrier = req->values[KEY_CARRIER].number;

	if (req->ids && !has_id(req->ids, v->id))
		return false;
	if (request_has(req, KEY_CARRIER) && v->flows[CLIENT].carrier != carrier &&
	    v->flows[UPSTREAM].carrier != carrier)
		return false;
	if (!is_named(r, v->forward))
		return false;
	if (r->server && v->server != r->server)
		return false;
	if (request_has(req, KEY_SERVER_NAME) &&
	    strcasecmp(req->values[KEY_SERVER_NAME].text, v->server_name) != 0)
		return false;
	return !req->clients.n || acl_allows(&req->clients, &v->client.sa);
}

static void take_view(void *arg, const struct session_view *v)
{
	struct round *r = arg;

	if (r->n_views < r->room && is_meant(r, v))
		r->views[r->n_views++] = *v;
}

/* On the worker's thread. */
static void take_views(void *arg)
{
	struct round *r = arg;

	worker_visit_sessions(r->worker, r->piece, r->pieces, take_view, r);
}

/* On the worker's thread. */
static void count(void *arg)
{
	struct round *r = arg;
	struct worker *w = r->worker;

	worker_count_sessions(w, r->flows);
	r->pipes += w->pool.pipes_lent + w->pool.pipes_idle;
	r->pipes_idle += w->pool.pipes_idle;
	r->buffers += w->pool.buffers_lent;
}

void actions_count(const struct actions *a)
{
	struct round r = { .actions = a };

	ask_workers(&r, count);
}

/* --- sessions --- */

/* The answer is made by stream_sessions(), unless there is an error. */
static struct json_object *do_sessions(struct round *r)
{
	(void)r;
	return NULL;
}

/* The lock is held while the views have pointers, and not while a client takes its time. */
static char *piece_text(struct round *r)
{
	struct forwards *all = &r->actions->reload->forwards;
	bool locked = lock_within(&all->lock, ROUND_TIMEOUT_MS);
	size_t size = 0, len;
	char *text = NULL;
	FILE *out = open_memstream(&text, &size);

	r->n_views = 0;
	if (locked)
		ask_workers(r, take_views);
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
		r->pieces = r->piece + 1; /* a reload waits for a worker that does not answer */
	if (out)
		fputc('\t', out); /* where a client can cut the answer */
	if (out && r->piece + 1 == r->pieces)
		fprintf(out, "%s],\"workers_silent\":%u}\n", r->n ? "" : "[\t",
			r->silent + !locked);
	if (out)
		fclose(out);
	return text;
}

/*
 * A piece has the sessions whose numbers have one rest, PIECE of them by the mean.  So it needs no
 * place in lists that change between two pieces, and nobody gets a session twice.
 */
static void stream_sessions(const struct actions *a, const struct control *c,
			    const struct request *req, int fd)
{
	struct round r = { .actions = a,
			   .req = req,
			   .name = req->values[KEY_FORWARD].text,
			   .shared = a->reload->shared,
			   .views = calloc(PIECE_ROOM, sizeof(*r.views)),
			   .room = PIECE_ROOM,
			   .pieces = atomic_load(&a->reload->shared->live) / PIECE + 1 };
	int e = r.views ? 0 : -ENOMEM;

	for (; !e && r.piece < r.pieces; r.piece++) {
		char *text = piece_text(&r);
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

/* --- sums --- */

uint64_t actions_sum(const struct actions *a, size_t at)
{
	const struct threads *ts = &a->reload->threads;
	uint64_t n = 0;

	for (unsigned int w = 0; w < ts->n; w++)
		n += count_get((counter *)((char *)&ts->workers[w].stats + at));
	return n;
}

uint64_t actions_sum_forward(const struct forward *f, size_t at)
{
	uint64_t n = 0;

	for (unsigned int w = 0; w < f->totals->n_workers; w++)
		n += count_get((counter *)((char *)&f->totals->stats[w] + at));
	return n;
}

#define SUM(forward, field) actions_sum_forward(forward, offsetof(struct forward_stats, field))

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
static void append_addresses(struct json_object *list, const struct member *m)
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

	append_addresses(addresses, m);
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

static void add_servers(struct json_object *o, struct servers *ss)
{
	struct json_object *list = json_object_new_array(), *addresses = json_object_new_array();
	struct lookup *name = servers_first_name(ss);

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++) {
		append_addresses(addresses, &ss->members[i]);
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
static uint64_t bytes_of(const struct forward *f, unsigned int dir)
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
	add_servers(o, &f->servers);
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
	json_add_int(o, "bytes_to_upstream", bytes_of(f, CLIENT));
	json_add_int(o, "bytes_to_client", bytes_of(f, UPSTREAM));
	json_add_int(o, "datagrams_to_upstream", SUM(f, datagrams[CLIENT]));
	json_add_int(o, "datagrams_to_client", SUM(f, datagrams[UPSTREAM]));
	return o;
}

/*
 * One that a reload has replaced is part of that which has its name: only what the configuration
 * lacks is added.
 */
static struct json_object *forwards_json(struct round *r)
{
	struct json_object *list = json_object_new_array();

	for (struct forward *f = r->actions->reload->forwards.first; f; f = f->next)
		if ((f->state == FORWARD_ACTIVE ||
		     (f->state == FORWARD_REMOVED && atomic_load(&f->totals->live))) &&
		    is_named(r, f))
			json_append(list, forward_json(f, r->shared->config));
	return list;
}

static struct json_object *do_forwards(struct round *r)
{
	ask_workers(r, count);
	json_add(r->answer, "forwards", forwards_json(r));
	json_add_int(r->answer, "workers_silent", r->silent);
	return NULL;
}

/* --- status --- */

/* What carries the flows, what they were handed over to, and what went wrong. */
static void add_sums(struct round *r)
{
	struct json_object *carriers = json_object_new_array();
	struct json_object *handovers = json_object_new_object();
	struct json_object *errors = json_object_new_object();
	const struct actions *a = r->actions;

	for (unsigned int c = 0; c < CARRIERS; c++) {
		struct json_object *o = json_object_new_object();

		json_add_text(o, "carrier", carrier_names[c]);
		json_add_int(o, "flows", r->flows[c]);
		json_add_int(o, "bytes", actions_sum(a, offsetof(struct stats, carrier_bytes[c])));
		json_append(carriers, o);
	}
	for (unsigned int i = 0; i < HANDOVERS; i++) {
		char name[16] = "failed";
		uint64_t n = 0;

		for (unsigned int why = 0; why < REASONS; why++)
			n += actions_sum(a, offsetof(struct stats, handovers[i][why]));
		if (i < CARRIERS)
			snprintf(name, sizeof(name), "to_%s", carrier_names[i]);
		json_add_int(handovers, name, n);
	}
	for (unsigned int c = 0; c < CAUSES; c++)
		json_add_int(errors, cause_name(c),
			     actions_sum(a, offsetof(struct stats, errors[c])));
	json_add(r->answer, "carriers", carriers);
	json_add(r->answer, "handovers", handovers);
	json_add(r->answer, "errors", errors);
}

/* A feature that may be missing, and why. */
static void add_feature(struct json_object *list, const char *name, bool available,
			const char *reason)
{
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", name);
	json_add_bool(o, "available", available);
	json_add_text(o, "reason", reason);
	json_append(list, o);
}

static struct json_object *kernel_json(struct round *r)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	const struct probe_start *p = r->actions->probe;
	const char *no_sockmap = probe_hindrance(p, ENGINE_SOCKMAP);
	const char *no_splice = probe_hindrance(p, ENGINE_SPLICE);
	const char *no_graft = probe_hindrance(p, ENGINE_GRAFT);
	struct sockmap *k = r->shared->kernel;

	json_add_bool(o, "available", !no_sockmap);
	json_add_text(o, "reason", no_sockmap ?: "");
	add_feature(list, "splice", !no_splice, no_splice ?: p->of[ENGINE_SPLICE].why);
	add_feature(list, "graft", !no_graft, no_graft ?: "");
	add_feature(list, "tried at the start", p->tried, p->runs ? "not yet" : p->summary);
	json_add(o, "features", list);
	json_add_int(o, "events_lost", k ? *sockmap_rings(k)->lost : 0);
	return o;
}

/*
 * Since Linux 6.2 the size of the directory is the number of descriptors.  Before, count the
 * entries but for "." and "..".  The directory's own descriptor is left out.  0: there is no /proc.
 */
unsigned int actions_descriptors(const struct actions *a)
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

static struct json_object *resources_json(const struct round *r)
{
	struct json_object *o = json_object_new_object();
	struct sockmap *k = r->shared->kernel;

	json_add_int(o, "sessions", atomic_load(&r->shared->live));
	json_add_int(o, "clients", atomic_load(&r->shared->clients.n));
	json_add_int(o, "slots_used", k ? sockmap_pairs_used(k) * 2 : 0);
	json_add_int(o, "slots_total", k ? sockmap_pairs_total(k) * 2 : 0);
	json_add_int(o, "kernel_memory", k ? sockmap_memory(k) : 0);
	json_add_int(o, "kernel_memory_limit", k ? sockmap_memory_limit(k) : 0);
	json_add_int(o, "pipes", r->pipes);
	json_add_int(o, "pipes_idle", r->pipes_idle);
	json_add_int(o, "buffers", r->buffers);
	json_add_int(o, "fds", actions_descriptors(r->actions));
	return o;
}

static struct json_object *do_status(struct round *r)
{
	const struct config *c = r->shared->config;

	ask_workers(r, count);
	json_add_text(r->answer, "version", CULVERT_VERSION);
	json_add_int(r->answer, "pid", (uint64_t)getpid());
	json_add_int(r->answer, "uptime_ms", clock_ms() - r->actions->started_ms);
	json_add_text(r->answer, "engine", engine_name(c->defaults.engine));
	json_add_int(r->answer, "workers", r->actions->reload->threads.n);
	json_add_int(r->answer, "workers_silent", r->silent);
	json_add_int(r->answer, "max_sessions", c->max_sessions);
	json_add_int(r->answer, "max_sessions_per_client", c->max_sessions_per_client);
	json_add_text(r->answer, "resolver", r->shared->names ? "running" : "not needed");
	if (!request_has(r->req, KEY_BRIEF))
		json_add(r->answer, "forwards", forwards_json(r));
	json_add(r->answer, "reload", reload_json(r->actions->reload));
	add_sums(r);
	json_add(r->answer, "kernel", kernel_json(r));
	if (r->shared->session_log)
		json_add(r->answer, "session_log", session_log_json(r->shared->session_log));
	else
		json_add_null(r->answer, "session_log");
	if (r->actions->standby)
		json_add(r->answer, "standby", standby_json(r->actions->standby));
	else
		json_add_null(r->answer, "standby");
	json_add(r->answer, "resources", resources_json(r));
	return NULL;
}

/* --- kill --- */

static void kill_some(void *arg)
{
	struct round *r = arg;

	r->n += worker_end_sessions(r->worker, is_meant, r, CAUSE_KILLED);
}

static struct json_object *do_kill(struct round *r)
{
	ask_workers(r, kill_some);
	json_add_int(r->answer, "killed", r->n);
	return NULL;
}

/* --- engine --- */

static void follow_engines(void *arg)
{
	struct round *r = arg;

	r->n += worker_follow_engines(r->worker);
}

/* Say why ENGINE is not available here; NULL: it is. */
static const char *engine_hindrance(const struct round *r, enum engine engine)
{
	if (engine == ENGINE_AUTO || engine == ENGINE_COPY || engine == ENGINE_DEFAULT)
		return NULL;
	if (engine == ENGINE_GRAFT && !r->shared->grafts)
		return "no engine of the start could graft: restart culvert";
	return probe_hindrance(r->actions->probe, engine);
}

/* The engine of all forwards of that name: one that a reload has replaced still has sessions. */
static struct json_object *do_engine(struct round *r)
{
	enum engine engine = (enum engine)r->req->values[KEY_ENGINE].number;

	if (request_has(r->req, KEY_ENGINE)) {
		const char *hindrance = engine_hindrance(r, engine);

		if (hindrance)
			return request_error_json(ERROR_UNSUPPORTED, "engine %s: %s",
						  engine_name(engine), hindrance);
		for (struct forward *f = r->actions->reload->forwards.first; f; f = f->next)
			if (is_named(r, f))
				f->engine = engine == ENGINE_DEFAULT ? f->conf->engine : engine;
	}
	ask_workers(r, follow_engines);
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "engine", engine_name(r->named->engine));
	json_add_text(r->answer, "engine_configured", engine_name(r->named->conf->engine));
	json_add_int(r->answer, "live", atomic_load(&r->named->totals->live));
	json_add_int(r->answer, "flows_moving", r->n);
	return NULL;
}

/* --- upstream --- */

/* Give a server an order.  One that is down loses its sessions at once. */
static struct json_object *do_upstream(struct round *r)
{
	const char *name = r->req->values[KEY_SERVER].text;
	enum server_order order = (enum server_order)r->req->values[KEY_ORDER].number;
	struct server *s = servers_order(&r->named->servers, name, order);

	if (!s)
		return request_error_json(ERROR_BAD_VALUE,
					  "forward %.64s has no server \"%.64s\"; "
					  "`culvert forwards` lists them",
					  r->name, name);
	r->server = s;
	if (order == ORDER_DOWN)
		ask_workers(r, kill_some);
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "server", s->name);
	json_add_text(r->answer, "order", server_order_names[order]);
	json_add_int(r->answer, "live", atomic_load(&s->live));
	if (order == ORDER_DOWN)
		json_add_int(r->answer, "killed", r->n);
	server_put(s);
	return NULL;
}

/* --- drain --- */

/* Drain a forward, or let it accept again.  Without the lock.  NULL: done; else the answer. */
static struct json_object *drain(const struct round *r)
{
	uint64_t due = NEVER;
	const char *code;
	char why[640];
	int e;

	if (request_has(r->req, KEY_DEADLINE))
		due = clock_ms() + r->req->values[KEY_DEADLINE].number;
	log_keep_complaint(why, sizeof(why));
	e = drain_forward(r->actions->reload, r->name, request_has(r->req, KEY_UNDO), due);
	log_keep_complaint(NULL, 0);
	code = e == -ENOENT ? ERROR_NO_SUCH_FORWARD : e == -EBUSY ? ERROR_NO_ANSWER : ERROR_FAILED;
	return e ? request_error_json(code, "%s", why) : NULL;
}

static struct json_object *do_drain(struct round *r)
{
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "state", forward_state_name(r->named));
	/* with its [sni] sections, which drain with it */
	json_add_int(r->answer, "live", atomic_load(&r->named->totals->limited));
	json_add_text(
		r->answer, "warning",
		request_has(r->req, KEY_UNDO) || r->actions->reload->privileged ?
			"" :
			"this cannot be undone, and a reload cannot end it: there is no privileged "
			"process; only a new start of culvert makes it listen again");
	return NULL;
}

/* --- reload, log level --- */

/*
 * A reload waits for the privileged process and the workers: the answer is a number, of which to
 * ask how it has gone.
 */
static struct json_object *do_reload(struct round *r)
{
	bool looks = request_has(r->req, KEY_NUMBER);
	uint64_t n = looks ? r->req->values[KEY_NUMBER].number : reload_ask(r->actions->reload);

	if (!n)
		return request_error_json(ERROR_FAILED, SERVICE_STOPPING);
	json_add_int(r->answer, "number", n);
	if (looks)
		json_add(r->answer, "reload", reload_json(r->actions->reload));
	return NULL;
}

static struct json_object *do_log_level(struct round *r)
{
	if (request_has(r->req, KEY_LEVEL))
		log_set_level((int)r->req->values[KEY_LEVEL].number);
	json_add_text(r->answer, "level", log_level_names[log_get_level()]);
	return NULL;
}

/* --- export, import --- */

static struct json_object *do_stream(struct round *r)
{
	if (!r->actions->standby)
		return request_error_json(ERROR_UNSUPPORTED, "nothing is grafted here: %s",
					  probe_hindrance(r->actions->probe, ENGINE_GRAFT) ?: "");
	json_add_text(r->answer, "stream", r->req->command->name);
	return NULL;
}

void actions_stream(void *arg, const struct control *c, const struct request *req, int fd)
{
	struct standby *sb = ((const struct actions *)arg)->standby;
	const struct request_value *after = &req->values[KEY_AFTER];

	if (command_number(req->command) == COMMAND_SESSIONS)
		stream_sessions(arg, c, req, fd);
	else if (command_number(req->command) == COMMAND_EXPORT)
		standby_export(sb, c, fd,
			       request_has(req, KEY_AFTER) ? after->number : STANDBY_AFTER_MS);
	else if (command_number(req->command) == COMMAND_IMPORT)
		standby_import(sb, c, fd, req->values[KEY_NAME].text ?: "");
}

/* --- all commands --- */

/* Each adds to the answer and returns NULL, or else what is wrong. */
static struct json_object *(*const handlers[COMMANDS])(struct round *r) = {
	[COMMAND_SESSIONS] = do_sessions,   [COMMAND_STATUS] = do_status,
	[COMMAND_FORWARDS] = do_forwards,   [COMMAND_KILL] = do_kill,
	[COMMAND_ENGINE] = do_engine,       [COMMAND_UPSTREAM] = do_upstream,
	[COMMAND_DRAIN] = do_drain,         [COMMAND_RELOAD] = do_reload,
	[COMMAND_LOG_LEVEL] = do_log_level, [COMMAND_EXPORT] = do_stream,
	[COMMAND_IMPORT] = do_stream,
};

struct json_object *actions_run(void *arg, const struct request *req)
{
	const struct actions *a = arg;
	struct round r = { .actions = a,
			   .req = req,
			   .name = req->values[KEY_FORWARD].text,
			   .shared = a->reload->shared };
	struct forwards *all = &a->reload->forwards;
	enum command_id id = command_number(req->command);
	struct json_object *wrong = id == COMMAND_DRAIN ? drain(&r) : NULL;

	if (wrong)
		return wrong;
	if (!lock_within(&all->lock, ROUND_TIMEOUT_MS))
		return request_error_json(ERROR_NO_ANSWER,
					  "a reload or drain waits for a "
					  "worker that does not answer; ask again");
	r.named = all->first; /* active ones come first */
	while (r.named && !is_named(&r, r.named))
		r.named = r.named->next;
	r.answer = json_object_new_object();
	/* so that a mistyped name is an error and not "no sessions" */
	wrong = r.name && !r.named ? request_error_json(ERROR_NO_SUCH_FORWARD,
							"no forward is named \"%.64s\"", r.name) :
				     handlers[id](&r);
	pthread_mutex_unlock(&all->lock);
	if (!wrong && r.silent && request_changes(req))
		wrong = request_error_json(ERROR_NO_ANSWER,
					   "%u workers do not answer: the change is "
					   "made in part, so far of %u; ask again",
					   r.silent, r.n);
	if (!wrong)
		return r.answer;
	json_object_put(r.answer);
	return wrong;
}
