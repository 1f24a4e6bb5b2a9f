// SPDX-License-Identifier: BSD-2-Clause
#include "base/command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_add.h"
#include "base/log.h"
#include "config/config.h"
#include "datapath/flow.h"

/* The object, and an array in it. */
#define DEPTH_MAX 3
#define MESSAGE_ROOM 320
#define SECONDS_MAX 86400
#define SHOWN 64 /* bytes of what is wrong */

#define BIT(key) (1U << (key))
#define KEYS_OF(...) \
	.keys = { __VA_ARGS__ }, \
	.n_keys = sizeof((enum command_key[]){ __VA_ARGS__ }) / sizeof(enum command_key)

const struct command_key_def command_keys[KEYS] = {
	[KEY_FORWARD] = { "forward", TYPE_TEXT, "NAME", "of this forward" },
	[KEY_CLIENT] = { "client", TYPE_CLIENTS, "ADDR",
			 "of these clients: 10.0.0.7, 10.0.0.0/8, ::1, unix:" },
	[KEY_CARRIER] = { "carrier", TYPE_CARRIER, "NAME",
			  "with a flow on copy, splice or sockmap" },
	[KEY_ID] = { "id", TYPE_IDS, "ID", "of this number, as `culvert sessions` shows" },
	[KEY_ALL] = { "all", TYPE_FLAG, NULL, "all sessions" },
	[KEY_ENGINE] = { "engine", TYPE_ENGINE, "ENGINE",
			 "auto, sockmap, splice, copy; default: as configured" },
	[KEY_DEADLINE] = { "deadline", TYPE_SECONDS, "SECONDS",
			   "reset the sessions that are left after so long" },
	[KEY_UNDO] = { "undo", TYPE_FLAG, NULL, "take new sessions again" },
	[KEY_BRIEF] = { "brief", TYPE_FLAG, NULL, "without the list of forwards" },
	[KEY_LEVEL] = { "level", TYPE_LEVEL, "LEVEL", "error, warning, notice, info or debug" },
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
	[ERROR_BUSY] = "busy",
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

__attribute__((format(printf, 2, 0)))
static struct json_object *error_json(enum command_error e, const char *fmt, va_list ap)
{
	struct json_object *o = json_object_new_object(), *error = json_object_new_object();
	char text[MESSAGE_ROOM], shown[MESSAGE_ROOM];

	vsnprintf(text, sizeof(text), fmt, ap);
	json_add(error, "code", json_object_new_string(command_error_name(e)));
	json_add(error, "message",
		 json_object_new_string(log_escape(text, shown, sizeof(shown))));
	json_add(o, "error", error);
	return o;
}

struct json_object *command_error_json(enum command_error e, const char *fmt, ...)
{
	struct json_object *o;
	va_list ap;

	va_start(ap, fmt);
	o = error_json(e, fmt, ap);
	va_end(ap);
	return o;
}

/* Always false, with or without memory for WHY, which may be NULL then. */
__attribute__((format(printf, 3, 4)))
static bool refuse(struct json_object **why, enum command_error e, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	*why = error_json(e, fmt, ap);
	va_end(ap);
	return false;
}

static bool malformed(const char *what, struct json_object **why)
{
	return refuse(why, ERROR_MALFORMED,
		      "%s: a request is one line: {\"command\":\"NAME\",...}", what);
}

static bool unknown_command(const char *name, struct json_object **why)
{
	char known[160] = "";
	size_t len = 0;

	for (size_t i = 0; i < COMMANDS; i++)
		len += (size_t)snprintf(known + len, sizeof(known) - len, "%s%s", i ? ", " : "",
					commands[i].name);
	return refuse(why, ERROR_UNKNOWN_COMMAND, "unknown command \"%.*s\" (known: %s)", SHOWN,
		      name, known);
}

/* --- values --- */

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

/* A text without NUL; NULL: something else. */
static const char *text_of(struct json_object *value)
{
	const char *text;

	if (!json_object_is_type(value, json_type_string))
		return NULL;
	text = json_object_get_string(value);
	return *text && strlen(text) == (size_t)json_object_get_string_len(value) ? text : NULL;
}

static bool take_id(struct session_filter *f, struct json_object *value)
{
	uint64_t id = json_object_get_uint64(value); /* 0, for less; UINT64_MAX, for more */

	if (!json_object_is_type(value, json_type_int) || id < 1 || id > INT64_MAX)
		return false;
	f->ids[f->n_ids++] = id;
	return true;
}

static bool take_ids(struct session_filter *f, struct json_object *value)
{
	bool array = json_object_is_type(value, json_type_array), ok = true;
	size_t n = array ? json_object_array_length(value) : 1;

	if (!n)
		return false;
	f->ids = calloc(n, sizeof(*f->ids));
	if (!f->ids) {
		json_lack();
		return false;
	}
	for (size_t i = 0; ok && i < n; i++)
		ok = take_id(f, array ? json_object_array_get_idx(value, i) : value);
	session_filter_sort(f);
	return ok;
}

static bool take_clients(struct session_filter *f, const char *text)
{
	int r = text ? acl_add(&f->clients, true, text) : -EINVAL;

	if (r == -ENOMEM)
		json_lack();
	return !r;
}

static bool take_carrier(struct session_filter *f, const char *name)
{
	for (int c = 0; name && c < CARRIERS; c++)
		if (!strcmp(name, carrier_name((enum carrier)c)))
			f->carrier = c;
	return f->carrier != FILTER_ANY;
}

static bool take_engine(struct command_request *req, const char *name)
{
	static const enum engine engines[] = {
		ENGINE_AUTO, ENGINE_SOCKMAP, ENGINE_SPLICE, ENGINE_COPY,
	};

	if (!name)
		return false;
	req->engine = ENGINE_DEFAULT;
	if (!strcmp(name, "default"))
		return true;
	for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
		if (!strcmp(name, engine_name(engines[i])))
			req->engine = (int)engines[i];
	return req->engine != ENGINE_DEFAULT;
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

/* False: VALUE is not of the key's type. */
static bool take_value(struct command_request *req, enum command_key key,
		       struct json_object *value)
{
	const char *text = text_of(value);

	switch (command_keys[key].type) {
	case TYPE_TEXT:
		req->filter.forward = text;
		return text;
	case TYPE_CLIENTS:
		return take_clients(&req->filter, text);
	case TYPE_CARRIER:
		return take_carrier(&req->filter, text);
	case TYPE_ENGINE:
		return take_engine(req, text);
	case TYPE_LEVEL:
		req->level = text ? log_level_parse(text) : -1;
		return req->level >= 0;
	case TYPE_IDS:
		return take_ids(&req->filter, value);
	case TYPE_SECONDS:
		return take_seconds(req, value);
	default:
		return json_object_is_type(value, json_type_boolean);
	}
}

/* --- requests --- */

static const struct command_key_def *find_key(const struct command *c, const char *name,
					      enum command_key *ret)
{
	for (size_t i = 0; i < c->n_keys; i++) {
		*ret = c->keys[i];
		if (!strcmp(command_keys[*ret].name, name))
			return &command_keys[*ret];
	}
	return NULL;
}

static bool take_key(struct command_request *req, const char *name, struct json_object *value,
		     struct json_object **why)
{
	enum command_key key;
	const struct command_key_def *def = find_key(req->command, name, &key);

	if (!def)
		return refuse(why, ERROR_UNKNOWN_KEY, "%s: unknown key \"%.*s\"",
			      req->command->name, SHOWN, name);
	if (!take_value(req, key, value))
		return refuse(why, ERROR_BAD_VALUE, "%s: %s: %s", req->command->name, name,
			      expectations[def->type]);
	if (def->type != TYPE_FLAG || json_object_get_boolean(value))
		req->given |= BIT(key);
	return true;
}

/* What the keys must be, taken together. */
static bool check_whole(const struct command_request *req, struct json_object **why)
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

static bool take_request(struct command_request *req, struct json_object **why)
{
	struct json_object *name = NULL;
	const char *text;
	bool ok = true;

	if (!json_object_is_type(req->json, json_type_object))
		return malformed("not a JSON object", why);
	if (!json_object_object_get_ex(req->json, "command", &name))
		return malformed("no command", why);
	text = text_of(name);
	if (!text)
		return malformed("the command is no name", why);
	req->command = command_find(text);
	if (!req->command)
		return unknown_command(text, why);
	json_object_object_foreach(req->json, key, value) {
		if (ok && strcmp(key, "command") != 0)
			ok = take_key(req, key, value, why);
	}
	return ok && check_whole(req, why);
}

static bool is_word(const char *line, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((line[i] < 'a' || line[i] > 'z') && line[i] != '-')
			return false;
	return len;
}

static struct json_object *parse_word(const char *line, size_t len)
{
	struct json_object *o = json_object_new_object();

	json_add(o, "command", json_object_new_string_len(line, (int)len));
	return o;
}

/*
 * json-c 0.16 takes a line for malformed where it has no memory for all of it, and dies where it
 * has none for a key.  So there must be enough for the worst line of that length, of empty objects:
 * 265 bytes for each byte.  The pieces are of a size that free(3) keeps, below the last one, which
 * is held meanwhile.
 */
#define ROOM_EACH 300
#define ROOM_PIECE (16 << 10)
#define ROOM_PIECES_MAX 80 /* more than the longest request needs */

/* The piece to be held, or NULL. */
static void *make_room(size_t len)
{
	size_t n = 0, due = len * ROOM_EACH / ROOM_PIECE + 2;
	void *pieces[ROOM_PIECES_MAX] = { 0 }, *last = NULL;

	if (due > ROOM_PIECES_MAX)
		return NULL;
	for (; n < due && (pieces[n] = malloc(ROOM_PIECE)); n++)
		*(volatile char *)pieces[n] = 0; /* else compilers may do without */
	if (n == due)
		last = pieces[--n];
	while (n)
		free(pieces[--n]);
	return last;
}

/* NULL unless the whole line is one JSON value. */
static struct json_object *parse_json(const char *line, size_t len)
{
	void *held = make_room(len);
	struct json_tokener *t = held ? json_tokener_new_ex(DEPTH_MAX) : NULL;
	struct json_object *o = NULL;

	if (!t) {
		free(held);
		json_lack();
		return NULL;
	}
	json_tokener_set_flags(t, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
	o = json_tokener_parse_ex(t, line, (int)len);
	if (o && (json_tokener_get_error(t) != json_tokener_success ||
		  json_tokener_get_parse_end(t) != len)) {
		json_object_put(o);
		o = NULL;
	}
	json_tokener_free(t);
	free(held);
	return o;
}

/*
 * json-c takes the last of two values for O's key in silence.  LINE is well-formed, so its keys are
 * as many as its colons that are neither in strings nor deeper.
 */
static bool has_key_twice(const char *line, size_t len, const struct json_object *o)
{
	size_t keys = 0;
	int depth = 0;
	char quote = 0;

	for (size_t i = 0; i < len; i++) {
		if (quote) {
			if (line[i] == '\\')
				i++;
			else if (line[i] == quote)
				quote = 0;
		} else if (line[i] == '"' || line[i] == '\'') {
			quote = line[i];
		} else {
			depth += (line[i] == '{' || line[i] == '[') -
				 (line[i] == '}' || line[i] == ']');
			keys += line[i] == ':' && depth == 1;
		}
	}
	return keys > (size_t)json_object_object_length(o);
}

bool command_parse(const char *line, size_t len, struct command_request *ret,
		   struct json_object **ret_why)
{
	bool ok;

	*ret_why = NULL;
	*ret = (struct command_request){ .engine = ENGINE_DEFAULT };
	session_filter_init(&ret->filter);
	ret->json = is_word(line, len) ? parse_word(line, len) : parse_json(line, len);
	ok = json_object_is_type(ret->json, json_type_object) && !is_word(line, len) &&
			     has_key_twice(line, len, ret->json) ?
		     malformed("a key is given twice", ret_why) :
		     take_request(ret, ret_why);
	if (!ok)
		command_close(ret);
	return ok;
}

void command_close(struct command_request *req)
{
	session_filter_close(&req->filter);
	json_object_put(req->json);
	*req = (struct command_request){ .engine = ENGINE_DEFAULT };
	session_filter_init(&req->filter);
}
