// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/control_requests.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/json_add.h"
#include "base/log.h"
#include "datapath/flow.h"

/* The object, an array in it, and the array's numbers: json-c counts all three. */
#define DEPTH_MAX 3
#define SECONDS_MAX 86400
#define SHOWN 64 /* bytes of a wrong word, in messages */
#define MESSAGE_MAX 320

/* --- values: false if a value does not suit its key --- */

/* VALUE as a text; NULL: it is no text, empty, or has a NUL in it. */
static const char *text_of(struct json_object *value)
{
	const char *text;

	if (!json_object_is_type(value, json_type_string))
		return NULL;
	text = json_object_get_string(value);
	return *text && strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

static bool take_choice(const struct request_key_def *key, struct request_value *v)
{
	for (v->number = 0; v->text && v->number < key->n_choices; v->number++)
		if (key->choices[v->number] && !strcmp(key->choices[v->number], v->text))
			return true;
	return false;
}

static bool take_whole(struct json_object *value, uint64_t *ret)
{
	*ret = json_object_get_uint64(value); /* 0 if it is negative, UINT64_MAX if it is larger */
	return json_object_is_type(value, json_type_int) && *ret - 1 < INT64_MAX;
}

static bool are_ids(struct json_object *value)
{
	size_t n, i = 0;
	uint64_t id;

	if (!json_object_is_type(value, json_type_array))
		return take_whole(value, &id);
	n = json_object_array_length(value);
	while (i < n && take_whole(json_object_array_get_idx(value, i), &id))
		i++;
	return n && i == n;
}

static bool take_seconds(struct json_object *value, uint64_t *ret_ms)
{
	double seconds = json_object_get_double(value);
	bool is_number = json_object_is_type(value, json_type_int) ||
			 json_object_is_type(value, json_type_double);

	if (!is_number || !(seconds >= 0 && seconds <= SECONDS_MAX))
		return false;
	*ret_ms = (uint64_t)(seconds * 1000);
	return true;
}

static bool take_value(struct request *req, enum request_key key, struct json_object *value)
{
	struct request_value *v = &req->values[key];

	v->text = text_of(value);
	switch (request_keys[key].kind) {
	case VALUE_FLAG:
		v->number = (uint64_t)json_object_get_boolean(value);
		return json_object_is_type(value, json_type_boolean);
	case VALUE_TEXT:
		return v->text;
	case VALUE_CHOICE:
		return take_choice(&request_keys[key], v);
	case VALUE_CLIENTS:
		return v->text && !acl_add(&req->clients, true, v->text);
	case VALUE_WHOLE:
		return take_whole(value, &v->number);
	case VALUE_IDS:
		req->ids = value;
		return are_ids(value);
	case VALUE_SECONDS:
		return take_seconds(value, &v->number);
	}
	return false;
}

/* --- the tables --- */

#define BIT(key) (1U << (key))
#define WHOLE "a whole number from 1 to 2^63 - 1"
#define TEXT "a text that is not empty"
#define CHOICES(names) .choices = (names), .n_choices = sizeof(names) / sizeof((names)[0])
#define FLAG VALUE_FLAG, .expected = "true or false"

static const char *const engines[ENGINES + 1] = {
	[ENGINE_AUTO] = "auto", [ENGINE_SOCKMAP] = "sockmap", [ENGINE_SPLICE] = "splice",
	[ENGINE_COPY] = "copy", [ENGINE_GRAFT] = "graft",     [ENGINE_DEFAULT] = "default",
};

static const char *const orders[] = {
	[ORDER_READY] = "ready",
	[ORDER_DRAIN] = "drain",
	[ORDER_DOWN] = "down",
	[ORDER_WEIGHT] = "weight",
	[ORDER_AS_CONFIGURED] = "as-configured",
	[ORDER_ADD] = "add",
	[ORDER_REMOVE] = "remove",
};

const struct request_key_def request_keys[KEYS] = {
	[KEY_FORWARD] = { "forward", "NAME", "of this forward", VALUE_TEXT, .expected = TEXT },
	[KEY_CLIENT] = { "client", "ADDR",
			 "of these clients: 10.0.0.7, 10.0.0.0/8, ::1, unix:", VALUE_CLIENTS,
			 .expected = ("addresses or prefixes without host bits, as \"10.0.0.0/8, "
				      "::1\"; or \"unix:\"") },
	[KEY_SERVER_NAME] = { "server-name", "NAME", "whose TLS hello has this name", VALUE_TEXT,
			      .expected = TEXT },
	[KEY_CARRIER] = { "carrier", "NAME", "with a flow on copy, splice, sockmap or graft",
			  VALUE_CHOICE, .expected = "copy, splice, sockmap or graft",
			  CHOICES(carrier_names) },
	[KEY_ID] = { "id", "ID", "of this number, as `culvert sessions` shows", VALUE_IDS,
		     .expected = WHOLE ", or several in an array" },
	[KEY_ALL] = { "all", NULL, "all sessions, also those of others that this relay knows",
		      FLAG },
	[KEY_ENGINE] = { "engine", "ENGINE",
			 "auto, graft, sockmap, splice, copy; default: as configured", VALUE_CHOICE,
			 .expected = "auto, graft, sockmap, splice, copy or default",
			 CHOICES(engines) },
	[KEY_SERVER] = { "server", "SERVER", "as `culvert forwards` names it", VALUE_TEXT,
			 .expected = TEXT },
	[KEY_ORDER] = { "order", "ORDER",
			"drain: no new sessions; down: none; ready; weight; add; remove; as-configured",
			VALUE_CHOICE,
			.expected = "drain, down, ready, weight, add, remove or as-configured",
			CHOICES(orders) },
	[KEY_WEIGHT] = { "weight", "N", "its weight from now on, for the order `weight`",
			 VALUE_WHOLE, .expected = "a whole number from 1 to 100" },
	[KEY_WORDS] = { "words", "WORDS",
			"behind the address of a server that is added, as in the file", VALUE_TEXT,
			.expected = TEXT },
	[KEY_DEADLINE] = { "deadline", "SECONDS", "reset the sessions that are left after so long",
			   VALUE_SECONDS, "drain-timeout", .expected = "seconds, from 0 to 86400" },
	[KEY_UNDO] = { "undo", NULL, "take new sessions again", FLAG },
	[KEY_BRIEF] = { "brief", NULL, "without the list of forwards", FLAG },
	[KEY_STORE] = { "store", NULL, "by systemd's descriptor store: for ExecStop=", FLAG },
	[KEY_LEVEL] = { "level", "LEVEL", "error, warning, notice, info or debug", VALUE_CHOICE,
			CHOICES(log_level_names) },
	[KEY_AFTER] = { "after", "SECONDS",
			"export sessions that have been grafted for so long (default 2)",
			VALUE_SECONDS, .expected = "seconds, from 0 to 86400" },
	[KEY_NAME] = { "name", "NAME", "of the exporting relay, if there are several", VALUE_TEXT,
		       .expected = TEXT },
	[KEY_NUMBER] = { "number", "N", "read nothing: show how this reload has gone", VALUE_WHOLE,
			 .expected = WHOLE },
};

const struct command commands[COMMANDS] = {
	[COMMAND_SESSIONS] = { "sessions", "show the live sessions of a running daemon",
			       .in_pieces = true,
			       .keys = { KEY_FORWARD, KEY_CLIENT, KEY_SERVER_NAME, KEY_CARRIER,
					 KEY_ID, KEY_ALL } },
	[COMMAND_STATUS] = { "status", "show totals, errors and resources", .keys = { KEY_BRIEF } },
	[COMMAND_FORWARDS] = { "forwards", "show the forwards: engine, state, sessions, limits",
			       .keys = { KEY_FORWARD } },
	[COMMAND_KILL] = { "kill", "reset sessions: by id, by filters that all match, or --all",
			   .changes = COMMAND_ALWAYS, .needs_some = true, .positional = BIT(KEY_ID),
			   .keys = { KEY_ID, KEY_FORWARD, KEY_CLIENT, KEY_SERVER_NAME, KEY_CARRIER,
				     KEY_ALL } },
	[COMMAND_ENGINE] = { "engine", "show or set what carries a forward's sessions",
			     .changes = BIT(KEY_ENGINE), .required = BIT(KEY_FORWARD),
			     .positional = BIT(KEY_FORWARD) | BIT(KEY_ENGINE),
			     .keys = { KEY_FORWARD, KEY_ENGINE } },
	[COMMAND_UPSTREAM] = { "upstream", "change how a forward uses a server, add or remove one",
			       .changes = COMMAND_ALWAYS,
			       .required = BIT(KEY_FORWARD) | BIT(KEY_SERVER) | BIT(KEY_ORDER),
			       .positional = BIT(KEY_FORWARD) | BIT(KEY_SERVER) | BIT(KEY_ORDER) |
					     BIT(KEY_WEIGHT) | BIT(KEY_WORDS),
			       .keys = { KEY_FORWARD, KEY_SERVER, KEY_ORDER, KEY_WEIGHT,
					 KEY_WORDS } },
	[COMMAND_DRAIN] = { "drain", "stop new sessions of a forward; --undo allows them again",
			    .changes = COMMAND_ALWAYS, .required = BIT(KEY_FORWARD),
			    .positional = BIT(KEY_FORWARD),
			    .keys = { KEY_FORWARD, KEY_DEADLINE, KEY_UNDO } },
	[COMMAND_RELOAD] = { "reload", "read the configuration file again, as SIGHUP does",
			     .changes = BIT(KEY_NONE), .keys = { KEY_NUMBER } },
	[COMMAND_LOG_LEVEL] = { "log-level", "show or set how much the daemon logs",
				.changes = BIT(KEY_LEVEL), .positional = BIT(KEY_LEVEL),
				.keys = { KEY_LEVEL } },
	[COMMAND_EXPORT] = { "export",
			     "export grafted sessions, for `culvert import` at another relay",
			     .changes = COMMAND_ALWAYS, .keys = { KEY_AFTER } },
	[COMMAND_IMPORT] = { "import", "import the sessions that `culvert export` sends, from stdin",
			     .changes = COMMAND_ALWAYS, .keys = { KEY_NAME } },
	[COMMAND_HAND_OVER] = { "hand-over", "hand everything to the next daemon, and end",
				.changes = COMMAND_ALWAYS, .keys = { KEY_STORE } },
};

const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

/* --- errors --- */

struct json_object *request_error_json(const char *code, const char *fmt, ...)
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

/* --- requests: an error, or NULL --- */

static struct json_object *take_key(struct request *req, const char *name,
				    struct json_object *value)
{
	const struct command *c = req->command;
	const enum request_key *key = c->keys;
	const struct request_key_def *def;

	while (*key && strcmp(request_keys[*key].name, name) != 0)
		key++;
	if (!*key)
		return request_error_json(ERROR_UNKNOWN_KEY, "%s: unknown key \"%.*s\"", c->name,
					  SHOWN, name);
	def = &request_keys[*key];
	if (!take_value(req, *key, value))
		return request_error_json(ERROR_BAD_VALUE, "%s: %s: expected %s", c->name, name,
					  def->expected ?: def->help);
	if (def->kind != VALUE_FLAG || req->values[*key].number)
		req->given |= BIT(*key);
	return NULL;
}

struct json_object *request_json(const char *text)
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

struct json_object *request_parse(const char *line, struct request *ret)
{
	bool is_word = !line[strspn(line, "abcdefghijklmnopqrstuvwxyz-")];
	struct json_object *wrong = NULL;
	const struct command *c;
	const char *name;

	*ret = (struct request){ .json = is_word ? json_object_new_object() : request_json(line) };
	if (is_word)
		json_add_text(ret->json, "command", line);
	name = text_of(json_object_object_get(ret->json, "command"));
	if (!name)
		return request_error_json(ERROR_MALFORMED, "a request is one line: "
							   "{\"command\":\"NAME\",...}");
	ret->command = c = command_find(name);
	if (!c)
		return request_error_json(ERROR_UNKNOWN_COMMAND, "unknown command \"%.*s\"", SHOWN,
					  name);
	json_object_object_foreach(ret->json, said, value) {
		if (!wrong && strcmp(said, "command") != 0)
			wrong = take_key(ret, said, value);
	}
	for (const enum request_key *key = c->keys; !wrong && *key; key++)
		if (c->required & ~ret->given & BIT(*key))
			wrong = request_error_json(ERROR_MISSING_KEY, "%s: needs %s", c->name,
						   request_keys[*key].name);
	if (!wrong && c->needs_some && !ret->given)
		wrong = request_error_json(ERROR_MISSING_KEY, "%s: needs an id, a filter or all",
					   c->name);
	return wrong;
}

void request_close(struct request *req)
{
	acl_close(&req->clients);
	json_object_put(req->json);
}
