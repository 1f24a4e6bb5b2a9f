// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: an answer is shown as it is, one member a line: an object is a section, an
 * array of objects is a table.  A list of keys says which members of its rows a table shows.  How a
 * number is written follows from the name of its key, and titles are made of keys.
 */
#include "cli/view.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/parse_size.h"

#define TEXT_MAX 256
#define COLUMNS_MAX 16

static const struct table {
	const char *key;   /* of the array; all tables of that key are shown */
	const char *inner; /* key of an object in a row, or of an array of them; NULL: the row */
	const char *columns[COLUMNS_MAX]; /* keys of members of that object, or else of the row */
} tables[] = {
	{ "sessions",
	  "flows",
	  { "id", "forward", "client", "upstream", "server_name", "age_ms", "state", "direction",
	    "carrier", "phase", "bytes", "handovers", "backlog_max", "standby", "reason",
	    "not_grafted" } },
	{ "forwards",
	  NULL,
	  { "name", "listen", "upstream", "engine", "set_up_hindrance", "state", "live",
	    "max_sessions", "accepted", "denied", "bytes_to_upstream", "bytes_to_client" } },
	{ "forwards",
	  "lookup",
	  { "upstream", "age_ms", "lookups", "failures", "addresses", "error" } },
	{ "forwards",
	  "servers",
	  { "name", "server", "state", "weight", "backup", "live", "sessions", "failures",
	    "last_error", "check", "agent" } },
	{ "forwards", "orders", { "name", "order", "server", "words" } },
	{ "carriers", NULL, { "carrier", "flows", "bytes" } },
	{ "streams",
	  NULL,
	  { "stream", "name", "in_sync", "since_ms", "heard_ms", "records", "same_ports",
	    "lacks" } },
	{ "relays", NULL, { "name", "in_sync", "heard_ms" } },
	{ "features", NULL, { "name", "available", "reason" } },
};

void view_age(uint64_t ms, char *buf, size_t len)
{
	uint64_t s = ms / 1000;

	if (s < 60)
		snprintf(buf, len, "%" PRIu64 ".%" PRIu64 "s", s, ms % 1000 / 100);
	else if (s < 3600)
		snprintf(buf, len, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
	else if (s < 86400)
		snprintf(buf, len, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s / 60 % 60);
	else
		snprintf(buf, len, "%" PRIu64 "d%02" PRIu64 "h", s / 86400, s / 3600 % 24);
}

void view_number(const char *key, uint64_t n, char *buf, size_t len)
{
	if (strstr(key, "_ms"))
		view_age(n, buf, len);
	else if (strstr(key, "bytes") || strstr(key, "backlog") || strstr(key, "_memory"))
		size_format(n, buf, len);
	else
		snprintf(buf, len, "%" PRIu64, n);
}

/* VALUE, which is called KEY, as printable text in BUF of TEXT_MAX bytes. */
static void value_text(const char *key, struct json_object *value, char *buf)
{
	if (!value || !*json_object_get_string(value))
		strcpy(buf, "-");
	else if (!json_object_is_type(value, json_type_int))
		log_escape(json_object_get_string(value), buf, TEXT_MAX);
	else
		view_number(key, json_object_get_uint64(value), buf, TEXT_MAX);
}

/* Each server of UDP is written as a configuration may write it: 10.0.0.2:53/udp. */
static void add_protocol(struct json_object *row, char *text)
{
	const char *name = json_object_get_string(json_object_object_get(row, "protocol"));
	char said[TEXT_MAX];
	size_t len, n = 0;

	if (!name || strcmp(name, "udp") != 0)
		return;
	strcpy(said, text);
	for (const char *at = said; *at && n < TEXT_MAX; at += len) {
		len = strcspn(at, " ,") ?: 1;
		/* "backup" has no port */
		n += (size_t)snprintf(text + n, TEXT_MAX - n, "%.*s%s", (int)len, at,
				      memchr(at, ':', len) && !memchr(at, '/', len) ? "/udp" : "");
	}
}

/* --- tables --- */

/* A table is gone through twice: the first time, without OUT, for the widths. */
struct layout {
	FILE *out;
	int indent, widths[COLUMNS_MAX];
	bool right[COLUMNS_MAX]; /* there are numbers in it */
};

/* "BYTES TO CLIENT" for "bytes_to_client", "AGE" for "age_ms". */
static void title_text(const char *key, char *buf)
{
	snprintf(buf, TEXT_MAX, "%s", key);
	if (strstr(buf, "_ms"))
		*strstr(buf, "_ms") = '\0';
	for (char *p = buf; *p; p++)
		*p = (char)(*p == '_' ? ' ' : toupper((unsigned char)*p));
}

/* Is ROW a session that another relay owns, so that its age is not known here? */
static bool is_of_another(struct json_object *row)
{
	const char *standby = json_object_get_string(json_object_object_get(row, "standby"));

	return standby && *standby && strstr("helped held orphan", standby);
}

/* A line about INNER, which is ROW or something in it.  ROW NULL: the titles. */
static void table_line(struct layout *l, const struct table *t, struct json_object *row,
		       struct json_object *inner)
{
	int gap = l->indent;

	for (size_t i = 0; i < COLUMNS_MAX && t->columns[i]; i++) {
		struct json_object *value = NULL;
		char text[TEXT_MAX];
		int len, blanks;

		if (!json_object_object_get_ex(inner, t->columns[i], &value))
			json_object_object_get_ex(row, t->columns[i], &value);
		if (!strcmp(t->columns[i], "age_ms") && is_of_another(row))
			value = NULL;
		if (row)
			value_text(t->columns[i], value, text);
		else
			title_text(t->columns[i], text);
		if (row && !strcmp(t->columns[i], "upstream"))
			add_protocol(row, text);
		len = (int)strlen(text);
		if (!l->out) {
			l->widths[i] = len > l->widths[i] ? len : l->widths[i];
			l->right[i] |= json_object_is_type(value, json_type_int);
			continue;
		}
		blanks = l->widths[i] - len;
		fprintf(l->out, "%*s%s", gap + (l->right[i] ? blanks : 0), "", text);
		gap = 2 + (l->right[i] ? 0 : blanks); /* no line ends in blanks */
	}
	if (l->out)
		fputc('\n', l->out);
}

static size_t table_lines(struct layout *l, const struct table *t, struct json_object *rows)
{
	size_t n = 0;

	table_line(l, t, NULL, NULL);
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);
		struct json_object *inner = t->inner ? json_object_object_get(row, t->inner) : row;
		bool many = json_object_is_type(inner, json_type_array);
		size_t lines = many ? json_object_array_length(inner) : inner != NULL;

		for (size_t k = 0; k < lines; k++)
			table_line(l, t, row, many ? json_object_array_get_idx(inner, k) : inner);
		n += lines;
	}
	return n;
}

/* A blank line precedes each table, except in a section, and except the FIRST of the answer. */
static void print_tables(FILE *out, int indent, bool first, const char *key,
			 struct json_object *rows)
{
	if (!json_object_array_length(rows))
		fprintf(out, "%*sno %s\n", indent, "", key);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		struct layout l = { .indent = indent };

		if (strcmp(key, tables[i].key) != 0 || !table_lines(&l, &tables[i], rows))
			continue;
		if (!indent && !first)
			fputc('\n', out);
		first = false;
		l.out = out;
		table_lines(&l, &tables[i], rows);
	}
}

/* --- answers --- */

/* Nothing to be told: an empty text, or a counter in a section that has counted nothing. */
static bool is_dull(const char *key, struct json_object *value, bool in_section)
{
	if (json_object_is_type(value, json_type_int))
		return !json_object_get_int64(value) &&
		       (in_section || !strcmp(key, "workers_silent"));
	return !value ||
	       (json_object_is_type(value, json_type_string) && !json_object_get_string_len(value));
}

static void print_member(FILE *out, int indent, bool first, const char *key,
			 struct json_object *value)
{
	char name[TEXT_MAX], text[TEXT_MAX];

	log_escape(key, name, sizeof(name));
	if (json_object_is_type(value, json_type_array)) {
		print_tables(out, indent, first, name, value);
	} else if (!is_dull(key, value, indent)) {
		value_text(key, value, text);
		fprintf(out, "%*s%-24s %s\n", indent, "", name, text);
	}
}

void view_print(struct json_object *answer, FILE *out)
{
	char title[TEXT_MAX];
	bool first = true;

	json_object_object_foreach(answer, key, value) {
		if (json_object_is_type(value, json_type_object)) {
			fprintf(out, "\n%s\n", log_escape(key, title, sizeof(title)));
			json_object_object_foreach(value, name, inner)
				print_member(out, 2, false, name, inner);
		} else {
			print_member(out, 0, first, key, value);
		}
		first = false;
	}
}
