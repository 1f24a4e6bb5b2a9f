/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/*
 * The packet programs as filters of the qdisc clsact, where there is no TCX (Linux before 6.6).  Only
 * CAP_NET_ADMIN attaches and removes filters, so a daemon without it asks the privileged process
 * (daemon/privileged.h), which has held the programs since before the daemon gave up root.
 */
enum hook { HOOK_IN, HOOK_OUT, HOOKS };

struct clsact {
	uint32_t handle;        /* of our filters */
	bool pinned;            /* another daemon may use the filters after this one has ended */
	int programs[2][HOOKS]; /* descriptors; [1]: for frames that begin with an Ethernet header */
	/* who acts; NULL: this process */
	int (*ask)(void *arg, unsigned int ifindex, bool ethernet);
	void *arg;
};

/* Attach to IFINDEX, and make the qdisc if there is none.  0 or -errno; then nothing is attached. */
int clsact_attach(struct clsact *c, unsigned int ifindex, bool ethernet);
/* Others have removed a filter of ours from IFINDEX, or the qdisc.  Needs no privilege. */
bool clsact_is_lost(const struct clsact *c, unsigned int ifindex);
/*
 * Others have filters of tc at the ingress of IFINDEX, which a packet that we send on does not meet.
 * Needs no privilege.
 */
bool clsact_has_others(unsigned int ifindex);
/*
 * Remove our filters from all interfaces, those too that have no address any more: a daemon before may
 * have had them.  The qdisc stays.
 */
int clsact_remove_all(struct clsact *c);

/*
 * For the process that is asked: do what clsact_attach() is to do, or for IFINDEX 0
 * clsact_remove_all().
 */
int clsact_do(const struct clsact *c, unsigned int ifindex, bool ethernet);
