/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_OPERATOR_H
#define CULVERT_TEST_OPERATOR_H

/*
 * What an operator asks of a daemon with two forwards, `live` and `other`, and sessions that are
 * there while it happens.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "forward_rig.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

#define ONE "127.0.0.1:9001"
#define TWO "127.0.0.1:9002"
#define TO_UPSTREAM "upstream = " RIG_UPSTREAM "\n"
/* `other` sees to it that the kernel path is there, whatever the engine of `live` */
#define LIVE_AND_OTHER \
	"[forward live]\nlisten = " ONE "\n" TO_UPSTREAM \
	"[forward other]\nlisten = " TWO "\n" TO_UPSTREAM "engine = auto\n"

/* Ask for a line of JSON; the answer is valid until the next call. */
static struct json_object *ask(struct daemon *d, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static struct json_object *ask(struct daemon *d, const char *fmt, ...)
{
	static struct json_object *last;
	char line[1024];
	va_list ap;
	int r;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	json_object_put(last);
	r = daemon_ask(d, line, RIG_PATIENCE_MS, &last);
	if (r)
		fail_msg("%s: %s", line, strerror(-r));
	return last;
}

static void expect_error(struct daemon *d, const char *line, const char *code)
{
	struct json_object *o = ask(d, "%s", line);

	if (strcmp(json_text(o, "error.code"), code) != 0)
		fail_msg("%s: %s", line, json_object_to_json_string(o));
}

/* --- sessions --- */

struct ends {
	int client, server;
};

static struct ends connect_pair(const char *from, const char *to)
{
	struct ends e;

	e.client = rig_dial(from, to);
	e.server = rig_accept();
	return e;
}

/* Both ends see RST. */
static void is_reset(struct ends e)
{
	assert_int_equal(rig_end(e.client, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_end(e.server, RIG_PATIENCE_MS), ECONNRESET);
}

#pragma GCC diagnostic pop

#endif
