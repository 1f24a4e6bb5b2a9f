/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon where something is missing that other machines have, with the engine that tries most
 * at the start.  Either it says what, and ends; or it does without, `status` says what it does
 * without, and traffic is right to the byte.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "../unit/unit.h"
#include "cases.h"
#include "config/config.h"
#include "deny.h"
#include "env.h"
#include "side_by_side.h"

#define TEST_SECONDS 240
/* A conversation, and bulk each way: what auto gives to sockmap, and then to splice. */
#define CLIENT "nd G400:64:64 S8M R8M F E"
#define SERVER "A nd H400:64:64 R8M S8M E F"
/* The start of a command that others follow, in a mount namespace of its own. */
#define MOUNTS(command) "unshare --mount sh -c '" command " && exec \"$@\"' sh"
#define BOUNDING "setpriv --inh-caps -all --bounding-set "
#define FEW "72 descriptors"
#define USER_SPACE "warning: everything is carried in user space: "
#define COPY_INSTEAD "warning: copy is used where splice would be better: "

/* What the daemon is started by, as a shell has it. */
static const struct refused {
	const char *name, *starter;
	int error; /* of daemon_start() */
	const char *says;
} refused[] = {
	{ "root that cannot become somebody else", BOUNDING "-setuid", -ENOTSUP,
	  "cannot give up privileges: Operation not permitted (root needs CAP_SETUID" },
	{ "a mark without the capability",
	  "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'exec \"$@\" --mark 7' sh",
	  -ENOTSUP, "has a mark or is transparent, which needs CAP_NET_ADMIN: " },
	{ "no accounts", MOUNTS("mount -t tmpfs none /etc"), -EIO,
	  "error: no such account: culvert, nobody (give another with --user, or start culvert as "
	  "an account that is not root)" },
	/* not its control socket */
	{ "nothing that can be written",
	  MOUNTS("mount -t tmpfs -o ro none /run && set -- \"$@\" --pid-file /run/pid --control " CONFIG_CONTROL_DEFAULT),
	  -EIO, "error: pid-file /run/pid: Read-only file system" },
};

static const struct served {
	const char *name, *starter;
	const char *without; /* the kernel path is not used, for this reason; NULL: it is */
} served[] = {
	{ FEW, "prlimit --nofile=72:72", NULL },
	{ "64 KiB of locked memory", "prlimit --memlock=65536:65536", NULL },
	{ "no BPF file system", MOUNTS("{ umount -l /sys/fs/bpf 2>/dev/null || :; }"), NULL },
	{ "no such time zone or locale", "env TZ=No/Where LANG=xx_YY LC_ALL=tr_TR.UTF-8", NULL },
	{ "nothing in the environment", "env -i", NULL },
	{ "no /proc", MOUNTS("umount -l /proc"), NULL },
	{ "no BTF of the kernel", MOUNTS("umount -l /sys"), "the kernel has no BTF" },
	{ "root without capabilities for BPF", BOUNDING "-bpf,-perfmon,-net_admin,-sys_admin",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
	{ "root without any capability", BOUNDING "-all",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
	{ "an ordinary account, as users have it",
	  "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'exec \"$@\" --graft yes "
	  "--graft-pins " CONFIG_GRAFT_PINS_DEFAULT "' sh",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
	{ "a user namespace without accounts",
	  "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
};

#define NO_GATE "\"redirect\" fails: insertion: "
#define NO_SPLICE "\"splice\" fails: "
#define KILLED "fails: the process that tried it was killed"

/* What the kernel lacks, and what the probe at the start finds of it. */
static const struct lack {
	int nr, error; /* of deny_syscall(); NR 0: nothing is missing */
	int arg;
	uint64_t value;
	const char *no_sockmap, *no_splice; /* why not; "": it is used */
	const char *refused; /* this engine is, if it is asked for by name; all others start */
} lacks[] = {
	{ .no_sockmap = "", .no_splice = "" },
	{ SYS_setsockopt, ENOPROTOOPT, 2, SO_ATTACH_BPF, NO_GATE, "", "sockmap" },
	{ SYS_splice, EINVAL, -1, 0, "", NO_SPLICE, "splice" },
	/* the probe dies of it, the daemon does not: what cannot be tried is not trusted */
	{ SYS_getsockopt, 0, 2, SO_COOKIE, "\"redirect\" " KILLED, "", "sockmap" },
};

#define N_LACKS (sizeof(lacks) / sizeof(lacks[0]))
#define N_REFUSED (sizeof(refused) / sizeof(refused[0]))
#define N_SERVED (sizeof(served) / sizeof(served[0]))

static struct cases c;
static bool has_kernel; /* with nothing missing */

/* A script that starts culvert by STARTER; false if STARTER itself does not work here. */
static bool start_by(const char *starter)
{
	static char script[PATH_MAX];
	char culvert[PATH_MAX];
	FILE *f;

	beside_test(BUILT_CULVERT, culvert, sizeof(culvert));
	snprintf(script, sizeof(script), "%s/starter", env_dir());
	f = fopen(script, "we");
	assert_non_null(f);
	fprintf(f, "#!/bin/sh\n[ $# -gt 0 ] || exec %s true\nexec %s %s \"$@\"\n", starter, starter,
		culvert);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(script, 0755), 0);
	c.culvert = script;
	return !system(script); /* NOLINT(cert-env33-c): what it does without arguments */
}

static int start_cases(const char *name, const char *starter)
{
	if (!start_by(starter)) {
		print_message("skip %s: cannot be made here (%s)\n", name, starter);
		return -ECANCELED;
	}
	return cases_start(&c);
}

static void refuses(const struct refused *row)
{
	int r = start_cases(row->name, row->starter);

	if (r == -ECANCELED)
		return;
	if (r != row->error || !strstr(c.why, row->says))
		print_error("%s: %d: %s\nnot: %s\n", row->name, r, c.why, row->says);
	assert_int_equal(r, row->error);
	assert_non_null(strstr(c.why, row->says));
	assert_null(strstr(strstr(c.why, row->says) + 1, row->says)); /* a cause is told once */
}

/* What keeps out sockmap keeps out graft: a cause is told once. */
static void assert_told_once(const struct served *row)
{
	if (!has_kernel || !row->without)
		return;
	assert_true(daemon_log_has(c.d, USER_SPACE, 0));
	if (daemon_log_has(c.d, "warning: graft: ", 0) ||
	    daemon_log_has(c.d, "warning: no session is grafted: ", 0) ||
	    daemon_log_has(c.d, COPY_INSTEAD, 0))
		fail_msg("%s: told again: %s", row->name, daemon_stderr(c.d));
}

static void assert_status(const struct served *row)
{
	struct json_object *status = NULL;
	const char *reason;
	bool available;

	assert_int_equal(daemon_query(c.d, "status", 5000, &status), 0);
	available = json_object_get_boolean(json_at(status, "kernel.available"));
	reason = json_text(status, "kernel.reason");
	if (available != (has_kernel && !row->without) ||
	    (has_kernel && row->without && !strstr(reason, row->without)))
		fail_msg("%s: kernel available: %d, \"%s\"", row->name, available, reason);
	json_object_put(status);
}

static void stop(void)
{
	int r = daemon_stop(c.d, 10000, c.why, sizeof(c.why));

	c.d = NULL;
	if (r)
		fail_msg("%s", c.why);
}

static void serves(const struct served *row)
{
	int r = start_cases(row->name, row->starter);

	if (r == -ECANCELED)
		return;
	if (r)
		fail_msg("%s: %d: %s", row->name, r, c.why);
	if (!strcmp(row->name, FEW))
		assert_true(daemon_log_has(c.d, "warning: there are descriptors for ", 0));
	assert_status(row);
	assert_told_once(row);
	if (cases_session(&c, VIA_PLAIN, CLIENT, SERVER, 20000) || cases_idle(&c, c.d))
		fail_msg("%s: %s", row->name, c.why);
	stop();
}

static void says_what_is_missing(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_REFUSED; i++)
		refuses(&refused[i]);
}

static void does_without(void **state)
{
	(void)state;
	if (cases_start(&c))
		fail_msg("%s", c.why);
	has_kernel = c.kernel;
	stop();
	assert_int_equal(chmod(env_dir(), 0777), 0); /* for root that may not do what others may */
	for (size_t i = 0; i < N_SERVED; i++)
		serves(&served[i]);
}

/* --- what the probe finds at the start --- */

/* The object of the list at PATH whose KEY is NAME. */
static struct json_object *named(struct json_object *status, const char *path, const char *key,
				 const char *name)
{
	struct json_object *list = json_at(status, path);

	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		if (!strcmp(json_text(o, key), name))
			return o;
	}
	fail_msg("status: no %s %s", path, name);
	return NULL;
}

static bool feature(struct json_object *status, const char *name)
{
	return json_object_get_boolean(
		json_at(named(status, "kernel.features", "name", name), "available"));
}

static bool has_carried(struct json_object *status, const char *carrier)
{
	return json_int(named(status, "carriers", "carrier", carrier), "bytes") > 0;
}

static void assert_begins(const char *text, const char *begin)
{
	if (strncmp(text, begin, strlen(begin)) != 0)
		fail_msg("\"%s\" does not begin with \"%s\"", text, begin);
}

/* The log has WARNING with REASON, or, if REASON is "", no such warning. */
static void assert_warned(const char *warning, const char *reason)
{
	char line[400];

	snprintf(line, sizeof(line), "%s%s", warning, reason);
	assert_int_equal(daemon_log_has(c.d, line, 0), *reason != 0);
}

/*
 * A daemon with `auto` runs: its log and status say why it has no sockmap, and why no splice; ""
 * where it has.  Traffic has no other carriers.  TRIED: at the start.
 */
static void assert_runs(const char *no_sockmap, const char *no_splice, bool tried)
{
	struct json_object *status = NULL;

	if (cases_session(&c, VIA_PLAIN, CLIENT, SERVER, 20000))
		fail_msg("%s", c.why);
	assert_int_equal(daemon_query(c.d, "status", 5000, &status), 0);
	assert_int_equal(json_object_get_boolean(json_at(status, "kernel.available")),
			 !*no_sockmap);
	assert_begins(json_text(status, "kernel.reason"), no_sockmap);
	assert_int_equal(feature(status, "splice"), !*no_splice);
	assert_begins(json_text(named(status, "kernel.features", "name", "splice"), "reason"),
		      no_splice);
	assert_int_equal(feature(status, "tried at the start"), tried);
	assert_int_equal(has_carried(status, "sockmap"), !*no_sockmap);
	assert_int_equal(has_carried(status, "splice"), !*no_splice);
	json_object_put(status);
	assert_warned(USER_SPACE, no_sockmap);
	assert_warned(COPY_INSTEAD, no_splice);
	stop();
}

static void lacks_something(void **state)
{
	static const char *const names[] = { "graft", "sockmap", "splice", "copy" };
	const struct lack *row = *state;
	char line[320];

	if (row->nr)
		deny_syscall(row->nr, row->error, row->arg, row->value);
	if (cases_start(&c))
		fail_msg("%s", c.why);
	assert_runs(row->no_sockmap, row->no_splice, true);
	for (size_t i = 0; row->refused && i < 4; i++) {
		c.engine = names[i];
		if (strcmp(names[i], row->refused) != 0) {
			assert_int_equal(cases_start(&c), 0);
			stop();
			continue;
		}
		snprintf(line, sizeof(line), "error: engine %s cannot be used: %s", names[i],
			 *row->no_sockmap ? row->no_sockmap : row->no_splice);
		if (!cases_start(&c)) { /* a busy machine: it was not waited for */
			assert_true(daemon_log_has(c.d, line, 30000));
			stop();
		} else if (!strstr(c.why, line)) {
			fail_msg("%s\nnot: %s", c.why, line);
		}
	}
}

static void probe_no_tries_nothing(void **state)
{
	(void)state;
	c.probe = "no";
	if (cases_start(&c))
		fail_msg("%s", c.why);
	assert_runs("", "", false);
}

/* --- */

static int set_up(void **state)
{
	(void)state;
	c = (struct cases){ .engine = "auto" };
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_kill(c.d);
	return 0;
}

static void (*const tests[])(void **state) = {
	says_what_is_missing,
	probe_no_tries_nothing,
	does_without,
};

#define N_TESTS (sizeof(tests) / sizeof(tests[0]))

/* The tests, the lacks: each in a process of its own, which lives with its loss. */
static int run_part(size_t i)
{
	bool lack = i >= N_TESTS;
	const struct CMUnitTest one = {
		.name = lack ? "lacks_something" : "surroundings",
		.test_func = lack ? lacks_something : tests[i],
		.setup_func = set_up,
		.teardown_func = tear_down,
		.initial_state = lack ? (void *)&lacks[i - N_TESTS] : NULL,
	};

	env_enter("test_surroundings", TEST_SECONDS);
	cases_listen();
	return _cmocka_run_group_tests(one.name, &one, 1, NULL, NULL);
}

int main(void)
{
	return side_by_side(N_TESTS + N_LACKS, run_part);
}
