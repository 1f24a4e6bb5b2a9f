/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session_view.h"

/*
 * Operations on all sessions of a worker.  Only this module knows that there are two kinds, those
 * of TCP and those of UDP.  On the worker's thread, between two batches of events.
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
