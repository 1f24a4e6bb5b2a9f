/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "datapath/graft/standby_record.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * One table of the sessions of both protocols that are in the maps of the packet programs.  Any
 * thread may look.  The comment of a function that changes something names the thread that may.
 *
 * The first graft_table_total() places are of TCP, and as many places of UDP follow.
 */
struct grafted {
	uint32_t at; /* the place */
	bool udp;
	uint32_t slot; /* the slot in the table of its protocol */
	struct graft_table *grafts;
	enum grafted_state {
		GRAFTED_NOTHING,
		GRAFTED_ACTIVE,
		GRAFTED_STANDBY,
	} state;

	/* into the maps: other threads may write them at any time */
	struct graft_head *head;
	struct graft_leg *leg[2]; /* 0: the client */
};

uint32_t grafted_places(const struct graft_table *gs);
struct grafted grafted_at(struct graft_table *gs, uint32_t at);
/* Set *H to the next place, from H->at on, that may have a session.  False: there is none. */
bool grafted_next(struct graft_table *gs, struct grafted *h);
/* The place of the session whose client has tuple CLIENT; or NO_SLOT. */
uint32_t grafted_find(struct graft_table *gs, bool udp, const struct graft_tuple *client);

/* Is the address to which the client has connected on this machine? */
bool grafted_is_here(const struct grafted *h);
/* The session is STANDBY, and R says nothing new about it. */
bool grafted_is_same(struct graft_table *gs, uint32_t at, const struct graft_record *r);
/* Copy the session to RET.  Packet programs and workers may change words of it meanwhile. */
void grafted_record(const struct grafted *h, struct graft_record *ret);

/*
 * Enter the session of R as STANDBY.  The caller sets *AT to the place of an earlier session of R's
 * client, or to NO_SLOT; *AT becomes the place of R's session.  SAME_SOURCE: this relay connects to
 * the server from the same address.  -EEXIST: a worker has the session;
 * -EADDRINUSE: another session, or a socket, has its tuple; -ENOSPC.  Imports do it, one at a time.
 */
int grafted_import(struct graft_table *gs, struct graft_record *r, bool same_source, uint32_t *at);
/*
 * End a session that no worker has.  A STANDBY session or a flow of UDP is taken out in silence.
 * Any other session is reset.
 */
void grafted_end(const struct grafted *h);
/* Make a session that no worker has STANDBY again. */
void grafted_stand_by(const struct grafted *h);

/* Keep the ports of ended flows unused for a while: late answers may still come to them. */
void grafted_rest_ports(struct graft_table *gs);

enum grafted_arrival {
	ARRIVAL_NONE, /* no packet has come; or a worker has the session, which needs no sockets */
	ARRIVAL_HELPED, /* standby.c: due, but another relay has the session, and tells so */
	ARRIVAL_STRAY,  /* a packet has come, but the client's destination is not here */
	ARRIVAL_BARE,   /* a worker has the session, and sockets have to be made for it */
	ARRIVAL_DUE,    /* a worker has to adopt the session */
};

/* The result may change with each packet.  REVIVES: sessions without sockets are to get some. */
enum grafted_arrival grafted_arrival(const struct grafted *h, bool revives);
/* Packets come, and no worker here has the session. */
bool grafted_is_unowned(const struct grafted *h);
/* The same; or datagrams of a flow of another relay come, which stays STANDBY. */
bool grafted_is_helped(const struct grafted *h);
/* Set RET to both ends, as packets here have shown them. */
void grafted_hear(const struct grafted *h, struct graft_heard ret[2]);
/* The session needs new sockets before a worker can adopt it. */
bool grafted_wants_sockets(const struct grafted *h);
/* On the thread of W: a session of W takes the sockets that were made for it. */
void grafted_revive(const struct grafted *h, const struct worker *w);
/* Make a session of TCP ACTIVE without a packet, so that a worker adopts it and probes its ends. */
void grafted_wake(const struct grafted *h);

/* Does W own the session?  The owner of a UDP flow is the worker whose socket the kernel picks. */
bool grafted_is_of(const struct grafted *h, const struct worker *w);
/*
 * Let W adopt the session.  To be called on the thread of W, or before W starts.  -ENOENT: there is
 * no forward of its name, or W has no socket of UDP for it; -ENOMEM; -EAGAIN: a socket of UDP could
 * not be made, which is logged, and a later try may succeed.
 */
int grafted_adopt(const struct grafted *h, struct worker *w, const struct forwards *all);
