/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "datapath/graft/graft_record.h"
#include "probe/probe.h"
#include "relay/threads.h"

struct forwards;

/*
 * The table of sessions in the maps of the packet programs, as one for both protocols.  Any thread
 * may look.  The comment of a function that changes something names the thread that may.
 *
 * Places of TCP come first, as many as graft_table_total() says, and as many of UDP follow.
 */
struct held {
	uint32_t at; /* the place */
	bool udp;
	uint32_t slot; /* the slot in the table of its protocol */
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

/* Is the address to which the client has connected on this machine? */
bool held_is_here(const struct held *h);
/* The session is STANDBY, and R says nothing new about it. */
bool held_is_same(struct graft_table *gs, uint32_t at, const struct graft_record *r);
/* Copy the session to RET.  Packet programs and workers may change words of it meanwhile. */
void held_record(const struct held *h, struct graft_record *ret);

/*
 * Enter the session of R as STANDBY.  *AT is the place that R's client had before, or NO_SLOT; it
 * becomes the place of the session.  -EEXIST: a worker has the session; -EADDRINUSE: another
 * session, or a socket, has its tuple; -ENOSPC.  Only imports call it, one at a time.
 */
int held_import(struct graft_table *gs, struct graft_record *r, uint32_t *at);
/*
 * End a session that no worker has: take a STANDBY session or a flow of UDP out in silence, and
 * reset another.
 */
void held_end(const struct held *h);
/* Make a session that no worker has STANDBY again. */
void held_stand_by(const struct held *h);

/* Does the session belong to W?  The kernel chooses sockets of UDP in the same way. */
bool held_is_of(const struct held *h, const struct worker *w);
/*
 * Give the session to W.  On W's thread, or before this thread starts.  -ENOENT: no forward has the
 * session's name, or, of UDP, W has no socket for the forward; -EUSERS: a limit.
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

/*
 * Give each session of the daemon before to a worker of TS, or reset it if ALL has no forward for
 * it.
 */
void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all);

/* `culvert graft`: reset the sessions of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
