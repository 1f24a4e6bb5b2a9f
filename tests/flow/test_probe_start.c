/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the probe finds at the start decides what the daemon uses, on kernels that lack something
 * (made by a seccomp filter).  Looked at: exit code, the line in the log, `status`, and which
 * carriers real traffic then has.
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
#include <sys/syscall.h>
#include <unistd.h>

#include "cases.h"
#include "datapath/tcp.h"
#include "deny.h"
#include "env.h"
#include "side_by_side.h"

#define TEST_SECONDS 120
#define USER_SPACE "warning: everything is carried in user space: "
#define COPY_INSTEAD "warning: copy is used where splice would be better: "
#define NO_LOCK "\"receive-buffer\" does not hold on this kernel: SO_BUF_LOCK: "
#define NO_SPLICE "\"splice\" does not hold on this kernel: "
#define UNKNOWN "it cannot be tried whether this kernel does what it must: \"loopback\" fails: "
/* A conversation, and bulk each way: what auto gives to sockmap, and then to splice. */
#define CLIENT "nd G400:64:64 S8M R8M F E"
#define SERVER "A nd H400:64:64 R8M S8M E F"

static struct cases c;

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

		if (strcmp(json_text(o, "name"), name) != 0)
			continue;
		*ret_reason = json_text(o, "reason");
		return json_object_get_boolean(json_at(o, "available"));
	}
	fail_msg("status: no feature %s", name);
	return false;
}

static void assert_begins(const char *text, const char *begin)
{
	if (strncmp(text, begin, strlen(begin)) != 0)
		fail_msg("\"%s\" does not begin with \"%s\"", text, begin);
}

static void stop(void)
{
	int r = daemon_stop(c.d, 10000, c.why, sizeof(c.why));

	c.d = NULL;
	if (r)
		fail_msg("%s", c.why);
}

/*
 * An `auto` daemon runs: its log and status say why it has no sockmap, and why no splice; "" where
 * it has.  Traffic has no other carriers.  TRIED: at the start.
 */
static void assert_runs(const char *no_sockmap, const char *no_splice, bool tried)
{
	struct json_object *status = NULL;
	const char *reason;
	char *log, line[400];

	assert_int_equal(cases_session_own(&c, CLIENT, SERVER, 20000), 0);
	assert_int_equal(daemon_query(c.d, "status", 5000, &status), 0);
	assert_int_equal(json_object_get_boolean(json_at(status, "kernel.available")),
			 !*no_sockmap);
	assert_begins(json_text(status, "kernel.reason"), no_sockmap);
	assert_int_equal(feature(status, "splice", &reason), !*no_splice);
	assert_begins(reason, no_splice);
	assert_int_equal(feature(status, "tried at the start", &reason), tried);
	print_message("%s\n", reason);
	assert_int_equal(carried(status, "sockmap") > 0, !*no_sockmap);
	assert_int_equal(carried(status, "splice") > 0, !*no_splice);
	json_object_put(status);

	log = daemon_stderr(c.d);
	snprintf(line, sizeof(line), USER_SPACE "%s", no_sockmap);
	assert_int_equal(strstr(log, line) != NULL, *no_sockmap != 0);
	snprintf(line, sizeof(line), COPY_INSTEAD "%s", no_splice);
	assert_int_equal(strstr(log, line) != NULL, *no_splice != 0);
	free(log);
	stop();
}

static int start(const char *engine, const char *option, const char *value)
{
	const char *const args[] = { option ?: OWN_LISTEN, option ? value : PLAIN_UPSTREAM,
				     option ? OWN_LISTEN : NULL, PLAIN_UPSTREAM, NULL };
	struct daemon_conf conf = { .culvert = c.culvert, .engine = engine, .args = args };

	c.engine = engine;
	return daemon_start(&conf, &c.d, c.why, sizeof(c.why));
}

/* What is asked for by name must work: exit code 3. */
static void assert_refused(const char *engine, const char *why)
{
	char line[320];

	snprintf(line, sizeof(line), "error: --engine %s cannot be used: %s", engine, why);
	assert_int_equal(start(engine, NULL, NULL), -ENOTSUP);
	if (!strstr(c.why, line))
		fail_msg("%s\nnot: %s", c.why, line);
}

static void start_auto(void)
{
	if (start("auto", NULL, NULL))
		fail_msg("%s", c.why);
}

static void a_sound_kernel_is_used(void **state)
{
	(void)state;
	start_auto();
	assert_runs("", "", true);
}

static void probe_no_tries_nothing(void **state)
{
	(void)state;
	if (start("auto", "--probe", "no"))
		fail_msg("%s", c.why);
	assert_runs("", "", false);
}

static void without_buffer_lock_there_is_no_sockmap(void **state)
{
	(void)state;
	deny_syscall(SYS_setsockopt, ENOPROTOOPT, SO_BUF_LOCK);
	start_auto();
	assert_runs(NO_LOCK, "", true);
	assert_refused("sockmap", NO_LOCK);
	assert_int_equal(start("splice", NULL, NULL), 0);
	stop();
}

static void without_splice_there_is_copy(void **state)
{
	(void)state;
	deny_syscall(SYS_splice, EINVAL, 0);
	start_auto();
	assert_runs("", NO_SPLICE, true);
	assert_refused("splice", NO_SPLICE);
	assert_int_equal(start("sockmap", NULL, NULL), 0);
	stop();
	assert_int_equal(start("copy", NULL, NULL), 0);
	stop();
}

/* The probe dies of it, the daemon does not: nothing can be tried, so nothing is trusted. */
static void a_crash_does_not_crash_the_daemon(void **state)
{
	(void)state;
	deny_syscall(SYS_unshare, 0, 0);
	start_auto();
	assert_runs(UNKNOWN "the process that tried it was killed", UNKNOWN, true);
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

static void without_a_namespace_loopback_must_do(void **state)
{
	(void)state;
	drop_sys_admin();
	start_auto();
	assert_runs("", "", true);

	set_lo(false);
	start_auto();
	set_lo(true);
	assert_runs(UNKNOWN, UNKNOWN, true);
}

static int kill_daemon(void **state)
{
	(void)state;
	daemon_kill(c.d);
	c.d = NULL;
	return 0;
}

/* Each with a process of its own, which lives with what it has lost. */
#define TEST(f) { cmocka_unit_test_teardown(f, kill_daemon) }
static const struct CMUnitTest tests[][1] = {
	TEST(a_sound_kernel_is_used),
	TEST(probe_no_tries_nothing),
	TEST(without_buffer_lock_there_is_no_sockmap),
	TEST(without_splice_there_is_copy),
	TEST(a_crash_does_not_crash_the_daemon),
	TEST(without_a_namespace_loopback_must_do),
};

static int run_part(size_t i)
{
	env_enter("test_probe_start", TEST_SECONDS);
	if (cases_listen())
		return 1;
	return cmocka_run_group_tests(tests[i], NULL, NULL);
}

int main(int argc, char **argv)
{
	if (argc != 1 && (argc != 3 || strcmp(argv[1], "--culvert") != 0)) {
		fprintf(stderr, "test_probe_start [--culvert PATH]\n");
		return 2;
	}
	c.culvert = argc == 3 ? argv[2] : NULL;
	return side_by_side(sizeof(tests) / sizeof(tests[0]), run_part);
}
