// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: as the privileged process (privileged.c), but of one purpose, and with one
 * capability.  It has stderr, one end of a pair of sockets and the four packet programs, and runs
 * clsact_keep().
 */
#include "daemon/filter_keeper.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/sandbox.h"
#include "base/syscalls_allowed.h"
#include "daemon/syscall_filter.h"

#define PATIENCE_S 5
#define DESCRIPTORS 32 /* RLIMIT_NOFILE */

static const struct syscall_need needed[] = {
	/* the pair, netlink */
	SYSCALL(recvfrom), SYSCALL(sendto), SYSCALL(recvmsg), SYSCALL(close),
	SYSCALL(socket, SYSCALL_ARG(0, AF_NETLINK), SYSCALL_ARG(2, NETLINK_ROUTE)),
	SYSCALL(bind), SYSCALL(getsockname),
	SETSOCKOPT(SOL_NETLINK, NETLINK_EXT_ACK),
	BPF_IF(0, BPF_OBJ_GET_INFO_BY_FD), /* names of programs */
	/* stderr */
	SYSCALL(write), SYSCALL(poll), SYSCALL(ppoll),
	{ .call = SYSCALLS_END },
};

/* Programs get other numbers in C. */
static int confine(struct clsact *c, int fd, enum filter_mode seccomp, char *err, size_t errlen)
{
	int kept[] = { fd, c->programs[0][HOOK_IN], c->programs[0][HOOK_OUT], c->programs[1][HOOK_IN],
		       c->programs[1][HOOK_OUT] };
	int r = sandbox_child("culvert-filters", kept, sizeof(kept) / sizeof(kept[0]), DESCRIPTORS,
			      err, errlen);
	int at = SANDBOX_CHILD_FD + 1;

	for (int ethernet = 0; ethernet < 2; ethernet++)
		for (int hook = 0; hook < HOOKS; hook++)
			c->programs[ethernet][hook] = at++;
	r = r ?: sandbox_enter(NULL, 1U << CAP_NET_ADMIN, err, errlen);
	return r ?: syscall_filter_enter(seccomp, needed, 0, err, errlen);
}

static _Noreturn void run(struct clsact c, int fd, enum filter_mode seccomp)
{
	char err[512];

	if (confine(&c, fd, seccomp, err, sizeof(err))) {
		log_error("the filter keeper: %s", err);
		_exit(1);
	}
	if (send(SANDBOX_CHILD_FD, "r", 1, MSG_NOSIGNAL) == 1)
		clsact_keep(&c, SANDBOX_CHILD_FD);
	_exit(0);
}

int keeper_start(struct clsact *c, enum filter_mode seccomp)
{
	char ready;
	pid_t pid;
	int fd = sandbox_fork("the filter keeper", PATIENCE_S, &pid);

	if (fd < 0)
		return fd;
	if (!pid)
		run(*c, fd, seccomp);
	if (recv(fd, &ready, sizeof(ready), 0) != sizeof(ready)) {
		close(fd);
		return log_complain(-EPIPE, "the filter keeper does not start");
	}
	log_info("the filter keeper is %d", (int)pid);
	c->keeper = fd;
	return 0;
}
