/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/addr.h"
#include "base/loop.h"
#include "datapath/flow.h"
#include "datapath/policy.h"
#include "datapath/stats.h"
#include "relay/forward.h"
#include "relay/proxy_protocol.h"
#include "relay/names.h"
#include "relay/worker.h"

/*
 * A session: one accepted socket, one connected socket, two flows.
 *
 *   HEADER      waits for a PROXY header, which names the client, or a TLS hello, which names the
 *               forward; only where the configuration asks for one
 *                 -> CONNECTING  the header was read, and no byte after it; or the hello was seen
 *                 -> DEAD        header or hello is bad or late; the client may have no session;
 *                                or reset
 *   CONNECTING  the upstream has not answered; the client's bytes wait in the client's socket.
 *               `addrs` is NULL while no server has an address.  Then one address is tried in
 *               sides[UPSTREAM].  If this attempt is slow, other addresses are tried at the same
 *               time.  If all attempts fail, another server is chosen
 *                 -> OPEN  connected: the socket is in sides[UPSTREAM], no other attempt is left
 *                 -> DEAD  there is no address, or none answered, or the client reset
 *   OPEN        both flows run on their own
 *                 -> PARTING  one end is gone, by RST or an error; it may have sent bytes before
 *                 -> DEAD     both are DONE, or the session was reset
 *   PARTING     the last bytes of the dead end are taken to the other end, see session_last_bytes.c
 *                 -> DEAD  the other end has all of them, or takes no more; reset
 *   DEAD        sockets closed, resources given back; freed after the batch of events
 */
enum session_state {
	SESSION_HEADER,
	SESSION_CONNECTING,
	SESSION_OPEN,
	SESSION_PARTING,
	SESSION_DEAD,
	SESSION_STATES,
};

/*
 * How a session shall end: a mark, which a step of its life leaves.  A later mark of this list
 * outweighs the earlier ones.  session_life.c carries the mark out when the step has returned;
 * until then nothing of S is given back.
 */
enum session_ending {
	ENDING_NOT,
	ENDING_PARTS,    /* the side `parted` is gone, because of end_cause */
	ENDING_FINISHES, /* both flows are done */
	ENDING_RESETS,   /* because of end_cause */
};

/* Sides.  Flow N is read from side N and written to side !N. */
enum { CLIENT = 0, UPSTREAM = 1 };

#define NO_PAIR UINT32_MAX
#define NO_GRAFT UINT32_MAX

/* A session's PROXY header and TLS hello. */
struct told {
	union client_addr peer;     /* who is at the other end of the client's socket */
	uint64_t due_ms;            /* HEADER: deadline */
	struct proxy_header header; /* zeroes while it has not come */
	uint32_t events;            /* epoll's events of the client until S is OPEN */
	bool admitted;              /* its client is counted in, see admission.h */
	enum postgres {
		POSTGRES_NOT,
		POSTGRES_CLIENT, /* it has asked for TLS, and begins with its hello now */
		POSTGRES_SERVER, /* it was asked, and has not answered */
	} postgres;
	int lowat;          /* SO_RCVLOWAT, for the rest of a TLS hello; 0: as it was */
	char server_name[]; /* "": none */
};

/* Options in which handshakes are changed, see handshake_options.h. */
enum shaped {
	SHAPED_MSS = 1,
	SHAPED_TIMESTAMPS = 2,
	SHAPED_ECN = 4,
	SHAPED_SCALE = 8, /* scale of windows; on listeners alone */
};

/*
 * Sessions are many, and most of them are idle.  So data that few sessions need, or that a session
 * needs only for a while, is allocated apart.
 */
struct session {
	union {
		struct leftover leftover;      /* DEAD */
		struct connecting *connecting; /* owned; until it is OPEN, see session_connect.c */
	};
	struct worker *worker;
	struct forward *forward;
	LIST_ENTRY(session) in_worker; /* worker->sessions; DEAD: a FOREACH at S still reads it */
	struct source sides[2];        /* fd -1: none */
	struct flow flows[2];
	struct habit habit;
	struct timer timer;
	uint64_t id;
	uint64_t born_ms;
	uint64_t probe_at_ms;    /* when both sockets get keepalive; short sessions do without */
	struct server *server;   /* see server_leave(); NULL: none yet, or not known (adopted) */
	struct addr_list *addrs; /* the server's at the start of the connect; NULL: not yet */
	uint32_t pair;           /* NO_PAIR: no slots */
	uint32_t graft;          /* slot of session_graft.h; NO_GRAFT: none */
	uint32_t since_ms;       /* low half of a time.  OPEN: S last entered or left the kernel, or
				  * changed its engine; PARTING: S became PARTING */
	uint32_t spoke_ms;       /* when user space last read for it, or judged its silence */
	uint32_t connect_ms;     /* duration of the connect, plus 1; 0: not connected */
	uint16_t upstream;       /* index in addrs: what sides[UPSTREAM] is connected to */
	uint16_t port_offset;    /* added to the port of that address, see session_address() */
	uint8_t state;           /* enum session_state, set by session_set_state() only */
	bool tcp : 1;            /* both sides are TCP */
	bool nodelay_due : 1;    /* see session_set_nodelay() */
	bool graft_counted : 1;  /* its graft is in the counter of hand-overs */
	uint8_t shaped : 3;      /* enum shaped */
	bool handed_over : 1;    /* the next daemon has its sockets, too */
	bool sent_ahead : 1;     /* to the next daemon, while workers went on */
	bool sent_back : 1;      /* an order of the engine returns its graft */
	bool far_asked : 1;      /* a graft was asked for again in this bulk (habit.run) */
	uint8_t parted : 1;      /* PARTING: the side that is dead */
	uint8_t ending : 2;      /* enum session_ending */
	uint8_t answers_in : 1;  /* of PostgreSQL: bytes read from the upstream before the stream */
	uint8_t answers_out : 2; /* and written to the client */
	uint16_t header_in;      /* bytes of PROXY header and requests read from the client */
	uint8_t header_out;      /* bytes of those written to the upstream */
	uint8_t graft_refusal;   /* enum graft_refusal: why S is not offered for a graft */
	uint8_t end_cause;       /* enum cause of `ending`; PARTING: of the reset that follows */
	union client_addr client;
	struct told *told; /* owned; NULL: the client tells nothing */
	struct pace *pace; /* owned; NULL: its bandwidth has no limit, see bandwidth.h */
	struct idle *idle; /* owned; NULL: session_idle_keepalive.c had nothing to remember so far */
};

/* The only writer of s->state, which begins with HEADER.  Asserts the table. */
void session_set_state(struct session *s, enum session_state to);

/* --- its addresses and options --- */

/*
 * Address INDEX of s->addrs, which is not NULL.  If the server has a range of ports, S->addrs has
 * the first port of it.  The result has the port at the offset that the client's destination has in
 * the listener's range.
 */
struct addr session_address(const struct session *s, uint16_t index);

/* The address of the other end of the client's socket. */
static inline const union client_addr *session_peer(const struct session *s)
{
	return s->told ? &s->told->peer : &s->client;
}

/* True if S is OPEN and shall go on. */
static inline bool session_runs(const struct session *s)
{
	return s->state == SESSION_OPEN && !s->ending;
}

/*
 * Set TCP_NODELAY of the upstream's socket, if the forward wants it and it is not set.  Called
 * before the second write or just after it: TCP sends the first write at once without this option,
 * and many sessions write only once.
 */
void session_set_nodelay(struct session *s);

/* --- marks for its end --- */

/*
 * Mark S for a reset: RST to each end that is connected.  The first cause counts.  Returns false,
 * as a step that is not done does.
 */
bool session_reset(struct session *s, enum cause cause);

/* Both flows are done: close in peace. */
void session_finish(struct session *s);

/*
 * SIDE is gone, because of errno ERROR, or by RST (0).  If S is OPEN, the last bytes of that side
 * are taken to the other end, which then gets RST; else S is reset.  Returns false.
 */
bool session_lose_side(struct session *s, unsigned int side, int error);

/* --- counting --- */

/* Count BYTES of flow DIR that carrier C has read. */
void session_count_carried(struct session *s, unsigned int dir, enum carrier c, uint64_t bytes);

/* Flow DIR gets the carrier of D, now or soon: count the hand-over. */
void session_hand_over(struct session *s, unsigned int dir, struct decision d);
