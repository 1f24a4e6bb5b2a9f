/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FORWARD_RIG_H
#define CULVERT_TEST_FORWARD_RIG_H

/*
 * A daemon with a configuration file, and the sockets of rig_sockets.h around it.  What goes wrong
 * ends the test (cmocka's fail_msg()).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <json-c/json.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon.h"
#include "daemon_log.h"
#include "env.h"
#include "rig_sockets.h"
#include "side_by_side.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

static struct daemon *running;
static const int *rig_given; /* listening sockets that the daemon is started with */
static size_t rig_n_given;

/* Make TEXT the configuration file; its path. */
static const char *rig_write(const char *text)
{
	static char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/forwards.conf", env_dir());
	f = fopen(path, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	return path;
}

/*
 * Start with ENGINE as the default of all forwards and TEXT as the file.  Skips the test if the
 * engine cannot work here.
 */
static struct daemon *rig_start(const char *engine, const char *text)
{
	const char *args[] = { "--config", rig_write(text), NULL };
	struct daemon_conf conf = {
		.engine = engine, .args = args, .given = rig_given, .n_given = rig_n_given,
	};
	struct daemon *d = NULL;
	char why[1024];
	int r;

	r = daemon_start(&conf, &d, why, sizeof(why));
	if (r == -ENOTSUP) {
		printf("skip %s: the daemon says that it cannot work here: %s\n", engine, why);
		skip();
	}
	if (r)
		fail_msg("the daemon does not start: %s", why);
	running = d;
	return d;
}

/* The teardown of each test: after a failure the daemon still runs. */
static int rig_clean(void **state)
{
	(void)state;
	rig_close_sockets();
	daemon_kill(running);
	running = NULL;
	return 0;
}

/* All sessions end; nothing may be left over. */
static void rig_stop(struct daemon *d)
{
	char why[1024];

	rig_close_sockets();
	if (daemon_wait_idle(d, RIG_PATIENCE_MS, why, sizeof(why)))
		fail_msg("left over: %s", why);
	running = NULL;
	if (daemon_stop(d, RIG_PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
}

/* --- what the daemon says --- */

static struct json_object *query(struct daemon *d, const char *command)
{
	struct json_object *o = NULL;
	int r = daemon_query(d, command, RIG_PATIENCE_MS, &o);

	if (r)
		fail_msg("%s: %s", command, strerror(-r));
	return o;
}

static int64_t rig_status(struct daemon *d, const char *path)
{
	struct json_object *o = query(d, "status");
	int64_t n = json_int(o, path);

	json_object_put(o);
	return n;
}

static bool rig_has_kernel(struct daemon *d)
{
	struct json_object *o = query(d, "status");
	bool has = json_object_get_boolean(json_at(o, "kernel.available"));

	json_object_put(o);
	return has;
}

/* Wait until rig_status() of PATH is N. */
static void rig_wait_status(struct daemon *d, const char *path, int64_t n)
{
	int64_t deadline = now_ms() + RIG_PATIENCE_MS, is;

	while ((is = rig_status(d, path)) != n) {
		if (now_ms() >= deadline)
			fail_msg("%s is %lld, not %lld", path, (long long)is, (long long)n);
		poll(NULL, 0, 5);
	}
}

/* TEXT is on stderr, or soon. */
static void rig_wait_log(struct daemon *d, const char *text)
{
	if (!daemon_log_has(d, text, RIG_PATIENCE_MS))
		fail_msg("not logged: %s", text);
}

/*
 * Make TEXT the configuration file, and have it read: "" if it is in force, else what is wrong with
 * it, until the next call.
 */
static const char *rig_reload(struct daemon *d, const char *text)
{
	static char why[1024];
	int64_t before = rig_status(d, "reload.finished");
	struct json_object *o;

	rig_write(text);
	daemon_signal(d, SIGHUP);
	json_object_put(query(d, "sessions")); /* which holds the same locks meanwhile */
	rig_wait_status(d, "reload.finished", before + 1);
	o = query(d, "status");
	snprintf(why, sizeof(why), "%s", json_text(o, "reload.error"));
	json_object_put(o);
	return why;
}

/* TEXT is in force. */
static void rig_reload_good(struct daemon *d, const char *text)
{
	assert_string_equal(rig_reload(d, text), "");
}

/* How many sessions FORWARD has; *RET: the last of them, if wanted, to be released. */
static size_t rig_sessions(struct daemon *d, const char *forward, struct json_object **ret)
{
	struct json_object *o = query(d, "sessions"), *list = json_at(o, "sessions");
	size_t n = 0;

	if (ret)
		*ret = NULL;
	for (size_t i = 0; i < json_object_array_length(list); i++) {
		struct json_object *s = json_object_array_get_idx(list, i);

		if (strcmp(json_text(s, "forward"), forward) != 0)
			continue;
		n++;
		if (ret) {
			json_object_put(*ret);
			*ret = json_object_get(s);
		}
	}
	json_object_put(o);
	return n;
}

static struct json_object *flow_of(struct json_object *session, size_t dir)
{
	return json_object_array_get_idx(json_at(session, "flows"), dir);
}

/* The text that KEY has in flow DIR of the one session of FORWARD; valid until the next call. */
static const char *rig_flow_text(struct daemon *d, const char *forward, size_t dir, const char *key)
{
	static char text[64];
	struct json_object *s;

	assert_int_equal(rig_sessions(d, forward, &s), 1);
	snprintf(text, sizeof(text), "%s", json_text(flow_of(s, dir), key));
	json_object_put(s);
	return text;
}

static int64_t rig_flow_int(struct daemon *d, const char *forward, size_t dir, const char *key)
{
	struct json_object *s;
	int64_t n;

	assert_int_equal(rig_sessions(d, forward, &s), 1);
	n = json_int(flow_of(s, dir), key);
	json_object_put(s);
	return n;
}

/* The carrier that a conversation comes to with ENGINE. */
static const char *rig_carrier(struct daemon *d, const char *engine)
{
	if (strcmp(engine, "auto") != 0)
		return engine;
	return rig_has_kernel(d) ? "sockmap" : "copy";
}

/* Talk until both flows of the one session of FORWARD have CARRIER. */
static void rig_talk_until(struct daemon *d, const char *forward, const char *carrier, int client,
		    int server)
{
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;

	do {
		rig_talk(client, server, 50);
		if (!strcmp(rig_flow_text(d, forward, 0, "carrier"), carrier) &&
		    !strcmp(rig_flow_text(d, forward, 1, "carrier"), carrier))
			return;
	} while (now_ms() < deadline);
	fail_msg("%s: the carrier is %s, not %s", forward,
		 rig_flow_text(d, forward, 0, "carrier"), carrier);
}

/* --- every row with every engine --- */

struct rig_row {
	const char *name;
	void (*run)(void **state); /* *STATE: the name of the engine */
};

static char rig_engines[][8] = { "auto", "sockmap", "splice", "copy" };
#define RIG_ENGINES (sizeof(rig_engines) / sizeof(rig_engines[0]))

static const struct rig_rows {
	const char *prog;
	unsigned int seconds;
	const struct rig_row *rows;
	size_t n;
} *rig_rows;

/* Called in the process of each engine, before its network is made; may skip all. */
static void (*rig_prepare)(void);

static int rig_run_engine(size_t i)
{
	const struct rig_rows *all = rig_rows;
	struct CMUnitTest *tests = calloc(all->n, sizeof(*tests));
	char (*names)[48] = calloc(all->n, sizeof(*names));
	int r;

	for (size_t k = 0; tests && names && k < all->n; k++) {
		snprintf(names[k], sizeof(names[k]), "%s_%s", rig_engines[i], all->rows[k].name);
		tests[k].name = names[k];
		tests[k].test_func = all->rows[k].run;
		tests[k].teardown_func = rig_clean;
		tests[k].initial_state = rig_engines[i];
	}
	if (rig_prepare)
		rig_prepare();
	env_enter(all->prog, all->seconds);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	rig_listen();
	r = _cmocka_run_group_tests(rig_engines[i], tests, all->n, NULL, NULL);
	free(names);
	free(tests);
	return r;
}

/*
 * The main() of program PROG, which is ended after SECONDS; returns its exit code.  The engines run
 * side by side, for such tests wait more than they work.
 */
static int rig_run(const char *prog, unsigned int seconds, const struct rig_row *rows, size_t n)
{
	const struct rig_rows all = { prog, seconds, rows, n };

	rig_rows = &all;
	return side_by_side(RIG_ENGINES, rig_run_engine);
}

#pragma GCC diagnostic pop

#endif
