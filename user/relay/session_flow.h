/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_FLOW_H
#define CULVERT_SESSION_FLOW_H

#include "relay/session.h"

/*
 * What drives the flows of a session from phase to phase (see flow.h).  Used by session.c, and by session_part.c.
 * Each of these may end the session: look at s->state afterwards.
 */

/* The session is connected: choose the first carriers. */
void session_flows_start(struct session *s);

/*
 * Move flow DIR as far as it goes.  FIN: epoll has reported EPOLLRDHUP or EPOLLHUP on its source.
 */
void session_flow_run(struct session *s, unsigned int dir, bool fin);

/* The program has reported KIND (enum culvert_event_kind) for flow DIR. */
void session_flow_event(struct session *s, unsigned int dir, unsigned int kind);

/* True if the kernel has carried so much of S that it should be judged again. */
bool session_flow_is_due(const struct session *s);
/* Take S out of the kernel, so that the policy judges it again. */
void session_flow_review(struct session *s);

/*
 * The engine of the forward may have changed: flow DIR shall have a carrier of the new one.  False:
 * it will, but bytes are still on the way by the old one.
 */
bool session_flow_follow(struct session *s, unsigned int dir);

/*
 * The source of flow DIR is dead, and the kernel has nothing of it any more: read and write what is
 * left.  False: there is more, or it may not be read yet.
 */
bool session_flow_rest(struct session *s, unsigned int dir);

#endif
