/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "datapath/graft/graft_record.h"
#include "probe/probe.h"
#include "relay/threads.h"

struct forwards;

/*
 * The table of sessions in the maps of the packet programs, as one for both protocols.  Any thread
 * may look; the head of each function that changes something says whose it is.
 *
 * Places of TCP come first, as many as graft_table_total() says, and as many of UDP follow.
 */
struct held {
	uint32_t at; /* the place */
	bool udp;
	uint32_t slot; /* the same place, by the count of its protocol */
	struct graft_table *grafts;
	enum held_state {
		HELD_NOTHING,
		HELD_ACTIVE,
		HELD_STANDBY,
	} state;

	/* into the maps: other threads may write them at any time */
	struct graft_head *head;
	struct graft_leg *leg[2]; /* 0: the client */
};

/* Values of alone_ms.  An odd one says since when no peer exports the session. */
#define ALONE_NEVER 0U   /* a peer exports the session */
#define ALONE_EXPIRED 2U /* the next look takes the session out */

uint32_t held_places(const struct graft_table *gs);
struct held held_at(struct graft_table *gs, uint32_t at);
/* Set *H to the next place, from H->at on, that may have a session.  False: there is none. */
bool held_next(struct graft_table *gs, struct held *h);
/* The place of the session whose client has tuple CLIENT; or NO_SLOT. */
uint32_t held_find(struct graft_table *gs, bool udp, const struct graft_tuple *client);

/* Is the address here that the client has connected to? */
bool held_is_here(const struct held *h);
/* The session is STANDBY, and R says nothing new about it. */
bool held_is_same(struct graft_table *gs, uint32_t at, const struct graft_record *r);
/* The record of the session, of which packet programs and workers change some words meanwhile. */
void held_record(const struct held *h, struct graft_record *ret);

/*
 * Enter the session of R as STANDBY.  *AT is the place of R's client so far, or NO_SLOT, and
 * becomes the place of the session.  -EEXIST: a worker has the session; -EADDRINUSE: another
 * session, or a socket, has its tuple; -ENOSPC.  Imports do it, one at a time.
 */
int held_import(struct graft_table *gs, struct graft_record *r, uint32_t *at);
/* No worker has the session: take it out, or reset it if that is possible. */
void held_end(const struct held *h);
/* No worker has the session: make it STANDBY again. */
void held_stand_by(const struct held *h);

/* Does the session belong to W?  The kernel chooses sockets of UDP in the same way. */
bool held_is_of(const struct held *h, const struct worker *w);
/*
 * Make it a session of W.  On W's thread, or before that starts.  -ENOENT: no forward has its name,
 * or, of UDP, W has no socket for it; -EUSERS: a limit.
 */
int held_adopt(const struct held *h, struct worker *w, const struct forwards *all);

/* --- sessions of the daemon before --- */

/*
 * Grafted sessions outlive the daemon: the next one adopts them, and `culvert graft` resets them.
 * On the main thread, before others start.
 */

/*
 * Load the programs that carry sessions in the kernel, as probe_start() does, into SHARED, with the
 * grafted sessions of the daemon before.  The caller needs root, and has the control socket, which
 * only one daemon has at a time.  A: the account that the daemon becomes.
 */
int adopt_open(const struct config *c, const struct account *a, struct shared *shared,
	       struct probe_start *probe);

/* Give sessions of the daemon before to TS, for which ALL has forwards, or reset them. */
void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all);

/* `culvert graft`: reset the sessions of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
