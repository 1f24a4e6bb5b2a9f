// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation.  Filters outlive the process that attaches them.  Their handle tells those of one
 * daemon from all others.  So the next daemon puts its programs in place of the old ones, and `culvert
 * graft --remove` leaves none.  The qdisc stays: somebody else may be about to use it.
 *
 * The privileged process believes the daemon nothing but a number of an interface and the kind of
 * its frames.  Whatever these are, they can only lead to our own programs at some interface, or to
 * none of our filters anywhere.
 */
#include "datapath/graft_clsact.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"
#include "graft_contract.h"

/* netlink; libbpf asks the kernel for a filter with the calls that graft_attach.c lists */
SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_GRAFT, sendto),
	SYSCALL_IF(PART_GRAFT, recvfrom),
	SYSCALL_IF(PART_GRAFT, close));

/* Not what others pick by default. */
#define PRIORITY 7

static const enum bpf_tc_attach_point points[HOOKS] = { BPF_TC_INGRESS, BPF_TC_EGRESS };

bool clsact_has_others(unsigned int ifindex)
{
	const struct {
		struct nlmsghdr head;
		struct tcmsg tc;
	} q = {
		.head = { .nlmsg_len = sizeof(q), .nlmsg_type = RTM_GETTFILTER,
			  .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.tc = { .tcm_ifindex = (int)ifindex,
			.tcm_parent = TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS) },
	};
	struct nlmsghdr answer[2048];
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	bool found = fd < 0 || sendto(fd, &q, sizeof(q), 0, NULL, 0) != sizeof(q), done = found;

	while (!done) {
		ssize_t n = recvfrom(fd, answer, sizeof(answer), 0, NULL, NULL);
		unsigned int len = (unsigned int)n;

		done = n <= 0;
		found = found || done;
		for (struct nlmsghdr *h = answer; !done && NLMSG_OK(h, len); h = NLMSG_NEXT(h, len)) {
			const struct tcmsg *tc = NLMSG_DATA(h);

			done = h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR;
			found = found || (h->nlmsg_type == RTM_NEWTFILTER &&
					  TC_H_MAJ(tc->tcm_info) >> 16 != PRIORITY);
		}
	}
	if (fd >= 0)
		close(fd);
	return found;
}

/* Remove our filters from IFINDEX, if there are any. */
static int release(const struct clsact *c, unsigned int ifindex)
{
	int r = 0;

	for (int hook = 0; hook < HOOKS; hook++) {
		LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = points[hook]);
		LIBBPF_OPTS(bpf_tc_opts, opts, .handle = c->handle, .priority = PRIORITY);

		if (bpf_tc_detach(&at, &opts) == -EPERM) /* else there is none */
			r = -EPERM;
	}
	return r;
}

static int attach(const struct clsact *c, unsigned int ifindex, const int programs[HOOKS])
{
	LIBBPF_OPTS(bpf_tc_hook, both, .ifindex = (int)ifindex,
		    .attach_point = BPF_TC_INGRESS | BPF_TC_EGRESS);
	int r = bpf_tc_hook_create(&both);

	r = r == -EEXIST ? 0 : r;
	for (int hook = 0; !r && hook < HOOKS; hook++) {
		LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = points[hook]);
		LIBBPF_OPTS(bpf_tc_opts, opts, .prog_fd = programs[hook], .handle = c->handle,
			    .priority = PRIORITY, .flags = BPF_TC_F_REPLACE);

		r = bpf_tc_attach(&at, &opts);
	}
	if (r)
		release(c, ifindex);
	return r;
}

static int remove_all(const struct clsact *c)
{
	struct if_nameindex *all = if_nameindex();
	int r = all ? 0 : -errno;

	for (const struct if_nameindex *i = all; i && i->if_index; i++)
		r = release(c, i->if_index) ?: r;
	if (all)
		if_freenameindex(all);
	return r;
}

int clsact_do(const struct clsact *c, unsigned int ifindex, bool ethernet)
{
	return ifindex ? attach(c, ifindex, c->programs[ethernet]) : remove_all(c);
}

/* --- with CAP_NET_ADMIN, or who asks for it --- */

int clsact_attach(struct clsact *c, unsigned int ifindex, bool ethernet)
{
	return c->ask ? c->ask(c->arg, ifindex, ethernet) : clsact_do(c, ifindex, ethernet);
}

int clsact_remove_all(struct clsact *c)
{
	return clsact_attach(c, 0, false);
}

bool clsact_is_lost(const struct clsact *c, unsigned int ifindex)
{
	bool lost = false;

	for (int hook = 0; hook < HOOKS; hook++) {
		LIBBPF_OPTS(bpf_tc_hook, at, .ifindex = (int)ifindex, .attach_point = points[hook]);
		LIBBPF_OPTS(bpf_tc_opts, opts, .handle = c->handle, .priority = PRIORITY);
		int r = bpf_tc_query(&at, &opts);

		lost = lost || r == -ENOENT || r == -EINVAL; /* no filter; no qdisc */
	}
	return lost;
}
