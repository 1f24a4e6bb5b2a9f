/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_JSON_ADD_H
#define CULVERT_JSON_ADD_H

#include <json-c/json.h>

/*
 * json-c aborts when something is added to NULL, which is what its constructors return without
 * memory, and leaves a value that it could not add to the caller.  These take VALUE in any case: it
 * is released if it cannot be added, and then the answer lacks it.
 */
void json_add(struct json_object *object, const char *key, struct json_object *value);
void json_append(struct json_object *array, struct json_object *value);

#endif
