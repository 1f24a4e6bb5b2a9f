// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/routes.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(
	SYSCALL_IF(PART_GRAFT, sendto),
	SYSCALL_IF(PART_GRAFT, recvfrom));

#define SETTLE_MS 100

struct question {
	struct nlmsghdr head;
	struct rtmsg route;
	char attributes[96];
};

static void add(struct question *q, unsigned short type, const void *data, size_t len)
{
	struct rtattr *a = (struct rtattr *)((char *)q + q->head.nlmsg_len);

	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(len);
	memcpy(RTA_DATA(a), data, len);
	q->head.nlmsg_len += RTA_ALIGN(a->rta_len);
}

/* The interface that ANSWER names; 0: none. */
static unsigned int interface_of(struct nlmsghdr *answer, ssize_t len)
{
	struct rtattr *a = RTM_RTA(NLMSG_DATA(answer));
	int left = (int)RTM_PAYLOAD(answer);

	if (len < (ssize_t)sizeof(*answer) || !NLMSG_OK(answer, len) ||
	    answer->nlmsg_type != RTM_NEWROUTE)
		return 0;
	for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == RTA_OIF)
			return *(unsigned int *)RTA_DATA(a);
	return 0;
}

/* By which interface packets from LOCAL to REMOTE go out; 0: there is no route. */
static unsigned int look_up(const struct routes *r, const struct graft_side *s)
{
	unsigned char family = s->ipv6 ? AF_INET6 : AF_INET;
	size_t len = s->ipv6 ? sizeof(struct in6_addr) : sizeof(struct in_addr);
	size_t skip = sizeof(struct in6_addr) - len; /* of ::ffff:0:0/96 */
	struct question q = {
		.head = { .nlmsg_len = NLMSG_LENGTH(sizeof(q.route)), .nlmsg_type = RTM_GETROUTE,
			  .nlmsg_flags = NLM_F_REQUEST },
		.route = { .rtm_family = family, .rtm_dst_len = (unsigned char)(len * 8),
			   .rtm_src_len = (unsigned char)(len * 8) },
	};
	char answer[2048] __attribute__((aligned(8)));
	ssize_t n;

	add(&q, RTA_DST, (const char *)&s->tuple.remote + skip, len);
	add(&q, RTA_SRC, (const char *)&s->tuple.local + skip, len);
	add(&q, RTA_MARK, &s->mark, sizeof(s->mark));
	if (sendto(r->ask, &q, q.head.nlmsg_len, 0, NULL, 0) < 0)
		return s->ifindex; /* it cannot be known */
	n = recvfrom(r->ask, answer, sizeof(answer), 0, NULL, NULL);
	return n < 0 ? s->ifindex : interface_of((struct nlmsghdr *)answer, n);
}

static void on_due(struct timer *t)
{
	struct routes *r = container_of(t, struct routes, due);
	unsigned int moved = 0;

	grafts_follow_interfaces(r->grafts);
	for (uint32_t slot = 0; graft_next(r->grafts, &slot); slot++) {
		const volatile struct graft_entry *e = graft_of(r->grafts, slot);

		for (unsigned int side = 0; side < 2; side++) {
			struct graft_side s = *(const struct graft_side *)&e->side[side];
			unsigned int ifindex = look_up(r, &s);

			if (ifindex == s.ifindex)
				continue;
			graft_reroute(r->grafts, slot, side, ifindex);
			moved++;
		}
	}
	if (!moved)
		return;
	r->tell(r->arg);
	log_info("routes have changed: %u grafted connections go another way", moved);
}

static void on_news(struct source *source, uint32_t events)
{
	struct routes *r = container_of(source, struct routes, news);
	char buf[8192];

	(void)events;
	while (recvfrom(source->fd, buf, sizeof(buf), MSG_DONTWAIT, NULL, NULL) > 0 ||
	       errno == ENOBUFS) /* some were lost: it is all the same */
		errno = 0;
	timer_set(r->loop, &r->due, r->loop->now_ms + SETTLE_MS);
}

int routes_open(struct routes *r, struct loop *loop, struct grafts *gs, void (*tell)(void *arg),
		void *arg)
{
	struct sockaddr_nl all = { .nl_family = AF_NETLINK,
				   .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR |
						RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE |
						RTMGRP_IPV6_ROUTE | RTMGRP_TC };
	struct timeval patience = { .tv_sec = 1 };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

	*r = (struct routes){ .loop = loop, .grafts = gs, .due.fire = on_due, .tell = tell, .arg = arg,
			      .news = { .handle = on_news, .fd = fd } };
	r->ask = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0 || r->ask < 0 || bind(fd, (struct sockaddr *)&all, sizeof(all)) ||
	    setsockopt(r->ask, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)))
		return -errno;
	return loop_watch(loop, &r->news, EPOLLIN, true);
}

void routes_close(struct routes *r)
{
	if (!r->loop)
		return;
	if (r->news.fd >= 0)
		close(r->news.fd);
	if (r->ask >= 0)
		close(r->ask);
}
