// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/route.h"

#include <errno.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_GRAFT, sendto), SYSCALL_IF(PART_GRAFT, recvfrom),
	SYSCALL_IF(PART_GRAFT, ioctl, SYSCALL_ARG(1, SIOCGIFNAME)),
	SYSCALL_IF(PART_GRAFT, ioctl, SYSCALL_ARG(1, SIOCGIFMTU)));

#define PATIENCE_MS 100 /* the kernel answers at once */

int routes_open(struct routes *r)
{
	const struct timeval patience = { .tv_usec = PATIENCE_MS * 1000 };

	memset(r, 0, sizeof(*r));
	r->fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (r->fd < 0)
		return -errno;
	setsockopt(r->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return 0;
}

void routes_forget(struct routes *r)
{
	memset(r->known, 0, sizeof(r->known));
}

/* A question, and the answer in its place. */
struct message {
	struct nlmsghdr h;
	struct rtmsg m;
	char attributes[4096];
};

static void add(struct message *q, uint16_t type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)q + q->h.nlmsg_len);

	a->rta_type = type;
	a->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	q->h.nlmsg_len += RTA_ALIGN(a->rta_len);
}

/* False: there is no route, or no answer. */
static bool ask(struct routes *r, struct message *q)
{
	uint32_t count = q->h.nlmsg_seq = ++r->count;
	ssize_t n;

	if (send(r->fd, q, q->h.nlmsg_len, 0) < 0)
		return false;
	do { /* one that was not waited for may come first */
		n = recv(r->fd, q, sizeof(*q), 0);
	} while (n >= (ssize_t)sizeof(q->h) && q->h.nlmsg_seq != count);
	return n >= (ssize_t)sizeof(q->h) && q->h.nlmsg_type == RTM_NEWROUTE;
}

/* What the attribute of TYPE, of those behind AT, has; NULL: there is none. */
static const void *find(const void *at, size_t len, uint16_t type, size_t *ret_len)
{
	int left = (int)len;

	for (const struct rtattr *a = at; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == type) {
			*ret_len = RTA_PAYLOAD(a);
			return RTA_DATA(a);
		}
	*ret_len = 0;
	return NULL;
}

static uint32_t mtu_of_link(struct routes *r, uint32_t ifindex)
{
	struct ifreq q = { .ifr_ifindex = (int)ifindex };

	return ioctl(r->fd, SIOCGIFNAME, &q) || ioctl(r->fd, SIOCGIFMTU, &q) ? 0 :
									       (uint32_t)q.ifr_mtu;
}

static struct route look_up(struct routes *r, const struct graft_addr *to, uint32_t mark)
{
	bool ipv6 = graft_addr_is_ipv6(to);
	struct message q = { .h = { .nlmsg_len = NLMSG_LENGTH(sizeof(q.m)),
				    .nlmsg_type = RTM_GETROUTE,
				    .nlmsg_flags = NLM_F_REQUEST },
			     .m = { .rtm_family = ipv6 ? AF_INET6 : AF_INET,
				    .rtm_dst_len = ipv6 ? 128 : 32 } };
	struct route is = { .local = false };
	const void *found, *metrics;
	size_t len, left;

	add(&q, RTA_DST, ipv6 ? &to->w[0] : &to->w[3], ipv6 ? 16 : 4);
	if (mark)
		add(&q, RTA_MARK, &mark, sizeof(mark));
	if (!ask(r, &q))
		return is;
	left = RTM_PAYLOAD(&q.h);
	is.local = q.m.rtm_type == RTN_LOCAL;
	found = find(q.attributes, left, RTA_OIF, &len);
	if (found && (is.local || q.m.rtm_type == RTN_UNICAST))
		memcpy(&is.ifindex, found, sizeof(is.ifindex));
	metrics = find(q.attributes, left, RTA_METRICS, &len);
	found = find(metrics, len, RTAX_MTU, &len);
	if (found)
		memcpy(&is.mtu, found, sizeof(is.mtu));
	else if (is.ifindex)
		is.mtu = mtu_of_link(r, is.ifindex);
	return is;
}

struct route routes_ask(struct routes *r, const struct graft_addr *to, uint32_t mark)
{
	uint32_t hash = (to->w[0] ^ to->w[1] ^ to->w[2] ^ to->w[3] ^ mark) * 0x9e3779b1;
	struct known_route *k = &r->known[hash >> 24];

	if (k->mark != mark || memcmp(&k->to, to, sizeof(*to)) != 0 ||
	    (!k->is.local && !k->is.ifindex))
		*k = (struct known_route){ *to, mark, look_up(r, to, mark) };
	return k->is;
}
