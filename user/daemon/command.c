// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_add.h"
#include "base/log.h"
#include "config/config.h"
#include "relay/session.h"

/* The object, and an array in it. */
#define DEPTH_MAX 3
#define SECONDS_MAX 86400
#define SHOWN 64 /* bytes of what is wrong */

#define BIT(key) (1U << (key))
#define KEYS_OF(...) \
	.keys = { __VA_ARGS__ }, \
	.n_keys = sizeof((enum command_key[]){ __VA_ARGS__ }) / sizeof(enum command_key)

const struct command_key_def command_keys[KEYS] = {
	[KEY_FORWARD] = { "forward", TYPE_TEXT, "NAME", "of this forward", NULL },
	[KEY_CLIENT] = { "client", TYPE_CLIENTS, "ADDR",
			 "of these clients: 10.0.0.7, 10.0.0.0/8, ::1, unix:", NULL },
	[KEY_CARRIER] = { "carrier", TYPE_CARRIER, "NAME",
			  "with a flow on copy, splice or sockmap", NULL },
	[KEY_ID] = { "id", TYPE_IDS, "ID", "of this number, as `culvert sessions` shows", NULL },
	[KEY_ALL] = { "all", TYPE_FLAG, NULL, "all sessions", NULL },
	[KEY_ENGINE] = { "engine", TYPE_ENGINE, "ENGINE",
			 "auto, sockmap, splice, copy; default: as configured", NULL },
	[KEY_DEADLINE] = { "deadline", TYPE_SECONDS, "SECONDS",
			   "reset the sessions that are left after so long", "drain-timeout" },
	[KEY_UNDO] = { "undo", TYPE_FLAG, NULL, "take new sessions again", NULL },
	[KEY_BRIEF] = { "brief", TYPE_FLAG, NULL, "without the list of forwards", NULL },
	[KEY_LEVEL] = { "level", TYPE_LEVEL, "LEVEL", "error, warning, notice, info or debug", NULL },
};

const struct command commands[COMMANDS] = {
	[COMMAND_SESSIONS] = {
		.name = "sessions", .summary = "show the live sessions of a running daemon",
		.about = "List the live sessions, and for each direction its carrier and the "
			 "reason for it.",
		KEYS_OF(KEY_FORWARD, KEY_CLIENT, KEY_CARRIER, KEY_ID) },
	[COMMAND_STATUS] = {
		.name = "status", .summary = "show totals, errors and resources",
		.about = "Show the forwards, what carries them, errors and resources of the "
			 "running daemon.",
		KEYS_OF(KEY_BRIEF) },
	[COMMAND_FORWARDS] = {
		.name = "forwards", .summary = "show the forwards: engine, state, sessions, limits",
		.about = "List the forwards: what they listen on and lead to, engine, state, "
			 "totals and limits.",
		KEYS_OF(KEY_FORWARD) },
	[COMMAND_KILL] = {
		.name = "kill", .summary = "reset sessions", .changes = COMMAND_ALWAYS,
		.needs_some = true,
		.about = "Reset sessions: both ends see RST.  Name them by number, by filters (all "
			 "of which\nmust hold), or by --all.",
		.positional = BIT(KEY_ID),
		KEYS_OF(KEY_ID, KEY_FORWARD, KEY_CLIENT, KEY_CARRIER, KEY_ALL) },
	[COMMAND_ENGINE] = {
		.name = "engine", .summary = "show or set what carries a forward's sessions",
		.changes = BIT(KEY_ENGINE),
		.about = "Show what carries the payload of a forward, or change it until the "
			 "daemon ends,\nor a reload finds the forward changed or draining.  Live "
			 "sessions move as well:\nwith `copy`, strace sees their payload.",
		.required = BIT(KEY_FORWARD), .positional = BIT(KEY_FORWARD) | BIT(KEY_ENGINE),
		KEYS_OF(KEY_FORWARD, KEY_ENGINE) },
	[COMMAND_DRAIN] = {
		.name = "drain", .summary = "let a forward take no new sessions",
		.changes = COMMAND_ALWAYS,
		.about = "Close the sockets of a forward: new clients are refused, its sessions "
			 "go on.\n--undo or a reload opens the sockets again.",
		.required = BIT(KEY_FORWARD), .positional = BIT(KEY_FORWARD),
		KEYS_OF(KEY_FORWARD, KEY_DEADLINE, KEY_UNDO) },
	[COMMAND_RELOAD] = {
		.name = "reload", .summary = "read the configuration file again",
		.changes = COMMAND_ALWAYS,
		.about = "Read the configuration file again, as SIGHUP does, and say what has "
			 "changed.\nA file with a mistake changes nothing." },
	[COMMAND_LOG_LEVEL] = {
		.name = "log-level", .summary = "show or set how much the daemon logs",
		.changes = BIT(KEY_LEVEL),
		.about = "Show the log level, or change it until the daemon ends or a reload.",
		.positional = BIT(KEY_LEVEL),
		KEYS_OF(KEY_LEVEL) },
};

static const char *const error_names[ERRORS] = {
	[ERROR_MALFORMED] = "malformed",
	[ERROR_TOO_LONG] = "too-long",
	[ERROR_PERMISSION] = "permission-denied",
	[ERROR_UNKNOWN_COMMAND] = "unknown-command",
	[ERROR_UNKNOWN_KEY] = "unknown-key",
	[ERROR_MISSING_KEY] = "missing-key",
	[ERROR_BAD_VALUE] = "bad-value",
	[ERROR_NO_SUCH_FORWARD] = "no-such-forward",
	[ERROR_UNSUPPORTED] = "unsupported",
	[ERROR_NO_ANSWER] = "no-answer",
	[ERROR_NO_MEMORY] = "no-memory",
	[ERROR_TIMEOUT] = "timeout",
	[ERROR_FAILED] = "failed",
};

const struct command *command_find(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

/* --- what is wrong --- */

const char *command_error_name(enum command_error e)
{
	return e < ERRORS ? error_names[e] : "?";
}

struct json_object *command_error_json(enum command_error e, const char *fmt, ...)
{
	struct json_object *o = json_object_new_object(), *error = json_object_new_object();
	char text[COMMAND_MESSAGE_MAX], shown[COMMAND_MESSAGE_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_add_text(error, "code", command_error_name(e));
	json_add_text(error, "message", log_escape(text, shown, sizeof(shown)));
	json_add(o, "error", error);
	return o;
}

/* Always false. */
__attribute__((format(printf, 3, 4)))
static bool refuse(struct command_refusal *why, enum command_error e, const char *fmt, ...)
{
	va_list ap;

	why->code = e;
	va_start(ap, fmt);
	vsnprintf(why->message, sizeof(why->message), fmt, ap);
	va_end(ap);
	return false;
}

static bool no_memory(struct command_refusal *why)
{
	return refuse(why, ERROR_NO_MEMORY, "there is no memory for the request");
}

static bool malformed(struct command_refusal *why, const char *what)
{
	return refuse(why, ERROR_MALFORMED,
		      "%s: a request is one line: {\"command\":\"NAME\",...}", what);
}

static bool unknown_command(struct command_refusal *why, const char *name)
{
	char known[160] = "";
	size_t len = 0;

	for (size_t i = 0; i < COMMANDS; i++)
		len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s", i ? ", " : "",
					commands[i].name);
	return refuse(why, ERROR_UNKNOWN_COMMAND, "unknown command \"%.*s\" (known: %s)", SHOWN,
		      name, known);
}

/* --- filters --- */

static int compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static bool has_carrier(const struct session *s, enum carrier c)
{
	return flow_carrier(&s->flows[0]) == c || flow_carrier(&s->flows[1]) == c;
}

bool session_filter_matches(const struct session_filter *f, const struct session *s)
{
	if (f->n_ids && !bsearch(&s->id, f->ids, f->n_ids, sizeof(*f->ids), compare_ids))
		return false;
	if (f->carrier != FILTER_ANY && !has_carrier(s, (enum carrier)f->carrier))
		return false;
	if (f->forward && strcmp(forward_name(forward_of(s)), f->forward) != 0)
		return false;
	return !f->clients.n || acl_allows(&f->clients, &s->client.sa);
}

/* --- values: 0, -EINVAL, -ENOMEM --- */

static const char *const expectations[] = {
	[TYPE_TEXT] = "expected a text that is not empty",
	[TYPE_CLIENTS] = ("expected addresses or prefixes without host bits, such as "
			  "\"10.0.0.0/8, ::1\", or \"unix:\""),
	[TYPE_CARRIER] = "expected copy, splice or sockmap",
	[TYPE_ENGINE] = "expected auto, sockmap, splice, copy or default",
	[TYPE_LEVEL] = "expected error, warning, notice, info or debug",
	[TYPE_IDS] = "expected a whole number from 1 to 2^63 - 1, or several in an array",
	[TYPE_SECONDS] = "expected seconds, from 0 to 86400",
	[TYPE_FLAG] = "expected true or false",
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

static int take_id(struct session_filter *f, struct json_object *value)
{
	uint64_t id = json_object_get_uint64(value); /* 0, for less; UINT64_MAX, for more */

	if (!json_object_is_type(value, json_type_int) || id < 1 || id > INT64_MAX)
		return -EINVAL;
	f->ids[f->n_ids++] = id;
	return 0;
}

static int take_ids(struct session_filter *f, struct json_object *value)
{
	bool array = json_object_is_type(value, json_type_array);
	size_t n = array ? json_object_array_length(value) : 1;
	int r = n ? 0 : -EINVAL;

	if (r)
		return r;
	f->ids = calloc(n, sizeof(*f->ids));
	if (!f->ids)
		return -ENOMEM;
	for (size_t i = 0; !r && i < n; i++)
		r = take_id(f, array ? json_object_array_get_idx(value, i) : value);
	qsort(f->ids, f->n_ids, sizeof(*f->ids), compare_ids);
	return r;
}

static int take_carrier(struct session_filter *f, const char *name)
{
	for (int c = 0; c < CARRIERS; c++)
		if (!strcmp(name, carrier_name((enum carrier)c)))
			f->carrier = c;
	return f->carrier == FILTER_ANY ? -EINVAL : 0;
}

static int take_engine(struct command_request *req, const char *name)
{
	for (int e = 0; e < ENGINES; e++)
		if (!strcmp(name, engine_name((enum engine)e)))
			req->engine = e;
	return req->engine == ENGINE_DEFAULT && strcmp(name, "default") != 0 ? -EINVAL : 0;
}

static int take_seconds(struct command_request *req, struct json_object *value)
{
	double seconds = json_object_get_double(value);

	if (!json_object_is_type(value, json_type_int) &&
	    !json_object_is_type(value, json_type_double))
		return -EINVAL;
	if (!(seconds >= 0 && seconds <= SECONDS_MAX))
		return -EINVAL;
	req->deadline_ms = (unsigned int)(seconds * 1000);
	return 0;
}

static int take_text(struct command_request *req, enum command_type type, const char *text)
{
	switch (type) {
	case TYPE_TEXT:
		req->filter.forward = text;
		return 0;
	case TYPE_CLIENTS:
		return acl_add(&req->filter.clients, true, text);
	case TYPE_CARRIER:
		return take_carrier(&req->filter, text);
	case TYPE_ENGINE:
		return take_engine(req, text);
	default:
		req->level = log_level_parse(text);
		return req->level < 0 ? -EINVAL : 0;
	}
}

static int take_value(struct command_request *req, enum command_type type,
		      struct json_object *value)
{
	const char *text = text_of(value);

	switch (type) {
	case TYPE_IDS:
		return take_ids(&req->filter, value);
	case TYPE_SECONDS:
		return take_seconds(req, value);
	case TYPE_FLAG:
		return json_object_is_type(value, json_type_boolean) ? 0 : -EINVAL;
	default:
		return text ? take_text(req, type, text) : -EINVAL;
	}
}

/* --- requests --- */

static bool take_key(struct command_request *req, const char *name, struct json_object *value,
		     struct command_refusal *why)
{
	const struct command *c = req->command;
	const struct command_key_def *def;
	size_t i = 0;
	int r;

	while (i < c->n_keys && strcmp(command_keys[c->keys[i]].name, name) != 0)
		i++;
	if (i == c->n_keys)
		return refuse(why, ERROR_UNKNOWN_KEY, "%s: unknown key \"%.*s\"", c->name, SHOWN,
			      name);
	def = &command_keys[c->keys[i]];
	r = take_value(req, def->type, value);
	if (r == -ENOMEM)
		return no_memory(why);
	if (r)
		return refuse(why, ERROR_BAD_VALUE, "%s: %s: %s", c->name, name,
			      expectations[def->type]);
	if (def->type != TYPE_FLAG || json_object_get_boolean(value))
		req->given |= BIT(c->keys[i]);
	return true;
}

/* Check what the keys must be together. */
static bool check_whole(const struct command_request *req, struct command_refusal *why)
{
	const struct command *c = req->command;

	for (size_t i = 0; i < c->n_keys; i++)
		if (c->required & ~req->given & BIT(c->keys[i]))
			return refuse(why, ERROR_MISSING_KEY, "%s: needs %s", c->name,
				      command_keys[c->keys[i]].name);
	if (c->needs_some && !req->given)
		return refuse(why, ERROR_MISSING_KEY, "%s: needs an id, a filter or all", c->name);
	if (command_has(req, KEY_ALL) && req->given != BIT(KEY_ALL))
		return refuse(why, ERROR_BAD_VALUE, "%s: all: contradicts the other filters",
			      c->name);
	if (command_has(req, KEY_UNDO) && command_has(req, KEY_DEADLINE))
		return refuse(why, ERROR_BAD_VALUE, "%s: undo: contradicts deadline", c->name);
	return true;
}

static bool take_object(struct command_request *req, struct command_refusal *why)
{
	struct json_object *name = NULL;
	const char *text;

	if (!json_object_is_type(req->json, json_type_object))
		return malformed(why, "not a JSON object");
	if (!json_object_object_get_ex(req->json, "command", &name))
		return malformed(why, "no command");
	text = text_of(name);
	if (!text)
		return malformed(why, "the command is no name");
	req->command = command_find(text);
	if (!req->command)
		return unknown_command(why, text);
	json_object_object_foreach(req->json, key, value) {
		if (strcmp(key, "command") != 0 && !take_key(req, key, value, why))
			return false;
	}
	return check_whole(req, why);
}

static bool is_word(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((line[i] < 'a' || line[i] > 'z') && line[i] != '-')
			return false;
	return len;
}

static bool take_word(struct command_request *req, const char *line, size_t len,
		      struct command_refusal *why)
{
	char name[SHOWN + 1];

	snprintf(name, sizeof(name), "%.*s", (int)len, line);
	req->command = command_find(name);
	return req->command ? check_whole(req, why) : unknown_command(why, name);
}

/*
 * json-c 0.16 crashes where it has no memory for a key.  So look first whether there is enough for
 * the worst line of LEN bytes: empty objects take 265 bytes for each byte.
 */
#define ROOM_EACH 300

static bool has_room(size_t len)
{
	volatile char *room = malloc((len + 10) * ROOM_EACH);

	if (room)
		*room = 0; /* else compilers leave the call out */
	free((void *)room);
	return room;
}

/* False: no memory.  RET is NULL unless the whole line is one JSON value. */
static bool parse_json(const char *line, size_t len, struct json_object **ret)
{
	struct json_tokener *t = has_room(len) ? json_tokener_new_ex(DEPTH_MAX) : NULL;

	if (!t)
		return false;
	json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	*ret = json_tokener_parse_ex(t, line, (int)len);
	if (*ret && (json_tokener_get_error(t) != json_tokener_success ||
		     json_tokener_get_parse_end(t) != len)) {
		json_object_put(*ret);
		*ret = NULL;
	}
	json_tokener_free(t);
	return true;
}

static void request_init(struct command_request *req)
{
	*req = (struct command_request){ .engine = ENGINE_DEFAULT,
					 .filter = { .carrier = FILTER_ANY } };
}

bool command_parse(const char *line, size_t len, struct command_request *ret,
		   struct command_refusal *ret_why)
{
	bool ok;

	request_init(ret);
	if (is_word(line, len))
		ok = take_word(ret, line, len, ret_why);
	else if (parse_json(line, len, &ret->json))
		ok = take_object(ret, ret_why);
	else
		ok = no_memory(ret_why);
	if (!ok)
		command_close(ret);
	return ok;
}

void command_close(struct command_request *req)
{
	acl_close(&req->filter.clients);
	free(req->filter.ids);
	json_object_put(req->json);
	request_init(req);
}
