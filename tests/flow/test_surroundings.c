/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon where something is missing that other machines have, on every engine.  Either it says
 * what, and ends; or it does without, `status` says what it does without, and traffic is right to
 * the byte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"
#include "env.h"
#include "side_by_side.h"

#define TEST_SECONDS 240
/* A conversation, and bulk each way: what auto gives to sockmap, and then to splice. */
#define CLIENT "nd G400:64:64 S8M R8M F E"
#define SERVER "A nd H400:64:64 R8M S8M E F"
/* The start of a command that others follow, in a mount namespace of its own. */
#define MOUNTS(command) "unshare --mount sh -c '" command " && exec \"$@\"' sh"
#define BOUNDING "setpriv --inh-caps -all --bounding-set "

/* What the daemon is started by, as a shell has it. */
static const struct refused {
	const char *name, *starter;
	int error; /* of daemon_start() */
	const char *says;
} refused[] = {
	{ "a user namespace that has root alone", "unshare --user --map-root-user", -ENOTSUP,
	  "error: cannot give up privileges: supplementary groups: Operation not permitted (to "
	  "become " },
	{ "root that cannot become somebody else", BOUNDING "-setuid", -ENOTSUP,
	  "error: cannot give up privileges: user id: Operation not permitted (to become " },
	{ "no accounts", MOUNTS("mount -t tmpfs none /etc"), -EIO,
	  "error: no such account: culvert, nobody (give another with --user, or start culvert as "
	  "an account that is not root)" },
	{ "no /proc", MOUNTS("umount -l /proc"), -EIO,
	  "error: /proc/self/fd: No such file or directory (is /proc mounted?)" },
};

static const struct served {
	const char *name, *starter;
	const char *without; /* the kernel path is not used, for this reason; NULL: it is */
} served[] = {
	{ "64 descriptors", "prlimit --nofile=64:64", NULL },
	{ "64 KiB of locked memory", "prlimit --memlock=65536:65536", NULL },
	{ "no BPF file system", MOUNTS("{ umount -l /sys/fs/bpf 2>/dev/null || :; }"), NULL },
	{ "no such time zone or locale", "env TZ=No/Where LANG=xx_YY LC_ALL=tr_TR.UTF-8", NULL },
	{ "nothing in the environment", "env -i", NULL },
	{ "no BTF of the kernel", MOUNTS("umount -l /sys"), "it needs kernel BTF" },
	{ "root without capabilities for BPF", BOUNDING "-bpf,-perfmon,-net_admin,-sys_admin",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
	{ "an ordinary account", "setpriv --reuid 65534 --regid 65534 --clear-groups",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
	{ "a user namespace without accounts",
	  "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --user",
	  "it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)" },
};

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

static void serves(const struct served *row)
{
	int r = start_cases(row->name, row->starter);

	if (r == -ECANCELED)
		return;
	if (!strcmp(c.engine, "sockmap") && (row->without || !has_kernel)) {
		assert_int_equal(r, -ENOTSUP);
		assert_non_null(strstr(c.why, "error: --engine sockmap cannot be used: "));
		return;
	}
	if (r)
		fail_msg("%s: %d: %s", row->name, r, c.why);
	if (!strcmp(c.engine, "auto"))
		assert_status(row);
	if (cases_session(&c, VIA_PLAIN, CLIENT, SERVER, 20000) || cases_idle(&c, c.d))
		fail_msg("%s: %s", row->name, c.why);
	r = daemon_stop(c.d, 10000, c.why, sizeof(c.why));
	c.d = NULL;
	if (r)
		fail_msg("%s: %s", row->name, c.why);
}

/* No engine makes a difference to that: the one that is not tried first. */
static void says_what_is_missing(void **state)
{
	(void)state;
	c.engine = "copy";
	for (size_t i = 0; i < N_REFUSED; i++)
		refuses(&refused[i]);
}

static void does_without(void **state)
{
	c.engine = "auto";
	c.culvert = NULL;
	if (cases_start(&c))
		fail_msg("%s", c.why);
	has_kernel = c.kernel;
	daemon_kill(c.d);
	c.d = NULL;
	c.engine = *state;
	for (size_t i = 0; i < N_SERVED; i++)
		serves(&served[i]);
}

static int kill_daemon(void **state)
{
	(void)state;
	daemon_kill(c.d);
	c.d = NULL;
	return 0;
}

/* not const, for cmocka */
static char engines[][8] = { "auto", "sockmap", "splice", "copy" };

#define N_ENGINES (sizeof(engines) / sizeof(engines[0]))

static int run_part(size_t i)
{
	const struct CMUnitTest refusals[] = {
		cmocka_unit_test_teardown(says_what_is_missing, kill_daemon),
	};
	const struct CMUnitTest of_engine[] = {
		{ "does_without", does_without, NULL, kill_daemon, engines[i % N_ENGINES] },
	};

	env_enter("test_surroundings", TEST_SECONDS);
	if (cases_listen())
		return 1;
	if (i == N_ENGINES)
		return _cmocka_run_group_tests("refusals", refusals, 1, NULL, NULL);
	return _cmocka_run_group_tests(engines[i], of_engine, 1, NULL, NULL);
}

int main(void)
{
	return side_by_side(N_ENGINES + 1, run_part);
}
