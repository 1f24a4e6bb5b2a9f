/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/* Drives both flows of a session from phase to phase (flow.h). */

/* The session is connected: choose the first carriers. */
void session_flows_start(struct session *s);

/* Move flow DIR as far as it goes.  FIN: epoll reports EPOLLRDHUP or EPOLLHUP on its source. */
void session_flow_run(struct session *s, unsigned int dir, bool fin);

/* The forward may have got another engine.  False: flow DIR has not followed it yet, but will. */
bool session_flow_follow(struct session *s, unsigned int dir);

/*
 * S is marked as one that parts: it is PARTING for a while, if there is something to take from the
 * dead side to the other, or marked to be reset at once.
 */
void session_part_begin(struct session *s);
/* PARTING: to be called again at s->flows[s->parted].due_ms. */
void session_part_go_on(struct session *s);
