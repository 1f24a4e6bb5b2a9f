/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/acl.h"
#include "config/config.h"
#include "relay/server_health.h"

/*
 * Requests to the control socket: the tables of commands and of their keys, and the parser.  The
 * daemon checks requests by them.  The client makes its options and its help of them.
 * docs/control.md describes them to people; tests/flow/test_control_doc.c compares both.  No system
 * calls here.
 */
enum command_id {
	COMMAND_SESSIONS,
	COMMAND_STATUS,
	COMMAND_FORWARDS,
	COMMAND_KILL,
	COMMAND_ENGINE,
	COMMAND_UPSTREAM,
	COMMAND_DRAIN,
	COMMAND_RELOAD,
	COMMAND_LOG_LEVEL,
	COMMAND_EXPORT,
	COMMAND_IMPORT,
	COMMAND_HAND_OVER,
	COMMANDS,
};

/* The keys that a request may have beside the command. */
enum request_key {
	KEY_NONE, /* ends a list */
	KEY_FORWARD,
	KEY_CLIENT,
	KEY_SERVER_NAME,
	KEY_CARRIER,
	KEY_ID,
	KEY_ALL,
	KEY_ENGINE,
	KEY_SERVER,
	KEY_ORDER,
	KEY_WEIGHT,
	KEY_WORDS,
	KEY_LEVEL,
	KEY_DEADLINE,
	KEY_UNDO,
	KEY_BRIEF,
	KEY_STORE,
	KEY_NUMBER,
	KEY_AFTER,
	KEY_NAME,
	KEYS,
};

/* Kinds of values, and the member that has the value. */
enum request_key_kind {
	VALUE_FLAG,    /* number: 0 or 1 */
	VALUE_TEXT,    /* text */
	VALUE_CHOICE,  /* number: the place in `choices` */
	VALUE_CLIENTS, /* in struct request */
	VALUE_WHOLE,   /* number; from here on values are numbers in JSON, too */
	VALUE_IDS,     /* one or several numbers: in struct request */
	VALUE_SECONDS, /* number: milliseconds */
};

/* A key: its name, its meaning, and the form of its value. */
struct request_key_def {
	const char *name;
	const char *metavar; /* of the client's option "--NAME"; NULL: a flag */
	const char *help;
	enum request_key_kind kind;
	const char *option;         /* the client's option, if that is not NAME */
	const char *expected;       /* the form of a value, for messages; NULL: as in the help */
	const char *const *choices; /* of VALUE_CHOICE, by number; NULL: a number without choice */
	size_t n_choices;
};

static inline const char *request_key_option(const struct request_key_def *key)
{
	return key->option ? key->option : key->name;
}

#define COMMAND_KEYS_MAX 7
#define COMMAND_ALWAYS (~0U)

struct command {
	const char *name;
	const char *summary;
	unsigned int changes;    /* bits 1 << key: requests with one of these keys make a change,
				  * which needs more rights than a look; KEY_NONE: requests
				  * without a key; COMMAND_ALWAYS: all requests */
	unsigned int required;   /* bits */
	unsigned int positional; /* bits: for the client these are words, in the order of keys[] */
	bool needs_some;         /* at least one key */
	bool in_pieces;          /* control_stream_fn sends the answer, unless it is an error */
	enum request_key keys[COMMAND_KEYS_MAX]; /* and KEY_NONE */
};

/* By enum command_id, and by enum request_key. */
extern const struct command commands[COMMANDS];
extern const struct request_key_def request_keys[KEYS];

/* The command NAME, or NULL. */
const struct command *command_find(const char *name);

static inline enum command_id command_number(const struct command *c)
{
	return (enum command_id)(c - commands);
}

#define ENGINE_DEFAULT ENGINES
/* orders beyond enum server_order */
#define ORDER_WEIGHT ORDERS
#define ORDER_AS_CONFIGURED (ORDERS + 1)
#define ORDER_ADD (ORDERS + 2)
#define ORDER_REMOVE (ORDERS + 3)

struct request_value {
	const char *text; /* NULL: the value is no text, or not given */
	uint64_t number;
};

/* A valid request.  A session must match each filter that is given. */
struct request {
	const struct command *command;
	unsigned int given; /* bits 1 << key */
	struct request_value values[KEYS];
	struct acl clients;       /* those it allows; no rules: any */
	struct json_object *ids;  /* a number, or an array of them; NULL: any */
	struct json_object *json; /* owned; texts and ids point into it */
};

static inline bool request_has(const struct request *req, enum request_key key)
{
	return req->given & (1U << key);
}

static inline bool request_changes(const struct request *req)
{
	return (req->given ?: 1U << KEY_NONE) & req->command->changes;
}

/* The codes of errors, which are stable. */
#define ERROR_MALFORMED "malformed"
#define ERROR_TOO_LONG "too-long"
#define ERROR_PERMISSION "permission-denied"
#define ERROR_UNKNOWN_COMMAND "unknown-command"
#define ERROR_UNKNOWN_KEY "unknown-key"
#define ERROR_MISSING_KEY "missing-key"
#define ERROR_BAD_VALUE "bad-value"
#define ERROR_NO_SUCH_FORWARD "no-such-forward"
#define ERROR_UNSUPPORTED "unsupported"
#define ERROR_NO_ANSWER "no-answer"
#define ERROR_NO_MEMORY "no-memory"
#define ERROR_TIMEOUT "timeout"
#define ERROR_FAILED "failed"

/* {"error":{"code":...,"message":...}}; the message is made printable. */
struct json_object *request_error_json(const char *code, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Parse TEXT strictly as one JSON value.  NULL: TEXT is not JSON, or is the value null, or there is
 * no memory.
 */
struct json_object *request_json(const char *text);

/*
 * Parse LINE: a JSON object, or one word for {"command":WORD}.  Each key must be known and its
 * value of the right type.  NULL, or the error.  RET is to be given to request_close() in any case.
 */
struct json_object *request_parse(const char *line, struct request *ret);
void request_close(struct request *req);
