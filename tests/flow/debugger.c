/* SPDX-License-Identifier: BSD-2-Clause */
#include "debugger.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hold.h"

#define BUFFER_MAX 65536
#define THREADS_MAX 64

struct thread {
	pid_t tid;
	bool attached; /* it has stopped once */
	unsigned long long nr; /* of the call that it has entered, */
	uintptr_t buffer;      /* and its second argument */
};

struct view {
	struct thread threads[THREADS_MAX];
	size_t n, n_attached;
	const char *text;
	int seen;
	bool told; /* the test: it begins now */
};

/* --- in the debugger's process --- */

static struct thread *find(struct view *v, pid_t tid)
{
	for (size_t i = 0; i < v->n; i++)
		if (v->threads[i].tid == tid)
			return &v->threads[i];
	return NULL;
}

static int attach(struct view *v, pid_t pid)
{
	pid_t tids[THREADS_MAX];

	v->n = hold_threads(pid, tids, THREADS_MAX);
	for (size_t i = 0; i < v->n; i++) {
		v->threads[i].tid = tids[i];
		if (ptrace(PTRACE_SEIZE, tids[i], 0L, (long)PTRACE_O_TRACESYSGOOD) ||
		    ptrace(PTRACE_INTERRUPT, tids[i], 0L, 0L))
			return -errno;
	}
	return v->n ? 0 : -ESRCH;
}

static void look(struct view *v, const struct thread *t, long long len)
{
	static char bytes[BUFFER_MAX];
	/* NOLINTNEXTLINE(performance-no-int-to-ptr): a register of another process */
	struct iovec from = { (void *)t->buffer, (size_t)len };
	struct iovec to = { bytes, sizeof(bytes) };
	ssize_t n;

	if (!v->text || len <= 0 || (t->nr != SYS_recvfrom && t->nr != SYS_read))
		return;
	n = process_vm_readv(t->tid, &to, 1, &from, 1, 0);
	if (n > 0 && memmem(bytes, (size_t)n, v->text, strlen(v->text)))
		(void)!write(v->seen, "s", 1);
}

static bool waits(unsigned long long nr)
{
#ifdef SYS_epoll_wait
	if (nr == SYS_epoll_wait)
		return true;
#endif
	return nr == SYS_epoll_pwait;
}

static void at_call(struct view *v, struct thread *t)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, t->tid, sizeof(info), &info) <= 0)
		return;
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
		t->nr = info.entry.nr;
		t->buffer = (uintptr_t)info.entry.args[1];
		if (!v->text && v->told && !waits(t->nr))
			(void)!write(v->seen, "c", 1);
	} else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
		look(v, t, info.exit.rval);
	}
}

/* A thread has stopped: let it go on to its next call, with the signal that it has got, if any. */
static void step(struct view *v, pid_t tid, int status)
{
	struct thread *t = find(v, tid);
	long sig = 0;

	if (!t || !WIFSTOPPED(status))
		return;
	if (WSTOPSIG(status) == (SIGTRAP | 0x80))
		at_call(v, t);
	else if (status >> 16 != PTRACE_EVENT_STOP)
		sig = WSTOPSIG(status);
	ptrace(PTRACE_SYSCALL, tid, 0L, sig);
	v->n_attached += !t->attached;
	t->attached = true;
}

/* All threads have stopped once, and so are attached to, before the test is told. */
static void debug(pid_t pid, const char *text, int seen)
{
	struct view v = { .text = text, .seen = seen };
	int r = attach(&v, pid), status;
	pid_t tid;

	if (r) {
		dprintf(seen, "%d\n", r);
		_exit(1);
	}
	while ((tid = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
		if (tid > 0)
			step(&v, tid, status);
		if (!v.told && v.n_attached == v.n)
			v.told = dprintf(seen, "0\n") > 0;
	}
	_exit(0);
}

/* --- in the test's --- */

int debugger_start(pid_t pid, const char *text, struct debugger *ret)
{
	char line[32] = "";
	int fds[2];
	ssize_t n;

	if (pipe2(fds, O_CLOEXEC))
		return -errno;
	ret->pid = fork();
	if (ret->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		debug(pid, text, fds[1]);
	}
	close(fds[1]);
	ret->seen = fds[0];
	n = ret->pid < 0 ? -1 : read(fds[0], line, sizeof(line) - 1);
	if (n > 0 && line[0] == '0')
		return 0;
	if (ret->pid > 0)
		debugger_stop(ret);
	else
		close(fds[0]);
	return n > 0 ? atoi(line) : -EIO;
}

unsigned int debugger_calls(struct debugger *d)
{
	struct pollfd p = { .fd = d->seen, .events = POLLIN };
	unsigned int calls = 0;
	char bytes[256];
	ssize_t n;

	while (poll(&p, 1, 0) == 1 && (n = read(d->seen, bytes, sizeof(bytes))) > 0)
		calls += (unsigned int)n;
	return calls;
}

bool debugger_has_seen(struct debugger *d)
{
	return debugger_calls(d) > 0;
}

void debugger_stop(struct debugger *d)
{
	kill(d->pid, SIGKILL); /* the kernel detaches what it was attached to */
	waitpid(d->pid, NULL, 0);
	close(d->seen);
}
