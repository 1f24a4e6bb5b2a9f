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

/* --- for worker_sessions.h: operations on all sessions of TCP --- */

unsigned int session_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
			      enum cause cause);

unsigned int session_follow_engines(struct worker *w);

/* The verdict program has sent EVENT, a struct culvert_event, to WORKER; see ring_buffer__new(). */
int session_kernel_event(void *worker, void *event, size_t size);
/* Events were lost, or kernel memory is short: look at every flow that is in the kernel. */
void session_kernel_sweep(struct worker *w);

/* The packet programs have sent EVENT, a struct graft_event, to WORKER. */
int session_graft_event(void *worker, void *event, size_t size);
/* Take the events of both, also those of which nobody was told. */
void session_catch_up(struct worker *w);
/*
 * After a batch of events: look at all that are grafted, if there is news, or events were lost.
 * True: there was.
 */
bool session_graft_news(struct worker *w);

/* Leave sessions that are grafted, or can be at once, to the next daemon. */
void session_leave_behind(struct worker *w);
