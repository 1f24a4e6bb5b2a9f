// SPDX-License-Identifier: BSD-2-Clause
/*
 * The control socket's requests (user/daemon/control_requests.c, control_socket.c).  Any line gets
 * an answer, which is one line of JSON with an object: what is wrong, in words that harm no
 * terminal; or what the daemon makes of a request that is right in every part, and that who asks
 * may have.
 *
 * An input is a line.
 */
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/control_socket.h"
#include "fuzz.h"

#define LINE_MAX_BYTES 4094

struct asked {
	unsigned int n;
	bool may_change;
};

static struct json_object *answer(void *arg, const struct request *req)
{
	struct asked *asked = arg;
	struct json_object *o = json_object_new_object();

	asked->n++;
	must(asked->may_change || !request_changes(req), "%s: changed", req->command->name);
	must((req->given & req->command->required) == req->command->required, "keys %x",
	     req->given);
	must(req->given || !req->command->needs_some, "%s: nothing", req->command->name);
	json_object_object_add(o, "done", json_object_new_string(req->command->name));
	return o;
}

static void check_error(struct json_object *error)
{
	struct json_object *code = NULL, *message = NULL;
	const char *text;

	json_object_object_get_ex(error, "code", &code);
	json_object_object_get_ex(error, "message", &message);
	must(json_object_object_length(error) == 2 && code && message, "%s",
	     json_object_to_json_string(error));
	text = json_object_get_string(code);
	must(*text && !text[strspn(text, "abcdefghijklmnopqrstuvwxyz-")], "code %s", text);
	must(is_printable(json_object_get_string(message), false), "%s",
	     json_object_get_string(message));
}

/* ASKED is what LINE has led to. */
static void ask(const char *line, struct asked *asked)
{
	static const struct ucred peer = { .pid = 1 };
	struct request req;
	struct json_object *o = request_parse(line, &req), *error = NULL;
	const char *text;

	asked->n = 0;
	o = o ?: control_answer(answer, asked, &req, &peer, asked->may_change);
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
	request_close(&req);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct asked asked = { .may_change = true };
	char *line;

	if (size > LINE_MAX_BYTES || memchr(data, '\n', size))
		return 0; /* the socket's reader cuts there */
	said_clear();
	line = strndup((const char *)data, size);
	ask(line, &asked);
	asked.may_change = false;
	ask(line, &asked);
	free(line);
	return 0;
}
