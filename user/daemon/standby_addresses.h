/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "daemon/grafted.h"
#include "datapath/route.h"

/*
 * The local addresses of exported and imported sessions, which the clients and servers know, and
 * the routes of imported sessions.  Any thread may call these functions.  Their own lock is held
 * while the kernel is asked.  No other lock is taken under it.
 */

struct standby_address {
	struct graft_addr is;
	bool here, used;
	uint64_t gone_ms; /* when an address that leaves counts as gone; 0: it does not leave */
};

struct standby_addresses {
	struct graft_table *grafts;
	_Atomic uint32_t moves;  /* of addresses */
	_Atomic uint32_t n_news; /* of addresses and routes */
	pthread_mutex_t lock;    /* of the rest */
	struct routes routes;
	uint64_t looked_ms;
	bool news;              /* since the last look; or an address is leaving */
	_Atomic unsigned int n; /* any thread may read it */
	unsigned int room;
	struct standby_address *list; /* sorted */
};

/* -errno. */
int standby_addresses_open(struct standby_addresses *w, struct graft_table *gs);

/* Tell the packet programs from now on whether A is here.  False: there is no room for A. */
bool standby_addresses_follow(struct standby_addresses *w, const struct graft_addr *a);
/*
 * Forget addresses that no session has.  Sessions of workers count, too: they may become STANDBY
 * again.  The caller holds the lock of streams, so no session is entered meanwhile.
 */
void standby_addresses_forget(struct standby_addresses *w);

/* Addresses or routes have changed.  Returns the age of the last look in milliseconds. */
uint64_t standby_addresses_news(struct standby_addresses *w);
/* After news, ask which addresses are here.  True if some have left: their sessions stand by. */
bool standby_addresses_look(struct standby_addresses *w);

/* Look up the routes to both ends of a session that has no sockets yet. */
void standby_addresses_find_routes(struct standby_addresses *w, const struct grafted *h);
