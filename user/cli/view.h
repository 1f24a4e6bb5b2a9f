/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_VIEW_H
#define CULVERT_VIEW_H

#include <json-c/json.h>
#include <stdio.h>

/*
 * Print the daemon's ANSWER, an object, as text for people.  The answer is not trusted: control
 * characters are escaped.
 */
void view_print(struct json_object *answer, FILE *out);

#endif
