// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/route.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_GRAFT, sendto), SYSCALL_IF(PART_GRAFT, recvmsg),
	SYSCALL_IF(PART_GRAFT, socket, SYSCALL_ARG(0, AF_NETLINK)),
	SETSOCKOPT_IF(PART_GRAFT, SOL_SOCKET, SO_RCVTIMEO), SYSCALL_IF(PART_GRAFT, close),
	SYSCALL_IF(PART_GRAFT, ioctl, SYSCALL_ARG(1, SIOCGIFNAME)),
	SYSCALL_IF(PART_GRAFT, ioctl, SYSCALL_ARG(1, SIOCGIFMTU)));

#define PATIENCE_MS 100 /* the kernel answers at once */

int routes_open(struct routes *r)
{
	const struct timeval patience = { .tv_usec = PATIENCE_MS * 1000 };

	memset(r, 0, sizeof(*r));
	r->nl = mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC);
	if (!r->nl)
		return -errno;
	setsockopt(mnl_socket_get_fd(r->nl), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return 0;
}

void routes_close(struct routes *r)
{
	if (r->nl)
		mnl_socket_close(r->nl);
}

void routes_forget(struct routes *r)
{
	memset(r->known, 0, sizeof(r->known));
}

/* Put the answer in the place of the question Q.  -errno: there is no route, or no answer. */
static int ask(struct routes *r, struct nlmsghdr *q, size_t size)
{
	const struct nlmsgerr *error = mnl_nlmsg_get_payload(q);
	uint32_t count = q->nlmsg_seq = ++r->count;
	ssize_t n;

	if (mnl_socket_sendto(r->nl, q, q->nlmsg_len) < 0)
		return -EIO;
	do { /* a late answer to an earlier question may come first */
		n = mnl_socket_recvfrom(r->nl, q, size);
	} while (n > 0 && q->nlmsg_seq != count);
	if (n <= 0 || !mnl_nlmsg_ok(q, (int)n))
		return -EIO;
	if (q->nlmsg_type == RTM_NEWROUTE)
		return 0;
	return q->nlmsg_type == NLMSG_ERROR && error->error ? error->error : -EIO;
}

static uint32_t mtu_of_link(struct routes *r, uint32_t ifindex)
{
	struct ifreq q = { .ifr_ifindex = (int)ifindex };
	int fd = mnl_socket_get_fd(r->nl);

	return ioctl(fd, SIOCGIFNAME, &q) || ioctl(fd, SIOCGIFMTU, &q) ? 0 : (uint32_t)q.ifr_mtu;
}

static void put_addr(struct nlmsghdr *q, uint16_t type, const struct graft_addr *a)
{
	bool ipv6 = graft_addr_is_ipv6(a);

	mnl_attr_put(q, type, ipv6 ? 16 : 4, &a->w[ipv6 ? 0 : 3]);
}

static struct route look_up(struct routes *rs, const struct known_route *of)
{
	bool ipv6 = graft_addr_is_ipv6(&of->to);
	char buf[4096];
	struct nlmsghdr *q = mnl_nlmsg_put_header(buf);
	struct rtmsg *m = mnl_nlmsg_put_extra_header(q, sizeof(*m));
	const struct nlattr *a, *metric;
	struct route is = { .local = false };
	int r;

	q->nlmsg_type = RTM_GETROUTE;
	q->nlmsg_flags = NLM_F_REQUEST;
	m->rtm_family = ipv6 ? AF_INET6 : AF_INET;
	m->rtm_dst_len = ipv6 ? 128 : 32;
	put_addr(q, RTA_DST, &of->to);
	if (of->from.w[0] | of->from.w[3]) {
		m->rtm_src_len = m->rtm_dst_len;
		put_addr(q, RTA_SRC, &of->from);
	}
	if (of->mark)
		mnl_attr_put_u32(q, RTA_MARK, of->mark);
	r = ask(rs, q, sizeof(buf));
	/* routes "unreachable", "blackhole", "prohibit"; without a route: ENETUNREACH */
	is.refused = r == -EHOSTUNREACH || r == -EINVAL || r == -EACCES;
	if (r)
		return is;
	is.local = m->rtm_type == RTN_LOCAL;
	mnl_attr_for_each(a, q, sizeof(*m)) {
		if (mnl_attr_get_type(a) == RTA_OIF && (is.local || m->rtm_type == RTN_UNICAST))
			is.ifindex = mnl_attr_get_u32(a);
		if (mnl_attr_get_type(a) != RTA_METRICS)
			continue;
		mnl_attr_for_each_nested(metric, a)
			if (mnl_attr_get_type(metric) == RTAX_MTU)
				is.mtu = mnl_attr_get_u32(metric);
	}
	if (is.ifindex && !is.mtu)
		is.mtu = mtu_of_link(rs, is.ifindex);
	return is;
}

struct route routes_ask(struct routes *r, const struct graft_addr *to,
			const struct graft_addr *from, uint32_t mark)
{
	struct known_route of = { .to = *to, .mark = mark }, *k;
	uint32_t hash = to->w[0] ^ to->w[1] ^ to->w[2] ^ to->w[3] ^ mark;

	if (from)
		of.from = *from;
	k = &r->known[(hash ^ of.from.w[3]) * 0x9e3779b1 >> 24];
	if (memcmp(k, &of, offsetof(struct known_route, is)) != 0 ||
	    (!k->is.local && !k->is.ifindex)) {
		of.is = look_up(r, &of);
		*k = of;
	}
	return k->is;
}

bool route_is_refused(const struct graft_addr *to, uint32_t mark)
{
	struct routes r;
	struct known_route of = { .to = *to, .mark = mark };
	bool refused = !routes_open(&r) && look_up(&r, &of).refused;

	routes_close(&r);
	return refused;
}
