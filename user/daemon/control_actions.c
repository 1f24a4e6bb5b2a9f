// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a request becomes an answer by the function of its command in the table at
 * the end.  All of it runs on control threads: answers one at a time, but streams of sessions,
 * exports and imports beside each other.
 */
#include "daemon/control_actions.h"

#include "base/clock.h"
#include "base/json_add.h"
#include "daemon/control_changes.h"
#include "daemon/control_forwards.h"
#include "daemon/control_sessions.h"
#include "daemon/control_status.h"
#include "daemon/standby_stream.h"

/* --- commands that are streams --- */

/* The answer is made by sessions_stream(), unless there is an error. */
static struct json_object *sessions_command(struct round *r)
{
	(void)r;
	return NULL;
}

static struct json_object *stream_command(struct round *r)
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
		sessions_stream(arg, c, req, fd);
	else if (command_number(req->command) == COMMAND_EXPORT)
		standby_export(sb, c, fd,
			       request_has(req, KEY_AFTER) ? after->number : STANDBY_AFTER_MS);
	else if (command_number(req->command) == COMMAND_IMPORT)
		standby_import(sb, c, fd, req->values[KEY_NAME].text ?: "");
}

/* --- all commands --- */

/* Each adds to the answer and returns NULL; or it returns an error, which is the answer. */
static struct json_object *(*const handlers[COMMANDS])(struct round *r) = {
	[COMMAND_SESSIONS] = sessions_command,   [COMMAND_STATUS] = status_command,
	[COMMAND_FORWARDS] = forwards_command,   [COMMAND_KILL] = kill_command,
	[COMMAND_ENGINE] = engine_command,       [COMMAND_UPSTREAM] = upstream_command,
	[COMMAND_DRAIN] = drain_command,         [COMMAND_RELOAD] = reload_command,
	[COMMAND_LOG_LEVEL] = log_level_command, [COMMAND_EXPORT] = stream_command,
	[COMMAND_IMPORT] = stream_command,
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
	struct json_object *wrong = id == COMMAND_DRAIN ? drain_before(&r) : NULL;

	if (wrong)
		return wrong;
	if (!lock_within(&all->lock, ROUND_TIMEOUT_MS))
		return request_error_json(ERROR_NO_ANSWER,
					  "a reload or drain waits for a "
					  "worker that does not answer; ask again");
	r.named = all->first; /* active ones come first */
	while (r.named && !round_names(&r, r.named))
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
