/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

#include "datapath/graft_clsact.h"
#include "datapath/graft_pins.h"

/*
 * The packet programs at the interfaces: links of TCX (Linux 6.6), pinned so that they outlive the daemon; or
 * filters of clsact.
 */
struct graft_attachments {
	const struct graft_pins *pins;
	struct clsact clsact;  /* the programs, whatever they are attached by */
	int interfaces;        /* descriptor of the map */
	bool on_loopback;      /* at no other interface */
	bool is_clsact;        /* else it is TCX; by graft_attach_choose() */
	struct graft_attachment *first;
};

void graft_attach_choose(struct graft_attachments *as);
/*
 * Attach to all interfaces that are up and have an address, and forget those that are gone.  Returns at how
 * many something has changed, their use included; -errno: the programs are at none.
 */
int graft_attach_follow(struct graft_attachments *as);
/* Detach; with KEEP, what is pinned stays, and so do filters. */
void graft_attach_close(struct graft_attachments *as, bool keep);
