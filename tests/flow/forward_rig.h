/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * A daemon with a configuration file, and the sockets of rig_sockets.h around it.  What goes wrong
 * ends the test (cmocka's fail_msg()).
 */
#include <json-c/json.h>
#include <signal.h>
#include <stdbool.h>

#include "daemon.h"
#include "env.h"
#include "rig_sockets.h"
#include "side_by_side.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

/* Where the forwards of a file listen; RIG_UPSTREAM is what they lead to. */
#define ONE "127.0.0.1:9001"
#define TWO "127.0.0.1:9002"
#define THREE "127.0.0.1:9003"
#define FOUR "127.0.0.1:9004"
#define TO_UPSTREAM "upstream = " RIG_UPSTREAM "\n"
/* A section of a file; MORE: its other lines. */
#define FORWARD(name, listen, more) "[forward " name "]\nlisten = " listen "\n" TO_UPSTREAM more
/* `other` sees to it that the kernel path is there, whatever the engine of `live` */
#define LIVE_AND_OTHER FORWARD("live", ONE, "") FORWARD("other", TWO, "engine = auto\n")

static struct daemon *running;
static const int *rig_given; /* listening sockets that the daemon is started with */
static size_t rig_n_given;
static void (*rig_tidy)(void); /* called after each test, failed or not */

/* Wait until CONDITION holds; what fail_msg() says if that takes longer than RIG_PATIENCE_MS. */
#define RIG_WAIT(condition, ...)                                                                   \
	do {                                                                                       \
		int64_t rig_deadline = now_ms() + RIG_PATIENCE_MS * env_slow();                    \
		while (!(condition)) {                                                             \
			if (now_ms() >= rig_deadline)                                              \
				fail_msg(__VA_ARGS__);                                             \
			poll(NULL, 0, 2);                                                          \
		}                                                                                  \
	} while (0)

/* The file PATH says TEXT. */
static void rig_put(const char *path, const char *text)
{
	if (!env_put(path, text))
		fail_msg("%s: %s", path, strerror(errno));
}

/* Format as sprintf(3) does.  The text is valid until the 16th call after this one. */
static const char *textf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static const char *textf(const char *fmt, ...)
{
	static char texts[16][2048];
	static size_t n;
	char *text = texts[n++ % 16];
	va_list ap;

	va_start(ap, fmt);
	assert_in_range(vsnprintf(text, sizeof(texts[0]), fmt, ap), 0, sizeof(texts[0]) - 1);
	va_end(ap);
	return text;
}

/* Make TEXT the configuration file; its path. */
static const char *rig_write(const char *text)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/forwards.conf", env_dir());
	rig_put(path, text);
	return path;
}

/*
 * Start with ENGINE as the default of all forwards, with OPTIONS (NULL-terminated, or NULL), and
 * with TEXT as the configuration file (NULL: none).  As daemon_start().
 */
static int rig_try_start(const char *engine, const char *const *options, const char *text,
			 char *why, size_t len)
{
	const char *args[24];
	struct daemon_conf conf = {
		.engine = engine,
		.args = args,
		.given = rig_given,
		.n_given = rig_n_given,
	};
	size_t n = 0;

	if (text) {
		args[n++] = "--config";
		args[n++] = rig_write(text);
	}
	for (; options && *options; options++)
		args[n++] = *options;
	args[n] = NULL;
	return daemon_start(&conf, &running, why, len);
}

/* The daemon must start.  Skips the test if the engine cannot work here. */
static struct daemon *rig_start_with(const char *engine, const char *const *options,
				     const char *text)
{
	char why[1024];
	int r = rig_try_start(engine, options, text, why, sizeof(why));

	if (r == -ENOTSUP) {
		printf("skip %s: the daemon says that it cannot work here: %s\n", engine, why);
		skip();
	}
	if (r)
		fail_msg("the daemon does not start: %s", why);
	return running;
}

static struct daemon *rig_start(const char *engine, const char *text)
{
	return rig_start_with(engine, NULL, text);
}

/* The daemon must not start, and say WHAT. */
static void rig_refuses(const char *engine, const char *text, const char *what)
{
	char why[1024];

	assert_int_equal(rig_try_start(engine, NULL, text, why, sizeof(why)), -EIO);
	if (!strstr(why, what))
		fail_msg("\"%s\" is not in: %s", what, why);
}

/* The teardown of each test: after a failure the daemon still runs. */
static int rig_clean(void **state)
{
	(void)state;
	rig_close_sockets();
	if (running)
		daemon_show_stderr(running);
	daemon_kill(running);
	running = NULL;
	if (rig_tidy)
		rig_tidy();
	return 0;
}

/* The daemon was told to end, and does, with exit code 0. */
static void rig_join(struct daemon *d)
{
	char why[1024];

	running = NULL;
	if (daemon_join(d, RIG_PATIENCE_MS, why, sizeof(why)))
		fail_msg("%s", why);
}

/* SIGTERM, whatever sessions there are. */
static void rig_end_daemon(struct daemon *d)
{
	daemon_signal(d, SIGTERM);
	rig_join(d);
}

/* All sessions end, and nothing is left over. */
static void rig_wait_idle(struct daemon *d)
{
	char why[1024];

	if (daemon_wait_idle(d, RIG_PATIENCE_MS, why, sizeof(why)))
		fail_msg("left over: %s", why);
}

/* Whatever sessions there are, they end first. */
static void rig_stop(struct daemon *d)
{
	rig_close_sockets();
	rig_wait_idle(d);
	rig_end_daemon(d);
}

/* --- what the daemon says --- */

/* The answer to COMMAND is valid until the next query(), which most functions below make. */
static struct json_object *query(struct daemon *d, const char *command)
{
	static struct json_object *last;
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;
	int r;

	do { /* on a busy machine a worker may not answer in time */
		json_object_put(last);
		r = daemon_query(d, command, RIG_PATIENCE_MS, &last);
	} while (!r && json_int(last, "workers_silent") && now_ms() < deadline);
	if (r)
		fail_msg("%s: %s", command, strerror(-r));
	return last;
}

static int64_t rig_status(struct daemon *d, const char *path)
{
	return json_int(query(d, "status"), path);
}

static bool rig_has_kernel(struct daemon *d)
{
	return json_object_get_boolean(json_at(query(d, "status"), "kernel.available"));
}

/* Wait until rig_status() of PATH is N. */
static void rig_wait_status(struct daemon *d, const char *path, int64_t n)
{
	int64_t is;

	RIG_WAIT((is = rig_status(d, path)) == n, "%s is %lld, not %lld", path, (long long)is,
		 (long long)n);
}

static pid_t rig_pid(struct daemon *d)
{
	return (pid_t)rig_status(d, "pid");
}

/* TEXT is on stderr, or soon. */
static void rig_wait_log(struct daemon *d, const char *text)
{
	/* a reload of thousands of forwards takes 4 s of a CPU */
	if (!daemon_log_has(d, text, 4 * RIG_PATIENCE_MS))
		fail_msg("not logged: %s", text);
}

/* TEXT is not on stderr so far. */
static void rig_not_logged(struct daemon *d, const char *text)
{
	if (daemon_log_has(d, text, 0))
		fail_msg("logged: %s", text);
}

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

/* What `forwards` says of NAME, until the next ask(). */
static struct json_object *rig_forward(struct daemon *d, const char *name)
{
	struct json_object *o = ask(d, "{\"command\":\"forwards\",\"forward\":\"%s\"}", name);

	return json_object_array_get_idx(json_at(o, "forwards"), 0);
}

/*
 * Make TEXT the configuration file, and have it read: "" if it is in force, else what is wrong with
 * it, until the next call.
 */
static const char *rig_reload(struct daemon *d, const char *text)
{
	static char why[1024];
	int64_t before = rig_status(d, "reload.finished");

	rig_write(text);
	daemon_signal(d, SIGHUP);
	query(d, "sessions"); /* which holds the same locks meanwhile */
	rig_wait_status(d, "reload.finished", before + 1);
	snprintf(why, sizeof(why), "%s", json_text(query(d, "status"), "reload.error"));
	return why;
}

/* TEXT is in force. */
static void rig_reload_good(struct daemon *d, const char *text)
{
	assert_string_equal(rig_reload(d, text), "");
}

/* How many sessions FORWARD has; *RET: the last of them, until the next query(). */
static size_t rig_sessions(struct daemon *d, const char *forward, struct json_object **ret)
{
	struct json_object *list = json_at(query(d, "sessions"), "sessions");
	size_t n = 0;

	*ret = NULL;
	for (size_t i = 0; i < json_object_array_length(list); i++) {
		struct json_object *s = json_object_array_get_idx(list, i);

		if (!strcmp(json_text(s, "forward"), forward)) {
			*ret = s;
			n++;
		}
	}
	return n;
}

static void rig_expect_sessions(struct daemon *d, const char *forward, size_t n)
{
	struct json_object *last;

	assert_int_equal(rig_sessions(d, forward, &last), n);
}

/* The one session of FORWARD, until the next query(). */
static struct json_object *rig_session(struct daemon *d, const char *forward)
{
	struct json_object *session;

	assert_int_equal(rig_sessions(d, forward, &session), 1);
	return session;
}

static struct json_object *flow_of(struct json_object *session, size_t dir)
{
	return json_object_array_get_idx(json_at(session, "flows"), dir);
}

/* What KEY is in flow DIR of the one session of FORWARD; a text is valid until the next query(). */
static const char *rig_flow_text(struct daemon *d, const char *forward, size_t dir, const char *key)
{
	return json_text(flow_of(rig_session(d, forward), dir), key);
}

static int64_t rig_flow_int(struct daemon *d, const char *forward, size_t dir, const char *key)
{
	return json_int(flow_of(rig_session(d, forward), dir), key);
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
	struct json_object *session;

	do {
		rig_talk(client, server, 50);
		if (!strcmp(rig_flow_text(d, forward, 0, "carrier"), carrier) &&
		    !strcmp(rig_flow_text(d, forward, 1, "carrier"), carrier))
			return;
	} while (now_ms() < deadline);
	session = rig_session(d, forward);
	fail_msg("%s: the carrier is %s, not %s: %s", forward,
		 json_text(flow_of(session, 0), "carrier"), carrier,
		 json_text(session, "not_grafted"));
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

/* A session from FROM (NULL: any) through TO, which has said something. */
static struct ends rig_open_from(const char *from, const char *to)
{
	struct ends e = connect_pair(from, to);

	rig_talk(e.client, e.server, 10);
	return e;
}

static struct ends rig_open(const char *to)
{
	return rig_open_from(NULL, to);
}

/* A session of FORWARD at TO, which talks until both flows have the carrier of ENGINE. */
static struct ends rig_open_carried(struct daemon *d, const char *engine, const char *forward,
				    const char *to)
{
	struct ends e = connect_pair(NULL, to);

	rig_talk_until(d, forward, rig_carrier(d, engine), e.client, e.server);
	return e;
}

static void rig_talk_on(struct ends e, int rounds)
{
	rig_talk(e.client, e.server, rounds);
}

/* The client resets, and the server sees RST; FIN of a unix socket, which knows no reset. */
static void rig_hang_up(struct ends e)
{
	int end = rig_option(e.client, SOL_SOCKET, SO_DOMAIN) == AF_UNIX ? 0 : ECONNRESET;

	rig_reset(e.client);
	assert_int_equal(rig_end(e.server, RIG_PATIENCE_MS), end);
	forget(e.server);
}

static void ends_with_fin(int from, int to)
{
	assert_int_equal(shutdown(from, SHUT_WR), 0);
	assert_int_equal(rig_end(to, RIG_PATIENCE_MS), 0);
}

/* Both ends close in peace. */
static void close_both(struct ends e)
{
	ends_with_fin(e.client, e.server);
	ends_with_fin(e.server, e.client);
}

/* Both ends see RST. */
static void is_reset(struct ends e)
{
	assert_int_equal(rig_end(e.client, RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_end(e.server, RIG_PATIENCE_MS), ECONNRESET);
}

/* A request and its answer through ONE; the client ends first.  In the end culvert has closed. */
static void short_session(void)
{
	struct ends e = { .client = rig_dial(NULL, ONE) };
	char message[MESSAGE] = "";

	rig_send(e.client, message, MESSAGE);
	e.server = rig_accept();
	rig_receive(e.server, message, MESSAGE);
	rig_send(e.server, message, MESSAGE);
	rig_receive(e.client, message, MESSAGE);
	ends_with_fin(e.client, e.server);
	forget(e.server);
	assert_int_equal(rig_end(e.client, RIG_PATIENCE_MS), 0);
	forget(e.client);
}

/* Whoever connects to TO is served, */
static void is_served(const char *to)
{
	rig_hang_up(rig_open(to));
}

/* is accepted and reset, */
static void is_turned_away(const char *from, const char *to)
{
	assert_int_equal(rig_end(rig_dial(from, to), RIG_PATIENCE_MS), ECONNRESET);
}

/* finds that nobody listens. */
static void is_closed(const char *to)
{
	assert_int_equal(rig_try_dial(NULL, to), -ECONNREFUSED);
}

/* --- every row with every engine --- */

/* *STATE: the name of the engine. */
static struct rig_row {
	const char *name;
	void (*run)(void **state);
	bool once;
} rig_rows[32];
static size_t rig_n_rows;

#define ROW_ADD(f, only_once)                                                                      \
	static void f(void **state);                                                               \
	__attribute__((constructor)) static void rig_add_##f(void)                                 \
	{                                                                                          \
		rig_rows[rig_n_rows++] = (struct rig_row){ #f, f, only_once };                     \
	}                                                                                          \
	static void f(__attribute__((unused)) void **state)

/* A test that runs on each engine, or with `auto` only: the engine makes no difference to it. */
#define ROW(f) ROW_ADD(f, false)
#define ROW_ONCE(f) ROW_ADD(f, true)

static char rig_engines[][8] = { "auto", "graft", "sockmap", "splice", "copy" };
#define RIG_ENGINES (sizeof(rig_engines) / sizeof(rig_engines[0]))
#define ONCE_PARTS 4 /* processes that share the rows which run once */

static const char *rig_prog;
static unsigned int rig_seconds;

/*
 * Called in each process, when it has a network of its own; may skip all, and make upstream_fd
 * another listener than that of RIG_UPSTREAM.
 */
static void (*rig_prepare)(void);

/* The processes of the engines come first. */
static int rig_run_part(size_t part)
{
	char *engine = rig_engines[part < RIG_ENGINES ? part : 0];
	static struct CMUnitTest tests[sizeof(rig_rows) / sizeof(rig_rows[0])];
	static char names[sizeof(rig_rows) / sizeof(rig_rows[0])][48];
	size_t n = 0, once = 0;

	for (size_t k = 0; k < rig_n_rows; k++) {
		if (rig_rows[k].once ? RIG_ENGINES + once++ % ONCE_PARTS != part :
				       part >= RIG_ENGINES)
			continue;
		snprintf(names[n], sizeof(names[n]), "%s_%s", engine, rig_rows[k].name);
		tests[n] = (struct CMUnitTest){
			.name = names[n],
			.test_func = rig_rows[k].run,
			.teardown_func = rig_clean,
			.initial_state = engine,
		};
		n++;
	}
	if (!n)
		return 0;
	env_enter(rig_prog, rig_seconds);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	if (rig_prepare)
		rig_prepare();
	if (upstream_fd < 0)
		rig_listen();
	return _cmocka_run_group_tests(engine, tests, n, NULL, NULL);
}

/*
 * The main() of program PROG, which is ended after SECONDS; returns its exit code.  The processes
 * run side by side, for such tests wait more than they work.
 */
static int rig_run(const char *prog, unsigned int seconds)
{
	rig_prog = prog;
	rig_seconds = seconds;
	return side_by_side(RIG_ENGINES + ONCE_PARTS, rig_run_part);
}

#pragma GCC diagnostic pop
