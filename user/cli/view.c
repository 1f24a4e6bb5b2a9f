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
#define COLUMNS_MAX 11

static const struct table {
	const char *key;                  /* of the array; all tables of that key are shown */
	const char *needs;                /* only rows in which this is not null; NULL: all */
	const char *columns[COLUMNS_MAX]; /* keys of members, "a/b" of member b of a; "": no cell */
	const char *below;                /* array in a row: a line below it for each element, */
	const char *below_columns[COLUMNS_MAX]; /* ... in the same columns */
} tables[] = {
	{ "sessions", NULL,
	  { "id", "forward", "client", "upstream", "age_ms", "", "", "", "state", "" },
	  "flows",
	  { "", "", "direction", "carrier", "", "bytes", "handovers", "backlog_max", "phase",
	    "reason" } },
	{ "forwards", NULL,
	  { "name", "listen", "upstream", "engine", "state", "live", "max_sessions", "accepted",
	    "denied", "bytes_to_upstream", "bytes_to_client" }, NULL, { NULL } },
	{ "forwards", "lookup",
	  { "upstream", "lookup/age_ms", "lookup/lookups", "lookup/failures", "addresses",
	    "lookup/error" }, NULL, { NULL } },
	{ "forwards", "servers",
	  { "name", "", "", "", "", "", "", "", "" }, "servers",
	  { "", "server", "state", "weight", "backup", "live", "sessions", "failures",
	    "last_error" } },
	{ "carriers", NULL, { "carrier", "flows", "bytes" }, NULL, { NULL } },
	{ "features", NULL, { "name", "available", "reason" }, NULL, { NULL } },
};

void view_age(uint64_t ms, char *buf, size_t len)
{
	uint64_t s = ms / 1000;

	if (s == 0)
		snprintf(buf, len, "%" PRIu64 "ms", ms);
	else if (s < 60)
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
	if (!value)
		strcpy(buf, "-");
	else if (!json_object_is_type(value, json_type_int))
		log_escape(json_object_get_string(value), buf, TEXT_MAX);
	else
		view_number(key, json_object_get_uint64(value), buf, TEXT_MAX);
}

/* --- tables --- */

/* A table is gone through twice: the first time, without OUT, for the widths. */
struct layout {
	FILE *out;
	int indent, widths[COLUMNS_MAX];
	bool right[COLUMNS_MAX]; /* there are numbers in it */
};

static struct json_object *member(struct json_object *row, const char *key)
{
	struct json_object *value = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/%s", key);
	json_pointer_get(row, path, &value);
	return value;
}

/* "BYTES TO CLIENT" for "bytes_to_client", "AGE" for "lookup/age_ms". */
static void title_text(const char *key, char *buf)
{
	const char *name = strrchr(key, '/');

	snprintf(buf, TEXT_MAX, "%s", name ? name + 1 : key);
	if (strstr(buf, "_ms"))
		*strstr(buf, "_ms") = '\0';
	for (char *p = buf; *p; p++)
		*p = (char)(*p == '_' ? ' ' : toupper((unsigned char)*p));
}

/* A line of the members KEYS of ROW.  ROW NULL: the titles, of OTHERS where a key is "". */
static void table_line(struct layout *l, const char *const *keys, const char *const *others,
		       struct json_object *row)
{
	int gap = l->indent;

	for (size_t i = 0; i < COLUMNS_MAX && keys[i]; i++) {
		struct json_object *value = row ? member(row, keys[i]) : NULL;
		char text[TEXT_MAX] = "";
		int len, blanks;

		if (!row)
			title_text(*keys[i] ? keys[i] : others[i], text);
		else if (*keys[i])
			value_text(keys[i], value, text);
		len = (int)strlen(text);
		if (!l->out) {
			l->widths[i] = len > l->widths[i] ? len : l->widths[i];
			l->right[i] |= json_object_is_type(value, json_type_int);
			continue;
		}
		blanks = l->widths[i] - len;
		if (len) { /* no line ends in blanks */
			fprintf(l->out, "%*s%s", gap + (l->right[i] ? blanks : 0), "", text);
			gap = l->right[i] ? 0 : blanks;
		} else {
			gap += blanks;
		}
		gap += 2;
	}
	if (l->out)
		fputc('\n', l->out);
}

static void below_lines(struct layout *l, const struct table *t, struct json_object *rows)
{
	if (!json_object_is_type(rows, json_type_array))
		return;
	for (size_t i = 0; i < json_object_array_length(rows); i++)
		if (json_object_array_get_idx(rows, i))
			table_line(l, t->below_columns, NULL, json_object_array_get_idx(rows, i));
}

static size_t table_lines(struct layout *l, const struct table *t, struct json_object *rows)
{
	size_t n = 0;

	table_line(l, t->columns, t->below_columns, NULL);
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		if (!row || (t->needs && !member(row, t->needs)))
			continue;
		n++;
		table_line(l, t->columns, NULL, row);
		if (t->below)
			below_lines(l, t, member(row, t->below));
	}
	return n;
}

/* With a blank line before each, but for the FIRST of all, unless they are in a section. */
static void print_tables(FILE *out, int indent, bool first, const char *key,
			 struct json_object *rows)
{
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		struct layout l = { .indent = indent };

		if (strcmp(key, tables[i].key) != 0)
			continue;
		if (!table_lines(&l, &tables[i], rows)) {
			if (!tables[i].needs)
				fprintf(out, "%*sno %s\n", indent, "", key);
			continue;
		}
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
	return !value || (json_object_is_type(value, json_type_string) &&
			  !json_object_get_string_len(value));
}

static void print_member(FILE *out, int indent, bool first, const char *key,
			 struct json_object *value)
{
	char name[TEXT_MAX], text[TEXT_MAX];

	if (json_object_is_type(value, json_type_array)) {
		print_tables(out, indent, first, key, value);
	} else if (!is_dull(key, value, indent)) {
		value_text(key, value, text);
		fprintf(out, "%*s%-24s %s\n", indent, "", log_escape(key, name, sizeof(name)),
			text);
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
