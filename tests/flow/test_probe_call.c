/* SPDX-License-Identifier: BSD-2-Clause */
/* probe_start() as a function: what it asks, and that it leaves no trace in its caller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "env.h"
#include "probe/probe_start.h"
#include "probe/probe_try.h"

#define TEST_SECONDS 120
#define FAIL_VARIABLE PROBE_FAIL_VARIABLE

static unsigned int open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void network_namespace(char *buf, size_t size)
{
	ssize_t n = readlink("/proc/self/ns/net", buf, size - 1);

	assert_true(n > 0);
	buf[n] = '\0';
}

/* The test's own environment may have some, too. */
static unsigned int children(void)
{
	char path[64], line[4096];
	unsigned int n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	f = fopen(path, "re");
	assert_non_null(f);
	if (fgets(line, sizeof(line), f))
		for (const char *c = line; *c; c++)
			n += *c == ' ';
	fclose(f);
	return n;
}

/* What the daemon asks at its start, with one forward. */
static int ask_for(enum engine engine, bool probe, struct probe_start *ret)
{
	struct forward_conf forward = { .engine = engine };
	const struct config c = {
		.engine = engine, .probe = probe, .forwards = &forward, .n_forwards = 1,
	};

	return probe_start(&c, ret);
}

static int ask(struct probe_start *ret)
{
	return ask_for(ENGINE_AUTO, true, ret);
}

static void assert_good(const struct probe_start *found)
{
	if (found->sockmap.verdict != PROBE_OK || found->splice.verdict != PROBE_OK)
		print_error("%s\n%s\n", found->sockmap.why, found->splice.why);
	assert_int_equal(found->sockmap.verdict, PROBE_OK);
	assert_int_equal(found->splice.verdict, PROBE_OK);
	assert_string_equal(found->sockmap.why, "");
}

static void leaves_nothing_behind(void **state)
{
	char before[64], after[64];
	unsigned int descriptors = open_descriptors();
	unsigned int before_children = children();
	int64_t begin = now_ms();
	struct probe_start found;

	(void)state;
	network_namespace(before, sizeof(before));
	assert_int_equal(ask(&found), 0);
	print_message("probe_start() took %lld ms: %s\n", (long long)(now_ms() - begin),
		      found.summary);
	assert_good(&found);
	assert_int_equal(open_descriptors(), descriptors);
	network_namespace(after, sizeof(after));
	assert_string_equal(before, after);
	assert_int_equal(geteuid(), 0);
	assert_int_equal(children(), before_children);
}

/* As in a daemon: signals blocked, and a parent that never asked about its children. */
static void does_not_mind_signals(void **state)
{
	struct probe_start found;
	sigset_t all, old;
	int r;

	(void)state;
	sigfillset(&all);
	sigdelset(&all, SIGALRM);
	sigprocmask(SIG_SETMASK, &all, &old);
	signal(SIGCHLD, SIG_IGN);
	r = ask(&found);
	signal(SIGCHLD, SIG_DFL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	assert_int_equal(r, 0);
	assert_good(&found);
}

/* Nothing to try, nothing tried. */
static void asks_only_what_matters(void **state)
{
	struct probe_start found;

	(void)state;
	setenv(FAIL_VARIABLE, "loopback,load,splice", 1);
	assert_int_equal(ask_for(ENGINE_COPY, true, &found), 0);
	assert_int_equal(found.sockmap.verdict, PROBE_UNASKED);
	assert_int_equal(found.splice.verdict, PROBE_UNASKED);
	assert_int_equal(ask_for(ENGINE_SOCKMAP, false, &found), 0);
	assert_int_equal(found.sockmap.verdict, PROBE_UNASKED);
	setenv(FAIL_VARIABLE, "load", 1);
	assert_int_equal(ask_for(ENGINE_SPLICE, true, &found), 0);
	assert_int_equal(found.splice.verdict, PROBE_OK);
	unsetenv(FAIL_VARIABLE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leaves_nothing_behind),
		cmocka_unit_test(does_not_mind_signals),
		cmocka_unit_test(asks_only_what_matters),
	};

	env_enter("test_probe_call", TEST_SECONDS);
	unsetenv(FAIL_VARIABLE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
