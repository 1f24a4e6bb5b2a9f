// SPDX-License-Identifier: BSD-2-Clause
/*
 * The commands of the control socket, one function each; the table is at the end.  What changes
 * sessions runs on their workers' threads, between two batches of events.
 */
#include "daemon/operate.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "relay/forward.h"
#include "relay/session.h"
#include "relay/session_flow.h"

#define CALL_TIMEOUT_MS 2000

/* A request, who makes it, and the daemon. */
struct asked {
	const struct inspect *r;
	const struct command_request *req;
	const struct control_peer *peer;
};

/* What a worker is asked to do. */
struct order {
	struct worker *worker;
	const struct session_filter *filter; /* kill: those that match, */
	uint64_t last_id;                    /* ... and were there when it began */
	unsigned int n;                      /* out: sessions, or flows that move */
};

/*
 * Run FN on the thread of each worker, one after the other, with a copy of ORDER.  RET is the sum
 * of what they put into `n`.  False: a worker did not answer in time, and will not run FN.  A worker
 * that has ended has no sessions left, so it is passed over.
 */
static bool ask_workers(const struct inspect *r, void (*fn)(void *arg), struct order order,
			unsigned int *ret)
{
	bool all = true;
	int e;

	*ret = 0;
	for (unsigned int i = 0; i < r->n_workers; i++) {
		order.worker = &r->workers[i];
		order.n = 0;
		e = loop_call(&order.worker->loop, fn, &order, CALL_TIMEOUT_MS);
		if (!e)
			*ret += order.n;
		else if (e != -ESRCH)
			all = false;
	}
	return all;
}

static struct json_object *no_such_forward(const char *name)
{
	return command_error_json(ERROR_NO_SUCH_FORWARD, "no forward is named \"%.64s\"", name);
}

/* --- looking --- */

/* Check a filter by name, so that a mistyped name is an error and not "no sessions". */
static bool is_named(const struct inspect *r, const char *name)
{
	bool found = !name;

	pthread_mutex_lock(&r->forwards->lock);
	for (struct forward *f = r->forwards->first; f && !found; f = f->next)
		found = !strcmp(forward_name(f->conf), name);
	pthread_mutex_unlock(&r->forwards->lock);
	return found;
}

static struct json_object *do_sessions(const struct asked *a)
{
	return inspect_sessions(a->r, &a->req->filter);
}

static struct json_object *do_status(const struct asked *a)
{
	return inspect_status(a->r, !command_has(a->req, KEY_BRIEF));
}

static struct json_object *do_forwards(const struct asked *a)
{
	return inspect_forwards(a->r, a->req->filter.forward);
}

/* --- kill --- */

static bool is_meant(const void *arg, const struct session *s)
{
	const struct order *o = arg;

	return s->id <= o->last_id && session_filter_matches(o->filter, s);
}

static void kill_some(void *arg)
{
	struct order *o = arg;

	o->n = session_end_some(o->worker, is_meant, o, CAUSE_KILLED);
}

static struct json_object *do_kill(const struct asked *a)
{
	struct order order = { .filter = &a->req->filter,
			       .last_id = atomic_load(&a->r->shared->last_id) };
	unsigned long long n = 0;
	struct json_object *o;
	unsigned int some;
	bool all;

	do {
		all = ask_workers(a->r, kill_some, order, &some);
		n += some;
	} while (all && some);
	log_write(LOG_NOTICE, "control: kill: %llu session%s (by uid %u, pid %d)", n,
		  n == 1 ? "" : "s", a->peer->uid, (int)a->peer->pid);
	if (!all)
		return command_error_json(ERROR_NO_ANSWER, "a worker does not answer; sessions "
					  "reset so far: %llu", n);
	o = json_object_new_object();
	json_add_int(o, "killed", n);
	return o;
}

/* --- engine --- */

static void follow_engines(void *arg)
{
	struct order *o = arg;

	o->n = session_follow_engines(o->worker);
}

/* Say why ENGINE is not available here; NULL: it is. */
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
 * Set the engine of all forwards of that name, since one that a reload has replaced goes on with
 * its sessions.  With the lock held.
 */
static void set_engine(const struct asked *a, const struct forward *named)
{
	const char *name = forward_name(named->conf);

	log_write(LOG_NOTICE, "control: engine of forward %s: %s, was %s (by uid %u, pid %d)", name,
		  engine_name(engine_meant(a->req, named)),
		  engine_name(forward_engine(named)), a->peer->uid, (int)a->peer->pid);
	for (struct forward *f = a->r->forwards->first; f; f = f->next)
		if (!strcmp(forward_name(f->conf), name))
			forward_set_engine(f, engine_meant(a->req, f));
}

/* With the lock held. */
static struct json_object *change_engine(const struct asked *a, const struct forward *f)
{
	enum engine engine = forward_engine(f);
	const char *hindrance = NULL;
	unsigned int moving = 0;
	struct json_object *o;

	if (command_has(a->req, KEY_ENGINE)) {
		engine = engine_meant(a->req, f);
		hindrance = engine_hindrance(a->r, engine);
	}
	if (hindrance)
		return command_error_json(ERROR_UNSUPPORTED, "engine %s: %s", engine_name(engine),
					  hindrance);
	if (command_has(a->req, KEY_ENGINE))
		set_engine(a, f);
	if (!ask_workers(a->r, follow_engines, (struct order){ 0 }, &moving))
		return command_error_json(ERROR_NO_ANSWER, "a worker does not answer: its sessions "
					  "may be carried as before; ask again");
	o = json_object_new_object();
	json_add_text(o, "forward", forward_name(f->conf));
	json_add_text(o, "engine", engine_name(engine));
	json_add_text(o, "engine_configured", engine_name(f->conf->engine));
	json_add_int(o, "live", atomic_load(&f->totals->live));
	json_add_int(o, "flows_moving", moving);
	return o;
}

static struct json_object *do_engine(const struct asked *a)
{
	const char *name = a->req->filter.forward;
	struct json_object *answer;
	const struct forward *f;

	pthread_mutex_lock(&a->r->forwards->lock);
	f = forwards_find(a->r->forwards, name);
	answer = f ? change_engine(a, f) : no_such_forward(name);
	pthread_mutex_unlock(&a->r->forwards->lock);
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

/* WARNING: "" or what is wrong with it. */
static struct json_object *drain_json(const struct inspect *r, const char *name,
				      const char *warning)
{
	struct json_object *o = json_object_new_object();
	const struct forward *f;

	json_add_text(o, "forward", name);
	pthread_mutex_lock(&r->forwards->lock);
	f = forwards_find(r->forwards, name);
	json_add_text(o, "state", f ? forward_state_name(f) : "removed");
	json_add_int(o, "live", f ? atomic_load(&f->totals->live) : 0);
	pthread_mutex_unlock(&r->forwards->lock);
	json_add_text(o, "warning", warning);
	return o;
}

static struct json_object *do_drain(const struct asked *a)
{
	struct reload *reload = a->r->reload;
	const char *name = a->req->filter.forward;
	bool undo = command_has(a->req, KEY_UNDO);
	bool for_good = !undo && !reload_may_listen(reload);
	uint64_t due = command_has(a->req, KEY_DEADLINE) ? clock_ms() + a->req->deadline_ms
							 : UINT64_MAX;
	char why[640];
	int e = reload_drain(reload, name, undo, due, why, sizeof(why));

	if (e)
		return drain_error(e, why);
	log_write(LOG_NOTICE, "control: forward %s %s (by uid %u, pid %d)", name,
		  undo ? "takes new sessions again" : "drains: no new sessions", a->peer->uid,
		  (int)a->peer->pid);
	if (for_good)
		log_warning("forward %s: that it drains " DRAIN_FOR_GOOD, name);
	return drain_json(a->r, name, for_good ? "this " DRAIN_FOR_GOOD : "");
}

/* --- reload --- */

/* A reload may wait for a name server, so the answer is a number to wait for. */
static struct json_object *do_reload(const struct asked *a)
{
	uint64_t n = reload_ask(a->r->reload);
	struct json_object *o;

	if (!n)
		return command_error_json(ERROR_FAILED, RELOAD_STOPPING);
	log_write(LOG_NOTICE, "control: reload (by uid %u, pid %d)", a->peer->uid,
		  (int)a->peer->pid);
	o = json_object_new_object();
	json_add_int(o, "number", n);
	return o;
}

/* --- log level --- */

static struct json_object *do_log_level(const struct asked *a)
{
	struct json_object *o = json_object_new_object();

	if (command_has(a->req, KEY_LEVEL)) {
		log_write(LOG_NOTICE, "control: log level: %s, was %s (by uid %u, pid %d)",
			  log_level_name(a->req->level), log_level_name(log_get_level()),
			  a->peer->uid, (int)a->peer->pid);
		log_set_level(a->req->level);
	}
	json_add_text(o, "level", log_level_name(log_get_level()));
	return o;
}

static struct json_object *(*const handlers[COMMANDS])(const struct asked *a) = {
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
	struct asked a = { r, req, peer };

	if (!is_named(r, req->filter.forward))
		return no_such_forward(req->filter.forward);
	return handlers[command_number(req->command)](&a);
}
