/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_VALUE_H
#define CULVERT_CLIENT_VALUE_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdio.h>

/*
 * Parts of an answer as text for people.  Whatever is missing or of the wrong type is "?".
 */

enum kind {
	KIND_TEXT,
	KIND_COUNT,
	KIND_BYTES,
	KIND_AGE, /* milliseconds */
};

/* One member of an object, and the column it is shown in. */
struct field {
	const char *key;
	const char *title;
	enum kind kind;
};

/* Member KEY of OBJ, or NULL if there is none, or OBJ is no object. */
struct json_object *member(struct json_object *obj, const char *key);

/* VALUE as text: a pointer into VALUE, BUF (32 bytes are enough), or "?".  TEXT needs no BUF. */
const char *value_text(struct json_object *value, enum kind kind, char *buf, size_t size);
const char *member_text(struct json_object *obj, const char *key, enum kind kind, char *buf,
			size_t size);

/* Escaped, as log_escape() does it. */
void print_text(FILE *out, const char *text);
/* BEFORE, which is printed as it is, and the member. */
void print_member(FILE *out, const char *before, struct json_object *obj, const char *key,
		  enum kind kind);

#define FIELDS_MAX 12

/* A titled table of ROWS: an array of objects, or one object.  0, -ENOMEM. */
int print_section(FILE *out, const char *title, const struct field *fields, size_t n,
		  struct json_object *rows);

#endif
