/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Build JSON where memory may run out.  json-c aborts when something is added to NULL, which is
 * what its constructors return without memory.  These functions take NULL.  They release VALUE if
 * it cannot be added, and remember for this thread that something is missing.
 */
void json_add(struct json_object *object, const char *key, struct json_object *value);
void json_add_null(struct json_object *object, const char *key);
void json_add_int(struct json_object *object, const char *key, uint64_t value);
void json_add_text(struct json_object *object, const char *key, const char *value);
void json_add_bool(struct json_object *object, const char *key, bool value);
void json_append(struct json_object *array, struct json_object *value);

/*
 * Write OBJECT, which owns the text, as one line without blanks; FLAGS are further flags of json-c.
 * NULL: there is no memory, or OBJECT is NULL, or something is missing, which is forgotten then.
 */
const char *json_line(struct json_object *object, int flags, size_t *ret_len);
