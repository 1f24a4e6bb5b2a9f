// SPDX-License-Identifier: BSD-2-Clause
/*
 * docs/control.md is complete: a running daemon's answers have the fields that it describes, all of
 * them and no others, and it names each command, key, error and reason of the code.
 */
#include <limits.h>
#include <sys/un.h>

#include "daemon/control_requests.h"
#include "datapath/flow.h"
#include "datapath/graft/graft.h"
#include "forward_rig.h"

#define TEST_SECONDS 200
#define PATH_ROOM 256
#define FORWARDS                                                                                   \
	LIVE_AND_OTHER FORWARD(                                                                    \
		"told", THREE,                                                                     \
		"proxy-protocol = receive\n") "[forward named]\nlisten = 127.0.0.1:9004\nupstream = localhost:9100\n"

static const char drain_server[] =
	"{\"command\":\"upstream\",\"forward\":\"other\",\"server\":\"" RIG_UPSTREAM
	"\",\"order\":\"drain\"}";

/* --- the page --- */

static char page[1 << 16],
	seen[1 << 16]; /* the page; the fields of answers, as its lists say them */

/* The folder of the program is somewhere below that of the sources. */
static void read_page(void)
{
	char path[PATH_MAX], up[64] = "../../../docs/control.md";
	FILE *f = NULL;
	size_t len;

	while (!f && strlen(up) < 50) {
		beside_test(up, path, sizeof(path));
		f = fopen(path, "re");
		memmove(up + 3, up, strlen(up) + 1);
	}
	assert_non_null(f);
	len = fread(page, 1, sizeof(page) - 1, f);
	assert_true(len > 1000 && len < sizeof(page) - 1);
	page[len] = '\0';
	fclose(f);
}

static void need(const char *item)
{
	if (!strstr(page, item))
		fail_msg("docs/control.md lacks %s", item + (*item == '\n'));
}

static void need_name(const char *name)
{
	need(textf("\n- `%s`: ", name));
}

/* One of several in an item. */
static void need_quoted(const char *name)
{
	need(textf("`%s`", name));
}

static const char *type_name(struct json_object *value)
{
	return json_object_is_type(value, json_type_int)     ? "number" :
	       json_object_is_type(value, json_type_boolean) ? "bool" :
	       value ? json_type_to_name(json_object_get_type(value)) :
		       "object";
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as an answer of the daemon, three levels
static void check_value(const char *path, struct json_object *value)
{
	char below[PATH_ROOM], item[2 * PATH_ROOM];

	if (json_object_is_type(value, json_type_object)) {
		json_object_object_foreach(value, key, member) {
			if (!strcmp(path, "errors")) { /* they have a list of their own */
				need_name(key);
				continue;
			}
			if (!strcmp(path, "handovers")) {
				need_quoted(key);
				continue;
			}
			snprintf(below, sizeof(below), "%s%s%s", path, *path ? "." : "", key);
			snprintf(item, sizeof(item), "\n- `%s` %s", below, type_name(member));
			need(item);
			if (!strstr(seen, item))
				strcat(seen, item);
			check_value(below, member);
		}
	} else if (json_object_is_type(value, json_type_array)) {
		snprintf(below, sizeof(below), "%s[]", path);
		for (size_t i = 0; i < json_object_array_length(value); i++)
			check_value(below, json_object_array_get_idx(value, i));
	}
}

static bool exports; /* the daemon can */

/* What only a daemon has that can graft. */
static bool is_of_streams(const char *item)
{
	return !strncmp(item, "\n- `stream`", 11) ||
	       (!exports &&
		(!strncmp(item, "\n- `standby.", 12) || !strncmp(item, "\n- `set_up.", 11)));
}

/* Each field of the page is one of an answer: what stands behind "## Answers" and has a type. */
static void check_page(void)
{
	static const char *const types[] = { "string", "number", "bool", "array", "object" };
	char item[PATH_ROOM];

	for (const char *at = strstr(page, "## Answers"); at; at = strstr(at + 1, "\n- `")) {
		size_t len = strcspn(at + 4, "`") + 6, type_len = strcspn(at + len, ":\n");

		for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
			if (type_len == strlen(types[i]) && !strncmp(at + len, types[i], type_len)) {
				snprintf(item, sizeof(item), "%.*s", (int)(len + type_len), at);
				if (!strstr(seen, item) && !is_of_streams(item))
					fail_msg("docs/control.md has %s, which no answer has",
						 item + 1);
			}
	}
}

/* Keep an export, so that others see one.  Where nothing can be grafted it is refused. */
static int keep_export(struct daemon *d)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char answer[1024] = "";

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", daemon_control(d));
	assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	assert_true(dprintf(fd, "export\n") > 0);
	for (size_t n = 0; n < sizeof(answer) - 1 && read(fd, answer + n, 1) == 1; n++)
		if (answer[n] == '\n')
			break;
	exports = !strncmp(answer, "{\"stream\":\"export\"}", 19);
	for (int i = 0; exports && i < 3; i++) /* it has begun */
		read(fd, answer, 4);
	return fd;
}

static void fields(struct daemon *d)
{
	static const char *const requests[] = {
		"sessions",
		"status",
		drain_server,
		"forwards",
		"log-level",
		"{\"command\":\"engine\",\"forward\":\"live\"}",
		"{\"command\":\"drain\",\"forward\":\"other\"}",
		"{\"command\":\"kill\",\"all\":true}",
		"reload",
		"{\"command\":\"reload\",\"number\":1}",
		"nothing",
	};
	static const char header[] = "PROXY TCP4 192.0.2.1 192.0.2.2 5000 443\r\n";
	struct ends e = connect_pair(NULL, ONE);
	int told = rig_dial(NULL, THREE), export;

	rig_send(told, header, strlen(header));
	rig_accept();
	seen[0] = '\0';
	rig_talk_on(e, 50);
	export = keep_export(d);
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
		check_value("", ask(d, "%s", requests[i]));
	check_page();
	close(export);
}

/* --- the names in the code --- */

static void names(void)
{
	char quoted[64];

	for (size_t i = 0; i < COMMANDS; i++) {
		const struct command *c = &commands[i];
		char *row, *end;

		snprintf(quoted, sizeof(quoted), "\n- `%s` (", c->name);
		need(quoted);
		row = strdup(strstr(page, quoted) + 1);
		end = strchr(row, '\n');
		*end = '\0';
		for (const enum request_key *key = c->keys; *key; key++) {
			snprintf(quoted, sizeof(quoted), "`%s`", request_keys[*key].name);
			if (!strstr(row, quoted))
				fail_msg("docs/control.md: %s lacks %s", c->name, quoted);
		}
		assert_int_equal(!!c->changes, strstr(row, "hanges") != NULL);
		free(row);
	}
	for (size_t k = KEY_NONE + 1; k < KEYS; k++)
		need_name(request_keys[k].name);
	for (int i = 0; i < REASONS; i++)
		need_name(reason_names[i]);
	for (int i = 0; i < GRAFT_REFUSALS; i++)
		need_quoted(graft_refusal_name((enum graft_refusal)i));
}

ROW_ONCE(control)
{
	struct daemon *d =
		rig_start(*state, "[culvert]\nsettle = 0.02\nsession-log = /dev/null\n" FORWARDS);

	read_page();
	fields(d);
	names();
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_control_doc", TEST_SECONDS);
}
