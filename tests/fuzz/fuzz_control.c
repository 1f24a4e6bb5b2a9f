// SPDX-License-Identifier: BSD-2-Clause
/*
 * The control socket's requests (user/control.c).  Any line gets an answer, which is one line of
 * JSON with an object.  The command is asked for as the line has it: exactly one, and all of it.
 *
 * An input is a line.  Its bytes are also put, as a string of JSON, into a request that is right.
 */
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "fuzz.h"

#define LINE_MAX_BYTES 4095

struct asked {
	unsigned int n;
	char name[LINE_MAX_BYTES + 1];
};

static struct json_object *answer(void *arg, const char *command)
{
	struct asked *asked = arg;
	struct json_object *o;

	asked->n++;
	must(strlen(command) < sizeof(asked->name), "a name of %zu bytes", strlen(command));
	strcpy(asked->name, command);
	if (strcmp(command, "status"))
		return NULL;
	o = json_object_new_object();
	json_object_object_add(o, "status", json_object_new_string(command));
	return o;
}

/* ASKED is what the line LINE has led to.  It is the last byte of its memory. */
static void ask(const char *line, size_t len, struct asked *asked)
{
	struct json_object *o, *error = NULL;
	char *copy = malloc(len ? len : 1);
	const char *text;

	if (!copy)
		abort();
	memcpy(copy, line, len);
	asked->n = 0;
	o = control_answer_line(answer, asked, copy, len);
	must(json_object_is_type(o, json_type_object), "the answer is no object");
	text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN);
	must(text && !strchr(text, '\n'), "the answer is no line: %s", text);
	must(asked->n <= 1, "asked %u times", asked->n);
	json_object_object_get_ex(o, "error", &error);
	must(!error == (asked->n && !strcmp(asked->name, "status")), "%s", text);
	must(!asked->n || memmem(line, len, "\"command\"", 9) || memchr(line, '\\', len),
	     "asked for \"%s\" without a command", asked->name);
	json_object_put(o);
	free(copy);
}

/*
 * A request for the command NAME, which holds anything but NUL; or, if BEHIND, for one that goes on
 * behind a NUL, which is none.
 */
static void ask_for(const char *name, bool behind)
{
	struct json_object *request = json_object_new_object();
	struct asked asked;
	const char *line;
	size_t len;

	json_object_object_add(request, "more", json_object_new_int(1));
	json_object_object_add(request, "command",
			       json_object_new_string_len(name, (int)strlen(name) + behind));
	line = json_object_to_json_string_length(request, JSON_C_TO_STRING_PLAIN, &len);
	ask(line, len, &asked);
	must(asked.n == !behind, "asked %u times for \"%s\"", asked.n, name);
	must(behind || !strcmp(asked.name, name), "\"%s\" instead of \"%s\"", asked.name, name);
	json_object_put(request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct asked asked;
	char *name;

	if (size > LINE_MAX_BYTES || memchr(data, '\n', size))
		return 0; /* the socket's reader cuts there */
	ask((const char *)data, size, &asked);
	name = strndup((const char *)data, size);
	ask_for(name, false);
	ask_for(name, true);
	free(name);
	return 0;
}
