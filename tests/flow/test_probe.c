/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `culvert probe` on this kernel, where all must hold; and without privileges.  test_surroundings
 * has kernels that lack something.
 */
#include <fcntl.h>
#include <json-c/json.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/unit.h"
#include "daemon.h"
#include "env.h"

#define NOBODY 65534
#define RUN_SECONDS 60
#define TEST_SECONDS 120
#define USABLE "\nthe sockmap carrier can be used here\n"
#define UNUSABLE "\neverything is carried in user space: \""

/* Their names are an interface: of the JSON. */
static const char *const names[] = {
	"load", "splice", "redirect", "fin", "hard-limit", "leave", "packet-programs", "graft",
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

/* Run `culvert probe`, as root or not, with ARGUMENT unless it is NULL. */
static struct output *probe(bool root, const char *argument)
{
	const char *const args[] = { "culvert", "probe", argument, NULL };
	static struct output o;
	int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC), status;
	pid_t pid = fork();

	assert_true(pid >= 0 && out >= 0 && err >= 0);
	if (!pid) {
		alarm(RUN_SECONDS); /* stays in force over exec */
		if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0)
			_exit(126);
		if (!root &&
		    (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
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

static void assert_says(const struct output *o, const char *what)
{
	if (!strstr(o->out, what))
		print_error("%s%s", o->out, o->err);
	assert_non_null(strstr(o->out, what));
}

/* How many behaviours are so in the JSON: "ok" is true, false or, with OK being -1, null. */
static unsigned int count(struct json_object *json, int ok)
{
	struct json_object *list = json_at(json, "checks");
	unsigned int n = 0;

	assert_int_equal(json_object_array_length(list), N_NAMES);
	for (size_t i = 0; i < N_NAMES; i++) {
		struct json_object *check = json_object_array_get_idx(list, i), *is = NULL;

		assert_string_equal(json_text(check, "name"), names[i]);
		assert_true(json_text(check, "why")[0]);
		assert_true(json_text(check, "detail")[0]);
		assert_true(json_object_object_get_ex(check, "ok", &is));
		n += is ? json_object_get_boolean(is) == ok : ok == -1;
	}
	return n;
}

/* What `culvert probe --json` says: an exit code, how many hold, what can be used. */
static void assert_json(bool root, int code, unsigned int hold, unsigned int fail, bool usable)
{
	struct output *o = probe(root, "--json");
	struct json_object *json = json_tokener_parse(o->out);
	struct utsname uts;

	assert_non_null(json);
	assert_string_equal(strchr(o->out, '\n'), "\n"); /* one line */
	assert_string_equal(o->err, "");
	assert_int_equal(o->code, code);
	assert_int_equal(count(json, true), hold);
	assert_int_equal(count(json, false), fail);
	assert_int_equal(json_object_get_boolean(json_at(json, "usable")), usable);
	assert_true(json_object_get_boolean(json_at(json, "splice_usable")));
	assert_int_equal(uname(&uts), 0);
	assert_string_equal(json_text(json, "kernel"), uts.release);
	json_object_put(json);
}

TEST(every_behaviour_holds_here)
{
	struct output *o = probe(true, NULL);

	assert_int_equal(o->code, 0);
	for (size_t i = 0; i < N_NAMES; i++)
		assert_says(o, names[i]);
	assert_says(o, USABLE);
	assert_json(true, 0, N_NAMES, 0, true);
}

TEST(without_privileges_the_rest_is_tried)
{
	struct output *o = probe(false, NULL);

	assert_int_equal(o->code, 3);
	assert_says(o, "CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root)");
	assert_says(o, " one before it fails\n");
	assert_says(o, UNUSABLE);
	assert_json(false, 3, 1, 2, false); /* splice; load, packet-programs */
}

int main(void)
{
	char path[PATH_MAX];

	env_enter("test_probe", TEST_SECONDS);
	beside_test(BUILT_CULVERT, path, sizeof(path));
	culvert = open(path, O_PATH | O_CLOEXEC);
	if (culvert < 0) {
		perror(path);
		return 1;
	}
	return unit_run(NULL, NULL);
}
