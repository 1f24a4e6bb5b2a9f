/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_VIEW_H
#define CULVERT_CLIENT_VIEW_H

#include <stdio.h>

struct json_object;

/*
 * What the daemon answers, as text for people.  The answer is not trusted: whatever is missing or
 * of the wrong type appears as "?", and control characters are escaped.
 *
 * Return 0, -EINVAL (ANSWER is no answer to that request at all), -ENOMEM (the text has gaps).
 */
typedef int client_view_fn(struct json_object *answer, FILE *out);

client_view_fn client_view_sessions;
client_view_fn client_view_status;
/* In client_view_more.c. */
client_view_fn client_view_forwards;
client_view_fn client_view_kill;
client_view_fn client_view_engine;
client_view_fn client_view_drain;
client_view_fn client_view_reload;
client_view_fn client_view_log_level;

#endif
