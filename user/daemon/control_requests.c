// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/control_requests.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_add.h"
#include "base/log.h"
#include "config/config.h"
#include "datapath/flow.h"
#include "relay/balance.h"

/* The object, an array in it, and the array's numbers: json-c counts all three. */
#define DEPTH_MAX 3
#define SECONDS_MAX 86400
#define SHOWN 64 /* bytes of what is wrong */
#define MESSAGE_MAX 320

/* --- values: false if they are none for their key --- */

/* VALUE as a text; NULL: it is no text, empty, or has a NUL in it. */
static const char *text_of(struct json_object *value)
{
	const char *text;

	if (!json_object_is_type(value, json_type_string))
		return NULL;
	text = json_object_get_string(value);
	return *text && strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

static bool take_forward(struct command_request *req, struct json_object *value)
{
	req->filter.forward = text_of(value);
	return req->filter.forward;
}

static bool take_clients(struct command_request *req, struct json_object *value)
{
	const char *text = text_of(value);

	return text && !acl_add(&req->filter.clients, true, text);
}

static bool take_carrier(struct command_request *req, struct json_object *value)
{
	const char *text = text_of(value);

	for (int c = 0; text && c < CARRIERS; c++)
		if (!strcmp(text, carrier_name((enum carrier)c)))
			req->filter.carrier = c;
	return req->filter.carrier != FILTER_ANY;
}

static bool take_whole(struct json_object *value, uint64_t *ret)
{
	*ret = json_object_get_uint64(value); /* 0, for less; UINT64_MAX, for more */
	return json_object_is_type(value, json_type_int) && *ret - 1 < INT64_MAX;
}

static bool take_ids(struct command_request *req, struct json_object *value)
{
	struct session_filter *f = &req->filter;
	bool array = json_object_is_type(value, json_type_array), good = true;

	f->n_ids = array ? json_object_array_length(value) : 1;
	f->ids = calloc(f->n_ids ?: 1, sizeof(*f->ids));
	for (size_t i = 0; f->ids && good && i < f->n_ids; i++)
		good = take_whole(array ? json_object_array_get_idx(value, i) : value, &f->ids[i]);
	return f->ids && f->n_ids && good;
}

static bool take_engine(struct command_request *req, struct json_object *value)
{
	const char *text = text_of(value);

	for (int e = 0; text && e < ENGINES; e++)
		if (!strcmp(text, engine_names[e]))
			req->engine = e;
	return req->engine != ENGINE_DEFAULT || (text && !strcmp(text, "default"));
}

static bool take_server(struct command_request *req, struct json_object *value)
{
	req->server = text_of(value);
	return req->server;
}

static bool take_order(struct command_request *req, struct json_object *value)
{
	const char *text = text_of(value);

	req->order = ORDERS;
	for (unsigned int i = 0; text && i < ORDERS; i++)
		if (!strcmp(text, server_order_names[i]))
			req->order = i;
	return req->order < ORDERS;
}

static bool take_seconds(struct command_request *req, struct json_object *value)
{
	double seconds = json_object_get_double(value);

	if (!json_object_is_type(value, json_type_int) &&
	    !json_object_is_type(value, json_type_double))
		return false;
	if (!(seconds >= 0 && seconds <= SECONDS_MAX))
		return false;
	req->deadline_ms = (unsigned int)(seconds * 1000);
	return true;
}

static bool take_level(struct command_request *req, struct json_object *value)
{
	const char *text = text_of(value);

	req->level = text ? log_level_parse(text) : -1;
	return req->level >= 0;
}

static bool take_number(struct command_request *req, struct json_object *value)
{
	return take_whole(value, &req->number);
}

/* --- the tables --- */

#define BIT(key) (1U << (key))
#define KEYS_OF(...) \
	.keys = { __VA_ARGS__ }, \
	.n_keys = sizeof((enum command_key[]){ __VA_ARGS__ }) / sizeof(enum command_key)
#define FLAG .expected = "true or false"
#define WHOLE "a whole number from 1 to 2^63 - 1"

const struct command_key_def command_keys[KEYS] = {
	[KEY_FORWARD] = { "forward", "NAME", "of this forward", .take = take_forward,
			  .expected = "a text that is not empty" },
	[KEY_CLIENT] = { "client", "ADDR", "of these clients: 10.0.0.7, 10.0.0.0/8, ::1, unix:",
			 .take = take_clients,
			 .expected = ("addresses or prefixes without host bits, as \"10.0.0.0/8, "
				      "::1\"; or \"unix:\"") },
	[KEY_CARRIER] = { "carrier", "NAME", "with a flow on copy, splice, sockmap or graft",
			  .take = take_carrier, .expected = "copy, splice, sockmap or graft" },
	[KEY_ID] = { "id", "ID", "of this number, as `culvert sessions` shows", .take = take_ids,
		     .is_number = true, .expected = WHOLE ", or several in an array" },
	[KEY_ALL] = { "all", NULL, "all sessions", FLAG },
	[KEY_ENGINE] = { "engine", "ENGINE",
			 "auto, graft, sockmap, splice, copy; default: as configured",
			 .take = take_engine,
			 .expected = "auto, graft, sockmap, splice, copy or default" },
	[KEY_SERVER] = { "server", "SERVER", "as `culvert forwards` names it",
			 .take = take_server, .expected = "a text that is not empty" },
	[KEY_ORDER] = { "order", "ORDER", "drain: no new sessions; down: no sessions; ready",
			.take = take_order, .expected = "drain, down or ready" },
	[KEY_DEADLINE] = { "deadline", "SECONDS",
			   "reset the sessions that are left after so long", "drain-timeout",
			   .take = take_seconds, .is_number = true,
			   .expected = "seconds, from 0 to 86400" },
	[KEY_UNDO] = { "undo", NULL, "take new sessions again", FLAG },
	[KEY_BRIEF] = { "brief", NULL, "without the list of forwards", FLAG },
	[KEY_LEVEL] = { "level", "LEVEL", "error, warning, notice, info or debug",
			.take = take_level, .expected = "error, warning, notice, info or debug" },
	[KEY_NUMBER] = { "number", "N", "read nothing: show how this reload has gone",
			 .take = take_number, .is_number = true, .expected = WHOLE },
};

const struct command commands[COMMANDS] = {
	[COMMAND_SESSIONS] = {
		.name = "sessions", .summary = "show the live sessions of a running daemon",
		KEYS_OF(KEY_FORWARD, KEY_CLIENT, KEY_CARRIER, KEY_ID) },
	[COMMAND_STATUS] = {
		.name = "status", .summary = "show totals, errors and resources",
		KEYS_OF(KEY_BRIEF) },
	[COMMAND_FORWARDS] = {
		.name = "forwards", .summary = "show the forwards: engine, state, sessions, limits",
		KEYS_OF(KEY_FORWARD) },
	[COMMAND_KILL] = {
		.name = "kill", .summary = "reset sessions: of these ids, of all filters, or --all",
		.changes = COMMAND_ALWAYS, .needs_some = true,
		.positional = BIT(KEY_ID),
		KEYS_OF(KEY_ID, KEY_FORWARD, KEY_CLIENT, KEY_CARRIER, KEY_ALL) },
	[COMMAND_ENGINE] = {
		.name = "engine", .summary = "show or set what carries a forward's sessions",
		.changes = BIT(KEY_ENGINE),
		.required = BIT(KEY_FORWARD), .positional = BIT(KEY_FORWARD) | BIT(KEY_ENGINE),
		KEYS_OF(KEY_FORWARD, KEY_ENGINE) },
	[COMMAND_UPSTREAM] = {
		.name = "upstream", .summary = "drain a server of a forward, take it down, or end that",
		.changes = COMMAND_ALWAYS,
		.required = BIT(KEY_FORWARD) | BIT(KEY_SERVER) | BIT(KEY_ORDER),
		.positional = BIT(KEY_FORWARD) | BIT(KEY_SERVER) | BIT(KEY_ORDER),
		KEYS_OF(KEY_FORWARD, KEY_SERVER, KEY_ORDER) },
	[COMMAND_DRAIN] = {
		.name = "drain", .summary = "let a forward take no new sessions; --undo ends that",
		.changes = COMMAND_ALWAYS,
		.required = BIT(KEY_FORWARD), .positional = BIT(KEY_FORWARD),
		KEYS_OF(KEY_FORWARD, KEY_DEADLINE, KEY_UNDO) },
	[COMMAND_RELOAD] = {
		.name = "reload", .summary = "read the configuration file again, as SIGHUP does",
		.changes = COMMAND_ALWAYS, .looks = BIT(KEY_NUMBER),
		KEYS_OF(KEY_NUMBER) },
	[COMMAND_LOG_LEVEL] = {
		.name = "log-level", .summary = "show or set how much the daemon logs",
		.changes = BIT(KEY_LEVEL),
		.positional = BIT(KEY_LEVEL),
		KEYS_OF(KEY_LEVEL) },
};

const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

/* --- what is wrong --- */

struct json_object *command_error_json(const char *code, const char *fmt, ...)
{
	struct json_object *o = json_object_new_object(), *error = json_object_new_object();
	char text[MESSAGE_MAX], shown[MESSAGE_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_add_text(error, "code", code);
	json_add_text(error, "message", log_escape(text, shown, sizeof(shown)));
	json_add(o, "error", error);
	return o;
}

/* --- requests: what is wrong with them, or NULL --- */

static struct json_object *take_key(struct command_request *req, const char *name,
				    struct json_object *value)
{
	const struct command *c = req->command;
	const struct command_key_def *def;
	size_t i = 0;

	while (i < c->n_keys && strcmp(command_keys[c->keys[i]].name, name) != 0)
		i++;
	if (i == c->n_keys)
		return command_error_json(ERROR_UNKNOWN_KEY, "%s: unknown key \"%.*s\"", c->name,
					  SHOWN, name);
	def = &command_keys[c->keys[i]];
	if (def->take ? !def->take(req, value) : !json_object_is_type(value, json_type_boolean))
		return command_error_json(ERROR_BAD_VALUE, "%s: %s: expected %s", c->name, name,
					  def->expected);
	if (def->take || json_object_get_boolean(value))
		req->given |= BIT(c->keys[i]);
	return NULL;
}

/* Check what the keys must be together. */
static struct json_object *check_whole(const struct command_request *req)
{
	const struct command *c = req->command;

	for (size_t i = 0; i < c->n_keys; i++)
		if (c->required & ~req->given & BIT(c->keys[i]))
			return command_error_json(ERROR_MISSING_KEY, "%s: needs %s", c->name,
						  command_keys[c->keys[i]].name);
	if (c->needs_some && !req->given)
		return command_error_json(ERROR_MISSING_KEY, "%s: needs an id, a filter or all",
					  c->name);
	if (command_has(req, KEY_ALL) && req->given != BIT(KEY_ALL))
		return command_error_json(ERROR_BAD_VALUE, "%s: all: contradicts the other filters",
					  c->name);
	if (command_has(req, KEY_UNDO) && command_has(req, KEY_DEADLINE))
		return command_error_json(ERROR_BAD_VALUE, "%s: undo: contradicts deadline",
					  c->name);
	return NULL;
}

static struct json_object *take_object(struct command_request *req)
{
	const char *name = text_of(json_object_object_get(req->json, "command"));
	struct json_object *wrong = NULL;

	if (!name)
		return command_error_json(ERROR_MALFORMED, "a request is one line: "
					  "{\"command\":\"NAME\",...}");
	req->command = command_find(name);
	if (!req->command)
		return command_error_json(ERROR_UNKNOWN_COMMAND, "unknown command \"%.*s\"", SHOWN,
					  name);
	json_object_object_foreach(req->json, key, value) {
		if (!wrong && strcmp(key, "command") != 0)
			wrong = take_key(req, key, value);
	}
	return wrong ?: check_whole(req);
}

struct json_object *command_json(const char *text)
{
	struct json_tokener *t = json_tokener_new_ex(DEPTH_MAX);
	struct json_object *value;

	if (!t)
		return NULL;
	json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	value = json_tokener_parse_ex(t, text, (int)strlen(text) + 1);
	json_tokener_free(t);
	return value;
}

struct json_object *command_parse(const char *line, struct command_request *ret)
{
	struct json_object *wrong;

	*ret = (struct command_request){ .engine = ENGINE_DEFAULT,
					 .filter = { .carrier = FILTER_ANY } };
	if (line[strspn(line, "abcdefghijklmnopqrstuvwxyz-")]) {
		ret->json = command_json(line);
	} else {
		ret->json = json_object_new_object();
		json_add_text(ret->json, "command", line);
	}
	wrong = take_object(ret);
	if (wrong)
		command_close(ret);
	return wrong;
}

void command_close(struct command_request *req)
{
	acl_close(&req->filter.clients);
	free(req->filter.ids);
	json_object_put(req->json);
}
