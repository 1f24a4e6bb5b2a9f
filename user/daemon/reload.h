/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RELOAD_H
#define CULVERT_RELOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/serving.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * From one configuration to the next while sessions run.  For the thread that reloads, while it has
 * the turn (serving.h): it alone changes the list of forwards.
 */
struct reload {
	const struct config *start;  /* what only a new start can change is as it says */
	struct shared *shared;
	struct forwards *forwards;
	struct serving *serving;
	const struct listening_maker *maker; /* of new addresses */
	struct stock_keeper *keeper; /* see socket_stock.h */
	bool no_splice;              /* see struct policy */
};

struct reload_result {
	unsigned int added, changed, removed, kept; /* forwards */
	char why[640];                              /* it was refused; "": it was not */
};

/*
 * Make NEXT what is in force: the caller's reference to it is taken over, also if this fails.
 * Addresses that stay keep their sockets, so that no connection attempt there is refused or reset.
 * Sessions go on with what they began with.  Either all of it is done, or nothing: then -errno, and
 * RET says why.  NOW_MS is of CLOCK_MONOTONIC.
 */
int reload_apply(const struct reload *r, struct config_version *next, uint64_t now_ms,
		 struct reload_result *ret);

/*
 * End the sessions whose time is over at NOW_MS (struct forward_due), free the forwards that are
 * gone, and close listeners that have been replaced.  When there will be something to do again;
 * UINT64_MAX: not before the next reload.
 */
uint64_t reload_drain(const struct reload *r, uint64_t now_ms);

#endif
