/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_EACH_ENGINE_H
#define CULVERT_TEST_EACH_ENGINE_H

/*
 * rig_run() for tests that wait more than they work: each engine has a process of its own, beside
 * the others.  What each has to say comes in one piece.  Include after forward_rig.h.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ENGINE_ROWS_MAX 16

static int run_engine(const char *prog, unsigned int max_seconds, char *engine,
		      const struct rig_row *rows, size_t n)
{
	static struct CMUnitTest tests[ENGINE_ROWS_MAX];
	static char names[ENGINE_ROWS_MAX][48];

	for (size_t i = 0; i < n; i++) {
		snprintf(names[i], sizeof(names[i]), "%s_%s", engine, rows[i].name);
		tests[i].name = names[i];
		tests[i].test_func = rows[i].run;
		tests[i].teardown_func = rig_clean;
		tests[i].initial_state = engine;
	}
	env_enter(prog, max_seconds);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	rig_listen();
	return _cmocka_run_group_tests(engine, tests, n, NULL, NULL);
}

struct engine_child {
	pid_t pid;
	int output;
};

/* Its exit code; what it said is repeated. */
static int finish_engine(const struct engine_child *c)
{
	char buf[4096];
	off_t at = 0;
	ssize_t n;
	int status;

	if (waitpid(c->pid, &status, 0) != c->pid)
		return 1;
	while ((n = pread(c->output, buf, sizeof(buf), at)) > 0) {
		at += n;
		if (write(STDOUT_FILENO, buf, (size_t)n) != n)
			return 1;
	}
	close(c->output);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* The main() of such a program.  At most ENGINE_ROWS_MAX rows. */
static int each_engine(const char *prog, unsigned int max_seconds, const struct rig_row *rows,
		       size_t n)
{
	struct engine_child children[RIG_ENGINES];
	int worst = 0, skipped = 0;

	for (size_t i = 0; i < RIG_ENGINES; i++) {
		struct engine_child *c = &children[i];

		c->output = memfd_create("output", MFD_CLOEXEC);
		c->pid = fork();
		if (c->pid < 0 || c->output < 0) {
			perror("fork");
			return 1;
		}
		if (c->pid)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(c->output, STDOUT_FILENO);
		dup2(c->output, STDERR_FILENO);
		exit(run_engine(prog, max_seconds, rig_engines[i], rows, n));
	}
	for (size_t i = 0; i < RIG_ENGINES; i++) {
		int code = finish_engine(&children[i]);

		if (code == EXIT_SKIP)
			skipped = code;
		else if (code)
			worst = code;
	}
	return worst ? worst : skipped;
}

#endif
