// SPDX-License-Identifier: BSD-2-Clause
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "env.h"
#include "side_by_side.h"

struct process {
	pid_t pid;
	int output;
};

static volatile sig_atomic_t told_to_end;

static void note_signal(int sig)
{
	told_to_end = sig;
}

static void start(struct process *p, int (*part)(size_t i), size_t i)
{
	fflush(NULL);
	p->output = memfd_create("output", MFD_CLOEXEC);
	p->pid = fork();
	if (p->pid < 0 || p->output < 0)
		err(1, "fork");
	if (p->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGTERM, SIG_DFL);
	dup2(p->output, STDOUT_FILENO);
	dup2(p->output, STDERR_FILENO);
	exit(part(i));
}

static void show(struct process *p)
{
	char buf[4096];
	off_t at = 0;
	ssize_t n;

	while ((n = pread(p->output, buf, sizeof(buf), at)) > 0) {
		at += n;
		if (write(STDOUT_FILENO, buf, (size_t)n) != n)
			break;
	}
	close(p->output);
	p->output = -1;
}

/* Its exit code; what it has said is repeated. */
static int finish(struct process *p)
{
	int status;
	pid_t pid;

	do {
		pid = waitpid(p->pid, &status, 0);
	} while (pid < 0 && errno == EINTR && !told_to_end);
	show(p);
	if (pid != p->pid)
		return 1;
	if (WIFSIGNALED(status))
		dprintf(STDOUT_FILENO, "FAIL: killed by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Out of time: what the others have said tells where they hang.  They end with this process. */
static void end_early(struct process *all, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (all[i].output >= 0)
			show(&all[i]);
	dprintf(STDOUT_FILENO, "FAIL: ended by signal %d\n", (int)told_to_end);
	exit(1);
}

int side_by_side(size_t n, int (*part)(size_t i))
{
	struct sigaction on_term = { .sa_handler = note_signal }; /* no SA_RESTART */
	struct process all[SIDE_BY_SIDE_MAX];
	bool at_once = env_slow() == 1;
	int code, failed = 0, skipped = 0;

	if (n > SIDE_BY_SIDE_MAX)
		errx(1, "bug in the test: too many parts");
	sigaction(SIGTERM, &on_term, NULL);
	for (size_t i = 0; at_once && i < n; i++)
		start(&all[i], part, i);
	for (size_t i = 0; i < n; i++) {
		if (!at_once)
			start(&all[i], part, i);
		code = finish(&all[i]);
		if (told_to_end)
			end_early(all, at_once ? n : i);
		if (code == EXIT_SKIP)
			skipped = code;
		else if (code)
			failed = code;
	}
	return failed ?: skipped;
}
