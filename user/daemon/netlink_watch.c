// SPDX-License-Identifier: BSD-2-Clause
#include "daemon/netlink_watch.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(SYSCALL_IF(PART_GRAFT, recvfrom));

#define LOOK_MS 500
#define SETTLE_MS 100               /* after news, which come in groups */
#define ASK_MS 1000                 /* between two rounds of questions to sockets */
#define JUDGE_MS (ASK_MS + LOOK_MS) /* then workers decide about routes still in doubt */

static void on_look(struct timer *t)
{
	struct netlink_watch *r = container_of(t, struct netlink_watch, look);
	struct graft_table *gs = r->standby->grafts;
	enum graft_change change = graft_table_find_changes(gs);
	uint64_t ago = r->loop->now_ms - r->asked_ms;
	/* a socket's probe was not seen if its interface had no program: ask again at once */
	bool changed = (graft_table_miss_programs(gs) || r->news) &&
		       graft_table_follow_interfaces(gs) > 0;

	r->moved = r->moved || r->news || change != GRAFT_CHANGE_NONE;
	r->news = false;
	if (change == GRAFT_CHANGE_POLICIES || changed || (r->moved && ago >= ASK_MS)) {
		graft_table_doubt_ways(gs, change);
		r->moved = false;
		r->asked_ms = r->loop->now_ms;
		shared_tell_news(r->standby->service->shared);
	} else if (ago >= JUDGE_MS && graft_table_are_doubtful(gs)) {
		shared_tell_news(r->standby->service->shared);
	}
	timer_set(r->loop, t, r->loop->now_ms + LOOK_MS);
}

static void on_news(struct source *source, uint32_t events)
{
	struct netlink_watch *r = container_of(source, struct netlink_watch, netlink);
	char buf[8192];

	(void)events;
	while (recvfrom(source->fd, buf, sizeof(buf), MSG_DONTWAIT, NULL, NULL) > 0 ||
	       errno == ENOBUFS) /* news were lost, but their content is not read */
		errno = 0;
	standby_news(r->standby);
	/* the first news set the timer: news that do not end must not put the look off */
	if (!r->news)
		timer_set(r->loop, &r->look, r->loop->now_ms + SETTLE_MS);
	r->news = true;
}

static void on_end_before(struct source *source, uint32_t events)
{
	struct netlink_watch *r = container_of(source, struct netlink_watch, before);

	(void)events;
	loop_watch(r->loop, source, 0, false);
	close(source->fd);
	/* the packet programs of that daemon went with it: RTMGRP_TC tells of clsact alone, not of TCX */
	r->news = true;
	timer_set(r->loop, &r->look, r->loop->now_ms);
}

void netlink_watch_end_of(struct netlink_watch *r, int pidfd)
{
	r->before = (struct source){ .handle = on_end_before, .fd = pidfd };
	if (pidfd >= 0 && loop_watch(r->loop, &r->before, EPOLLIN, true))
		close(pidfd);
}

void netlink_watch_close(struct netlink_watch *r)
{
	timer_cancel(&r->look);
	loop_watch(r->loop, &r->netlink, 0, false);
}

int netlink_watch_open(struct netlink_watch *r, struct loop *loop, struct standby *standby)
{
	struct sockaddr_nl all = { .nl_family = AF_NETLINK,
				   .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR |
						RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE |
						RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_RULE | RTMGRP_TC };
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE);

	/* much may have changed while there was no daemon */
	*r = (struct netlink_watch){ .loop = loop,
				     .look.fire = on_look,
				     .standby = standby,
				     .news = true,
				     .netlink = { .handle = on_news, .fd = fd } };
	if (fd < 0 || bind(fd, (struct sockaddr *)&all, sizeof(all)))
		return -errno;
	timer_set(loop, &r->look, loop->now_ms);
	return loop_watch(loop, &r->netlink, EPOLLIN, true);
}
