// SPDX-License-Identifier: BSD-2-Clause
/*
 * The control socket's requests (user/daemon/command.c, control.c).  Any line gets an answer, which
 * is one line of JSON with an object: what is wrong, in words that harm no terminal; or what the
 * daemon makes of a request that is right in every part, and that who asks may have.
 *
 * An input is a line.  Its bytes also become the name of a forward in a request that is right.
 */
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#include "config/config.h"
#include "daemon/control.h"
#include "datapath/flow.h"
#include "fuzz.h"

#define LINE_MAX_BYTES 4094

struct asked {
	unsigned int n;
	bool may_change;
	char forward[LINE_MAX_BYTES + 1];
};

/* What command.h promises of a request that is right. */
static void check_request(const struct command_request *req)
{
	const struct session_filter *f = &req->filter;
	const struct command *c = req->command;
	unsigned int known = 0;

	must(c >= commands && c < commands + COMMANDS, "no command");
	for (size_t i = 0; i < c->n_keys; i++)
		known |= 1U << c->keys[i];
	must(!(req->given & ~known), "%s: keys %x", c->name, req->given);
	must((req->given & c->required) == c->required, "%s: keys %x", c->name, req->given);
	must(req->given || !c->needs_some, "%s: nothing", c->name);
	must(!command_has(req, KEY_ALL) || req->given == 1U << KEY_ALL, "%s: all", c->name);
	must(command_has(req, KEY_FORWARD) == !!f->forward, "%s: forward", c->name);
	must(!f->forward || *f->forward, "%s: a forward without a name", c->name);
	must(command_has(req, KEY_CLIENT) == !!f->clients.n, "%s: client", c->name);
	must(command_has(req, KEY_CARRIER) == (f->carrier != FILTER_ANY), "%s: carrier", c->name);
	must(f->carrier >= FILTER_ANY && f->carrier < CARRIERS, "carrier %d", f->carrier);
	must(command_has(req, KEY_ID) == !!f->n_ids, "%s: id", c->name);
	for (size_t i = 0; i < f->n_ids; i++)
		must(f->ids[i] && (!i || f->ids[i - 1] <= f->ids[i]), "ids");
	must(req->deadline_ms <= 86400000, "deadline %u", req->deadline_ms);
	must(!command_has(req, KEY_UNDO) || !command_has(req, KEY_DEADLINE), "%s: undo", c->name);
	must(!command_has(req, KEY_LEVEL) || (req->level >= LOG_ERR && req->level <= LOG_DEBUG),
	     "level %d", req->level);
	must(req->engine == ENGINE_DEFAULT ||
		     strcmp(engine_name((enum engine)req->engine), "?") != 0,
	     "engine %d", req->engine);
}

static struct json_object *answer(void *arg, const struct command_request *req,
				  const struct control_peer *peer)
{
	struct asked *asked = arg;
	struct json_object *o = json_object_new_object();

	asked->n++;
	must(peer->may_change == asked->may_change, "another peer");
	must(peer->may_change || !command_changes(req), "%s: changed", req->command->name);
	check_request(req);
	strcpy(asked->forward, req->filter.forward ? req->filter.forward : "");
	json_object_object_add(o, "done", json_object_new_string(req->command->name));
	return o;
}

static void check_error(struct json_object *error)
{
	struct json_object *code = NULL, *message = NULL;
	unsigned int known = 0;

	json_object_object_get_ex(error, "code", &code);
	json_object_object_get_ex(error, "message", &message);
	must(json_object_object_length(error) == 2 && code && message, "%s",
	     json_object_to_json_string(error));
	for (int e = 0; e < ERRORS; e++)
		known += !strcmp(command_error_name((enum command_error)e),
				 json_object_get_string(code));
	must(known == 1, "code %s", json_object_get_string(code));
	must(is_printable(json_object_get_string(message), false), "%s",
	     json_object_get_string(message));
}

/* ASKED is what the line LINE has led to.  It is the last byte of its memory. */
static void ask(const char *line, size_t len, struct asked *asked)
{
	struct control_peer peer = { .fd = -1, .may_ask = true, .may_change = asked->may_change };
	struct json_object *o, *error = NULL;
	char *copy = malloc(len ? len : 1);
	const char *text;

	if (!copy)
		abort();
	memcpy(copy, line, len);
	asked->n = 0;
	o = control_answer_line(answer, asked, &peer, copy, len);
	must(json_object_is_type(o, json_type_object) && json_object_object_length(o) == 1,
	     "the answer is no object");
	text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
	must(text && !strchr(text, '\n'), "the answer is no line: %s", text);
	must(asked->n <= 1, "asked %u times", asked->n);
	json_object_object_get_ex(o, "error", &error);
	must((error == NULL) == (asked->n == 1), "%s", text);
	if (error)
		check_error(error);
	json_object_put(o);
	free(copy);
}

static bool is_ascii(const char *text)
{
	while (*text && !(*text & 0x80))
		text++;
	return !*text;
}

/*
 * Ask for the sessions of the forward NAME, which holds anything but NUL; or, if BEHIND, of one
 * that goes on behind a NUL, which there is none.  What is no UTF-8 may be refused.
 */
static void ask_for(const char *name, bool behind, struct asked *asked)
{
	struct json_object *request = json_object_new_object();
	const char *line;
	size_t len;

	json_object_object_add(request, "forward",
			       json_object_new_string_len(name, (int)strlen(name) + behind));
	json_object_object_add(request, "command", json_object_new_string("sessions"));
	line = json_object_to_json_string_length(request, JSON_C_TO_STRING_PLAIN, &len);
	ask(line, len, asked);
	must(!asked->n || (*name && !behind), "asked for \"%s\"", name);
	must(asked->n || !*name || behind || !is_ascii(name), "not asked for \"%s\"", name);
	must(!asked->n || !strcmp(asked->forward, name), "\"%s\" instead of \"%s\"",
	     asked->forward, name);
	json_object_put(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct asked asked = { .may_change = true };
	char *name;

	if (size > LINE_MAX_BYTES || memchr(data, '\n', size))
		return 0; /* the socket's reader cuts there */
	ask((const char *)data, size, &asked);
	asked.may_change = false;
	ask((const char *)data, size, &asked);
	name = strndup((const char *)data, size);
	ask_for(name, false, &asked);
	ask_for(name, true, &asked);
	free(name);
	return 0;
}
