/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ROUTES_H
#define CULVERT_ROUTES_H

#include "base/loop.h"
#include "datapath/graft.h"

/*
 * Grafted packets go out by the interface that was right when the graft began.  When routes, addresses
 * or links change, new interfaces get the packet programs, and the interface of each session is looked
 * up again.  Where there is none, the session is reset, which tells its ends more than silence would.
 */
struct routes {
	struct loop *loop;
	struct grafts *grafts;
	struct source news; /* of the kernel: something has changed */
	struct timer due;   /* a moment later, when it has settled */
	int ask;            /* a socket for look-ups */
	void (*tell)(void *arg); /* sessions may have been reset */
	void *arg;
};

/* By the thread that runs LOOP; after that only that thread uses R.  -errno. */
int routes_open(struct routes *r, struct loop *loop, struct grafts *gs, void (*tell)(void *arg),
		void *arg);
void routes_close(struct routes *r);

#endif
