/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/handed.h"
#include "relay/session_json.h"

/* The life of sessions from accept(2) to close(2), and operations on all sessions of a worker. */

/*
 * Take over the non-blocking socket FD of forward F, accepted at PORT (in network order).  The
 * caller has counted the session in, by admission_enter() and, unless F receives PROXY headers, by
 * admission_enter_client().  -errno: FD is still the caller's.
 */
int session_open(struct worker *w, struct forward *f, int fd, const union client_addr *client,
		 in_port_t port);

/*
 * Adopt the grafted session in SLOT, which an earlier daemon or another relay has served, as a
 * session of CLIENT by F on W.  To be called before W runs, or on the thread of W.  The caller has
 * counted the session in.  Returns -ENOMEM without memory.
 */
int session_adopt(struct worker *w, struct forward *f, const union client_addr *client,
		  uint32_t slot);
/* The same with SLOT, whose session has begun in the kernel, and is counted in, as is its SERVER. */
int session_begun(struct worker *w, struct forward *f, const union client_addr *client,
		  uint32_t slot, struct server *server);
/* --- a hand-over to the next daemon, see handed.h: while the workers wait, or do not run yet --- */

/*
 * Let the flows of W leave sockmap, whose queues cannot be handed over.  W runs.  Returns how many
 * are still there: a flow stays while its target takes nothing.
 */
unsigned int worker_leave_kernel(struct worker *w);
struct handing {
	bool same;            /* the next daemon has the same maps */
	struct bundle *ahead; /* of each worker: sessions that were sent while it ran */
	/* later sessions do not go ahead: with those that end meanwhile they might be too many */
	uint64_t last_id;
	uint32_t at;           /* number of the next of them, of all workers */
	struct bundle changed; /* numbers of those that have changed since */
	struct bundle now;     /* all else */
};

/* Put the silent sessions of W into B, those of forwards that leave. */
void worker_hand_ahead(struct worker *w, const struct handing *h, struct bundle *b);
/*
 * Put the sessions of W into H->now, unless they are the same as in H->ahead.  They stay with W, too.
 * The workers come in their order.
 */
void worker_hand_over(struct worker *w, struct handing *h);
/* The next daemon has what was put, and the grafted sessions: forget both. */
void worker_give_away(struct worker *w);
/*
 * Make a session of F on W of FROM.  The descriptors of FROM are the session's from now on.  -EPROTO:
 * they are still the caller's; -ENOMEM: this daemon has to end.
 */
int session_take_over(struct worker *w, struct forward *f, const struct record *from,
		      struct session **ret);
/* S of session_take_over() has ended at the other daemon, or comes anew.  LOST: that is not known. */
void session_take_back(struct session *s, bool lost);

/* If S was adopted without sockets, give it the sockets that its slot has by now. */
void session_revive(struct session *s);

/* --- all sessions of a worker, of TCP and UDP: on its thread, between two batches of events --- */

/*
 * Add the flows of W's sessions to FLOWS, by carrier.  Also add, to the counters of W, the bytes
 * that the kernel has carried for these sessions since the last call.
 */
void worker_count_sessions(struct worker *w, uint64_t flows[CARRIERS]);
/*
 * Call FN with the view of each session whose id modulo PIECES is PIECE, and end the session if FN
 * returns a cause.  Counts bytes as worker_count_sessions() does.
 */
void worker_visit_sessions(struct worker *w, uint64_t piece, uint64_t pieces, session_visit_fn *fn,
			   void *arg);

/*
 * Let all flows follow the engines of their forwards.  Returns the number of flows that could not
 * follow yet.
 */
unsigned int worker_follow_engines(struct worker *w);
/*
 * W stops: leave grafted sessions to the next daemon, and end sessions of UDP that owe no answer.
 * To be called again while W has sessions.
 */
void worker_leave_behind(struct worker *w);
/* After a batch of events: sessions that wait look for a server with a place. */
void session_wake_waiting(struct worker *w);
/* After a batch of events: follow news of grafts, of addresses and of servers. */
void worker_follow_news(struct worker *w);

/* --- of TCP --- */

/* The verdict program has sent EVENT, a struct culvert_event, to WORKER; see ring_buffer__new(). */
int session_kernel_event(void *worker, void *event, size_t size);
/* Events were lost, or kernel memory is short: look at every flow that is in the kernel. */
void session_kernel_sweep(struct worker *w);

/* The packet programs have sent EVENT, a struct graft_event, to WORKER. */
int session_graft_event(void *worker, void *event, size_t size);
/* Take the events of both kinds of programs, also events that woke nobody. */
void session_catch_up(struct worker *w);
