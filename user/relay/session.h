/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_H
#define CULVERT_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/addr.h"
#include "base/loop.h"
#include "datapath/flow.h"
#include "datapath/policy.h"
#include "datapath/stats.h"
#include "relay/forward.h"
#include "relay/idle.h"
#include "relay/proxy_protocol.h"
#include "relay/names.h"
#include "relay/worker.h"

/*
 * A session: one accepted socket, one connected socket, two flows.
 *
 *   HEADER      the client is a proxy that says first for whom it speaks; only where that is asked
 *                 -> CONNECTING  the PROXY header was read, and no byte behind it
 *                 -> DEAD        it is bad or late, or its client may have no session; or reset
 *   CONNECTING  the upstream has not answered; the client's bytes wait in the client's socket.
 *               While no server has an address yet, `addrs` is NULL.  Then one address is
 *               tried in sides[UPSTREAM].  If that is slow, others are tried at the same time; if
 *               all fail, another server is chosen
 *                 -> OPEN  connected: that socket is in sides[UPSTREAM], there is no race any more
 *                 -> DEAD  there is no address, or none answered, or the client reset
 *   OPEN        both flows run on their own
 *                 -> PARTING  one end is gone, by RST or an error, and had something to say
 *                 -> DEAD     both are DONE, or the session was reset
 *   PARTING     what the dead end had said is taken to the other, see session_flow.c
 *                 -> DEAD  it has it all, or takes no more; reset
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

/* Sides.  Flow N is read from side N and written to side !N. */
enum { CLIENT = 0, UPSTREAM = 1 };

#define NO_PAIR UINT32_MAX
#define NO_GRAFT UINT32_MAX

/* What a PROXY header has told, or is to tell, of a session's client. */
struct told {
	union client_addr peer;        /* who is at the other end of the client's socket */
	union client_addr destination; /* PROXY_ADDRESSES: what the client has connected to */
	uint64_t due_ms;               /* HEADER: late then */
	uint8_t kind;                  /* enum proxy_kind; PROXY_LOCAL while in HEADER */
};

/*
 * Sessions are many, and most of them idle: what few of them need, or only for a while, is
 * allocated apart.
 */
struct session {
	struct worker *worker;
	struct forward *forward;
	struct session *next, **prev; /* in worker->sessions; next alone in ->dead */
	struct source sides[2]; /* fd -1: none */
	struct flow flows[2];
	struct habit habit;
	struct timer timer;
	uint64_t id;
	uint64_t born_ms;
	struct connecting *connecting; /* owned; until the session is OPEN, see connect.h */
	struct server *server;   /* see server_leave(); NULL: none yet, or that of a daemon before */
	struct addr_list *addrs; /* the server's when it began to connect; NULL: not yet */
	uint32_t pair;           /* NO_PAIR: no slots */
	uint32_t graft;          /* slot of session_graft.h; NO_GRAFT: none */
	union {
		uint32_t watched_ms; /* OPEN: when it last entered or left the kernel, or followed
				      * another engine (low half) */
		uint32_t parted_ms;  /* PARTING: since when (low half) */
	};
	uint32_t connect_ms;     /* so long it took to connect, and 1; 0: it is not connected */
	uint16_t upstream;       /* index in addrs: what sides[UPSTREAM] is connected to, */
	uint16_t port_offset;    /* but at the port so far behind; see session_address() */
	uint8_t state;           /* enum session_state, set by session_set_state() only */
	bool tcp : 1;            /* both sides are TCP */
	bool nodelay_due : 1;    /* see session_set_nodelay() */
	bool keepalive_due : 1;  /* at the upstream's socket, see session_idle_due() */
	bool graft_counted : 1;  /* its graft is in the counter of hand-overs */
	uint8_t parted : 1;      /* PARTING: the side that is dead */
	uint16_t header_in;      /* bytes of a PROXY header read from the client before the stream, */
	uint8_t header_out;      /* and written to the upstream */
	uint8_t graft_refusal;   /* enum graft_refusal: why it is not offered */
	uint8_t end_cause;       /* PARTING: enum cause of its reset */
	union client_addr client;
	struct told *told;       /* owned; NULL: the client has connected itself */
	struct pace *pace;       /* owned; NULL: its bandwidth has no limit, see rates.h */
	struct idle *idle;       /* owned; NULL: nothing has had to be remembered so far */
};

/* The only writer of s->state, which begins with HEADER.  Asserts the table. */
void session_set_state(struct session *s, enum session_state to);

/* --- what a session is about --- */

static inline const struct forward_conf *forward_of(const struct session *s)
{
	return s->forward->conf;
}

static inline enum engine engine_of(const struct session *s)
{
	return forward_engine(s->forward);
}

/*
 * Address INDEX of s->addrs, which is not NULL.  The addresses of a server with a range of ports
 * have the first; a session has the one that is as far behind it as the client's port is in the
 * range of the listener.
 */
struct addr session_address(const struct session *s, uint16_t index);

/* Who is at the other end of the client's socket. */
static inline const union client_addr *session_peer(const struct session *s)
{
	return s->told ? &s->told->peer : &s->client;
}

/* The proxy that has told who the client is; NULL: the client has connected itself. */
static inline const union client_addr *session_via(const struct session *s)
{
	return s->told && s->told->kind == PROXY_ADDRESSES ? &s->told->peer : NULL;
}

/* What flow DIR has delivered, by whatever has carried it, in bytes.  On S's thread. */
uint64_t session_bytes(const struct session *s, unsigned int dir);

/* --- its life --- */

/*
 * Take over the non-blocking socket FD of forward F, accepted at PORT (in network order).  The
 * caller has counted the session in, by admission_enter() and, unless F receives PROXY headers, by
 * admission_enter_client().  -errno: FD is still the caller's.
 */
int session_open(struct worker *w, struct forward *f, int fd, const struct sockaddr *client,
		 in_port_t port);

/* A session in HEADER, without sockets and id; to be counted in by the caller.  NULL: no memory. */
struct session *session_new(struct worker *w, struct forward *f, const struct sockaddr *client);

/*
 * What S waits for from now on, by epoll and by its timer: computed from its state and its flows,
 * never remembered.  To be called after each handler; S may be DEAD, and may be afterwards.
 */
void session_update(struct session *s);

/*
 * Set TCP_NODELAY of the upstream's socket, if it is to have that and has not.  Before or just
 * after the second write there: the first one is sent at once in any case, and many sessions have
 * no other.
 */
void session_set_nodelay(struct session *s);

/* --- its end --- */

/* End it: RST to both ends (unless a side never was connected).  Safe in any state. */
void session_reset(struct session *s, enum cause cause);

/* Both flows are done: close in peace. */
void session_finish(struct session *s);

/* S, which is grafted, goes on without this daemon. */
void session_leave(struct session *s);

/* The cause to count for errno ERROR on SIDE. */
enum cause session_cause(unsigned int side, int error);

/* The cause of errno ERROR if it tells that this machine is short of something; else OTHER. */
enum cause cause_of_shortage(int error, enum cause other);

/*
 * Make the close(2) of FD that follows a reset: a FIN would pretend that the stream was complete.
 */
void session_arm_reset(int fd);

/* Close SOURCE if it is open, with RST or in peace. */
void session_close_socket(struct source *source, bool rst);

/* Free what died during the batch of events. */
void session_reap(struct worker *w);

typedef bool session_choice_fn(const void *arg, const struct session *s);

/*
 * On W's thread: reset the sessions for which CHOOSE (NULL: all) returns true, with ARG, because of
 * CAUSE.  Returns how many.
 */
unsigned int session_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
			      enum cause cause);

#endif
