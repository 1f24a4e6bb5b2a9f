/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/queue.h>

#include "base/minmax.h"
#include "datapath/udp.h"
#include "datapath/graft/udp_graft.h"
#include "relay/forward.h"
#include "relay/session_json.h"
#include "relay/udp/udp_upstream_socket.h"
#include "relay/worker.h"

/*
 * A session of UDP: the datagrams between one client and one server.  A worker has the sessions of
 * the clients that udp_worker() gives it; no other thread touches them.
 *
 *   ASKED     the client has asked; the server has not answered in this session
 *               -> ANSWERED  the first answer has come
 *               -> DEAD      it ends
 *   ANSWERED  the server has answered; the client's address may be forged
 *               -> PROVEN    the client has sent a datagram after an answer, see udp_proof.c
 *               -> DEAD      it ends
 *   PROVEN    the client gets the answers
 *               -> DEAD      it ends
 *   DEAD      everything is given back; the struct is freed after the batch of events
 *
 * A session ends when both ends have been silent for idle-timeout, when the server or the path
 * fails, when the client is gone, and when all answers have come (`responses`).  The worker ends a
 * session to make room, by request, when its forward has drained for too long, when its address has
 * moved to another relay, and when the worker stops.
 */
enum udp_state {
	UDP_ASKED,
	UDP_ANSWERED,
	UDP_PROVEN,
	UDP_DEAD,
	UDP_STATES,
};

/*
 * Whether the packet programs know a session, see udp_activate.c.
 *
 *   NONE   no: user space carries each datagram
 *            -> HELD, FULL  a datagram of the client is to be sent on
 *   FULL   no, since there was no slot, or another session has one of the tuples
 *            -> HELD        a later datagram has found a slot
 *            -> NONE        the engine of the forward may have changed
 *   HELD   the session has a slot; the words in the slot say which legs are active
 *            -> WAITS       a datagram of the client has passed
 *            -> NONE        the slot is given back
 *   WAITS  the leg of the client is activated after the next look at the client's socket
 *            -> HELD        it is active, or cannot be, or the client sends to another socket
 *            -> NONE        the slot is given back
 */
enum udp_entry {
	UDP_ENTRY_NONE,
	UDP_ENTRY_FULL,
	UDP_ENTRY_HELD,
	UDP_ENTRY_WAITS,
};

LIST_HEAD(udp_session_list, udp_session);

/* A socket to which clients send, and by which answers leave. */
struct udp_listen_socket {
	struct source source;
	struct worker *worker;
	LIST_ENTRY(udp_listen_socket) in_worker; /* udp->sockets */
	struct forward *forward;                 /* of new sessions */
	bool old;                                /* no new sessions begin here */
	struct addr addr;                        /* the socket is bound to it */
	unsigned int refs;                       /* number of sessions */
	struct udp_session_list waiting;         /* the sessions that are UDP_ENTRY_WAITS */
};

/* The datagrams that have passed in one direction. */
struct udp_count {
	uint64_t bytes, datagrams;
};

struct udp_session {
	struct leftover leftover; /* DEAD */
	struct worker *worker;
	struct forward *forward;
	TAILQ_ENTRY(udp_session) in_worker; /* udp->sessions; DEAD: a FOREACH at S still reads it */
	LIST_ENTRY(udp_session) in_bucket;
	LIST_ENTRY(udp_session) in_waiting; /* of its socket */
	struct udp_upstream *upstream;      /* owned; NULL: none yet */
	struct timer timer;
	struct udp_listen_socket *socket; /* a reference; the client's last datagram came by it */
	struct graft_tuple tuple;         /* of a datagram of the client */
	union client_addr client;         /* it is `peer`, or has `peer` as its proxy */
	union client_addr destination;    /* it is `local`, or the PROXY header says it */
	union client_addr peer, local;
	uint64_t id, born_ms;
	uint64_t asked;       /* ANSWERED: datagrams of the client before the first answer */
	uint64_t heard_ms[2]; /* by side, in user space */
	uint32_t connect_ms;  /* until the first answer, plus 1; 0: none */
	uint8_t state;        /* enum udp_state, set by udp_session_set_state() alone */
	uint8_t entry;        /* enum udp_entry, set by udp_activate.c alone */
	bool handed_over;     /* the next daemon has its socket, too */
	bool adopted;         /* a daemon before this one, or another relay, has begun it */
	bool ends;            /* a mark, see udp_session_end(), */
	uint8_t end;          /* and its reason */
	int end_error;        /* the client is told of this errno after the end; 0: of none */
	struct pace *pace;    /* owned; NULL: its bandwidth has no limit */
	struct udp_count copied[2];
	struct udp_count counted[2]; /* by packet programs, and added to the counters */

	/* of udp_server.c */
	struct server *server;
	uint16_t n_addresses;   /* of the server; 0: the session is adopted */
	uint16_t address;       /* index of the address that is connected */
	uint16_t tried;         /* addresses that sessions before this one have asked in vain */
	bool answered;          /* the client has had an answer, here or in the session before */
	bool stale;             /* ends at the client's next datagram, if no answer comes before */
	uint32_t server_lost;   /* server->lost when the session began */
	uint64_t unanswered_ms; /* time of a question; answered if an answer came later */

	/* of udp_activate.c */
	uint32_t slot;         /* NO_SLOT while `entry` is NONE or FULL */
	uint32_t word;         /* of the client's leg, at the last look */
	uint64_t behind_ms[2]; /* by leg: since when reads have not emptied the socket;
				* 0: no such time */

	/* of udp_errors.c */
	uint64_t refused_ms;   /* when the last refusal came */
	unsigned int refusals; /* answers that the client has refused since it was heard */
};

/* A worker's data for its sessions of UDP. */
struct udp_worker {
	struct udp_session_list *buckets;
	uint32_t mask, seed;
	TAILQ_HEAD(udp_session_queue, udp_session)
	sessions;                     /* PROVEN ones; then the others, oldest first */
	struct udp_session *unproven; /* the oldest that is not PROVEN; NULL: there is none */
	unsigned int n_unproven;      /* number of those that are not PROVEN */
	LIST_HEAD(udp_socket_list, udp_listen_socket) sockets;
	struct timer old; /* when sockets without a forward are looked at */
	struct udp_batch *batch;
	struct udp_upstreams upstreams;
};

/* The only writer of s->state, which begins with ASKED.  Asserts the table. */
void udp_session_set_state(struct udp_session *s, enum udp_state to);

/*
 * Leave a mark: S ends because of END, which is a cause, or SESSION_FINISHED, SESSION_MOVED or
 * SESSION_LEFT of session_json.h.  The first mark counts.  udp_life.c ends S when the step has
 * returned.
 */
void udp_session_end(struct udp_session *s, unsigned int end);

/* The bucket of W for sessions with TUPLE. */
struct udp_session_list *udp_session_bucket(struct worker *w, const struct graft_tuple *tuple);
/* Find the session of CLIENT, whose datagrams (or whose proxy's) have the addresses of TUPLE. */
struct udp_session *udp_session_find(struct worker *w, const struct graft_tuple *tuple,
				     const union client_addr *client);

/* --- by user space and packet programs together --- */

static inline uint64_t udp_now(const struct udp_session *s)
{
	return s->worker->loop.now_ms;
}

static inline struct udp_table *udp_table_of(const struct udp_session *s)
{
	return graft_table_udp(s->worker->shared->grafts);
}

/* The flow in the slot of S; all zeroes if S has no slot. */
static inline const volatile struct udp_flow *udp_slot_of(const struct udp_session *s)
{
	static const struct udp_flow none;

	return s->slot == NO_SLOT ? &none : udp_flow_of(udp_table_of(s), s->slot);
}

/* The word of LEG, see udp_contract.h. */
static inline uint32_t udp_word(const struct udp_session *s, unsigned int leg)
{
	return udp_graft_word(udp_slot_of(s), leg);
}

/* Packet programs translate the datagrams that arrive on LEG. */
static inline bool udp_carries(const struct udp_session *s, unsigned int leg)
{
	return udp_word(s, leg) & UDP_ACTIVE;
}

/* When side DIR was heard last. */
static inline uint64_t udp_heard_ms(const struct udp_session *s, unsigned int dir)
{
	return larger(s->heard_ms[dir], udp_graft_heard_ms(udp_slot_of(s), dir));
}

/* When either side was heard last. */
static inline uint64_t udp_last_ms(const struct udp_session *s)
{
	return larger(udp_heard_ms(s, CLIENT), udp_heard_ms(s, UPSTREAM));
}

/* The datagrams from side DIR that packet programs have translated. */
struct udp_count udp_grafted(const struct udp_session *s, unsigned int dir);
/* The number of all datagrams from side DIR. */
uint64_t udp_all_datagrams(const struct udp_session *s, unsigned int dir);
/* C has carried MORE from side DIR. */
void udp_session_count(struct udp_session *s, unsigned int dir, enum carrier c,
		       struct udp_count more);
/* Add to the counters what packet programs have carried since the last call. */
void udp_session_count_kernel(struct udp_session *s);

/* Why only user space may carry S, by configuration.  REASONS: packet programs may, too. */
enum reason udp_session_hindrance(const struct udp_session *s);
/* How others see S: the control socket, the session log.  On the thread of S. */
void udp_view(const struct udp_session *s, struct session_view *ret);
