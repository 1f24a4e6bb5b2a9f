// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the table at the end has a function for each command, which makes the answer
 * to a request.  All of this runs on control threads.  Answers are made one at a time, under the
 * lock of forwards.  Streams (sessions, exports, imports) run beside each other.  kill_sessions()
 * and engine_follow() run on the threads of workers.
 */
#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "daemon/change_forwards.h"
#include "daemon/control_round.h"
#include "daemon/hand_over.h"
#include "daemon/standby_stream.h"
#include "relay/session_life.h"
#include "relay/session_syn.h"

/* A change of forwards has failed with E, and WHY. */
static struct json_object *action_fault(int e, const char *why)
{
	return request_error_json(e == -ENOENT    ? ERROR_NO_SUCH_FORWARD :
				  e == -ETIMEDOUT ? ERROR_NO_ANSWER :
						    ERROR_FAILED,
				  "%s", why);
}

/* --- kill --- */

static enum cause kill_session(void *arg, const struct session_view *v)
{
	struct round *r = arg;

	if (!round_matches(r, v))
		return CAUSE_NONE;
	r->n++;
	return CAUSE_KILLED;
}

static void kill_sessions(void *arg)
{
	struct round *r = arg;

	worker_visit_sessions(r->worker, 0, 1, kill_session, r);
}

/* Another relay has the session, or none. */
static void kill_elsewhere(void *arg, const struct session_view *v, const struct grafted *h)
{
	struct round *r = arg;

	if (!round_matches(r, v))
		return;
	r->n++;
	standby_condemn(r->actions->standby, h);
}

static struct json_object *kill_command(struct round *r)
{
	round_ask(r, kill_sessions);
	if (r->actions->standby)
		standby_visit(r->actions->standby, 0, 1, kill_elsewhere, r);
	json_add_int(r->answer, "killed", r->n);
	return NULL;
}

/* --- engine --- */

static void engine_follow(void *arg)
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
		return "graft was not set up at the start: restart culvert";
	return probe_hindrance(r->shared->probe, engine);
}

/* For all forwards of the name: one that a reload has replaced still has sessions. */
static struct json_object *engine_command(struct round *r)
{
	enum engine engine = (enum engine)r->req->values[KEY_ENGINE].number;

	if (request_has(r->req, KEY_ENGINE)) {
		const char *hindrance = engine_hindrance(r, engine);
		struct forward *f;

		if (hindrance)
			return request_error_json(ERROR_UNSUPPORTED, "engine %s: %s",
						  engine_name(engine), hindrance);
		TAILQ_FOREACH(f, &r->actions->service->forwards.list, in_forwards)
			if (round_names(r, f))
				f->engine = engine == ENGINE_DEFAULT ? f->conf->engine : engine;
	}
	round_ask(r, engine_follow);
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "engine", engine_name(r->named->engine));
	json_add_text(r->answer, "engine_configured", engine_name(r->named->conf->engine));
	json_add_int(r->answer, "live", session_syn_forward_live(r->shared, r->named));
	json_add_int(r->answer, "flows_moving", r->n);
	return NULL;
}

/* --- upstream --- */

/* Before upstream_command(), without the lock: add or remove a server, or undo that. */
static struct json_object *upstream_before(struct round *r)
{
	uint64_t order = r->req->values[KEY_ORDER].number;
	const char *words = r->req->values[KEY_WORDS].text;
	char why[RELOAD_WHY_LEN];
	int e;

	if ((order == ORDER_WEIGHT) != request_has(r->req, KEY_WEIGHT) ||
	    r->req->values[KEY_WEIGHT].number > SERVER_WEIGHT_MAX)
		return request_error_json(ERROR_BAD_VALUE,
					  "upstream: `weight`, and no other order, needs a number "
					  "from 1 to 100");
	if (words && order != ORDER_ADD)
		return request_error_json(ERROR_BAD_VALUE, "upstream: words are for `add`");
	if (order <= ORDER_WEIGHT)
		return NULL;
	e = reload_order(r->actions->service, r->name,
			 order == ORDER_ADD    ? RELOAD_ADD :
			 order == ORDER_REMOVE ? RELOAD_REMOVE :
						 RELOAD_TAKE_BACK,
			 r->req->values[KEY_SERVER].text, words ?: "", why);
	r->changed = e > 0;
	return e < 0 ? action_fault(e, why) : NULL;
}

/* The server gets its order.  NULL: there is no such server. */
static struct server *upstream_order(struct round *r, uint64_t asked)
{
	enum server_order order = asked < ORDERS ? (enum server_order)asked : ORDER_READY;
	unsigned int weight = (unsigned int)r->req->values[KEY_WEIGHT].number; /* or 0 */
	const char *name = r->req->values[KEY_SERVER].text;
	struct server *s = servers_order(&r->named->servers, name,
					 asked == ORDER_WEIGHT ? NULL : &order,
					 asked < ORDERS ? NULL : &weight);
	struct forward *f;

	/* a removed one may still have sessions */
	TAILQ_FOREACH(f, &r->actions->service->forwards.list, in_forwards)
		if (!s && r->changed && round_names(r, f))
			s = servers_order(&f->servers, name, NULL, NULL);
	return s;
}

/* Give a server an order.  One that is down loses its sessions at once. */
static struct json_object *upstream_command(struct round *r)
{
	uint64_t order = r->req->values[KEY_ORDER].number;
	struct server *s = upstream_order(r, order);

	if (!s && !r->changed)
		return request_error_json(ERROR_BAD_VALUE,
					  "forward %.64s has no server \"%.64s\"; "
					  "`culvert forwards` lists them",
					  r->name, r->req->values[KEY_SERVER].text);
	r->server = s;
	session_syn_order(r->shared, r->named);
	if (order == ORDER_DOWN)
		round_ask(r, kill_sessions);
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "server", r->req->values[KEY_SERVER].text);
	json_add_text(r->answer, "order", r->req->values[KEY_ORDER].text);
	json_add_int(r->answer, "live", s ? atomic_load(&s->live) : 0);
	if (order == ORDER_DOWN)
		json_add_int(r->answer, "killed", r->n);
	server_put(s);
	return NULL;
}

/* --- drain --- */

/* Before drain_command(), without the lock: drain a forward, or let it accept again. */
static struct json_object *drain_before(const struct round *r)
{
	uint64_t due = NEVER;
	char why[DRAIN_WHY_LEN];
	int e;

	if (request_has(r->req, KEY_DEADLINE))
		due = clock_ms() + r->req->values[KEY_DEADLINE].number;
	e = drain_forward(r->actions->service, r->name, request_has(r->req, KEY_UNDO), due, why);
	return e ? action_fault(e, why) : NULL;
}

static struct json_object *drain_command(struct round *r)
{
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "state", forward_state_name(r->named));
	/* with its [sni] sections, which drain with it */
	json_add_int(r->answer, "live", atomic_load(&r->named->totals->limited));
	json_add_text(
		r->answer, "warning",
		request_has(r->req, KEY_UNDO) || r->actions->service->privileged ?
			"" :
			"this cannot be undone, not even by a reload, unless systemd opened the "
			"sockets: there is no privileged process, so restart culvert");
	return NULL;
}

/* --- reload, log level --- */

/*
 * A reload waits for the privileged process and the workers.  So the answer is its number, by which
 * a later request asks for the result.
 */
static struct json_object *reload_command(struct round *r)
{
	bool looks = request_has(r->req, KEY_NUMBER);
	uint64_t n = looks ? r->req->values[KEY_NUMBER].number : reload_ask(r->actions->service);

	if (!n)
		return request_error_json(ERROR_FAILED, SERVICE_STOPPING);
	json_add_int(r->answer, "number", n);
	if (looks)
		json_add(r->answer, "reload", reload_json(r->actions->service));
	return NULL;
}

static struct json_object *log_level_command(struct round *r)
{
	if (request_has(r->req, KEY_LEVEL))
		log_set_level((int)r->req->values[KEY_LEVEL].number);
	json_add_text(r->answer, "level", log_level_names[log_get_level()]);
	return NULL;
}

/* --- commands that are streams --- */

/* `sessions` has no other answer than its stream. */
static struct json_object *stream_command(struct round *r)
{
	enum command_id id = command_number(r->req->command);

	if (!r->actions->standby && (id == COMMAND_EXPORT || id == COMMAND_IMPORT))
		return request_error_json(ERROR_UNSUPPORTED, "nothing is grafted here: %s",
					  probe_hindrance(r->shared->probe, ENGINE_GRAFT) ?: "");
	if ((id == COMMAND_EXPORT || id == COMMAND_IMPORT) && !standby_has_room(r->actions->standby))
		return request_error_json(ERROR_FAILED,
					  "%d exports and imports run already, which is the most",
					  STREAMS_MAX);
	json_add_text(r->answer, "stream", r->req->command->name);
	return NULL;
}

void actions_stream(void *arg, const struct control *c, const struct request *req, int fd)
{
	struct standby *sb = ((const struct actions *)arg)->standby;
	const struct request_value *after = &req->values[KEY_AFTER];

	if (command_number(req->command) == COMMAND_SESSIONS)
		sessions_stream(arg, c, req, fd);
	else if (command_number(req->command) == COMMAND_EXPORT)
		standby_export(sb, c, fd,
			       request_has(req, KEY_AFTER) ? after->number : STANDBY_AFTER_MS);
	else if (command_number(req->command) == COMMAND_IMPORT)
		standby_import(sb, c, fd, req->values[KEY_NAME].text ?: "");
	else if (command_number(req->command) == COMMAND_HAND_OVER && !request_has(req, KEY_STORE))
		hand_over(arg, c, fd);
}

/* Without --store hand_over() follows. */
static struct json_object *hand_over_command(struct round *r)
{
	bool stores = request_has(r->req, KEY_STORE);
	const char *why = hand_over_hindrance(r->actions);
	int e = why || !stores ? 0 : hand_over_store(r->actions);

	if (why || e)
		return request_error_json(ERROR_FAILED, "the sessions stay here: %s",
					  why ?: strerror(-e));
	if (stores)
		return NULL;
	r->actions->service->hands_over = true;
	json_add_int(r->answer, "pid", getpid());
	return stream_command(r);
}

/* --- all commands --- */

/* Each adds to the answer and returns NULL; or it returns an error, which is the answer. */
static struct json_object *(*const handlers[COMMANDS])(struct round *r) = {
	[COMMAND_SESSIONS] = stream_command,     [COMMAND_STATUS] = status_command,
	[COMMAND_FORWARDS] = forwards_command,   [COMMAND_KILL] = kill_command,
	[COMMAND_ENGINE] = engine_command,       [COMMAND_UPSTREAM] = upstream_command,
	[COMMAND_DRAIN] = drain_command,         [COMMAND_RELOAD] = reload_command,
	[COMMAND_LOG_LEVEL] = log_level_command, [COMMAND_EXPORT] = stream_command,
	[COMMAND_IMPORT] = stream_command,       [COMMAND_HAND_OVER] = hand_over_command,
};

struct json_object *actions_run(void *arg, const struct request *req)
{
	const struct actions *a = arg;
	struct round r = { .actions = a,
			   .req = req,
			   .name = req->values[KEY_FORWARD].text,
			   .shared = a->service->shared };
	struct forwards *all = &a->service->forwards;
	enum command_id id = command_number(req->command);
	struct json_object *wrong = id == COMMAND_DRAIN    ? drain_before(&r) :
				    id == COMMAND_UPSTREAM ? upstream_before(&r) :
							     NULL;

	if (wrong)
		return wrong;
	if (!lock_within(&all->lock, ROUND_TIMEOUT_MS))
		return request_error_json(ERROR_NO_ANSWER,
					  "a reload or drain waits for a "
					  "worker that does not answer; ask again");
	TAILQ_FOREACH(r.named, &all->list, in_forwards) /* active ones come first */
		if (round_names(&r, r.named))
			break;
	r.answer = json_object_new_object();
	/* so that a mistyped name is an error and not "no sessions" */
	wrong = r.name && !r.named ? request_error_json(ERROR_NO_SUCH_FORWARD,
							"no forward is named \"%.64s\"", r.name) :
				     handlers[id](&r);
	pthread_mutex_unlock(&all->lock);
	if (!wrong && r.silent && request_changes(req))
		wrong = request_error_json(ERROR_NO_ANSWER,
					   "%u workers do not answer; so far %u sessions "
					   "or flows have changed; ask again",
					   r.silent, r.n);
	if (!wrong)
		return r.answer;
	json_object_put(r.answer);
	return wrong;
}
