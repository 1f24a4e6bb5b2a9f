// SPDX-License-Identifier: BSD-2-Clause
#include "cli/client_value.h"

#include <inttypes.h>
#include <stdint.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/table.h"

#define TEXT_MAX 256

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

struct json_object *member(struct json_object *obj, const char *key)
{
	struct json_object *value = NULL;

	json_object_object_get_ex(obj, key, &value);
	return value;
}

const char *value_text(struct json_object *value, enum kind kind, char *buf, size_t size)
{
	uint64_t number;

	if (kind == KIND_TEXT)
		return json_object_is_type(value, json_type_string) ?
			       json_object_get_string(value) :
			       "?";
	if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0)
		return "?";
	number = json_object_get_uint64(value);
	if (kind == KIND_BYTES)
		return size_format(number, buf, size);
	if (kind == KIND_AGE)
		return age_format(number, buf, size);
	snprintf(buf, size, "%" PRIu64, number);
	return buf;
}

const char *member_text(struct json_object *obj, const char *key, enum kind kind, char *buf,
			size_t size)
{
	return value_text(member(obj, key), kind, buf, size);
}

void print_text(FILE *out, const char *text)
{
	char buf[TEXT_MAX];

	fputs(log_escape(text, buf, sizeof(buf)), out);
}

void print_member(FILE *out, const char *before, struct json_object *obj, const char *key,
		  enum kind kind)
{
	char buf[32];

	fputs(before, out);
	print_text(out, member_text(obj, key, kind, buf, sizeof(buf)));
}

static void add_object(struct table *t, const struct field *fields, size_t n,
		       struct json_object *obj)
{
	const char *cells[FIELDS_MAX];
	char text[FIELDS_MAX][32];

	for (size_t i = 0; i < n; i++)
		cells[i] =
			member_text(obj, fields[i].key, fields[i].kind, text[i], sizeof(text[i]));
	table_add(t, cells);
}

int print_section(FILE *out, const char *title, const struct field *fields, size_t n,
		  struct json_object *rows)
{
	struct table_column columns[FIELDS_MAX];
	struct table *t;
	int r;

	fprintf(out, "\n%s\n", title);
	if (!json_object_is_type(rows, json_type_array) &&
	    !json_object_is_type(rows, json_type_object)) {
		fputs("  ?\n", out);
		return 0;
	}
	for (size_t i = 0; i < n; i++)
		columns[i] = (struct table_column){ fields[i].title, fields[i].kind != KIND_TEXT };
	t = table_new(columns, n);
	if (json_object_is_type(rows, json_type_object)) {
		add_object(t, fields, n, rows);
	} else {
		for (size_t i = 0; i < json_object_array_length(rows); i++)
			add_object(t, fields, n, json_object_array_get_idx(rows, i));
	}
	r = table_print(t, out, 2);
	table_free(t);
	return r;
}
