/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/queue.h>

#include "datapath/udp.h"
#include "datapath/udp_graft.h"
#include "relay/forward.h"
#include "relay/session_view.h"
#include "relay/udp/udp_upstream.h"
#include "relay/worker.h"

/*
 * Sessions of UDP: the datagrams between one client and one server.  A worker has those of the
 * clients that udp_worker() gives it; no other thread touches them.
 *
 * A session begins with its client's first datagram, and ends when both ends have been silent for
 * idle-timeout, or the server has while its client asks, when the server or the path says that it
 * cannot go on, when it has had its answers (`responses`), or as others do.  It is at once what it
 * will be, so it has no states.
 */

LIST_HEAD(udp_session_list, udp_session);

/* A socket that clients send to, and that answers leave by. */
struct udp_socket {
	struct source source;
	struct worker *worker;
	struct udp_socket *next;         /* in udp->sockets */
	struct forward *forward;         /* of new sessions */
	bool old;                        /* there are none any more */
	struct addr addr;                /* that it is bound to */
	unsigned int refs;               /* sessions, */
	struct udp_session_list waiting; /* and those of them that wait for leg 0 to be activated */
};

/* What has passed in one direction. */
struct udp_count {
	uint64_t bytes, datagrams;
};

struct udp_session {
	struct leftover leftover; /* when it has ended */
	struct worker *worker;
	struct forward *forward;
	TAILQ_ENTRY(udp_session) in_worker; /* udp->sessions; ended: as it was */
	LIST_ENTRY(udp_session) in_bucket;
	LIST_ENTRY(udp_session) in_waiting; /* of its socket */
	struct udp_upstream *upstream;      /* owned; NULL: none yet */
	struct timer timer;
	struct udp_socket *socket;     /* a reference; its datagrams have come by it last */
	struct graft_tuple tuple;      /* of what the client sends */
	union client_addr client;      /* it is `peer`, or whom that speaks for in a PROXY header */
	union client_addr destination; /* the same: `local`, or what the header says */
	union client_addr peer, local;
	struct server *server;
	uint16_t n_addresses; /* of its server; 0: of a session of a daemon before */
	uint16_t address;     /* index of the one that it has */
	uint16_t tried;       /* how many its client has asked in vain before, by other sessions */
	uint32_t server_lost; /* server->lost when it got that */
	struct pace *pace;    /* owned; NULL: its bandwidth has no limit */
	uint64_t id, born_ms;
	uint32_t slot;         /* NO_UDP_SLOT: it is not entered */
	uint32_t connect_ms;   /* until the first answer, and 1; 0: none */
	uint64_t asked;        /* datagrams of the client when that came */
	uint64_t heard_ms[2];  /* by side, in user space */
	uint64_t refused_ms;   /* when the last of these came: */
	unsigned int refusals; /* of answers, by the client, since that was heard */
	uint64_t unanswered_ms; /* the client has asked then, in vain so far, if no answer is later */
	struct udp_count copied[2];
	struct udp_count counted[2]; /* by packet programs, that its counters have */
	uint32_t word;               /* of leg 0, at the last look */
	uint64_t behind_ms[2]; /* by leg: since when not all that has passed was sent on; or 0 */
	/* proven: its client has shown that it gets what is sent to it, see udp_session.c */
	bool proven, adopted, waiting, ended;
	bool no_slot;  /* it was to be entered, and there was none */
	bool answered; /* its client has had an answer, in this session or the one before */
	bool stale; /* it begins anew with its client's next datagram, if that had no answer yet */
};

/* What a worker has for all of them. */
struct udp_worker {
	struct udp_session_list *buckets;
	uint32_t mask, seed;
	TAILQ_HEAD(udp_session_queue, udp_session)
	sessions;                     /* those that are proven; the others, oldest first */
	struct udp_session *unproven; /* the first of these; NULL: none is, */
	unsigned int n_unproven;      /* and how many they are */
	struct udp_socket *sockets;
	unsigned int n_old; /* of them, those that are old */
	struct timer old;   /* when those without a forward are looked at */
	struct udp_batch *batch;
	struct udp_upstreams upstreams;
	uint64_t lost_seen;      /* of shared->udp_lost */
	uint64_t say_limited_ms; /* when max-reply-factor may be logged again */
};

/* Room for sessions of W; pages are taken as they are needed. */
void udp_worker_open(struct worker *w);
void udp_worker_close(struct worker *w);

/* --- for who reads from clients --- */

/* Find the session of what CLIENT sends by a proxy, or itself, with addresses as TUPLE. */
struct udp_session *udp_session_find(struct worker *w, const struct graft_tuple *tuple,
				     const union client_addr *client);
/*
 * Begin the session of CLIENT to DESTINATION, by US, with the addresses of M.  The caller has
 * counted it in.  CAUSES; or why there is none.
 */
enum cause udp_session_open(struct udp_socket *us, const struct graft_tuple *tuple,
			    const struct udp_message *m, const union client_addr *client,
			    const union client_addr *destination, struct udp_session **ret);
/* A datagram of its client has come.  True: S has ended, as nobody answers, and begins anew. */
bool udp_session_is_over(struct udp_session *s);
/* M comes from its client, by US. */
void udp_session_take(struct udp_session *s, struct udp_socket *us, const struct udp_message *m);
/*
 * An unproven session gives way, if there is one: of F (NULL: of any), and of the host REMOTE (NULL:
 * any).
 */
bool udp_session_crowd_out(struct worker *w, const struct forward *f,
			   const struct graft_addr *remote);
/* A datagram to a client, of any worker, has met an error on its way. */
void udp_session_client_error(struct worker *w, const struct udp_error *e);
/* A look at US begins. */
void udp_sessions_look(const struct udp_socket *us);
/*
 * It has ended: activate what waits for that.  What it has found was sent on; QUIET: it has found
 * all that there was.  True: some still wait.
 */
bool udp_sessions_activate(const struct udp_socket *us, bool quiet);

/* --- what a worker asks of its sessions, on its thread --- */

/* Call FN with each of them, and a view of it, after the counters have what packet programs did. */
void udp_sessions_visit(struct worker *w, session_visit_fn *fn, void *arg);
/* As session_end_some(). */
unsigned int udp_sessions_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
				   enum cause cause);
/* As session_follow_engines(), but nothing is left to wait for. */
void udp_sessions_follow_engines(struct worker *w);
/* The worker stops: leave to the next daemon what is grafted, and end what owes nobody an answer. */
void udp_sessions_leave_behind(struct worker *w);
/* Addresses may have left: sessions that another relay was told of die, and what carries them stays. */
void udp_sessions_part(struct worker *w);
/* After a batch of events. */
void udp_sessions_after_batch(struct worker *w);

/* --- of a daemon before --- */

/*
 * Make the flow of SLOT a session of F and W, before W runs.  The caller has counted it in.  -ENOENT:
 * W has no socket to which its client sends; other -errno: no socket is to be had.
 */
int udp_session_adopt(struct worker *w, struct forward *f, uint32_t slot);
