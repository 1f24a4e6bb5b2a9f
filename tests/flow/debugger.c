/* SPDX-License-Identifier: BSD-2-Clause */
#include "debugger.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "env.h"
#include "hold.h"

#define THREADS_MAX 64
#define PATIENCE_MS 10000

static bool is_traced(pid_t tid)
{
	char path[64], line[128];
	int tracer = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f) && sscanf(line, "TracerPid: %d", &tracer) != 1)
		;
	if (f)
		fclose(f);
	return tracer > 0;
}

static bool all_are_traced(pid_t pid)
{
	pid_t tids[THREADS_MAX];
	size_t n = hold_threads(pid, tids, THREADS_MAX);

	while (n && is_traced(tids[n - 1]))
		n--;
	return n == 0;
}

int debugger_start(pid_t pid, const char *text, struct debugger *ret)
{
	const char *calls = text ? "trace=recvfrom,read" : "trace=!epoll_wait,epoll_pwait";
	int64_t deadline = now_ms() + PATIENCE_MS;
	char path[128], number[16];

	snprintf(path, sizeof(path), "%s/strace", env_dir());
	snprintf(number, sizeof(number), "%d", (int)pid);
	unlink(path);
	ret->text = text;
	ret->pid = fork();
	if (ret->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execlp("strace", "strace", "-f", "-qq", "-s", "65536", "-e", calls, "-o", path,
		       "-p", number, NULL);
		_exit(127);
	}
	while (!all_are_traced(pid)) {
		if (ret->pid < 0 || waitpid(ret->pid, NULL, WNOHANG) || now_ms() > deadline)
			return -EIO;
		poll(NULL, 0, 5);
	}
	ret->out = fopen(path, "re");
	return ret->out ? 0 : -errno;
}

unsigned int debugger_calls(struct debugger *d)
{
	unsigned int calls = 0;
	char *line = NULL;
	size_t size = 0;

	/* a call is written in parts, as it begins and as it ends */
	while (getline(&line, &size, d->out) > 0)
		calls += d->text ? strstr(line, d->text) != NULL :
				   strchr(line, '\n') && !strstr(line, "<unfinished ");
	clearerr(d->out);
	free(line);
	return calls;
}

void debugger_stop(struct debugger *d)
{
	kill(d->pid, SIGTERM); /* it detaches */
	waitpid(d->pid, NULL, 0);
	fclose(d->out);
}
