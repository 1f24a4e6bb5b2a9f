/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "datapath/graft/graft_record.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * One table of the sessions of both protocols that are in the maps of the packet programs.  Any
 * thread may look.  The comment of a function that changes something names the thread that may.
 *
 * The first graft_table_total() places are of TCP, and as many places of UDP follow.
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

/* Values of alone_ms.  An odd value is the time since which no peer exports the session. */
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
 * Enter the session of R as STANDBY.  The caller sets *AT to the place of an earlier session of R's
 * client, or to NO_SLOT; *AT becomes the place of R's session.  -EEXIST: a worker has the session;
 * -EADDRINUSE: another session, or a socket, has its tuple; -ENOSPC.  Imports do it, one at a time.
 */
int held_import(struct graft_table *gs, struct graft_record *r, uint32_t *at);
/*
 * End a session that no worker has.  A STANDBY session or a flow of UDP is taken out in silence.
 * Any other session is reset.
 */
void held_end(const struct held *h);
/* Make a session that no worker has STANDBY again. */
void held_stand_by(const struct held *h);

/* Keep the ports of ended flows unused for a while: late answers may still come to them. */
void held_rest_ports(struct graft_table *gs);

enum held_arrival {
	ARRIVAL_NONE,  /* no packet has come, or a worker has all of the session */
	ARRIVAL_STRAY, /* a packet has come, but the client's destination is not here */
	ARRIVAL_BARE,  /* a worker has the session, and sockets have to be made for it */
	ARRIVAL_DUE,   /* a worker has to adopt the session */
};

/* The result may change with each packet.  REVIVES: sessions without sockets are to get some. */
enum held_arrival held_arrival(const struct held *h, bool revives);
/* The session needs new sockets before a worker can adopt it. */
bool held_wants_sockets(const struct held *h);
/* On the thread of W: a session of W takes the sockets that were made for it. */
void held_revive(const struct held *h, const struct worker *w);
/* Make a session of TCP ACTIVE without a packet, so that a worker adopts it and probes its ends. */
void held_wake(const struct held *h);

#define KEY_NONE 0U /* the place is not exported */
/*
 * A bit of a key: this relay owns the session.  Without the bit the session is STANDBY.  This relay
 * exports a STANDBY session only while the client's destination address is here, so the key changes
 * with each move of an address.  When a session ends, every relay that knew the session exports the
 * end.
 */
#define KEY_OWNED 1U

/*
 * The key of an ACTIVE session, which changes when the session is to be exported anew.  KEY_NONE:
 * the session ends, is younger than AFTER_NS at NOW_NS, or is a flow of UDP that its sockets alone
 * carry and no other relay knows.
 */
uint32_t held_key(const struct held *h, uint64_t now_ns, uint64_t after_ns);

/* Does W own the session?  The owner of a UDP flow is the worker whose socket the kernel picks. */
bool held_is_of(const struct held *h, const struct worker *w);
/*
 * Let W adopt the session.  To be called on the thread of W, or before W starts.  -ENOENT: there is
 * no forward of its name, or W has no socket of UDP for it; -EUSERS: a limit is reached; -EAGAIN: a
 * socket of UDP could not be made, which is logged, and a later try may succeed.
 */
int held_adopt(const struct held *h, struct worker *w, const struct forwards *all);
