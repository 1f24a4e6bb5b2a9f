// SPDX-License-Identifier: BSD-2-Clause
#include "base/json_add.h"

#include <errno.h>

static _Thread_local bool lacks;

void json_add(struct json_object *object, const char *key, struct json_object *value)
{
	if (object && value && !json_object_object_add(object, key, value))
		return;
	json_object_put(value);
	lacks = true;
}

void json_add_null(struct json_object *object, const char *key)
{
	if (!object || json_object_object_add(object, key, NULL))
		lacks = true;
}

void json_add_int(struct json_object *object, const char *key, uint64_t value)
{
	json_add(object, key, json_object_new_int64((int64_t)value));
}

void json_add_text(struct json_object *object, const char *key, const char *value)
{
	json_add(object, key, json_object_new_string(value));
}

void json_add_bool(struct json_object *object, const char *key, bool value)
{
	json_add(object, key, json_object_new_boolean(value));
}

void json_append(struct json_object *array, struct json_object *value)
{
	if (array && value && !json_object_array_add(array, value))
		return;
	json_object_put(value);
	lacks = true;
}

/*
 * Is TEXT all of OBJECT?  json-c leaves a piece out where its buffer cannot grow, and only errno tells.
 * But malloc(3) sets errno also where it finds memory in another place.
 */
static bool json_is_whole(struct json_object *object, const char *text)
{
	struct json_object *again = json_tokener_parse(text);
	bool whole = again && json_object_equal(object, again);

	json_object_put(again);
	return whole;
}

const char *json_line(struct json_object *object, int flags, size_t *ret_len)
{
	bool whole = object && !lacks;
	const char *text;

	lacks = false;
	*ret_len = 0;
	if (!whole)
		return NULL;
	errno = 0;
	text = json_object_to_json_string_length(object, JSON_C_TO_STRING_PLAIN | flags, ret_len);
	if ((errno == ENOMEM || errno == EFBIG) && text && !json_is_whole(object, text))
		return NULL;
	return text;
}
