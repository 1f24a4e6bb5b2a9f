// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/route.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL_IF(PART_GRAFT, sendto), SYSCALL_IF(PART_GRAFT, recvfrom));

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
union message {
	struct nlmsghdr h;
	char bytes[4096];
};

static void begin(union message *q, uint16_t type, const void *head, size_t len)
{
	memset(q, 0, 256);
	q->h.nlmsg_type = type;
	q->h.nlmsg_flags = NLM_F_REQUEST;
	q->h.nlmsg_len = (uint32_t)NLMSG_LENGTH(len);
	memcpy(NLMSG_DATA(&q->h), head, len);
}

static void add(union message *q, uint16_t type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)(q->bytes + q->h.nlmsg_len);

	a->rta_type = type;
	a->rta_len = (uint16_t)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	q->h.nlmsg_len += RTA_ALIGN(a->rta_len);
}

/* False: there is no answer of TYPE. */
static bool ask(struct routes *r, union message *q, uint16_t type)
{
	ssize_t n;

	q->h.nlmsg_seq = ++r->count;
	if (send(r->fd, q, q->h.nlmsg_len, 0) < 0)
		return false;
	do {
		n = recv(r->fd, q, sizeof(*q), 0);
		if (n < (ssize_t)sizeof(q->h))
			return false;
	} while (q->h.nlmsg_seq != r->count); /* of one that was not waited for */
	return q->h.nlmsg_type == type && q->h.nlmsg_len <= (size_t)n;
}

/* The number that attribute TYPE of the LEFT bytes at A is; 0: there is none. */
static uint32_t number_of(const struct rtattr *a, int left, uint16_t type, uint16_t inner)
{
	uint32_t n = 0;

	for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (a->rta_type != type)
			continue;
		if (inner)
			return number_of(RTA_DATA(a), (int)RTA_PAYLOAD(a), inner, 0);
		memcpy(&n, RTA_DATA(a), sizeof(n));
	}
	return n;
}

static uint32_t mtu_of_link(struct routes *r, uint32_t ifindex)
{
	const struct ifinfomsg link = { .ifi_index = (int)ifindex };
	const uint32_t no_counters = RTEXT_FILTER_SKIP_STATS;
	union message m;

	begin(&m, RTM_GETLINK, &link, sizeof(link));
	add(&m, IFLA_EXT_MASK, &no_counters, sizeof(no_counters));
	if (!ask(r, &m, RTM_NEWLINK))
		return 0;
	return number_of(IFLA_RTA(NLMSG_DATA(&m.h)), (int)IFLA_PAYLOAD(&m.h), IFLA_MTU, 0);
}

static struct route look_up(struct routes *r, const struct graft_addr *to, uint32_t mark)
{
	bool ipv6 = to->w[0] || to->w[1] || to->w[2] != htonl(0xffff);
	const struct rtmsg whole = { .rtm_family = ipv6 ? AF_INET6 : AF_INET,
				     .rtm_dst_len = ipv6 ? 128 : 32 };
	struct route is = { .local = false };
	const struct rtmsg *answer;
	union message m;

	begin(&m, RTM_GETROUTE, &whole, sizeof(whole));
	add(&m, RTA_DST, ipv6 ? &to->w[0] : &to->w[3], ipv6 ? 16 : 4);
	if (mark)
		add(&m, RTA_MARK, &mark, sizeof(mark));
	if (!ask(r, &m, RTM_NEWROUTE))
		return is;
	answer = NLMSG_DATA(&m.h);
	is.local = answer->rtm_type == RTN_LOCAL;
	if (!is.local && answer->rtm_type != RTN_UNICAST)
		return is;
	is.ifindex = number_of(RTM_RTA(answer), (int)RTM_PAYLOAD(&m.h), RTA_OIF, 0);
	is.mtu = number_of(RTM_RTA(answer), (int)RTM_PAYLOAD(&m.h), RTA_METRICS, RTAX_MTU);
	if (!is.mtu)
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
