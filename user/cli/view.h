/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_VIEW_H
#define CULVERT_VIEW_H

#include <stdio.h>

#include "daemon/command.h"

/*
 * Print the daemon's ANSWER to COMMAND as text for people.  The answer is not trusted: whatever is
 * missing or of the wrong type appears as "?", and control characters are escaped.
 *
 * Returns 0, -EINVAL (ANSWER is no answer to that command at all), -ENOMEM (the text has gaps).
 */
int view_print(enum command_id command, struct json_object *answer, FILE *out);

#endif
