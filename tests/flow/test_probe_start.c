/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the probe finds decides what the daemon uses: each check made to fail in turn, on every
 * engine.  Looked at: exit code, the line in the log, `status`, and which carriers real traffic
 * then has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cases.h"
#include "env.h"
#include "side_by_side.h"

#define TEST_SECONDS 290
#define FAIL_VARIABLE "CULVERT_PROBE_FAIL"
#define USER_SPACE "warning: everything is carried in user space: "
#define COPY_INSTEAD "warning: copy is used where splice would be better: "
#define BROKEN " does not hold on this kernel: forced by " FAIL_VARIABLE " (expected: "
#define UNKNOWN "it cannot be tried whether this kernel does what it must: "
/* A conversation, and bulk each way: what auto gives to sockmap, and then to splice. */
#define CLIENT "nd G400:64:64 S8M R8M F E"
#define SERVER "A nd H400:64:64 R8M S8M E F"

static struct cases c;

/* How a failure is told after the name of the check: is it one of the kernel? */
static bool is_broken(const char *how)
{
	return !strncmp(how, " does not hold", 14);
}

/* --- what a daemon shows --- */

static uint64_t carried(struct json_object *status, const char *carrier)
{
	struct json_object *list = json_at(status, "carriers");

	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		if (!strcmp(json_text(o, "carrier"), carrier))
			return (uint64_t)json_int(o, "bytes");
	}
	fail_msg("status: no carrier %s", carrier);
	return 0;
}

/* The feature NAME of the status: is it there?  RET_REASON points into STATUS. */
static bool feature(struct json_object *status, const char *name, const char **ret_reason)
{
	struct json_object *list = json_at(status, "kernel.features");

	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		if (!json_object_is_type(o, json_type_object) ||
		    strcmp(json_text(o, "name"), name) != 0)
			continue;
		*ret_reason = json_text(o, "reason");
		return json_object_get_boolean(json_at(o, "available"));
	}
	fail_msg("status: no feature %s", name);
	return false;
}

static size_t count(const char *text, const char *what)
{
	size_t n = 0;

	for (const char *at = text; (at = strstr(at, what)); at += strlen(what))
		n++;
	return n;
}

/* One line, with what was expected and why it matters, if WANTED; else none. */
static void log_has(const char *log, const char *begin, const char *check, const char *how,
		    bool wanted)
{
	char line[256];

	snprintf(line, sizeof(line), "%s%s\"%s\"%s", begin, is_broken(how) ? "" : UNKNOWN, check,
		 how);
	if (count(log, line) != wanted || count(log, begin) != wanted)
		print_error("not %d times: %s\n%s\n", wanted, line, log);
	assert_int_equal(count(log, line), wanted);
	assert_int_equal(count(log, begin), wanted);
	if (wanted && is_broken(how))
		assert_non_null(strstr(log, "; why it matters: "));
}

/* --- a daemon --- */

/* What is expected of a daemon of engine ENGINE while CHECK fails. */
struct want {
	bool starts, sockmap, splice; /* may be used */
};

static bool is_about_splice(const char *check)
{
	return !strncmp(check, "splice", 6);
}

static struct want expectation(const char *engine, const char *check)
{
	bool is_auto = !strcmp(engine, "auto"), both = !strcmp(check, "loopback");
	bool no_sockmap = both || !is_about_splice(check);
	bool no_splice = both || is_about_splice(check);
	struct want w = { .starts = true };

	if (!strcmp(engine, "copy"))
		return w;
	w.sockmap = strcmp(engine, "splice") != 0 && !no_sockmap;
	w.splice = !no_splice;
	if (!is_auto)
		w.starts = strcmp(engine, "sockmap") ? w.splice : w.sockmap;
	return w;
}

static struct json_object *status_of(struct daemon *d)
{
	struct json_object *o = NULL;

	assert_int_equal(daemon_query(d, "status", 5000, &o), 0);
	return o;
}

static void stop(void)
{
	int r = daemon_stop(c.d, 10000, c.why, sizeof(c.why));

	c.d = NULL;
	if (r)
		print_error("%s\n", c.why);
	assert_int_equal(r, 0);
}

/* Traffic, right to the byte; then the carriers that it had. */
static void assert_carries(const struct want *w)
{
	int r = cases_session(&c, VIA_PLAIN, CLIENT, SERVER, 20000);
	struct json_object *status;

	if (r)
		print_error("%s: %s\n", c.engine, c.why);
	assert_int_equal(r, 0);
	r = cases_idle(&c, c.d);
	if (r)
		print_error("%s\n", c.why);
	assert_int_equal(r, 0);
	status = status_of(c.d);
	assert_int_equal(carried(status, "sockmap") > 0, w->sockmap);
	assert_int_equal(carried(status, "splice") > 0, w->splice && strcmp(c.engine, "sockmap"));
	if (!w->splice && !w->sockmap)
		assert_true(carried(status, "copy") >= 16 << 20);
	json_object_put(status);
}

static void assert_status(const struct want *w, const char *check, const char *how)
{
	struct json_object *status = status_of(c.d);
	const char *reason = json_text(status, "kernel.reason");
	bool asked = strcmp(c.engine, "copy") != 0;
	char begin[256];

	snprintf(begin, sizeof(begin), "%s\"%s\"%s", is_broken(how) ? "" : UNKNOWN, check, how);
	assert_int_equal(json_object_get_boolean(json_at(status, "kernel.available")), w->sockmap);
	if (!w->sockmap && strcmp(c.engine, "auto") == 0)
		assert_int_equal(strncmp(reason, begin, strlen(begin)), 0);
	else if (!w->sockmap)
		assert_int_equal(strncmp(reason, "not used by --engine ", 21), 0);
	assert_int_equal(feature(status, "splice", &reason), w->splice);
	if (asked && !w->splice)
		assert_int_equal(strncmp(reason, begin, strlen(begin)), 0);
	assert_int_equal(feature(status, "tried at the start", &reason), asked);
	if (asked)
		assert_non_null(strstr(reason, " behaviours hold, tried in "));
	json_object_put(status);
}

static void assert_refused(int r, const char *check, const char *how)
{
	char line[320];

	snprintf(line, sizeof(line), "error: --engine %s cannot be used: %s\"%s\"%s", c.engine,
		 is_broken(how) ? "" : UNKNOWN, check, how);
	if (r != -ENOTSUP || !strstr(c.why, line))
		print_error("%d: %s\nnot: %s\n", r, c.why, line);
	assert_int_equal(r, -ENOTSUP); /* exit code 3 */
	assert_non_null(strstr(c.why, line));
}

/* One check, one engine.  HOW follows the check's name where the failure is told. */
static void try(const char *engine, const char *check, const char *forced, const char *how)
{
	struct want w = expectation(engine, check);
	char *log;
	int r;

	c.engine = engine;
	setenv(FAIL_VARIABLE, forced, 1);
	r = cases_start(&c);
	unsetenv(FAIL_VARIABLE);
	if (!w.starts) {
		assert_refused(r, check, how);
		return;
	}
	if (r)
		print_error("%s with %s: %s\n", engine, forced, c.why);
	assert_int_equal(r, 0);
	log = daemon_stderr(c.d);
	assert_non_null(log);
	log_has(log, USER_SPACE, check, how, !strcmp(engine, "auto") && !w.sockmap);
	log_has(log, COPY_INSTEAD, check, how, strcmp(engine, "copy") != 0 && !w.splice);
	free(log);
	assert_status(&w, check, how);
	assert_carries(&w);
	stop();
}

/* --- tests --- */

static void each_check_decides(void **state)
{
	static const char *const checks[] = {
		"load",	    "insert",	"insert-after-fin", "counters",	    "events",
		"redirect", "early-bytes", "fin",	    "accounting",   "backlog",
		"unread",   "receive-buffer", "hard-limit", "gate",	    "read-ahead",
		"leave",    "wake-ups",	"unprivileged",	    "splice",	    "splice-stall",
		"splice-urgent",
	};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
		try(*state, checks[i], checks[i], BROKEN);
}

/* Nothing can be tried: nothing is trusted. */
static void what_cannot_be_tried_is_not_used(void **state)
{
	try(*state, "loopback", "loopback", " fails: forced by " FAIL_VARIABLE);
}

static void a_hang_does_not_hang_the_daemon(void **state)
{
	int64_t begin = now_ms();

	(void)state;
	try("auto", "backlog", "backlog:hang",
	    " does not hold on this kernel: no result in time: it hangs");
	assert_in_range(now_ms() - begin, 9000, 20000);
}

static void a_crash_does_not_crash_the_daemon(void **state)
{
	(void)state;
	try("auto", "redirect", "redirect:crash",
	    " does not hold on this kernel: the process that tried it was killed: "
	    "Segmentation fault");
}

/* --engine sockmap sends bulk and what has a slow target to user space: to copy, then. */
static void both_carriers_can_fail(void **state)
{
	struct want w = { .starts = true };
	struct json_object *status;
	const char *reason;

	(void)state;
	c.engine = "auto";
	setenv(FAIL_VARIABLE, "splice-urgent,leave", 1);
	assert_int_equal(cases_start(&c), 0);
	unsetenv(FAIL_VARIABLE);
	assert_carries(&w);
	status = status_of(c.d);
	assert_int_equal(strncmp(json_text(status, "kernel.reason"), "\"leave\"", 7), 0);
	assert_false(feature(status, "splice", &reason));
	assert_int_equal(strncmp(reason, "\"splice-urgent\"", 15), 0);
	json_object_put(status);
	stop();
}

static void a_sound_kernel_is_used(void **state)
{
	struct want w = { .starts = true, .sockmap = true, .splice = true };
	struct json_object *status;
	const char *reason;

	(void)state;
	c.engine = "auto";
	if (cases_start(&c))
		fail_msg("%s", c.why);
	assert_carries(&w);
	status = status_of(c.d);
	assert_string_equal(json_text(status, "kernel.reason"), "");
	assert_true(feature(status, "splice", &reason));
	assert_string_equal(reason, "");
	assert_true(feature(status, "tried at the start", &reason));
	print_message("%s\n", reason);
	json_object_put(status);
	stop();
}

/* --- without the usual daemon of the rows --- */

static const char *const own_args[] = { "0.0.0.0:9200", PLAIN_UPSTREAM, NULL };
static const char *const unprobed_args[] = { "--probe", "no", "0.0.0.0:9200", PLAIN_UPSTREAM,
					     NULL };

static int start_own(const char *const *args)
{
	struct daemon_conf conf = { .culvert = c.culvert, .engine = "auto", .args = args };

	c.engine = "auto";
	return daemon_start(&conf, &c.d, c.why, sizeof(c.why));
}

static void probe_no_tries_nothing(void **state)
{
	struct json_object *status;
	const char *reason;
	char *log;

	(void)state;
	setenv(FAIL_VARIABLE, "load,splice", 1);
	if (start_own(unprobed_args))
		fail_msg("%s", c.why);
	unsetenv(FAIL_VARIABLE);
	log = daemon_stderr(c.d);
	assert_null(strstr(log, USER_SPACE));
	assert_null(strstr(log, COPY_INSTEAD));
	free(log);
	status = status_of(c.d);
	assert_true(json_object_get_boolean(json_at(status, "kernel.available")));
	assert_true(feature(status, "splice", &reason));
	assert_string_equal(reason, "not tried: --probe no");
	assert_false(feature(status, "tried at the start", &reason));
	json_object_put(status);
	stop();
}

static void an_unknown_check_is_a_mistake(void **state)
{
	(void)state;
	setenv(FAIL_VARIABLE, "fni", 1);
	assert_int_equal(start_own(own_args), -EIO);
	unsetenv(FAIL_VARIABLE);
	assert_non_null(strstr(c.why, FAIL_VARIABLE ": no check is called \"fni\""));
}

static void set_lo(bool up)
{
	struct ifreq ifr = { .ifr_name = "lo", .ifr_flags = up ? IFF_UP | IFF_RUNNING : 0 };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &ifr), 0);
	close(fd);
}

static void drop_sys_admin(void)
{
	const cap_value_t cap = CAP_SYS_ADMIN;
	cap_t caps = cap_get_proc();

	assert_int_equal(cap_drop_bound(cap), 0);
	assert_non_null(caps);
	for (cap_flag_t set = CAP_EFFECTIVE; set <= CAP_INHERITABLE; set++)
		assert_int_equal(cap_set_flag(caps, set, 1, &cap, CAP_CLEAR), 0);
	assert_int_equal(cap_set_proc(caps), 0);
	cap_free(caps);
}

/* The last test: what is dropped is gone. */
static void without_a_namespace_loopback_must_do(void **state)
{
	struct want all = { .starts = true, .sockmap = true, .splice = true };
	struct want none = { .starts = true };
	struct json_object *status;
	const char *reason;

	(void)state;
	drop_sys_admin();
	c.engine = "auto";
	if (cases_start(&c))
		fail_msg("%s", c.why);
	assert_carries(&all);
	stop();

	set_lo(false);
	if (start_own(own_args))
		fail_msg("%s", c.why);
	set_lo(true);
	status = status_of(c.d);
	assert_false(json_object_get_boolean(json_at(status, "kernel.available")));
	assert_int_equal(strncmp(json_text(status, "kernel.reason"), UNKNOWN, strlen(UNKNOWN)), 0);
	assert_false(feature(status, "splice", &reason));
	json_object_put(status);
	assert_int_equal(cases_session_own(&c, CLIENT, SERVER, 20000), 0);
	status = status_of(c.d);
	assert_int_equal(carried(status, "splice") > 0, none.splice);
	assert_int_equal(carried(status, "sockmap") > 0, none.sockmap);
	json_object_put(status);
	stop();
}

static int kill_daemon(void **state)
{
	(void)state;
	daemon_kill(c.d);
	c.d = NULL;
	return 0;
}

/* --- side by side: each engine, the one that takes long, and all others --- */

/* not const, for cmocka */
static char engines[][8] = { "auto", "sockmap", "splice", "copy" };

#define N_ENGINES (sizeof(engines) / sizeof(engines[0]))

#define RUN(name, tests) _cmocka_run_group_tests(name, tests, sizeof(tests) / sizeof(*(tests)), \
						  NULL, NULL)
#define OF_ENGINE(test, engine) { #test, test, NULL, kill_daemon, engine }

static int run_engine(char *engine)
{
	const struct CMUnitTest tests[] = {
		OF_ENGINE(each_check_decides, engine),
		OF_ENGINE(what_cannot_be_tried_is_not_used, engine),
	};

	return RUN(engine, tests);
}

static int run_hang(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_hang_does_not_hang_the_daemon, kill_daemon),
	};

	return RUN("hang", tests);
}

static int run_others(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(a_sound_kernel_is_used, kill_daemon),
		cmocka_unit_test_teardown(both_carriers_can_fail, kill_daemon),
		cmocka_unit_test_teardown(a_crash_does_not_crash_the_daemon, kill_daemon),
		cmocka_unit_test_teardown(probe_no_tries_nothing, kill_daemon),
		cmocka_unit_test_teardown(an_unknown_check_is_a_mistake, kill_daemon),
		cmocka_unit_test_teardown(without_a_namespace_loopback_must_do, kill_daemon),
	};

	return RUN("others", tests);
}

static int run_part(size_t i)
{
	env_enter("test_probe_start", TEST_SECONDS);
	if (cases_listen())
		return 1;
	if (i < N_ENGINES)
		return run_engine(engines[i]);
	return i == N_ENGINES ? run_hang() : run_others();
}

int main(int argc, char **argv)
{
	if (argc != 1 && (argc != 3 || strcmp(argv[1], "--culvert") != 0)) {
		fprintf(stderr, "test_probe_start [--culvert PATH]\n");
		return 2;
	}
	c.culvert = argc == 3 ? argv[2] : NULL;
	unsetenv(FAIL_VARIABLE);
	return side_by_side(N_ENGINES + 2, run_part);
}
