/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/* Drives both flows of a session from phase to phase (flow.h). */

/* The session is connected: choose the first carriers. */
void session_flows_start(struct session *s);

/* Move flow DIR as far as it goes.  FIN: epoll reports EPOLLRDHUP or EPOLLHUP on its source. */
void session_flow_run(struct session *s, unsigned int dir, bool fin);

/* Let flow DIR follow the engine of its forward, which may be another one.  False: not done yet. */
bool session_flow_follow(struct session *s, unsigned int dir);

/*
 * S is marked ENDING_PARTS.  S becomes PARTING if the other end may still get bytes of the dead
 * side.  Otherwise S is marked for a reset.
 */
void session_part_begin(struct session *s);
/* PARTING: to be called again at s->flows[s->parted].due_ms. */
void session_part_go_on(struct session *s);
