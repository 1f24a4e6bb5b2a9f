// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each worker in turn adds to a snapshot of plain structs, on its own thread
 * between two batches of events, so there are no locks and no JSON on the payload path.  The JSON
 * is made of the snapshot afterwards, on the control thread.  A worker that does not answer in time
 * is counted, and what it has is missing.
 */
#include "daemon/inspect.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/syscalls_needed.h"
#include "config/config.h"
#include "relay/session_log.h"
#include "relay/limits.h"
#include "relay/names.h"
#include "relay/session.h"
#include "relay/session_flow.h"

#define SNAPSHOT_TIMEOUT_MS 2000 /* for all workers together */
#define SNAPSHOT_LEAST_MS 20

SYSCALLS_NEEDED(
	SYSCALL(getpid),
	SYSCALL(lseek), /* /proc/self/fd is read again and again, for it cannot be opened again */
	SYSCALL(getdents64));

struct session_view {
	struct session session; /* a copy: its pointers are not to be followed */
	union client_addr via;  /* AF_UNSPEC: the client has connected itself */
	struct addr upstream;   /* len 0: it has not begun to connect */
	unsigned int worker;
	uint64_t age_ms;
	uint64_t kernel_bytes[2];
	uint64_t backlog_max[2];
};

struct snapshot {
	const struct forwards *forwards;     /* whose lock is held */
	const struct session_filter *filter; /* NULL: only the sums are wanted */
	struct worker *worker;               /* whose turn it is */

	struct session_view *views; /* owned; of sessions that FILTER matches */
	size_t n, size;
	bool lacks; /* views that there was no memory for */

	unsigned int silent; /* workers that have not answered */
	uint64_t kernel_bytes; /* by sockmap: of finished and of live sessions */
	uint64_t flows[CARRIERS];
	uint64_t pipes, pipes_idle, buffers;
};

/* Room for one more, or NULL.  Most filters match few of many. */
static struct session_view *add_view(struct snapshot *snap)
{
	if (snap->n == snap->size) {
		size_t size = snap->size ? 2 * snap->size : 64;
		struct session_view *views = realloc(snap->views, size * sizeof(*views));

		if (!views) {
			snap->lacks = true;
			return NULL;
		}
		snap->views = views;
		snap->size = size;
	}
	return &snap->views[snap->n++];
}

static void view_session(struct snapshot *snap, const struct session *s)
{
	struct worker *w = snap->worker;
	struct session_view *v = add_view(snap);

	if (!v)
		return;
	*v = (struct session_view){ .session = *s, .worker = w->index };
	v->age_ms = w->loop.now_ms > s->born_ms ? w->loop.now_ms - s->born_ms : 0;
	if (s->addrs)
		v->upstream = s->addrs->addrs[s->upstream];
	if (session_via(s))
		v->via = *session_via(s);
	for (unsigned int dir = 0; dir < 2; dir++) {
		v->kernel_bytes[dir] = session_kernel_bytes(s, dir);
		if (s->pair != NO_PAIR)
			v->backlog_max[dir] = kernel_stat(w->shared->kernel,
							  s->pair * 2 + dir)->backlog_max;
	}
}

/* Bytes of ended sessions are in the counters. */
static void see_ended(const struct snapshot *snap)
{
	for (struct forward *f = snap->forwards->first; f; f = f->next) {
		struct forward_stats *fs = forward_stats(f, snap->worker->index);

		for (unsigned int dir = 0; dir < 2; dir++)
			fs->seen[dir] = count_get(&fs->bytes[dir]);
	}
}

static void see_live(struct snapshot *snap, const struct session *s)
{
	struct forward_stats *fs = forward_stats(s->forward, snap->worker->index);

	for (unsigned int dir = 0; dir < 2; dir++) {
		fs->seen[dir] += session_bytes(s, dir);
		snap->kernel_bytes += session_kernel_bytes(s, dir);
	}
}

static void count_sockmap(struct snapshot *snap)
{
	snap->kernel_bytes += count_get(&snap->worker->stats.carrier_bytes[CARRIER_SOCKMAP]);
}

/* On the worker's thread. */
static void take(void *arg)
{
	struct snapshot *snap = arg;
	struct worker *w = snap->worker;

	see_ended(snap);
	for (const struct session *s = w->sessions; s; s = s->next) {
		see_live(snap, s);
		for (unsigned int dir = 0; dir < 2; dir++)
			snap->flows[flow_carrier(&s->flows[dir])]++;
		if (snap->filter && session_filter_matches(snap->filter, s))
			view_session(snap, s);
	}
	count_sockmap(snap);
	snap->pipes += w->pool.pipes_lent + w->pool.pipes_idle;
	snap->pipes_idle += w->pool.pipes_idle;
	snap->buffers += w->pool.buffers_lent;
}

/*
 * Take a snapshot of all workers, with the lock of forwards held; the caller frees its views.  If
 * some have used up the time that there is for all, the others get a little nevertheless.
 */
static void take_all(const struct inspect *r, const struct session_filter *filter,
		     struct snapshot *snap)
{
	uint64_t end_ms = clock_ms() + SNAPSHOT_TIMEOUT_MS;

	*snap = (struct snapshot){ .forwards = r->forwards, .filter = filter };
	for (unsigned int i = 0; i < r->n_workers; i++) {
		uint64_t now = clock_ms();
		int left = end_ms > now + SNAPSHOT_LEAST_MS ? (int)(end_ms - now)
							    : SNAPSHOT_LEAST_MS, e;

		snap->worker = &r->workers[i];
		e = loop_call(&snap->worker->loop, take, snap, left);
		if (!e)
			continue;
		snap->silent += e != -ESRCH; /* else it has ended, and has no sessions left */
		if (e == -ESRCH)
			see_ended(snap);
		count_sockmap(snap);
	}
	if (snap->lacks)
		json_lack();
}

/* --- sessions --- */

static struct json_object *flow_json(const struct session_view *v, unsigned int dir)
{
	const struct flow *f = &v->session.flows[dir];
	struct json_object *o = json_object_new_object();

	json_add_text(o, "direction", dir == CLIENT ? "client-to-upstream" : "upstream-to-client");
	json_add_text(o, "carrier", carrier_name(flow_carrier(f)));
	json_add_text(o, "phase", flow_phase_name(f->phase));
	json_add_text(o, "reason", reason_name(f->reason));
	json_add_int(o, "bytes", f->user_out + v->kernel_bytes[dir]);
	json_add_int(o, "kernel_bytes", v->kernel_bytes[dir]);
	json_add_int(o, "handovers", f->handovers);
	json_add_int(o, "backlog_max", v->backlog_max[dir]);
	json_add_bool(o, "eof", f->eof || f->phase == FLOW_DONE);
	return o;
}

/* Where it leads to, or will begin with; before a name has an address, the name. */
static void add_upstream(struct json_object *o, const struct session_view *v)
{
	const struct endpoint *e = upstream_of(&v->session);
	const struct addr *up = v->upstream.len ? &v->upstream : e->addrs;
	char text[ADDR_STRLEN];

	json_add_text(o, "upstream", !up ? e->text :
				     addr_format((const struct sockaddr *)&up->ss, up->len, text,
						 sizeof(text)));
}

static struct json_object *session_json(const struct session_view *v)
{
	static const char *const states[SESSION_STATES] = {
		[SESSION_HEADER] = "header",
		[SESSION_CONNECTING] = "connecting",
		[SESSION_OPEN] = "open",
		[SESSION_PARTING] = "parting",
		[SESSION_DEAD] = "dead",
	};
	const struct session *s = &v->session;
	const struct forward_conf *fc = forward_of(s);
	struct json_object *o = json_object_new_object(), *flows = json_object_new_array();
	char text[ADDR_STRLEN];

	json_add_int(o, "id", s->id);
	json_add_text(o, "forward", forward_name(fc));
	json_add_text(o, "client", client_addr_text(&s->client, text, sizeof(text)));
	if (v->via.sa.sa_family != AF_UNSPEC)
		json_add_text(o, "via", client_addr_text(&v->via, text, sizeof(text)));
	add_upstream(o, v);
	json_add_int(o, "worker", v->worker);
	json_add_text(o, "state", states[s->state]);
	json_add_int(o, "age_ms", v->age_ms);
	json_append(flows, flow_json(v, 0));
	json_append(flows, flow_json(v, 1));
	json_add(o, "flows", flows);
	return o;
}

struct json_object *inspect_sessions(const struct inspect *r, const struct session_filter *filter)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	struct snapshot snap;

	pthread_mutex_lock(&r->forwards->lock); /* sessions that end meanwhile point to theirs */
	take_all(r, filter, &snap);
	for (size_t i = 0; i < snap.n; i++)
		json_append(list, session_json(&snap.views[i]));
	pthread_mutex_unlock(&r->forwards->lock);
	free(snap.views);
	json_add(o, "sessions", list);
	json_add_int(o, "workers_silent", snap.silent);
	return o;
}

/* --- status --- */

/* What all workers have counted, as a plain sum. */
struct forward_sum {
	uint64_t accepted, finished, denied, bytes[2];
};

static struct forward_sum sum_forward(struct forward_totals *t)
{
	struct forward_sum sum = { 0 };

	for (unsigned int w = 0; w < t->n_workers; w++) {
		struct forward_stats *fs = &t->stats[w];

		/* first: what has been accepted since then is not missing among the finished */
		sum.finished += count_get(&fs->finished);
		sum.accepted += count_get(&fs->accepted);
		sum.denied += count_get(&fs->denied);
		for (unsigned int dir = 0; dir < 2; dir++)
			sum.bytes[dir] += fs->seen[dir];
	}
	return sum;
}

/* ADDRESSES, in the order in which new sessions try them; and LOOKUP, null unless of a name. */
static void add_upstream_state(struct json_object *o, struct upstream *u, uint64_t now_ms)
{
	struct json_object *addresses = json_object_new_array(), *lookup;
	struct addr_list *list = upstream_get(u);
	struct lookup_record record;
	char text[ADDR_STRLEN];

	for (size_t i = 0; i < list->n; i++) {
		const struct addr *a = &list->addrs[i];

		addr_format((const struct sockaddr *)&a->ss, a->len, text, sizeof(text));
		json_append(addresses, json_object_new_string(text));
	}
	addr_list_put(list);
	json_add(o, "addresses", addresses);
	if (!u->conf->named) {
		json_add_null(o, "lookup");
		return;
	}
	upstream_record(u, &record);
	lookup = json_object_new_object();
	json_add_int(lookup, "interval_ms", u->interval_ms);
	json_add_int(lookup, "age_ms", now_ms > record.resolved_ms ? now_ms - record.resolved_ms : 0);
	json_add_int(lookup, "lookups", record.lookups);
	json_add_int(lookup, "failures", record.failures);
	json_add_text(lookup, "error", record.why);
	json_add(o, "lookup", lookup);
}

static struct json_object *forward_json(struct forward *f, const struct config *c,
					uint64_t now_ms)
{
	const struct forward_conf *fc = f->conf;
	struct forward_sum sum = sum_forward(f->totals);
	struct json_object *o = json_object_new_object();

	json_add_text(o, "name", forward_name(fc));
	json_add_text(o, "listen", fc->listen.text);
	json_add_text(o, "upstream", fc->upstream.text);
	add_upstream_state(o, &f->upstream, now_ms);
	json_add_text(o, "engine", engine_name(forward_engine(f)));
	json_add_text(o, "engine_configured", engine_name(fc->engine));
	json_add_text(o, "state", forward_state_name(f));
	json_add_text(o, "proxy_protocol", proxy_use_text(fc->proxy_protocol));
	json_add_int(o, "max_sessions", fc->max_sessions ?: c->max_sessions);
	json_add_int(o, "max_sessions_per_client",
		     fc->max_sessions_per_client ?: c->max_sessions_per_client);
	json_add_int(o, "accept_rate", fc->accept_rate);
	json_add_int(o, "bandwidth", fc->bandwidth);
	json_add_int(o, "bandwidth_per_client", fc->bandwidth_per_client);
	/* where a reload has changed it the totals are those of the name */
	json_add_int(o, "live", atomic_load(&f->totals->live));
	json_add_int(o, "accepted", sum.accepted);
	json_add_int(o, "finished", sum.finished);
	json_add_int(o, "denied", sum.denied);
	json_add_int(o, "bytes_to_upstream", sum.bytes[0]);
	json_add_int(o, "bytes_to_client", sum.bytes[1]);
	return o;
}

/*
 * With the lock held.  One that a reload has replaced is part of that which has its name: only what
 * the configuration lacks is added.
 */
static struct json_object *forwards_json(const struct inspect *r, const char *name)
{
	struct json_object *list = json_object_new_array();
	uint64_t now_ms = clock_ms();

	for (struct forward *f = r->forwards->first; f; f = f->next)
		if ((f->state == FORWARD_ACTIVE ||
		     (f->state == FORWARD_REMOVED && atomic_load(&f->totals->live))) &&
		    (!name || !strcmp(name, forward_name(f->conf))))
			json_append(list, forward_json(f, r->shared->config, now_ms));
	return list;
}

struct json_object *inspect_forwards(const struct inspect *r, const char *name)
{
	struct json_object *o = json_object_new_object();
	struct snapshot snap;

	pthread_mutex_lock(&r->forwards->lock);
	take_all(r, NULL, &snap);
	json_add(o, "forwards", forwards_json(r, name));
	pthread_mutex_unlock(&r->forwards->lock);
	json_add_int(o, "workers_silent", snap.silent);
	return o;
}

static struct json_object *carriers_json(const struct inspect *r, const struct snapshot *snap)
{
	struct json_object *list = json_object_new_array();

	for (unsigned int c = 0; c < CARRIERS; c++) {
		struct json_object *o = json_object_new_object();
		/* of one moment: a session that has ended since then is not counted twice */
		uint64_t bytes = c == CARRIER_SOCKMAP ? snap->kernel_bytes : 0;

		for (unsigned int w = 0; w < r->n_workers && c != CARRIER_SOCKMAP; w++)
			bytes += count_get(&r->workers[w].stats.carrier_bytes[c]);
		json_add_text(o, "carrier", carrier_name(c));
		json_add_int(o, "flows", snap->flows[c]);
		json_add_int(o, "bytes", bytes);
		json_append(list, o);
	}
	return list;
}

static struct json_object *counters_json(const struct inspect *r, bool errors)
{
	struct json_object *o = json_object_new_object();

	for (unsigned int i = 0; i < (errors ? (unsigned int)CAUSES : (unsigned int)HANDOVERS);
	     i++) {
		uint64_t n = 0;

		for (unsigned int w = 0; w < r->n_workers; w++)
			n += count_get(errors ? &r->workers[w].stats.errors[i]
					      : &r->workers[w].stats.handovers[i]);
		json_add_int(o, errors ? cause_name(i) : handover_name(i), n);
	}
	return o;
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

static void add_probed(struct json_object *list, const struct inspect *r)
{
	const struct probe_start *p = r->probe;
	const struct config *c = r->shared->config;
	bool tried = c->probe && (config_forward_with(c, ENGINE_AUTO) ||
				  config_forward_with(c, ENGINE_SOCKMAP) ||
				  config_forward_with(c, ENGINE_SPLICE));

	add_feature(list, "splice", p->splice.verdict == PROBE_OK || !r->shared->config->probe,
		    p->splice.why);
	add_feature(list, "tried at the start", tried, p->summary);
}

static struct json_object *kernel_json(const struct inspect *r)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();
	struct kernel *k = r->shared->kernel;

	json_add_bool(o, "available", k != NULL);
	json_add_text(o, "reason", r->kernel_reason);
	add_probed(list, r);
	json_add(o, "features", list);
	json_add_int(o, "events_lost", k ? kernel_events_lost(k) : 0);
	return o;
}

static unsigned int open_descriptors(DIR *d)
{
	unsigned int n = 0;

	if (!d)
		return 0;
	rewinddir(d);
	while (readdir(d))
		n++;
	return n > 3 ? n - 3 : 0; /* ".", ".." and the directory itself */
}

int inspect_open(struct inspect *r)
{
	r->started_ms = clock_ms();
	r->descriptors = opendir("/proc/self/fd");
	return r->descriptors ? 0 : -errno;
}

void inspect_close(struct inspect *r)
{
	if (r->descriptors)
		closedir(r->descriptors);
	r->descriptors = NULL;
}

static struct json_object *resources_json(const struct inspect *r, const struct snapshot *snap)
{
	struct json_object *o = json_object_new_object();
	struct kernel *k = r->shared->kernel;

	json_add_int(o, "sessions", admission_sessions(r->shared->admission));
	json_add_int(o, "clients", admission_clients(r->shared->admission));
	json_add_int(o, "slots_used", k ? kernel_pairs_used(k) * 2 : 0);
	json_add_int(o, "slots_total", k ? kernel_pairs_total(k) * 2 : 0);
	json_add_int(o, "kernel_memory", k ? kernel_memory(k) : 0);
	json_add_int(o, "kernel_memory_limit", k ? kernel_memory_limit(k) : 0);
	json_add_int(o, "pipes", snap->pipes);
	json_add_int(o, "pipes_idle", snap->pipes_idle);
	json_add_int(o, "buffers", snap->buffers);
	json_add_int(o, "fds", open_descriptors(r->descriptors));
	return o;
}

struct json_object *inspect_status(const struct inspect *r, bool forwards)
{
	const struct config *c = r->shared->config;
	struct json_object *o = json_object_new_object(), *list = NULL;
	struct snapshot snap;

	pthread_mutex_lock(&r->forwards->lock);
	take_all(r, NULL, &snap);
	if (forwards)
		list = forwards_json(r, NULL);
	pthread_mutex_unlock(&r->forwards->lock);
	json_add_text(o, "version", CULVERT_VERSION);
	json_add_int(o, "pid", (uint64_t)getpid());
	json_add_int(o, "uptime_ms", clock_ms() - r->started_ms);
	json_add_text(o, "engine", engine_name(c->defaults.engine));
	json_add_int(o, "workers", r->n_workers);
	json_add_int(o, "workers_silent", snap.silent);
	json_add_int(o, "max_sessions", c->max_sessions);
	json_add_int(o, "max_sessions_per_client", c->max_sessions_per_client);
	json_add_text(o, "resolver", r->shared->names ? "running" : "not needed");
	if (forwards)
		json_add(o, "forwards", list);
	json_add(o, "reload", reload_json(r->reload));
	json_add(o, "carriers", carriers_json(r, &snap));
	json_add(o, "handovers", counters_json(r, false));
	json_add(o, "errors", counters_json(r, true));
	json_add(o, "kernel", kernel_json(r));
	if (r->shared->session_log)
		json_add(o, "session_log", session_log_json(r->shared->session_log));
	else
		json_add_null(o, "session_log");
	json_add(o, "resources", resources_json(r, &snap));
	return o;
}
