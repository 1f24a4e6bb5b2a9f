/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_NO_MEMORY_JSON_H
#define CULVERT_TESTS_NO_MEMORY_JSON_H

/* Where malloc() fails while a request is carried out.  To be included once in a program. */

#include <dlfcn.h>
#include <json-c/json.h>

#include "no_memory.h"

/* What the parser needs is there before it is called: see make_room() in user/cli/command.c. */
struct json_object *json_tokener_parse_ex(struct json_tokener *t, const char *text, int len)
{
	static __typeof__(&json_tokener_parse_ex) real;
	bool on = no_memory_on;
	struct json_object *o;

	if (!real)
		real = (__typeof__(&json_tokener_parse_ex))dlsym(RTLD_NEXT,
								 "json_tokener_parse_ex");
	no_memory_on = false;
	o = real(t, text, len);
	no_memory_on = on;
	return o;
}

#endif
