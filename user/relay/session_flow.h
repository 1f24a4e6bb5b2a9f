/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "datapath/carrier_copy.h"
#include "relay/session.h"

/* Drives both flows of a session from phase to phase (flow.h). */

/* The session is connected: choose the first carriers. */
void session_flows_start(struct session *s);

/* S was open in another daemon, and has what was carried there: choose the carriers anew. -ENOMEM. */
int session_flows_take(struct session *s);

/* Move flow DIR as far as it goes.  FIN: epoll reports EPOLLRDHUP or EPOLLHUP on its source. */
void session_flow_run(struct session *s, unsigned int dir, bool fin);

/*
 * Pump as much of flow DIR as its bandwidth allows now.  *RET_ERROR: of the side that *RET names.
 * False: nothing was pumped, because the flow waits for its turn.
 *
 * A flow with more to read reserves its next turn at once.  Even if all tokens of that turn are
 * there, the other events of this batch come first.
 */
bool session_flow_pump(struct session *s, unsigned int dir, bool fin, enum pump *ret,
		       int *ret_error);

/* Let flow DIR follow the engine of its forward, which may be another one.  False: not done yet. */
bool session_flow_follow(struct session *s, unsigned int dir);
