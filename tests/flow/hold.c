// SPDX-License-Identifier: BSD-2-Clause
#include "hold.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "env.h"

#define THREADS_MAX 64
#define SYSCALL_STOP (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD */

size_t hold_threads(pid_t pid, pid_t *tids, size_t most)
{
	struct dirent *e;
	char path[64];
	size_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	while (dir && n < most && (e = readdir(dir)))
		if ((tids[n] = (pid_t)strtol(e->d_name, NULL, 10)) > 0)
			n++;
	if (dir)
		closedir(dir);
	return n;
}

pid_t hold_find(pid_t pid, long nr)
{
	pid_t tids[THREADS_MAX], found = 0;
	size_t n = hold_threads(pid, tids, THREADS_MAX);
	char path[64], text[32];
	FILE *f;

	for (size_t i = 0; i < n && !found; i++) {
		snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)pid, (int)tids[i]);
		f = fopen(path, "re");
		if (f && fgets(text, sizeof(text), f) && strtol(text, NULL, 10) == nr)
			found = tids[i];
		if (f)
			fclose(f);
	}
	return found;
}

int hold_begin(pid_t pid)
{
	int status;

	if (ptrace(PTRACE_SEIZE, pid, 0L, (long)PTRACE_O_TRACESYSGOOD) ||
	    ptrace(PTRACE_INTERRUPT, pid, NULL, NULL))
		return -errno;
	if (waitpid(pid, &status, __WALL) != pid)
		return -errno;
	return WIFSTOPPED(status) ? 0 : -ESRCH;
}

static bool is_before(pid_t pid, int status, long nr)
{
	struct __ptrace_syscall_info info;

	return WSTOPSIG(status) == SYSCALL_STOP &&
	       ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) > 0 &&
	       info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == (unsigned long)nr;
}

/* What has stopped it may be a signal, which it then gets. */
static int go_on(pid_t pid, int status)
{
	bool is_signal = WSTOPSIG(status) != SYSCALL_STOP && !(status >> 16);
	long sig = is_signal ? WSTOPSIG(status) : 0;

	return ptrace(PTRACE_SYSCALL, pid, NULL, sig) ? -errno : 0;
}

int hold_before(pid_t pid, long nr, int timeout_ms)
{
	int64_t deadline = now_ms() + timeout_ms;
	int status, r = ptrace(PTRACE_SYSCALL, pid, NULL, NULL) ? -errno : 0;

	while (!r) {
		pid_t stopped = waitpid(pid, &status, __WALL | WNOHANG);

		if (stopped < 0)
			return -errno;
		if (stopped == 0) {
			if (now_ms() >= deadline)
				return -ETIMEDOUT;
			poll(NULL, 0, 1);
			continue;
		}
		if (!WIFSTOPPED(status))
			return -ESRCH;
		if (is_before(pid, status, nr))
			return 0;
		r = go_on(pid, status);
	}
	return r;
}

void hold_end(pid_t pid)
{
	ptrace(PTRACE_DETACH, pid, NULL, NULL);
}
