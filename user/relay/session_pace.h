/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_PACE_H
#define CULVERT_SESSION_PACE_H

#include "relay/session.h"

/*
 * bandwidth and bandwidth-per-client: how much a flow may read, and when.  Used by session_flow.c
 * and session.c only.
 *
 * The kernel cannot wait, so a session with a limit stays in user space.  What a source sends
 * while it is not read fills its receive buffer, and TCP's window then slows it down.
 */

/* The session is open, and its client known.  May end it. */
void session_pace_start(struct session *s);

/* A turn of flow DIR begins.  False: later, at due_ms. */
bool session_pace_begin(struct session *s, unsigned int dir);
/* What it may read, of this turn; UINT64_MAX: anything. */
uint64_t session_pace_left(const struct session *s, unsigned int dir);
/* How many turns there were in the queue, this one included. */
uint32_t session_pace_queue(const struct session *s, unsigned int dir);
void session_pace_used(struct session *s, unsigned int dir, uint64_t bytes);
/* The turn ends; what is left is given back. */
void session_pace_end(struct session *s, unsigned int dir);

/* The session has ended. */
void session_pace_stop(struct session *s);

#endif
