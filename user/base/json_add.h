/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Build JSON where memory may run out.  Without memory, json-c's constructors return NULL, and
 * adding to NULL aborts.  These functions take NULL, release VALUE if it cannot be added, and
 * remember for this thread that something is missing.
 */
void json_add(struct json_object *object, const char *key, struct json_object *value);
void json_add_null(struct json_object *object, const char *key);
void json_add_int(struct json_object *object, const char *key, uint64_t value);
void json_add_text(struct json_object *object, const char *key, const char *value);
void json_add_bool(struct json_object *object, const char *key, bool value);
void json_append(struct json_object *array, struct json_object *value);

/*
 * Write OBJECT as one line without blanks.  OBJECT owns the text.  FLAGS are further flags of
 * json-c.  NULL: OBJECT is NULL, there is no memory, or something is missing.  json_line() forgets
 * that something is missing: the thread's next OBJECT begins anew.
 */
const char *json_line(struct json_object *object, int flags, size_t *ret_len);
