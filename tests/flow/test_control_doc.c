// SPDX-License-Identifier: BSD-2-Clause
/*
 * The control socket of a running daemon: its answers have the fields of docs/control.md, all of
 * them and no others, on every engine; and whatever clients do, the next one is answered, and
 * sessions go on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../control_doc.h"
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

/* --- clients that do as they like --- */

static int dial(struct daemon *d)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = keep(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", daemon_control(d));
	assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	return fd;
}

/* The daemon need not wait for all of it. */
static void say_bytes(int fd, const void *data, size_t len)
{
	const char *at = data;

	while (len) {
		ssize_t n = send(fd, at, len, MSG_NOSIGNAL);

		if (n <= 0)
			return;
		at += n;
		len -= (size_t)n;
	}
}

/* What comes until the end: nothing, or one line with an error. */
static void expect_refusal(int fd)
{
	char buf[2048];
	size_t len = 0;
	ssize_t n;

	while (len < sizeof(buf) - 1 && (n = recv(fd, buf + len, sizeof(buf) - 1 - len, 0)) > 0)
		len += (size_t)n;
	buf[len] = '\0';
	if (len && (strncmp(buf, "{\"error\":{\"code\":\"", 18) != 0 ||
		    strchr(buf, '\n') != buf + len - 1))
		fail_msg("answered: %s", buf);
	forget(fd);
}

static void refuse(struct daemon *d, const void *data, size_t len)
{
	int fd = dial(d);

	say_bytes(fd, data, len);
	shutdown(fd, SHUT_WR);
	expect_refusal(fd);
}

static void garbage(struct daemon *d)
{
	static const char *const lines[] = {
		"\n", "GET / HTTP/1.1\r\n\r\n", "{\"command\":\"kill\"", "{\"command\":",
		"\xff\xfe\n", "{\"command\":\"kill\",\"all\":true,\"x\":1}\n",
		"{\"command\":\"kill\",\"all\":1}\n",
		"{\"command\":\"engine\",\"forward\":\"live\",\"engine\":[\"copy\"]}\n",
		"{\"command\":\"kill\",\"id\":[[[[[1]]]]]}\n", "kill\n", "engine\n",
	};
	static char block[20000];
	uint64_t rng = 11;

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		refuse(d, lines[i], strlen(lines[i]));
	refuse(d, "{\"command\":\"status\"}\0x\n", 23);
	refuse(d, "status\0\n", 8);
	memset(block, '[', sizeof(block));
	refuse(d, block, sizeof(block));
	memset(block, ' ', sizeof(block));
	refuse(d, block, sizeof(block));
	for (int i = 0; i < 50; i++) {
		size_t n = rng_range(&rng, 1, 300);

		for (size_t k = 0; k < n; k++)
			block[k] = (char)(rng_range(&rng, 0, 255) | 1); /* no newline by chance */
		block[0] = '{';
		block[n] = '\n';
		refuse(d, block, n + 1);
	}
}

#define CROWD 100

/* A crowd that asks at once: everybody is answered. */
static void crowd(struct daemon *d)
{
	static const char request[] = "{\"command\":\"sessions\",\"forward\":\"live\"}\n";
	int fds[CROWD];

	for (int i = 0; i < CROWD; i++) {
		struct sockaddr_un un = { .sun_family = AF_UNIX };

		fds[i] = keep(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", daemon_control(d));
		assert_int_equal(connect(fds[i], (struct sockaddr *)&un, sizeof(un)), 0);
		say_bytes(fds[i], request, strlen(request));
	}
	for (int i = 0; i < CROWD; i++) {
		char buf[8192] = "";

		if (recv(fds[i], buf, sizeof(buf) - 1, MSG_WAITALL) < 0)
			fail_msg("client %d: %s", i, strerror(errno));
		if (strncmp(buf, "{\"sessions\":[{", 14) != 0)
			fail_msg("client %d: %s", i, buf);
		forget(fds[i]);
	}
}

/* Clients that ask and never read, or begin and never end, with the sessions of a busy forward. */
static void deaf_and_silent(struct daemon *d)
{
	for (int i = 0; i < 12; i++) {
		int fd = dial(d);

		say_bytes(fd, i % 2 ? "sessions\n" : "{\"comm", i % 2 ? 9 : 6);
	}
}

static void abuse(struct daemon *d, const char *carrier)
{
	int client = rig_dial(NULL, ONE), server = rig_accept();
	int64_t killed = rig_status(d, "errors.killed");

	rig_talk_until(d, "live", carrier, client, server);
	garbage(d);
	rig_talk(client, server, 50);
	crowd(d);
	rig_talk(client, server, 50);
	deaf_and_silent(d);
	assert_int_equal(rig_sessions(d, "live", NULL), 1);
	rig_talk(client, server, 50);
	assert_int_equal(rig_status(d, "errors.killed"), killed);
}

static void control(void **state)
{
	struct daemon *d = rig_start(*state, "[culvert]\nsettle = 0.02\nsession-log = /dev/null\n"
					     FORWARDS);

	fields(d);
	brief(d);
	abuse(d, rig_carrier(d, *state));
	rig_stop(d);
}

static const struct rig_row rows[] = { { "control", control } };

int main(void)
{
	return rig_run("test_control_doc", TEST_SECONDS, rows, 1);
}
