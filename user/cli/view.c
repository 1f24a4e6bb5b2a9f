// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a table is described by its columns: the member of the JSON object that a
 * cell shows, and how.  Rows are collected as text with a tab behind each cell, and printed when
 * the widest cell of each column is known.  Everything else is a template with members in braces.
 */
#include "cli/view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_add.h"
#include "base/log.h"
#include "base/size.h"

#define N_ELEMENTS(array) (sizeof(array) / sizeof((array)[0]))
#define TEXT_MAX 256
#define COLUMNS_MAX 12

/* --- members of an answer --- */

enum kind {
	TEXT,
	COUNT,
	BYTES,
	AGE, /* milliseconds */
};

/* "250ms", "5.3s", "2m10s", "3h05m", "2d03h". */
static const char *age_format(uint64_t ms, char *buf, size_t size)
{
	uint64_t s = ms / 1000;

	if (s == 0)
		snprintf(buf, size, "%" PRIu64 "ms", ms);
	else if (s < 60)
		snprintf(buf, size, "%" PRIu64 ".%" PRIu64 "s", s, ms % 1000 / 100);
	else if (s < 3600)
		snprintf(buf, size, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(buf, size, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s / 60 % 60);
	else
		snprintf(buf, size, "%" PRIu64 "d%02" PRIu64 "h", s / 86400, s / 3600 % 24);
	return buf;
}

/* Member KEY of OBJ; NULL: there is none, or OBJ is no object.  "a.b" is member b of member a. */
static struct json_object *member(struct json_object *obj, const char *key)
{
	char name[32];

	while (obj && *key) {
		size_t len = strcspn(key, ".");
		struct json_object *value = NULL;

		snprintf(name, sizeof(name), "%.*s", (int)len, key);
		json_object_object_get_ex(obj, name, &value);
		obj = value;
		key += len + (key[len] == '.');
	}
	return obj;
}

static size_t array_length(struct json_object *list)
{
	return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
}

/* VALUE as text: part of VALUE, or in BUF of TEXT_MAX bytes, or "?". */
static const char *value_text(struct json_object *value, enum kind kind, char *buf)
{
	uint64_t number;

	if (kind == TEXT)
		return json_object_is_type(value, json_type_string) ?
			       json_object_get_string(value) : "?";
	if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0)
		return "?";
	number = json_object_get_uint64(value);
	if (kind == BYTES)
		return size_format(number, buf, TEXT_MAX);
	if (kind == AGE)
		return age_format(number, buf, TEXT_MAX);
	snprintf(buf, TEXT_MAX, "%" PRIu64, number);
	return buf;
}

static const char *text_in(struct json_object *obj, const char *key)
{
	return value_text(member(obj, key), TEXT, NULL);
}

static void put_escaped(FILE *out, const char *text)
{
	char buf[TEXT_MAX];

	fputs(log_escape(text, buf, sizeof(buf)), out);
}

/* Print TEMPLATE with the members of OBJ that it names in braces; one named *_ms is an age. */
static void fill_in(FILE *out, const char *template, struct json_object *obj)
{
	char key[32], buf[TEXT_MAX];

	while (*template) {
		size_t plain = strcspn(template, "{"), len = strcspn(template + plain, "}");
		enum kind kind;

		fprintf(out, "%.*s", (int)plain, template);
		template += plain;
		if (!*template)
			return;
		snprintf(key, sizeof(key), "%.*s", (int)len - 1, template + 1);
		template += len + 1;
		kind = json_object_is_type(member(obj, key), json_type_string) ? TEXT :
		       strstr(key, "_ms") ? AGE : COUNT;
		put_escaped(out, value_text(member(obj, key), kind, buf));
	}
}

/* --- tables --- */

/* KEY is shown, or what FN makes of the whole row; without both the cell is empty. */
struct column {
	const char *key, *title;
	enum kind kind; /* but for TEXT, cells are aligned to the right */
	const char *(*fn)(struct json_object *row, char *buf);
};

struct table {
	const struct column *columns;
	size_t n_columns;
	FILE *rows; /* that become TEXT; NULL: no memory */
	char *text;
	size_t size;
};

static void add_cell(struct table *t, const char *text)
{
	if (!t->rows)
		return;
	put_escaped(t->rows, text);
	fputc('\t', t->rows);
}

/* Add a row for the object ROW.  COLUMNS: the table's, or as many for another kind of object. */
static void add_row(struct table *t, const struct column *columns, struct json_object *row)
{
	char buf[TEXT_MAX];

	for (size_t i = 0; i < t->n_columns; i++) {
		const struct column *c = &columns[i];

		add_cell(t, c->fn ? c->fn(row, buf) :
			    c->key ? value_text(member(row, c->key), c->kind, buf) : "");
	}
}

static void table_begin(struct table *t, const struct column *columns, size_t n_columns)
{
	*t = (struct table){ .columns = columns, .n_columns = n_columns };
	t->rows = open_memstream(&t->text, &t->size);
	for (size_t i = 0; i < n_columns; i++)
		add_cell(t, columns[i].title);
}

/* Print a cell.  Blanks behind it are owed to the next one, so that no line ends in blanks. */
static void print_cell(FILE *out, const char *cell, int len, int width, bool right, int *owed)
{
	if (!len) {
		*owed += width + 2;
		return;
	}
	fprintf(out, "%*s%.*s", *owed + (right ? width - len : 0), "", len, cell);
	*owed = (right ? 0 : width - len) + 2;
}

/* Print all rows behind INDENT blanks, and free the table.  -ENOMEM if one was lost. */
static int table_end(struct table *t, FILE *out, int indent)
{
	int widths[COLUMNS_MAX] = { 0 }, owed = indent, len;
	size_t at = 0;
	bool lost = !t->rows || fclose(t->rows);

	for (const char *cell = t->text; !lost && *cell; cell += len + 1, at++) {
		int *width = &widths[at % t->n_columns];

		len = (int)strcspn(cell, "\t");
		*width = len > *width ? len : *width;
	}
	at = 0;
	for (const char *cell = t->text; !lost && *cell; cell += len + 1, at++) {
		size_t i = at % t->n_columns;

		len = (int)strcspn(cell, "\t");
		print_cell(out, cell, len, widths[i], t->columns[i].kind != TEXT, &owed);
		if (i + 1 == t->n_columns) {
			fputc('\n', out);
			owed = indent;
		}
	}
	free(t->text);
	return lost ? -ENOMEM : 0;
}

/* ROWS: an array of objects, or one object. */
static int print_table(FILE *out, int indent, const struct column *columns, size_t n_columns,
		       struct json_object *rows)
{
	struct table t;

	table_begin(&t, columns, n_columns);
	if (json_object_is_type(rows, json_type_object))
		add_row(&t, columns, rows);
	for (size_t i = 0; i < array_length(rows); i++)
		add_row(&t, columns, json_object_array_get_idx(rows, i));
	return table_end(&t, out, indent);
}

/* --- sessions --- */

static const char *client_text(struct json_object *session, char *buf)
{
	if (!member(session, "via"))
		return text_in(session, "client");
	snprintf(buf, TEXT_MAX, "%s via %s", text_in(session, "client"), text_in(session, "via"));
	return buf;
}

static const char *carrier_text(struct json_object *flow, char *buf)
{
	const char *direction = text_in(flow, "direction");

	snprintf(buf, TEXT_MAX, "%s %s", !strcmp(direction, "client-to-upstream") ? "->" :
		 !strcmp(direction, "upstream-to-client") ? "<-" : "?", text_in(flow, "carrier"));
	return buf;
}

static const char *reason_text(struct json_object *flow, char *buf)
{
	snprintf(buf, TEXT_MAX, "(%s)", text_in(flow, "reason"));
	return buf;
}

static const char *phase_text(struct json_object *flow, char *buf)
{
	struct json_object *eof = member(flow, "eof");

	snprintf(buf, TEXT_MAX, "%s%s", text_in(flow, "phase"),
		 json_object_is_type(eof, json_type_boolean) && json_object_get_boolean(eof) ?
			 ", eof" : "");
	return buf;
}

static const struct column session_columns[] = {
	{ "id", "ID", COUNT, NULL },
	{ "forward", "FORWARD", TEXT, NULL },
	{ NULL, "CLIENT", TEXT, client_text },
	{ "upstream", "UPSTREAM", TEXT, NULL },
	{ "age_ms", "AGE", AGE, NULL },
	{ NULL, "BYTES", BYTES, NULL },
	{ NULL, "HAND-OVERS", COUNT, NULL },
	{ NULL, "MAX BACKLOG", BYTES, NULL },
	{ "state", "STATE", TEXT, NULL },
};

/* A flow stands below its session, with the carrier and its reason below the addresses. */
static const struct column flow_columns[N_ELEMENTS(session_columns)] = {
	[2] = { .fn = carrier_text },
	[3] = { .fn = reason_text },
	[5] = { .key = "bytes", .kind = BYTES },
	[6] = { .key = "handovers", .kind = COUNT },
	[7] = { .key = "backlog_max", .kind = BYTES },
	[8] = { .fn = phase_text },
};

/* Say that WHAT is missing, because workers have not answered. */
static void print_silent(FILE *out, struct json_object *answer, const char *what)
{
	int64_t n = json_object_get_int64(member(answer, "workers_silent"));

	if (n > 0)
		fprintf(out, "%" PRId64 " worker%s not answered: %s missing\n", n,
			n == 1 ? " has" : "s have", what);
}

static int view_sessions(struct json_object *answer, FILE *out)
{
	struct json_object *sessions = member(answer, "sessions");
	struct table t;
	int r = 0;

	if (!array_length(sessions)) {
		fputs("No sessions.\n", out);
	} else {
		table_begin(&t, session_columns, N_ELEMENTS(session_columns));
		for (size_t i = 0; i < array_length(sessions); i++) {
			struct json_object *s = json_object_array_get_idx(sessions, i);
			struct json_object *flows = member(s, "flows");

			add_row(&t, session_columns, s);
			for (size_t k = 0; k < array_length(flows); k++)
				add_row(&t, flow_columns, json_object_array_get_idx(flows, k));
		}
		r = table_end(&t, out, 0);
	}
	print_silent(out, answer, "sessions may be");
	return r;
}

/* --- status --- */

static const struct column forward_columns[] = {
	{ "name", "NAME", TEXT, NULL },
	{ "listen", "LISTEN", TEXT, NULL },
	{ "upstream", "UPSTREAM", TEXT, NULL },
	{ "live", "LIVE", COUNT, NULL },
	{ "accepted", "ACCEPTED", COUNT, NULL },
	{ "finished", "FINISHED", COUNT, NULL },
	{ "bytes_to_upstream", "TO UPSTREAM", BYTES, NULL },
	{ "bytes_to_client", "TO CLIENT", BYTES, NULL },
};

static const struct column carrier_columns[] = {
	{ "carrier", "CARRIER", TEXT, NULL },
	{ "flows", "FLOWS", COUNT, NULL },
	{ "bytes", "BYTES", BYTES, NULL },
};

static const struct column handover_columns[] = {
	{ "to_sockmap", "TO SOCKMAP", COUNT, NULL },
	{ "to_splice", "TO SPLICE", COUNT, NULL },
	{ "to_copy", "TO COPY", COUNT, NULL },
	{ "failed", "FAILED", COUNT, NULL },
};

static const struct column resource_columns[] = {
	{ "sessions", "SESSIONS", COUNT, NULL },
	{ "slots_used", "SLOTS USED", COUNT, NULL },
	{ "slots_total", "SLOTS", COUNT, NULL },
	{ "kernel_memory", "KERNEL MEMORY", BYTES, NULL },
	{ "kernel_memory_limit", "AT MOST", BYTES, NULL },
	{ "pipes", "PIPES", COUNT, NULL },
	{ "pipes_idle", "PIPES IDLE", COUNT, NULL },
	{ "buffers", "BUFFERS", COUNT, NULL },
	{ "fds", "DESCRIPTORS", COUNT, NULL },
};

static const struct column session_log_columns[] = {
	{ "path", "FILE", TEXT, NULL },
	{ "lines", "LINES", COUNT, NULL },
	{ "lost", "LOST", COUNT, NULL },
	{ "errors", "ERRORS", COUNT, NULL },
	{ "last_error", "LAST ERROR", TEXT, NULL },
};

/* "10.0.0.1:80, [2001:db8::1]:80". */
static const char *addresses_text(struct json_object *forward, char *buf)
{
	struct json_object *list = member(forward, "addresses");
	size_t at = 0;

	for (size_t i = 0; i < array_length(list) && at < TEXT_MAX; i++)
		at += (size_t)snprintf(buf + at, TEXT_MAX - at, "%s%s", i ? ", " : "",
				       value_text(json_object_array_get_idx(list, i), TEXT, NULL));
	return at ? buf : "none";
}

static const struct column name_columns[] = {
	{ "upstream", "NAME", TEXT, NULL },
	{ "lookup.age_ms", "AGE", AGE, NULL },
	{ "lookup.lookups", "LOOK-UPS", COUNT, NULL },
	{ "lookup.failures", "FAILED", COUNT, NULL },
	{ NULL, "ADDRESSES", TEXT, addresses_text },
	{ "lookup.error", "ERROR", TEXT, NULL },
};

static int print_section(FILE *out, const char *title, const struct column *columns,
			 size_t n_columns, struct json_object *rows)
{
	fprintf(out, "\n%s\n", title);
	if (json_object_is_type(rows, json_type_array) ||
	    json_object_is_type(rows, json_type_object))
		return print_table(out, 2, columns, n_columns, rows);
	fputs("  ?\n", out);
	return 0;
}

/* Print the forwards whose upstream is a name, if there are any. */
static int print_names(FILE *out, struct json_object *forwards)
{
	struct json_object *named = json_object_new_array();
	int r = 0;

	for (size_t i = 0; named && i < array_length(forwards); i++) {
		struct json_object *f = json_object_array_get_idx(forwards, i);

		if (json_object_is_type(member(f, "lookup"), json_type_object))
			json_append(named, json_object_get(f));
	}
	if (array_length(named))
		r = print_section(out, "Names", name_columns, N_ELEMENTS(name_columns), named);
	json_object_put(named);
	return r;
}

static const struct column error_columns[] = {
	{ NULL, "CAUSE", TEXT, NULL },
	{ NULL, "COUNT", COUNT, NULL },
};

/* Print the causes that happened; most never do. */
static int print_errors(FILE *out, struct json_object *errors)
{
	struct table t;
	char buf[TEXT_MAX];
	size_t n = 0;

	fputs("\nErrors\n", out);
	if (!json_object_is_type(errors, json_type_object)) {
		fputs("  ?\n", out);
		return 0;
	}
	json_object_object_foreach(errors, cause, value) {
		if (json_object_is_type(value, json_type_int) && !json_object_get_int64(value))
			continue;
		if (!n++)
			table_begin(&t, error_columns, N_ELEMENTS(error_columns));
		add_cell(&t, cause);
		add_cell(&t, value_text(value, COUNT, buf));
	}
	if (n)
		return table_end(&t, out, 2);
	fputs("  none\n", out);
	return 0;
}

/* "  NAME: yes", or "  NAME: no (why)". */
static void print_available(FILE *out, const char *name, struct json_object *obj)
{
	struct json_object *available = member(obj, "available");
	const char *reason = text_in(obj, "reason");

	fputs("  ", out);
	put_escaped(out, name);
	fprintf(out, ": %s", !json_object_is_type(available, json_type_boolean) ? "?" :
			     json_object_get_boolean(available) ? "yes" : "no");
	if (*reason && member(obj, "reason")) {
		fputs(" (", out);
		put_escaped(out, reason);
		fputc(')', out);
	}
	fputc('\n', out);
}

static void print_kernel(FILE *out, struct json_object *kernel)
{
	struct json_object *features = member(kernel, "features");

	fputs("\nKernel\n", out);
	print_available(out, "available", kernel);
	if (json_object_get_int64(member(kernel, "events_lost")))
		fill_in(out, "  events lost: {events_lost}\n", kernel);
	for (size_t i = 0; i < array_length(features); i++) {
		struct json_object *feature = json_object_array_get_idx(features, i);

		print_available(out, text_in(feature, "name"), feature);
	}
}

#define SECTION(title, columns, key) \
	print_section(out, title, columns, N_ELEMENTS(columns), member(answer, key))

static int view_status(struct json_object *answer, FILE *out)
{
	int r = 0;

	fill_in(out, "culvert {version}, pid {pid}, up {uptime_ms}\n"
		     "engine {engine}, workers {workers}, at most "
		     "{max_sessions} sessions\n", answer);
	print_silent(out, answer, "some flows, pipes and buffers are");
	if (member(answer, "forwards")) /* they were asked for */
		r |= SECTION("Forwards", forward_columns, "forwards");
	r |= print_names(out, member(answer, "forwards"));
	r |= SECTION("Carriers", carrier_columns, "carriers");
	r |= SECTION("Hand-overs", handover_columns, "handovers");
	r |= print_errors(out, member(answer, "errors"));
	print_kernel(out, member(answer, "kernel"));
	if (member(answer, "session_log")) /* there is one */
		r |= SECTION("Session log", session_log_columns, "session_log");
	r |= SECTION("Resources", resource_columns, "resources");
	return r;
}

/* --- the other answers --- */

/* "auto", or "copy (auto)" where something else is configured. */
static const char *engine_text(struct json_object *forward, char *buf)
{
	const char *now = text_in(forward, "engine");
	const char *configured = text_in(forward, "engine_configured");

	if (!strcmp(now, configured))
		return now;
	snprintf(buf, TEXT_MAX, "%s (%s)", now, configured);
	return buf;
}

static const struct column listed_columns[] = {
	{ "name", "NAME", TEXT, NULL },
	{ "listen", "LISTEN", TEXT, NULL },
	{ "upstream", "UPSTREAM", TEXT, NULL },
	{ NULL, "ENGINE", TEXT, engine_text },
	{ "state", "STATE", TEXT, NULL },
	{ "live", "LIVE", COUNT, NULL },
	{ "accepted", "ACCEPTED", COUNT, NULL },
	{ "denied", "DENIED", COUNT, NULL },
	{ "bytes_to_upstream", "TO UPSTREAM", BYTES, NULL },
	{ "bytes_to_client", "TO CLIENT", BYTES, NULL },
	{ "max_sessions", "AT MOST", COUNT, NULL },
	{ "max_sessions_per_client", "A CLIENT", COUNT, NULL },
};

static int view_forwards(struct json_object *answer, FILE *out)
{
	return print_table(out, 0, listed_columns, N_ELEMENTS(listed_columns),
			   member(answer, "forwards"));
}

static int view_kill(struct json_object *answer, FILE *out)
{
	fill_in(out, json_object_get_int64(member(answer, "killed")) == 1 ?
			     "{killed} session reset\n" : "{killed} sessions reset\n", answer);
	return 0;
}

static int view_drain(struct json_object *answer, FILE *out)
{
	fill_in(out, "{forward}: {state}, sessions {live}\n", answer);
	if (json_object_get_string_len(member(answer, "warning")))
		fill_in(out, "warning: {warning}\n", answer);
	return 0;
}

/* An answer must have the member KEY of that type.  It is printed by FN or by the template. */
static const struct {
	const char *key;
	enum json_type type;
	int (*fn)(struct json_object *answer, FILE *out);
	const char *template;
} views[COMMANDS] = {
	[COMMAND_SESSIONS] = { "sessions", json_type_array, view_sessions, NULL },
	[COMMAND_STATUS] = { "", json_type_object, view_status, NULL },
	[COMMAND_FORWARDS] = { "forwards", json_type_array, view_forwards, NULL },
	[COMMAND_KILL] = { "killed", json_type_int, view_kill, NULL },
	[COMMAND_ENGINE] = { "engine", json_type_string, NULL,
			     "{forward}: engine {engine}, configured {engine_configured}, "
			     "sessions {live}, flows still moving {flows_moving}\n" },
	[COMMAND_DRAIN] = { "state", json_type_string, view_drain, NULL },
	[COMMAND_RELOAD] = { "finished", json_type_int, NULL,
			     "forwards: {added} added, {changed} changed, {removed} removed, "
			     "{kept} as before\n" },
	[COMMAND_LOG_LEVEL] = { "level", json_type_string, NULL, "{level}\n" },
};

int view_print(enum command_id command, struct json_object *answer, FILE *out)
{
	struct json_object *known = member(answer, views[command].key);

	if (!known || !json_object_is_type(known, views[command].type))
		return -EINVAL;
	if (views[command].fn)
		return views[command].fn(answer, out) ? -ENOMEM : 0;
	fill_in(out, views[command].template, answer);
	return 0;
}
