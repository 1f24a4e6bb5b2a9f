// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "hold.h"
#include "takeover.h"

#ifdef __x86_64__
const char *takeover_hindrance(void)
{
	return NULL;
}

static int to_next_stop(pid_t pid)
{
	int status;

	if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) || waitpid(pid, &status, __WALL) != pid)
		return -errno;
	return WIFSTOPPED(status) ? 0 : -ESRCH;
}

static void set_call(struct user_regs_struct *regs, long nr, const long args[6])
{
	regs->rip -= 2;
	regs->rax = (unsigned long long)nr;
	regs->orig_rax = (unsigned long long)-1; /* no restart of the old one */
	regs->rdi = (unsigned long long)args[0];
	regs->rsi = (unsigned long long)args[1];
	regs->rdx = (unsigned long long)args[2];
	regs->r10 = (unsigned long long)args[3];
	regs->r8 = (unsigned long long)args[4];
	regs->r9 = (unsigned long long)args[5];
}

static int call_stopped(pid_t pid, long nr, const long args[6], long *ret)
{
	struct user_regs_struct saved, regs;
	int r;

	if (ptrace(PTRACE_GETREGS, pid, NULL, &saved))
		return -errno;
	if ((long)saved.orig_rax < 0)
		return -EAGAIN; /* it is not in a system call, so there is no instruction for one */
	regs = saved;
	set_call(&regs, nr, args);
	if (ptrace(PTRACE_SETREGS, pid, NULL, &regs))
		return -errno;
	r = to_next_stop(pid);      /* before it */
	r = r ?: to_next_stop(pid); /* after it */
	if (r)
		return r;
	if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) || ptrace(PTRACE_SETREGS, pid, NULL, &saved))
		return -errno;
	*ret = (long)regs.rax;
	return 0;
}

int takeover_call(pid_t pid, long nr, const long args[6], long *ret)
{
	int r;

	do {
		r = hold_begin(pid) ?: call_stopped(pid, nr, args, ret);
		hold_end(pid);
	} while (r == -EAGAIN && !poll(NULL, 0, 1));
	return r;
}
#else
const char *takeover_hindrance(void)
{
	return "the registers of this architecture are not known here";
}

int takeover_call(pid_t pid, long nr, const long args[6], long *ret)
{
	(void)pid;
	(void)nr;
	(void)args;
	(void)ret;
	return -ENOTSUP;
}
#endif
