/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/adopt.h"
#include "datapath/route.h"

/*
 * The addresses that clients and servers of exported and imported sessions know of this relay, and
 * the routes of imported sessions.  Any thread may call; an own lock is held while the kernel is
 * asked, and no other lock is taken in between.
 */

struct standby_address {
	struct graft_addr is;
	bool here, used;
	uint64_t gone_ms; /* the address has left, and counts as gone from then on; or 0 */
};

struct standby_ways {
	struct graft_table *grafts;
	_Atomic uint32_t moves; /* of addresses */
	pthread_mutex_t lock;   /* of the rest */
	struct routes routes;
	uint64_t looked_ms;
	bool news;              /* since the last look; or an address is leaving */
	_Atomic unsigned int n; /* any thread may read it */
	unsigned int room;
	struct standby_address *addresses; /* sorted */
};

/* -errno. */
int standby_ways_open(struct standby_ways *w, struct graft_table *gs);
void standby_ways_close(struct standby_ways *w);

/* Tell the packet programs from now on whether A is here.  False: there is no room for A. */
bool standby_ways_follow(struct standby_ways *w, const struct graft_addr *a);
/* Forget addresses that no session has.  The caller lets nobody enter a session meanwhile. */
void standby_ways_forget(struct standby_ways *w);

/* Addresses or routes have changed.  True: see standby_ways_look(). */
bool standby_ways_changed(struct standby_ways *w);
/*
 * If there is news, ask which addresses are here.  True: some have left, so sessions have to leave.
 */
bool standby_ways_look(struct standby_ways *w);

/* Look up both ways of a session that has no sockets yet. */
void standby_ways_find(struct standby_ways *w, const struct held *h);
