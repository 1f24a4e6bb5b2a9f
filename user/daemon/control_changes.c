// SPDX-License-Identifier: BSD-2-Clause
/* On a control thread, but for kill_sessions() and engine_follow(): on the threads of workers. */
#include "daemon/control_changes.h"

#include <errno.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "daemon/drain.h"
#include "daemon/reload.h"
#include "relay/worker_sessions.h"

/* --- kill --- */

static void kill_sessions(void *arg)
{
	struct round *r = arg;

	r->n += worker_end_sessions(r->worker, round_means, r, CAUSE_KILLED);
}

struct json_object *kill_command(struct round *r)
{
	round_ask(r, kill_sessions);
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
		return "no engine of the start could graft: restart culvert";
	return probe_hindrance(r->actions->probe, engine);
}

struct json_object *engine_command(struct round *r)
{
	enum engine engine = (enum engine)r->req->values[KEY_ENGINE].number;

	if (request_has(r->req, KEY_ENGINE)) {
		const char *hindrance = engine_hindrance(r, engine);

		if (hindrance)
			return request_error_json(ERROR_UNSUPPORTED, "engine %s: %s",
						  engine_name(engine), hindrance);
		for (struct forward *f = r->actions->service->forwards.first; f; f = f->next)
			if (round_names(r, f))
				f->engine = engine == ENGINE_DEFAULT ? f->conf->engine : engine;
	}
	round_ask(r, engine_follow);
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "engine", engine_name(r->named->engine));
	json_add_text(r->answer, "engine_configured", engine_name(r->named->conf->engine));
	json_add_int(r->answer, "live", atomic_load(&r->named->totals->live));
	json_add_int(r->answer, "flows_moving", r->n);
	return NULL;
}

/* --- upstream --- */

/* Give a server an order.  One that is down loses its sessions at once. */
struct json_object *upstream_command(struct round *r)
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
		round_ask(r, kill_sessions);
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

struct json_object *drain_before(const struct round *r)
{
	uint64_t due = NEVER;
	const char *code;
	char why[640];
	int e;

	if (request_has(r->req, KEY_DEADLINE))
		due = clock_ms() + r->req->values[KEY_DEADLINE].number;
	log_keep_complaint(why, sizeof(why));
	e = drain_forward(r->actions->service, r->name, request_has(r->req, KEY_UNDO), due);
	log_keep_complaint(NULL, 0);
	code = e == -ENOENT ? ERROR_NO_SUCH_FORWARD : e == -EBUSY ? ERROR_NO_ANSWER : ERROR_FAILED;
	return e ? request_error_json(code, "%s", why) : NULL;
}

struct json_object *drain_command(struct round *r)
{
	json_add_text(r->answer, "forward", r->name);
	json_add_text(r->answer, "state", forward_state_name(r->named));
	/* with its [sni] sections, which drain with it */
	json_add_int(r->answer, "live", atomic_load(&r->named->totals->limited));
	json_add_text(
		r->answer, "warning",
		request_has(r->req, KEY_UNDO) || r->actions->service->privileged ?
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
struct json_object *reload_command(struct round *r)
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

struct json_object *log_level_command(struct round *r)
{
	if (request_has(r->req, KEY_LEVEL))
		log_set_level((int)r->req->values[KEY_LEVEL].number);
	json_add_text(r->answer, "level", log_level_names[log_get_level()]);
	return NULL;
}
