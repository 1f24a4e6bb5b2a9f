/* SPDX-License-Identifier: BSD-2-Clause */
#include <err.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "env.h"
#include "netlab.h"

static int namespaces[MACHINES];

static int open_own(void)
{
	return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
}

/* A new one, with its "lo" up; -1: none is to be had. */
static int open_new(void)
{
	int own = open_own(), fd = -1;

	if (own >= 0 && !unshare(CLONE_NEWNET))
		fd = open_own();
	if (own < 0 || setns(own, CLONE_NEWNET))
		return -1;
	close(own);
	return fd;
}

void netlab_enter(enum machine m)
{
	if (setns(namespaces[m], CLONE_NEWNET))
		err(1, "setns");
}

int netlab_run(enum machine m, const char *command)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		if (setns(namespaces[m], CLONE_NEWNET))
			_exit(126);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

static void skip_all(const char *prog, const char *why)
{
	printf("%s: skip: %s\n", prog, why);
	exit(EXIT_SKIP);
}

static const struct {
	enum machine m;
	const char *command;
} set_up[] = {
	{ GATEWAY, "ip addr add 10.77.1.2/24 dev c && ip addr add 10.77.2.2/24 dev s && "
		   "ip addr add fd77:1::2/64 dev c nodad && ip addr add fd77:2::2/64 dev s nodad" },
	{ CLIENT_MACHINE, "ip link set lo up && ip link set g up && "
			  "ip addr add 10.77.1.1/24 dev g && "
			  "ip addr add fd77:1::1/64 dev g nodad && "
			  "ip route add default via 10.77.1.2 && "
			  "ip route add default via fd77:1::2" },
	{ SERVER_MACHINE, "ip link set lo up && ip link set g up && "
			  "ip addr add 10.77.2.1/24 dev g && "
			  "ip addr add fd77:2::1/64 dev g nodad && "
			  "ip route add default via 10.77.2.2 && "
			  "ip route add default via fd77:2::2" },
};

/* DEVICE here is a cable to "g" there. */
static int lay_cable(enum machine m, const char *device)
{
	char command[128];

	/* a namespace is named by a process in it, or by a descriptor of this one */
	snprintf(command, sizeof(command),
		 "ip link add %s type veth peer name g netns /proc/%d/fd/%d && ip link set %s up",
		 device, (int)getpid(), namespaces[m], device);
	return netlab_run(GATEWAY, command);
}

void netlab_up(const char *prog)
{
	namespaces[GATEWAY] = open_own();
	namespaces[CLIENT_MACHINE] = open_new();
	namespaces[SERVER_MACHINE] = open_new();
	for (int i = 0; i < MACHINES; i++)
		if (namespaces[i] < 0)
			skip_all(prog, "no network namespaces");
	if (netlab_run(GATEWAY, "ip -V >/dev/null"))
		skip_all(prog, "no ip (package iproute2)");
	/* the end of DAD changes routes; a lookup meanwhile may find none (seen on 6.18) */
	for (int i = 0; i < MACHINES; i++)
		if (netlab_run(i, "cd /proc/sys/net/ipv6/conf && echo 0 >all/accept_dad && "
				  "echo 0 >default/accept_dad"))
			skip_all(prog, "no IPv6");
	if (lay_cable(CLIENT_MACHINE, "c") || lay_cable(SERVER_MACHINE, "s"))
		skip_all(prog, "no veth devices");
	for (size_t i = 0; i < sizeof(set_up) / sizeof(set_up[0]); i++)
		if (netlab_run(set_up[i].m, set_up[i].command))
			skip_all(prog, "addresses cannot be set");
}
