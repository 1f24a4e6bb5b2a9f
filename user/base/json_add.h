/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_JSON_ADD_H
#define CULVERT_JSON_ADD_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * json-c aborts when something is added to NULL, which is what its constructors return without
 * memory, and leaves a value that it could not add to the caller.  These take VALUE in any case: it
 * is released if it cannot be added, and then OBJECT, or ARRAY, lacks it, which json_lacks() tells.
 */
void json_add(struct json_object *object, const char *key, struct json_object *value);
void json_add_null(struct json_object *object, const char *key);
void json_append(struct json_object *array, struct json_object *value);

/*
 * What lacks something is no answer and no request, so whoever is about to send it asks: has there
 * been no memory for any part, on this thread since json_begin()?  json_lack(): for a part that is
 * made otherwise there was none.
 */
void json_begin(void);
void json_lack(void);
bool json_lacks(void);

/*
 * OBJECT as one line without blanks, which belongs to it; FLAGS are json-c's own, beside that.
 * NULL: there is no memory for it, or OBJECT is NULL, or json_lacks().
 */
const char *json_line(struct json_object *object, int flags, size_t *ret_len);

/*
 * What is to be said of a change is made before the change, with values that are as long as any can
 * be: JSON_WIDEST, the longest text.  json_ready(): there is all that OBJECT takes, as a line too.
 * The values that are right are then put in their places, which takes no memory, and so does
 * json_line() of it.
 */
#define JSON_WIDEST INT64_MAX
bool json_ready(struct json_object *object);
void json_set_number(struct json_object *object, const char *key, uint64_t n);
void json_set_text(struct json_object *object, const char *key, const char *text);

#endif
