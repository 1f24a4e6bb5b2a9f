/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `culvert probe` on this kernel, where all must hold; without privileges; and with each check made
 * to fail in turn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"
#include "probe/probe_try.h"

#define NOBODY 65534
#define RUN_SECONDS 60
#define TEST_SECONDS 280
#define FAIL_VARIABLE PROBE_FAIL_VARIABLE
#define COPY_INSTEAD "copy will be used where splice would be better\n"
#define USABLE "the sockmap carrier can be used here\n"
#define UNUSABLE "culvert run --engine auto will carry everything in user space\n"

/* Their names are an interface: of the JSON and of the test seam. */
static const char *const names[] = {
	"loopback", "splice", "splice-stall", "splice-urgent", "load", "insert", "insert-after-fin",
	"counters", "events", "redirect", "early-bytes", "fin", "accounting", "backlog", "unread",
	"receive-buffer", "hard-limit", "gate", "read-ahead", "leave", "wake-ups", "unprivileged",
};

#define N_NAMES (sizeof(names) / sizeof(names[0]))

struct output {
	int code; /* exit code, or 128 + signal */
	char out[32768], err[8192];
};

static int culvert = -1; /* the program, opened while we may */

static void read_back(int fd, char *buf, size_t size)
{
	ssize_t n = pread(fd, buf, size - 1, 0);

	assert_true(n >= 0);
	buf[n] = '\0';
	close(fd);
}

/* Run culvert with the NULL-terminated arguments, as user UID, with FORCED failing if not NULL. */
static struct output *run(uid_t uid, const char *forced, const char *const *args)
{
	static struct output o;
	int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC), status;
	pid_t pid = fork();

	assert_true(pid >= 0 && out >= 0 && err >= 0);
	if (!pid) {
		alarm(RUN_SECONDS); /* stays in force over exec */
		if (forced)
			setenv(FAIL_VARIABLE, forced, 1);
		if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0 ||
		    (uid && (setresgid(uid, uid, uid) || setresuid(uid, uid, uid))))
			_exit(126);
		fexecve(culvert, (char *const *)args, environ);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	read_back(out, o.out, sizeof(o.out));
	read_back(err, o.err, sizeof(o.err));
	return &o;
}

static struct output *probe(uid_t uid, const char *forced)
{
	return run(uid, forced, (const char *const[]){ "culvert", "probe", NULL });
}

static struct output *probe_json(uid_t uid, const char *forced)
{
	return run(uid, forced, (const char *const[]){ "culvert", "probe", "--json", NULL });
}

/* One line of JSON; the caller puts it. */
static struct json_object *parse(const struct output *o)
{
	struct json_object *json = json_tokener_parse(o->out);
	const char *newline = strchr(o->out, '\n');

	if (!json || !newline || newline[1])
		print_error("%s%s", o->out, o->err);
	assert_non_null(json);
	assert_true(newline && !newline[1]);
	return json;
}

static struct json_object *member(struct json_object *o, const char *name, enum json_type type)
{
	struct json_object *m = NULL;

	assert_true(json_object_object_get_ex(o, name, &m));
	assert_int_equal(json_object_get_type(m), type);
	return m;
}

static const char *text(struct json_object *o, const char *name)
{
	return json_object_get_string(member(o, name, json_type_string));
}

enum ok {
	OK,
	FAILED,
	SKIPPED,
};

/* The result of check I, and what it says. */
static enum ok result(struct json_object *json, size_t i, const char **ret_detail)
{
	struct json_object *list = member(json, "checks", json_type_array), *check, *ok = NULL;

	assert_int_equal(json_object_array_length(list), N_NAMES);
	check = json_object_array_get_idx(list, i);
	assert_string_equal(text(check, "name"), names[i]);
	assert_true(text(check, "why")[0]);
	*ret_detail = text(check, "detail");
	assert_true((*ret_detail)[0]);
	assert_true(json_object_object_get_ex(check, "ok", &ok));
	if (!ok)
		return SKIPPED;
	assert_int_equal(json_object_get_type(ok), json_type_boolean);
	return json_object_get_boolean(ok) ? OK : FAILED;
}

static bool usable(struct json_object *json)
{
	return json_object_get_boolean(member(json, "usable", json_type_boolean));
}

static bool splice_usable(struct json_object *json)
{
	return json_object_get_boolean(member(json, "splice_usable", json_type_boolean));
}

static size_t find(const char *name)
{
	size_t i = 0;

	while (i < N_NAMES && strcmp(names[i], name))
		i++;
	assert_true(i < N_NAMES);
	return i;
}

static bool begins_with(const char *s, const char *begin)
{
	return !strncmp(s, begin, strlen(begin));
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

/* --- all holds --- */

static void every_check_holds_here(void **state)
{
	struct output *o = probe_json(0, NULL);
	struct json_object *json = parse(o);
	struct utsname uts;

	(void)state;
	for (size_t i = 0; i < N_NAMES; i++) {
		const char *detail;
		enum ok ok = result(json, i, &detail);

		if (ok != OK)
			print_error("%s: %s\n", names[i], detail);
		assert_int_equal(ok, OK);
	}
	assert_int_equal(o->code, 0);
	assert_string_equal(o->err, "");
	assert_true(usable(json));
	assert_true(splice_usable(json));
	assert_int_equal(uname(&uts), 0);
	assert_string_equal(text(json, "kernel"), uts.release);
	json_object_put(json);
}

static void table_has_a_line_for_each_check(void **state)
{
	struct output *o = probe(0, NULL);
	char line[64];

	(void)state;
	if (o->code)
		print_error("%s%s", o->out, o->err);
	assert_int_equal(o->code, 0);
	assert_string_equal(o->err, "");
	for (size_t i = 0; i < N_NAMES; i++) {
		snprintf(line, sizeof(line), "\nok    %-16s  ", names[i]);
		assert_non_null(strstr(o->out, line));
	}
	assert_null(strstr(o->out, "FAIL"));
	assert_null(strstr(o->out, "skip"));
	assert_true(ends_with(o->out, "\n" USABLE));
}

/* --- something is missing --- */

static void missing_privileges_are_named(void **state)
{
	struct output *o = probe(NOBODY, NULL);

	(void)state;
	assert_int_equal(o->code, 3);
	assert_non_null(strstr(o->out, "\nFAIL  load              missing CAP_BPF, CAP_PERFMON, "
				       "CAP_NET_ADMIN (start as root): "));
	assert_non_null(strstr(o->out, strerror(EPERM)));
	assert_non_null(strstr(o->out, "\nskip  insert            skipped: needs load\n"));
	assert_true(ends_with(o->out, "\n" UNUSABLE));
	assert_string_equal(o->err, "");
}

static void what_needs_no_privilege_is_tried_anyway(void **state)
{
	static const char *const tried[] = { "loopback", "receive-buffer", "splice",
					     "splice-stall", "splice-urgent" };
	struct output *o = probe_json(NOBODY, NULL);
	struct json_object *json = parse(o);
	const char *detail;

	(void)state;
	assert_int_equal(o->code, 3);
	assert_false(usable(json));
	assert_true(splice_usable(json));
	assert_int_equal(result(json, find("load"), &detail), FAILED);
	for (size_t i = 0; i < N_NAMES; i++) {
		bool is_tried = !strcmp(names[i], "load");

		for (size_t k = 0; k < sizeof(tried) / sizeof(tried[0]); k++)
			is_tried = is_tried || !strcmp(names[i], tried[k]);
		assert_int_equal(result(json, i, &detail) != SKIPPED, is_tried);
		if (!is_tried)
			assert_true(begins_with(detail, "needs "));
	}
	json_object_put(json);
}

/* What is skipped needs something that did not hold; all else holds. */
static void a_failure_skips_what_needs_it(void **state)
{
	(void)state;
	for (size_t forced = 0; forced < N_NAMES; forced++) {
		struct output *o = probe_json(0, names[forced]);
		struct json_object *json = parse(o);
		const char *detail, *other;

		assert_int_equal(o->code, 3);
		assert_int_equal(usable(json), begins_with(names[forced], "splice"));
		assert_int_equal(splice_usable(json),
				 !begins_with(names[forced], "splice") &&
					 strcmp(names[forced], "loopback") != 0);
		for (size_t i = 0; i < N_NAMES; i++) {
			enum ok ok = result(json, i, &detail);

			if (ok == FAILED && i != forced)
				print_error("%s: %s\n", names[i], detail);
			assert_int_equal(ok == FAILED, i == forced);
			if (ok == SKIPPED) {
				assert_true(begins_with(detail, "needs "));
				assert_int_not_equal(result(json, find(detail + 6), &other), OK);
			}
		}
		result(json, forced, &detail);
		assert_true(begins_with(detail, "forced by " FAIL_VARIABLE));
		json_object_put(json);
	}
}

static void table_explains_a_failure(void **state)
{
	struct output *o = probe(0, "receive-buffer");

	(void)state;
	assert_int_equal(o->code, 3);
	assert_non_null(strstr(o->out, "\nFAIL  receive-buffer    forced by " FAIL_VARIABLE));
	assert_non_null(strstr(o->out, "expected: SO_BUF_LOCK keeps SO_RCVLOWAT from growing"));
	assert_non_null(strstr(o->out, "(since Linux 5.15, "));
	assert_non_null(strstr(o->out, "so culvert does not use the sockmap carrier\n"));
	assert_non_null(strstr(o->out, "\nskip  leave             skipped: needs receive-"));
	assert_true(ends_with(o->out, "\n" UNUSABLE));
}

static void splice_is_judged_by_itself(void **state)
{
	struct output *o = probe(0, "splice");

	(void)state;
	assert_int_equal(o->code, 3);
	assert_non_null(strstr(o->out, "so culvert does not use the splice carrier\n"));
	assert_non_null(strstr(o->out, "\nskip  splice-urgent     skipped: needs splice\n"));
	assert_true(ends_with(o->out, "\n" USABLE COPY_INSTEAD));
	o = probe(0, "fin,splice-stall");
	assert_int_equal(o->code, 3);
	assert_non_null(strstr(o->out, "\nFAIL  fin "));
	assert_non_null(strstr(o->out, "\nFAIL  splice-stall "));
	assert_true(ends_with(o->out, "\n" UNUSABLE COPY_INSTEAD));
}

static void a_crash_is_a_failure(void **state)
{
	struct output *o = probe(0, "gate:crash");

	(void)state;
	assert_int_equal(o->code, 3);
	assert_non_null(strstr(o->out, "\nok    hard-limit "));
	assert_non_null(strstr(o->out, "\nFAIL  gate              the process that tried it was "
				       "killed: Segmentation fault\n"));
	assert_non_null(strstr(o->out, "\nskip  leave             "
				       "skipped: not tried after gate\n"));
}

/* --- the command line --- */

static void mistakes_are_usage_errors(void **state)
{
	struct output *o;

	(void)state;
	o = run(0, NULL, (const char *const[]){ "culvert", "probe", "--jsno", NULL });
	assert_int_equal(o->code, 2);
	assert_string_equal(o->out, "");
	assert_non_null(strstr(o->err, "--jsno"));
	o = run(0, NULL, (const char *const[]){ "culvert", "probe", "--json", "extra", NULL });
	assert_int_equal(o->code, 2);
	o = probe(0, "no-such-check");
	assert_int_equal(o->code, 2);
	assert_non_null(strstr(o->err, "no-such-check"));
	o = probe(0, "fin:hnag");
	assert_int_equal(o->code, 2);
	assert_non_null(strstr(o->err, ":hnag"));
	o = probe(0, "fin,,splice");
	assert_int_equal(o->code, 2);
}

static void help_lists_the_checks(void **state)
{
	struct output *o;
	char line[64];

	(void)state;
	o = run(0, NULL, (const char *const[]){ "culvert", "probe", "--help", NULL });
	assert_int_equal(o->code, 0);
	for (size_t i = 0; i < N_NAMES; i++) {
		snprintf(line, sizeof(line), "\n  %-16s  ", names[i]);
		assert_non_null(strstr(o->out, line));
	}
}

static void open_culvert(int argc, char **argv)
{
	char path[PATH_MAX];

	if (argc == 3 && !strcmp(argv[1], "--culvert")) {
		culvert = open(argv[2], O_PATH | O_CLOEXEC);
	} else if (argc == 1) {
		beside_test(BUILT_CULVERT, path, sizeof(path));
		culvert = open(path, O_PATH | O_CLOEXEC);
	} else {
		fprintf(stderr, "test_probe [--culvert PATH]\n");
		exit(2);
	}
	if (culvert < 0) {
		fprintf(stderr, "test_probe: cannot open culvert: %s\n", strerror(errno));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_check_holds_here),
		cmocka_unit_test(table_has_a_line_for_each_check),
		cmocka_unit_test(missing_privileges_are_named),
		cmocka_unit_test(what_needs_no_privilege_is_tried_anyway),
		cmocka_unit_test(a_failure_skips_what_needs_it),
		cmocka_unit_test(table_explains_a_failure),
		cmocka_unit_test(splice_is_judged_by_itself),
		cmocka_unit_test(a_crash_is_a_failure),
		cmocka_unit_test(mistakes_are_usage_errors),
		cmocka_unit_test(help_lists_the_checks),
	};

	env_enter("test_probe", TEST_SECONDS);
	open_culvert(argc, argv);
	unsetenv(FAIL_VARIABLE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
