/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session_view.h"

/* The life of sessions from accept(2) to close(2), and operations on all sessions of a worker. */

/*
 * Take over the non-blocking socket FD of forward F, accepted at PORT (in network order).  The
 * caller has counted the session in, by admission_enter() and, unless F receives PROXY headers, by
 * admission_enter_client().  -errno: FD is still the caller's.
 */
int session_open(struct worker *w, struct forward *f, int fd, const struct sockaddr *client,
		 in_port_t port);

/*
 * Make the grafted session of SLOT, which a daemon before this one has left, one of F, CLIENT and
 * W, before W runs.  The caller has counted it in.  -ENOMEM.
 */
int session_adopt(struct worker *w, struct forward *f, const struct sockaddr *client,
		  uint32_t slot);
/* If S, which was adopted, has no sockets, it gets those that its slot was given. */
void session_revive(struct session *s);

/*
 * --- operations on all sessions of a worker, those of UDP too: on its thread, between two batches ---
 */

/* Room for sessions of W, which does not run yet; pages are taken as they are needed. */
void worker_open_sessions(struct worker *w);
/* All have ended. */
void worker_close_sessions(struct worker *w);

/*
 * Add the flows of W's sessions to FLOWS, by carrier; and add the bytes that the kernel has carried
 * for them since the last call to the counters of W.
 */
void worker_count_sessions(struct worker *w, uint64_t flows[CARRIERS]);
/* Call FN with the view of each session whose id has the rest PIECE by PIECES, counted as above. */
void worker_visit_sessions(struct worker *w, uint64_t piece, uint64_t pieces, session_visit_fn *fn,
			   void *arg);

/*
 * Reset the sessions for which CHOOSE (NULL: all) returns true, with ARG, because of CAUSE.
 * Returns how many.
 */
unsigned int worker_end_sessions(struct worker *w, session_choice_fn *choose, const void *arg,
				 enum cause cause);
/* Let all flows follow the engines of their forwards.  Returns how many have not yet, but will. */
unsigned int worker_follow_engines(struct worker *w);
/*
 * W stops: leave sessions to the next daemon, where the kernel carries them alone, and end those
 * of UDP that owe nobody an answer.  To be called again while sessions are left.
 */
void worker_leave_behind(struct worker *w);
/* After a batch of events: follow news of grafts, of addresses and of servers. */
void worker_follow_news(struct worker *w);

/* --- of TCP --- */

/* The verdict program has sent EVENT, a struct culvert_event, to WORKER; see ring_buffer__new(). */
int session_kernel_event(void *worker, void *event, size_t size);
/* Events were lost, or kernel memory is short: look at every flow that is in the kernel. */
void session_kernel_sweep(struct worker *w);

/* The packet programs have sent EVENT, a struct graft_event, to WORKER. */
int session_graft_event(void *worker, void *event, size_t size);
/* Take the events of both, also those of which nobody was told. */
void session_catch_up(struct worker *w);
