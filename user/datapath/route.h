/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "graft_contract.h"

/* The kernel's route to an address (RTM_GETROUTE). */
struct route {
	bool local;       /* the address is this host's */
	bool refused;     /* a route or a rule forbids packets */
	uint32_t ifindex; /* where packets leave; 0: nowhere */
	uint32_t mtu;     /* of these packets */
};

#define ROUTES_KNOWN 256

struct mnl_socket; /* libmnl */

/* A netlink socket, and the kernel's answers since routes_forget(). */
struct routes {
	struct mnl_socket *nl;
	uint32_t count; /* of questions */
	struct known_route {
		struct graft_addr to, from; /* from: zero: any */
		uint32_t mark;
		struct route is; /* neither local nor an ifindex: not known */
	} known[ROUTES_KNOWN];
};

/* -errno. */
int routes_open(struct routes *r);
void routes_forget(struct routes *r);
/*
 * The route to TO, with MARK, of packets from FROM, an address of this host; NULL: from any
 * address.  No route, if the kernel does not answer.
 */
struct route routes_ask(struct routes *r, const struct graft_addr *to,
			const struct graft_addr *from, uint32_t mark);
/* Does a route or a rule forbid packets to TO?  No route is no refusal.  By any thread. */
bool route_is_refused(const struct graft_addr *to, uint32_t mark);
