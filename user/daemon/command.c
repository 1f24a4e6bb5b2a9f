// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/command.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_add.h"
#include "base/log.h"
#include "config/config.h"
#include "relay/balance.h"
#include "relay/session.h"
#include "relay/session_graft.h"

/* The object, an array in it, and the array's numbers: json-c counts all three. */
#define DEPTH_MAX 3
#define SECONDS_MAX 86400
#define SHOWN 64 /* bytes of what is wrong */
#define MESSAGE_MAX 320

#define BIT(key) (1U << (key))
#define KEYS_OF(...) \
	.keys = { __VA_ARGS__ }, \
	.n_keys = sizeof((enum command_key[]){ __VA_ARGS__ }) / sizeof(enum command_key)

const struct command_key_def command_keys[KEYS] = {
	[KEY_FORWARD] = { "forward", TYPE_TEXT, "NAME", "of this forward", NULL },
	[KEY_CLIENT] = { "client", TYPE_CLIENTS, "ADDR",
			 "of these clients: 10.0.0.7, 10.0.0.0/8, ::1, unix:", NULL },
	[KEY_CARRIER] = { "carrier", TYPE_CARRIER, "NAME",
			  "with a flow on copy, splice, sockmap or graft", NULL },
	[KEY_ID] = { "id", TYPE_IDS, "ID", "of this number, as `culvert sessions` shows", NULL },
	[KEY_ALL] = { "all", TYPE_FLAG, NULL, "all sessions", NULL },
	[KEY_ENGINE] = { "engine", TYPE_ENGINE, "ENGINE",
			 "auto, graft, sockmap, splice, copy; default: as configured", NULL },
	[KEY_SERVER] = { "server", TYPE_SERVER, "SERVER", "as `culvert forwards` names it", NULL },
	[KEY_ORDER] = { "order", TYPE_ORDER, "ORDER",
			"drain: no new sessions; down: no sessions; ready", NULL },
	[KEY_DEADLINE] = { "deadline", TYPE_SECONDS, "SECONDS",
			   "reset the sessions that are left after so long", "drain-timeout" },
	[KEY_UNDO] = { "undo", TYPE_FLAG, NULL, "take new sessions again", NULL },
	[KEY_BRIEF] = { "brief", TYPE_FLAG, NULL, "without the list of forwards", NULL },
	[KEY_LEVEL] = { "level", TYPE_LEVEL, "LEVEL", "error, warning, notice, info or debug",
			NULL },
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
		.changes = COMMAND_ALWAYS },
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

/* --- filters --- */

static bool has_id(const struct session_filter *f, uint64_t id)
{
	for (size_t i = 0; i < f->n_ids; i++)
		if (f->ids[i] == id)
			return true;
	return !f->n_ids;
}

bool session_filter_matches(const struct session_filter *f, const struct session *s)
{
	if (!has_id(f, s->id))
		return false;
	if (f->carrier != FILTER_ANY && (int)session_carrier(s, CLIENT) != f->carrier &&
	    (int)session_carrier(s, UPSTREAM) != f->carrier)
		return false;
	if (f->forward && strcmp(forward_name(forward_of(s)), f->forward) != 0)
		return false;
	return !f->clients.n || acl_allows(&f->clients, &s->client.sa);
}

/* --- values: false if they are none of their type --- */

static const char *const expectations[] = {
	[TYPE_TEXT] = "a text that is not empty",
	[TYPE_CLIENTS] = ("addresses or prefixes without host bits, as \"10.0.0.0/8, ::1\"; or "
			  "\"unix:\""),
	[TYPE_CARRIER] = "copy, splice, sockmap or graft",
	[TYPE_ENGINE] = "auto, graft, sockmap, splice, copy or default",
	[TYPE_SERVER] = "a text that is not empty",
	[TYPE_ORDER] = "drain, down or ready",
	[TYPE_LEVEL] = "error, warning, notice, info or debug",
	[TYPE_IDS] = "a whole number from 1 to 2^63 - 1, or several in an array",
	[TYPE_SECONDS] = "seconds, from 0 to 86400",
	[TYPE_FLAG] = "true or false",
};

/* VALUE as a text; NULL: it is no text, empty, or has a NUL in it. */
static const char *text_of(struct json_object *value)
{
	const char *text;

	if (!json_object_is_type(value, json_type_string))
		return NULL;
	text = json_object_get_string(value);
	return *text && strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

static bool take_ids(struct session_filter *f, struct json_object *value)
{
	bool array = json_object_is_type(value, json_type_array);
	size_t n = array ? json_object_array_length(value) : 1;

	f->ids = calloc(n ?: 1, sizeof(*f->ids));
	for (size_t i = 0; f->ids && i < n; i++) {
		struct json_object *id = array ? json_object_array_get_idx(value, i) : value;

		f->ids[i] = json_object_get_uint64(id); /* 0, for less; UINT64_MAX, for more */
		if (!json_object_is_type(id, json_type_int) || f->ids[i] - 1 >= INT64_MAX)
			return false;
	}
	f->n_ids = n;
	return f->ids && n;
}

static bool take_carrier(struct session_filter *f, const char *name)
{
	for (int c = 0; c < CARRIERS; c++)
		if (!strcmp(name, carrier_name((enum carrier)c)))
			f->carrier = c;
	return f->carrier != FILTER_ANY;
}

static bool take_engine(struct command_request *req, const char *name)
{
	for (int e = 0; e < ENGINES; e++)
		if (!strcmp(name, engine_name((enum engine)e)))
			req->engine = e;
	return req->engine != ENGINE_DEFAULT || !strcmp(name, "default");
}

static bool take_order(struct command_request *req, const char *name)
{
	req->order = ORDERS;
	for (unsigned int i = 0; i < ORDERS; i++)
		if (!strcmp(name, server_order_name((enum server_order)i)))
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

static bool take_value(struct command_request *req, enum command_type type,
		       struct json_object *value)
{
	const char *text = text_of(value);

	switch (type) {
	case TYPE_IDS:
		return take_ids(&req->filter, value);
	case TYPE_SECONDS:
		return take_seconds(req, value);
	case TYPE_FLAG:
		return json_object_is_type(value, json_type_boolean);
	case TYPE_TEXT:
		req->filter.forward = text;
		return text;
	case TYPE_SERVER:
		req->server = text;
		return text;
	case TYPE_ORDER:
		return text && take_order(req, text);
	case TYPE_CLIENTS:
		return text && !acl_add(&req->filter.clients, true, text);
	case TYPE_CARRIER:
		return text && take_carrier(&req->filter, text);
	case TYPE_ENGINE:
		return text && take_engine(req, text);
	default:
		req->level = text ? log_level_parse(text) : -1;
		return req->level >= 0;
	}
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
	if (!take_value(req, def->type, value))
		return command_error_json(ERROR_BAD_VALUE, "%s: %s: expected %s", c->name, name,
					  expectations[def->type]);
	if (def->type != TYPE_FLAG || json_object_get_boolean(value))
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
