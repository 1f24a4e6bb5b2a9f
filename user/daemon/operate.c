// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sessions belong to their workers, so a worker is asked to change its own, on its thread between
 * two batches of events.  Meanwhile none moves to another worker, so that each is met once.
 *
 * Whoever has changed something is told so.  So answers that speak of a change, also of one that
 * was made in part, are made before it (json_ready()), and without memory for them there is none.
 */
#include "daemon/operate.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "relay/balance.h"
#include "relay/forward.h"
#include "relay/session_ending.h"
#include "relay/session_move.h"

#define CALL_TIMEOUT_MS 2000
#define KILL_TIMEOUT_MS 5000 /* to reset as many as there may be */
#define KILL_LOOK_MS 5       /* and until the next look whether all are */

/* What a worker is asked to do. */
struct order {
	struct worker *worker;
	const struct session_filter *filter; /* kill */
	unsigned int n;                      /* out: sessions, or flows that move */
};

/*
 * FN on the thread of each worker, with an order of ORDER's kind.  Adds up what they return, in
 * *RET.  False: some have not answered, and will not do it.  One that has ended, as each does with
 * its last session when culvert stops, has none left to do it to.
 */
static bool ask_workers(const struct inspect *r, void (*fn)(void *arg), struct order order,
			unsigned int *ret)
{
	bool all = true;
	int e;

	*ret = 0;
	balance_hold(r->shared->balance);
	for (unsigned int i = 0; i < r->n_workers; i++) {
		order.worker = r->workers[i];
		order.n = 0;
		e = loop_call(&order.worker->loop, fn, &order, CALL_TIMEOUT_MS);
		if (!e)
			*ret += order.n;
		else if (e != -ESRCH)
			all = false;
	}
	balance_release(r->shared->balance);
	return all;
}

static struct json_object *number(const char *key, uint64_t n)
{
	struct json_object *o = json_object_new_object();

	json_add(o, key, json_object_new_int64((int64_t)n));
	return o;
}

/* ANSWER, and the others, of which some may be NULL, are not needed. */
static struct json_object *choose(struct json_object *answer, struct json_object *other,
				  struct json_object *another)
{
	json_object_put(other);
	json_object_put(another);
	return answer;
}

static struct json_object *no_such_forward(const char *name)
{
	return command_error_json(ERROR_NO_SUCH_FORWARD, "no forward is named \"%.64s\"", name);
}

/* --- looking --- */

/* A filter by name is checked, so that a name that is mistyped is not "no sessions". */
static bool is_named(const struct inspect *r, const struct command_request *req)
{
	bool found = !req->filter.forward;

	pthread_mutex_lock(&r->forwards->lock);
	for (struct forward *f = r->forwards->first; f && !found; f = f->next)
		found = !strcmp(forward_name(f->conf), req->filter.forward);
	pthread_mutex_unlock(&r->forwards->lock);
	return found;
}

static struct json_object *do_sessions(const struct inspect *r, const struct command_request *req,
				       const struct control_peer *peer)
{
	(void)peer;
	return inspect_sessions(r, &req->filter);
}

static struct json_object *do_status(const struct inspect *r, const struct command_request *req,
				     const struct control_peer *peer)
{
	(void)peer;
	return inspect_status(r, !command_has(req, KEY_BRIEF));
}

static struct json_object *do_forwards(const struct inspect *r, const struct command_request *req,
				       const struct control_peer *peer)
{
	(void)peer;
	return inspect_forwards(r, req->filter.forward);
}

/* --- kill --- */

#define KILL_LATE "a worker does not answer; sessions reset so far: %llu; others may be later"

static bool is_meant(const void *arg, const struct session *s)
{
	return session_filter_matches(arg, s);
}

static void begin_killing(void *arg)
{
	struct order *o = arg;

	session_arrivals(o->worker);
	session_ending_begin(o->worker, is_meant, o->filter, CAUSE_KILLED);
	o->n = o->worker->ending != NULL;
}

static void go_on_killing(void *arg)
{
	struct order *o = arg;

	o->n = session_ending_go_on(o->worker);
}

/* Only this thread lets any be killed. */
static uint64_t killed_ever(const struct inspect *r)
{
	uint64_t n = 0;

	for (unsigned int i = 0; i < r->n_workers; i++)
		n += count_get(&r->workers[i]->stats.errors[CAUSE_KILLED]);
	return n;
}

/* Until those that are meant are reset, in portions.  False: not all of them, so far. */
static bool kill_sessions(const struct inspect *r, const struct session_filter *filter)
{
	uint64_t until = clock_ms() + KILL_TIMEOUT_MS;
	unsigned int left;
	bool all = ask_workers(r, begin_killing, (struct order){ .filter = filter }, &left);

	while (all && left && clock_ms() < until) {
		poll(NULL, 0, KILL_LOOK_MS);
		all = ask_workers(r, go_on_killing, (struct order){ 0 }, &left);
	}
	return all && !left;
}

static struct json_object *do_kill(const struct inspect *r, const struct command_request *req,
				   const struct control_peer *peer)
{
	struct json_object *done = number("killed", JSON_WIDEST);
	struct json_object *late = command_error_json(ERROR_NO_ANSWER, KILL_LATE, ULLONG_MAX);
	uint64_t before = killed_ever(r), n;
	char text[160];
	bool all;

	if (!json_ready(done) || !json_ready(late))
		return choose(NULL, done, late);
	all = kill_sessions(r, &req->filter);
	n = killed_ever(r) - before;
	log_write(LOG_NOTICE, "control: kill: %llu session%s (by uid %u, pid %d)",
		  (unsigned long long)n, n == 1 ? "" : "s", peer->uid, (int)peer->pid);
	json_set_number(done, "killed", n);
	snprintf(text, sizeof(text), KILL_LATE, (unsigned long long)n);
	json_set_text(json_object_object_get(late, "error"), "message", text);
	return all ? choose(done, late, NULL) : choose(late, done, NULL);
}

/* --- engine --- */

static void follow_engines(void *arg)
{
	struct order *o = arg;

	session_arrivals(o->worker);
	o->n = session_follow_engines(o->worker);
}

/* Why ENGINE cannot be had here; NULL: it can. */
static const char *engine_hindrance(const struct inspect *r, enum engine engine)
{
	if (engine == ENGINE_SOCKMAP && !r->shared->kernel)
		return r->kernel_reason;
	if (engine == ENGINE_SPLICE &&
	    !probe_allows_later(&r->probe->splice, r->shared->config->probe))
		return r->probe->splice.verdict == PROBE_UNASKED ?
			       "it was not tried on this kernel at the start, because no forward "
			       "asked for it" :
			       r->probe->splice.why;
	return NULL;
}

static enum engine engine_meant(const struct command_request *req, const struct forward *f)
{
	return req->engine == ENGINE_DEFAULT ? f->conf->engine : (enum engine)req->engine;
}

/*
 * Of all forwards of that name: one that a reload has replaced goes on with its sessions.  With the
 * lock held.
 */
static void set_engine(const struct inspect *r, const struct forward *named,
		       const struct command_request *req, const struct control_peer *peer)
{
	const char *name = forward_name(named->conf);

	log_write(LOG_NOTICE, "control: engine of forward %s: %s, was %s (by uid %u, pid %d)", name,
		  engine_name(engine_meant(req, named)), engine_name(forward_policy(named)->engine),
		  peer->uid, (int)peer->pid);
	for (struct forward *f = r->forwards->first; f; f = f->next)
		if (!strcmp(forward_name(f->conf), name))
			forward_set_engine(f, engine_meant(req, f));
}

static struct json_object *engine_json(const struct forward *f, enum engine engine)
{
	struct json_object *o = json_object_new_object();

	json_add(o, "forward", json_object_new_string(forward_name(f->conf)));
	json_add(o, "engine", json_object_new_string(engine_name(engine)));
	json_add(o, "engine_configured", json_object_new_string(engine_name(f->conf->engine)));
	json_add(o, "live", json_object_new_int64(JSON_WIDEST));
	json_add(o, "flows_moving", json_object_new_int64(JSON_WIDEST));
	return o;
}

/* With the lock held. */
static struct json_object *change_engine(const struct inspect *r, const struct forward *f,
					 const struct command_request *req,
					 const struct control_peer *peer)
{
	struct json_object *done, *late;
	enum engine engine = forward_policy(f)->engine;
	const char *hindrance = NULL;
	unsigned int moving = 0;

	if (command_has(req, KEY_ENGINE)) {
		engine = engine_meant(req, f);
		hindrance = engine_hindrance(r, engine);
	}
	if (hindrance)
		return command_error_json(ERROR_UNSUPPORTED, "engine %s: %s", engine_name(engine),
					  hindrance);
	done = engine_json(f, engine);
	late = command_error_json(ERROR_NO_ANSWER, "a worker does not answer: its sessions may be "
				  "carried as before; ask again");
	if (!json_ready(done) || !json_ready(late))
		return choose(NULL, done, late);
	if (command_has(req, KEY_ENGINE))
		set_engine(r, f, req, peer);
	if (!ask_workers(r, follow_engines, (struct order){ 0 }, &moving))
		return choose(late, done, NULL);
	json_set_number(done, "live", atomic_load(&f->totals->live));
	json_set_number(done, "flows_moving", moving);
	return choose(done, late, NULL);
}

static struct json_object *do_engine(const struct inspect *r, const struct command_request *req,
				     const struct control_peer *peer)
{
	struct json_object *answer;
	const struct forward *f;

	pthread_mutex_lock(&r->forwards->lock);
	f = forwards_find(r->forwards, req->filter.forward);
	answer = f ? change_engine(r, f, req, peer) : no_such_forward(req->filter.forward);
	pthread_mutex_unlock(&r->forwards->lock);
	return answer;
}

/* --- drain --- */

static struct json_object *drain_error(int r, const char *why)
{
	return command_error_json(r == -ENOENT ? ERROR_NO_SUCH_FORWARD :
				  r == -EBUSY ? ERROR_NO_ANSWER :
						ERROR_FAILED, "%s", why);
}

#define DRAIN_FOR_GOOD "cannot be undone, and a reload cannot end it: there is no privileged " \
		       "process; only a new start of culvert makes it listen again"

/* WARNING: "" or what is wrong with it.  Its state is one of no longer name than this one. */
static struct json_object *drain_json(const char *name, const char *warning)
{
	struct json_object *o = json_object_new_object();

	json_add(o, "forward", json_object_new_string(name));
	json_add(o, "state", json_object_new_string("draining"));
	json_add(o, "live", json_object_new_int64(JSON_WIDEST));
	json_add(o, "warning", json_object_new_string(warning));
	return o;
}

static void drain_set(const struct inspect *r, const char *name, struct json_object *o)
{
	const struct forward *f;

	pthread_mutex_lock(&r->forwards->lock);
	f = forwards_find(r->forwards, name);
	json_set_text(o, "state", f ? forward_state_name(f) : "removed");
	json_set_number(o, "live", f ? atomic_load(&f->totals->live) : 0);
	pthread_mutex_unlock(&r->forwards->lock);
}

static struct json_object *do_drain(const struct inspect *r, const struct command_request *req,
				    const struct control_peer *peer)
{
	const char *name = req->filter.forward;
	bool undo = command_has(req, KEY_UNDO);
	bool for_good = !undo && !reconfigure_may_listen(r->reconfigure);
	struct json_object *done = drain_json(name, for_good ? "this " DRAIN_FOR_GOOD : "");
	uint64_t due = command_has(req, KEY_DEADLINE) ? clock_ms() + req->deadline_ms
						      : UINT64_MAX;
	char why[640];
	int e;

	if (!json_ready(done))
		return choose(NULL, done, NULL);
	e = reconfigure_drain(r->reconfigure, name, undo, due, why, sizeof(why));
	if (e)
		return choose(drain_error(e, why), done, NULL);
	log_write(LOG_NOTICE, "control: forward %s %s (by uid %u, pid %d)", name,
		  undo ? "takes new sessions again" : "drains: no new sessions", peer->uid,
		  (int)peer->pid);
	if (for_good)
		log_warning("forward %s: that it drains " DRAIN_FOR_GOOD, name);
	drain_set(r, name, done);
	return done;
}

/* --- reload --- */

/* It may wait for a name server, so the answer is a number to wait for. */
static struct json_object *do_reload(const struct inspect *r, const struct command_request *req,
				     const struct control_peer *peer)
{
	struct json_object *done = number("number", JSON_WIDEST);
	struct json_object *stopping = command_error_json(ERROR_FAILED, RECONFIGURE_STOPPING);
	uint64_t n;

	(void)req;
	if (!json_ready(done) || !json_ready(stopping))
		return choose(NULL, done, stopping);
	n = reconfigure_ask(r->reconfigure);
	if (!n)
		return choose(stopping, done, NULL);
	log_write(LOG_NOTICE, "control: reload (by uid %u, pid %d)", peer->uid, (int)peer->pid);
	json_set_number(done, "number", n);
	return choose(done, stopping, NULL);
}

/* --- log level --- */

static struct json_object *do_log_level(const struct inspect *r, const struct command_request *req,
					const struct control_peer *peer)
{
	int level = command_has(req, KEY_LEVEL) ? req->level : log_get_level();
	struct json_object *o = json_object_new_object();

	(void)r;
	json_add(o, "level", json_object_new_string(log_level_name(level)));
	if (!json_ready(o))
		return choose(NULL, o, NULL);
	if (!command_has(req, KEY_LEVEL))
		return o;
	log_write(LOG_NOTICE, "control: log level: %s, was %s (by uid %u, pid %d)",
		  log_level_name(level), log_level_name(log_get_level()), peer->uid,
		  (int)peer->pid);
	log_set_level(level);
	return o;
}

static struct json_object *(*const handlers[COMMANDS])(const struct inspect *r,
						       const struct command_request *req,
						       const struct control_peer *peer) = {
	[COMMAND_SESSIONS] = do_sessions,
	[COMMAND_STATUS] = do_status,
	[COMMAND_FORWARDS] = do_forwards,
	[COMMAND_KILL] = do_kill,
	[COMMAND_ENGINE] = do_engine,
	[COMMAND_DRAIN] = do_drain,
	[COMMAND_RELOAD] = do_reload,
	[COMMAND_LOG_LEVEL] = do_log_level,
};

struct json_object *operate(const struct inspect *r, const struct command_request *req,
			    const struct control_peer *peer)
{
	if (!is_named(r, req))
		return no_such_forward(req->filter.forward);
	return handlers[command_number(req->command)](r, req, peer);
}
