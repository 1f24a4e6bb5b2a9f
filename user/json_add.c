// SPDX-License-Identifier: BSD-2-Clause
#include "json_add.h"

void json_add(struct json_object *object, const char *key, struct json_object *value)
{
	if (!object || json_object_object_add(object, key, value))
		json_object_put(value);
}

void json_append(struct json_object *array, struct json_object *value)
{
	if (!array || json_object_array_add(array, value))
		json_object_put(value);
}
