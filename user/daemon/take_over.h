/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "daemon/service.h"
#include "daemon/standby_addresses.h"

/*
 * Take the place of the daemon before this one, as relay/handed.h says.  By the main thread, before
 * workers run.
 */
struct take_over;

/*
 * Ask the daemon at the control socket PATH; NULL: what the last daemon has left in STORE (-1: there
 * is nothing, and *RET is NULL).  Its listening sockets are used from now on (given_open()).  -errno,
 * after a complaint.  ORDERS: get those of the other daemon.
 */
int take_over_begin(const char *path, int store, struct upstream_orders *orders,
		    struct take_over **ret);
/* The other daemon grafts: graft_table_begin() comes after take_over_sessions().  T may be NULL. */
bool take_over_of_grafts(const struct take_over *t);
/*
 * This daemon has come up: take the sessions, for the workers of SV.  -errno after a complaint: the
 * other daemon goes on with all of them, and this one has to end.
 */
int take_over_sessions(struct take_over *t, struct service *sv);
/* The other daemon has not been taken over: all that this one has opened with its sockets is its own. */
bool take_over_lacks(const struct take_over *t);
/*
 * GS has begun: enter the grafted sessions of a daemon with other maps, whose packet programs still
 * carry them.
 */
void take_over_grafts(struct take_over *t, struct graft_table *gs, struct standby_addresses *w);
/*
 * The workers run, and GRAFTS carries: say how long the sessions have waited.  Frees T; NULL is fine.
 * Returns a pidfd of the other daemon for netlink_watch_end_of(); -1: its programs carry nothing.
 */
int take_over_end(struct take_over *t, const struct graft_table *grafts);
