// SPDX-License-Identifier: BSD-2-Clause
#include "base/json_add.h"

#include <errno.h>

static _Thread_local bool lacks;

void json_begin(void)
{
	lacks = false;
}

void json_lack(void)
{
	lacks = true;
}

bool json_lacks(void)
{
	return lacks;
}

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

void json_append(struct json_object *array, struct json_object *value)
{
	if (array && value && !json_object_array_add(array, value))
		return;
	json_object_put(value);
	lacks = true;
}

const char *json_line(struct json_object *object, int flags, size_t *ret_len)
{
	const char *text;

	*ret_len = 0;
	if (!object || lacks)
		return NULL;
	errno = 0;
	text = json_object_to_json_string_length(object, JSON_C_TO_STRING_PLAIN | flags, ret_len);
	/* where its buffer cannot grow json-c leaves a piece out, and says nothing but this */
	return errno == ENOMEM || errno == EFBIG ? NULL : text;
}

bool json_ready(struct json_object *object)
{
	size_t len;

	return json_line(object, 0, &len);
}

void json_set_number(struct json_object *object, const char *key, uint64_t n)
{
	json_object_set_int64(json_object_object_get(object, key), (int64_t)n);
}

void json_set_text(struct json_object *object, const char *key, const char *text)
{
	json_object_set_string(json_object_object_get(object, key), text);
}
