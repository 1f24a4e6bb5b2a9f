/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_ENDING_H
#define CULVERT_SESSION_ENDING_H

#include "relay/session.h"

/*
 * The end of many sessions at once: `culvert kill`, a drain-timeout, the end of grace.  Each reset
 * takes system calls, so in one batch of events no more are reset than may be looked at for their
 * silence (idle_turn(), which counts both together), and the others in the milliseconds to come:
 * what other sessions have to say does not wait for them.  SESSION_ENDING_IN_TIME take 2 s that
 * way; of more than these, as many more are reset at a time, so that they take no longer.
 *
 * Until then they go on, and may come to their own end, but nobody who goes through the worker's
 * sessions meets them any more.
 */

#define SESSION_ENDING_IN_TIME (2000 * IDLE_LOOKS)

typedef bool session_choice_fn(const void *arg, const struct session *s);

/*
 * On W's thread: begin to reset, because of CAUSE, those that CHOOSE says, with ARG.  Returns how
 * many these are.
 */
unsigned int session_ending_begin(struct worker *w, session_choice_fn *choose, const void *arg,
				  enum cause cause);

/*
 * On W's thread: as many more as this batch still may.  W does so by itself; it is for whoever
 * waits.  Are there any left?
 */
bool session_ending_go_on(struct worker *w);

#endif
