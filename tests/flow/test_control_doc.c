// SPDX-License-Identifier: BSD-2-Clause
/*
 * docs/control.md is complete: a running daemon's answers have the fields that it describes, all of
 * them and no others, and it names each command, key, error and reason of the code.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "../control_doc.h"
#include "daemon/command.h"
#include "datapath/flow.h"
#include "forward_rig.h"

#define TEST_SECONDS 200
#define ONE "127.0.0.1:9001"
#define TWO "127.0.0.1:9002"
#define THREE "127.0.0.1:9003"
#define PATH_ROOM 256
#define FORWARDS \
	"[forward live]\nlisten = " ONE "\nupstream = " RIG_UPSTREAM "\n" \
	"[forward other]\nlisten = " TWO "\nupstream = " RIG_UPSTREAM "\nengine = auto\n" \
	"[forward told]\nlisten = " THREE "\nupstream = " RIG_UPSTREAM "\n" \
	"proxy-protocol = receive\n" \
	"[forward named]\nlisten = 127.0.0.1:9004\nupstream = localhost:9100\n"

/* --- the page --- */

static bool seen[DOC_ROWS_MAX];

static bool is_type(const char *type)
{
	return !strcmp(type, "string") || !strcmp(type, "number") || !strcmp(type, "bool") ||
	       !strcmp(type, "array") || !strcmp(type, "object");
}

/* The field that a row is about: that of an answer has its type in the next cell. */
static const char *field_of(const struct doc_row *row, const char **ret_type)
{
	for (size_t i = 0; i < 2; i++) {
		*ret_type = row->cells[i + 1];
		if (row->cells[i][0] == '`' && is_type(*ret_type))
			return strcmp(row->section, "Requests") ? row->cells[i] : NULL;
	}
	return NULL;
}

static const char *type_name(struct json_object *value)
{
	switch (json_object_get_type(value)) {
	case json_type_string:
		return "string";
	case json_type_int:
		return "number";
	case json_type_boolean:
		return "bool";
	case json_type_array:
		return "array";
	case json_type_object:
		return "object";
	default:
		return "?";
	}
}

static void check_field(const char *path, struct json_object *value)
{
	char quoted[PATH_ROOM + 2];
	const char *type, *field;
	bool known = false;

	snprintf(quoted, sizeof(quoted), "`%s`", path);
	for (size_t i = 0; i < doc_n_rows; i++) {
		field = field_of(&doc_rows[i], &type);
		if (!field || strcmp(field, quoted) != 0)
			continue;
		if (strcmp(type, value ? type_name(value) : "object") != 0)
			fail_msg("docs/control.md: %s is no %s: %s", path, type,
				 json_object_to_json_string(value));
		known = seen[i] = true;
	}
	if (!known)
		fail_msg("docs/control.md lacks %s", path);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as an answer of the daemon, three levels
static void check_value(const char *path, struct json_object *value)
{
	char below[PATH_ROOM];

	if (json_object_is_type(value, json_type_object)) {
		json_object_object_foreach(value, key, member) {
			snprintf(below, sizeof(below), "%s%s%s", path, *path ? "." : "", key);
			check_field(below, member);
			check_value(below, member);
		}
	} else if (json_object_is_type(value, json_type_array)) {
		snprintf(below, sizeof(below), "%s[]", path);
		for (size_t i = 0; i < json_object_array_length(value); i++)
			check_value(below, json_object_array_get_idx(value, i));
	}
}

static void check_answer(struct daemon *d, const char *line)
{
	struct json_object *o = NULL;
	int r = daemon_ask(d, line, RIG_PATIENCE_MS, &o);

	if (r)
		fail_msg("%s: %s", line, strerror(-r));
	check_value("", o);
	json_object_put(o);
}

static void fields(struct daemon *d)
{
	static const char *const requests[] = {
		"sessions", "status", "forwards", "log-level",
		"{\"command\":\"engine\",\"forward\":\"live\"}",
		"{\"command\":\"drain\",\"forward\":\"other\"}",
		"{\"command\":\"kill\",\"all\":true}",
		"reload", "nothing",
	};
	static const char header[] = "PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n";
	int client = rig_dial(NULL, ONE), server = rig_accept(), told = rig_dial(NULL, THREE);

	doc_read();
	rig_send(told, header, strlen(header));
	rig_accept();
	memset(seen, 0, sizeof(seen));
	rig_talk(client, server, 50);
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
		check_answer(d, requests[i]);
	for (size_t i = 0; i < doc_n_rows; i++) {
		const char *type, *field = field_of(&doc_rows[i], &type);

		if (field && !seen[i])
			fail_msg("docs/control.md has %s, which no answer has", field);
	}
}

/* A status without the list of forwards has all the rest. */
static void brief(struct daemon *d)
{
	struct json_object *whole = NULL, *short_one = NULL;

	assert_int_equal(daemon_ask(d, "status", RIG_PATIENCE_MS, &whole), 0);
	assert_int_equal(daemon_ask(d, "{\"command\":\"status\",\"brief\":true}",
				    RIG_PATIENCE_MS, &short_one), 0);
	assert_non_null(json_at(whole, "forwards"));
	json_object_object_foreach(whole, key, value) {
		(void)value;
		assert_int_equal(json_at(short_one, key) != NULL,
				 json_at(whole, key) && strcmp(key, "forwards") != 0);
	}
	json_object_put(whole);
	json_object_put(short_one);
}

/* --- the names in the code --- */

static void need(const char *section, const char *name)
{
	if (!doc_find(section, name))
		fail_msg("docs/control.md, \"%s\": no row `%s`", section, name);
}

static void names(void)
{
	char quoted[64];

	for (size_t i = 0; i < COMMANDS; i++) {
		const struct command *c = &commands[i];
		const struct doc_row *row;

		need("Requests", c->name);
		row = doc_find("Requests", c->name);
		for (size_t k = 0; k < c->n_keys; k++) {
			snprintf(quoted, sizeof(quoted), "`%s`", command_keys[c->keys[k]].name);
			if (!strstr(row->cells[1], quoted))
				fail_msg("docs/control.md: %s lacks %s", c->name, quoted);
		}
		assert_int_equal(!!c->changes, strstr(row->cells[2], "hanges") != NULL);
	}
	for (size_t k = 0; k < KEYS; k++)
		need("Requests", command_keys[k].name);
	for (int i = 0; i < ERRORS; i++)
		need("Errors", command_error_name((enum command_error)i));
	for (int i = 0; i < REASONS; i++)
		need("`sessions`", reason_name((enum reason)i));
}

static void control(void **state)
{
	struct daemon *d = rig_start(*state, "[culvert]\nsettle = 0.02\nsession-log = /dev/null\n"
					     FORWARDS);

	fields(d);
	names();
	brief(d);
	rig_stop(d);
}

static const struct rig_row rows[] = { { "control", control } };

int main(void)
{
	return rig_run("test_control_doc", TEST_SECONDS, rows, 1);
}
