/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "datapath/graft/graft_pins.h"

/*
 * The packet programs as filters of the qdisc clsact, where there is no TCX (Linux before 6.6).
 * Only CAP_NET_ADMIN attaches and removes filters, so a daemon without it asks the privileged
 * process (daemon/privileged_client.h), which has held the programs since before the daemon gave up root.
 */
enum hook { HOOK_IN, HOOK_OUT, HOOKS };

/* Interfaces, by the programs that they get. */
enum graft_link {
	GRAFT_LINK_BARE,     /* frames begin with IP */
	GRAFT_LINK_ETHERNET, /* they have an Ethernet header */
	GRAFT_LINK_PORT,     /* of a bridge: the same, but leaving packets are the bridge's */
	GRAFT_LINKS,
};

struct clsact {
	uint32_t handle;        /* of our filters */
	bool pinned;            /* another daemon may use the filters after this one has ended */
	int programs[2][HOOKS]; /* descriptors; [1]: for frames with an Ethernet header */
	/* asks the process that acts; NULL: this process acts */
	int (*ask)(void *arg, unsigned int ifindex, enum graft_link link);
	void *arg;
};

/*
 * Attach to IFINDEX, and make the qdisc if it is missing; or for IFINDEX 0 remove our filters from
 * all interfaces.  C->ask or this process acts.  -errno: nothing is attached.
 */
int clsact_do(const struct clsact *c, unsigned int ifindex, enum graft_link link);

/*
 * The packet programs at the interfaces: links of TCX (Linux 6.6), pinned so that they outlive the
 * daemon; or filters of clsact.
 */
struct graft_attachments {
	const struct graft_pins *pins;
	struct clsact clsact; /* the programs, of TCX as well */
	int interfaces;       /* descriptor of the map */
	bool on_loopback;     /* at no other interface */
	bool is_clsact;       /* else it is TCX; by graft_attach_choose() */
	bool at_ports;  /* at ports of bridges as well: conntrack precedes a bridge's programs */
	uint32_t stray; /* an interface to attach to as well; 0: none */
	LIST_HEAD(graft_attachment_list, graft_attachment) all;
};

void graft_attach_choose(struct graft_attachments *as);
/*
 * Attach to all interfaces that are up and have an address, and forget those that are gone.
 * Returns the number of interfaces that are new, or used in another way; -errno: the programs are
 * at none.
 */
int graft_attach_follow(struct graft_attachments *as);
/* Others have detached a link of TCX, or its interface is gone: call graft_attach_follow(). */
bool graft_attach_is_lost(const struct graft_attachments *as);
/* Detach; with KEEP, pins and filters stay. */
void graft_attach_close(struct graft_attachments *as, bool keep);
