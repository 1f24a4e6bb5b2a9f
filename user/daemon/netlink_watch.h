/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/loop.h"
#include "daemon/standby.h"

/*
 * Watch netlink for changes of routes, rules, policies of IPsec, addresses and links.  After a
 * change, new interfaces get the packet programs, and the workers make the sockets of grafted
 * sessions look their routes up again.  Netlink reports most changes.  Generation numbers of the
 * kernel move with every change, so the daemon reads these, too.
 */
struct netlink_watch {
	struct loop *loop;
	struct source netlink, before; /* BEFORE: of netlink_watch_end_of() */
	struct timer look;
	bool news;  /* of netlink, since the last look */
	bool moved; /* a change has come since asked_ms, the last time sockets looked up routes */
	uint64_t asked_ms;
	struct standby *standby; /* gets news at once; its workers make sockets look up routes */
};

/* Only the thread that runs LOOP calls this and uses R.  -errno. */
int netlink_watch_open(struct netlink_watch *r, struct loop *loop, struct standby *standby);
/*
 * The packet programs of another daemon, at PIDFD (owned by R; -1: of none), carry sessions of this
 * one until that daemon ends.  Sockets then ask the ends of sessions: some may be over.
 */
void netlink_watch_end_of(struct netlink_watch *r, int pidfd);
/* Stop watching. */
void netlink_watch_close(struct netlink_watch *r);
