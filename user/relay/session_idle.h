/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_IDLE_H
#define CULVERT_SESSION_IDLE_H

#include "relay/session.h"

/*
 * idle-timeout and fin-timeout: the end of a session that is silent.  Used by session.c only.
 *
 * Nothing is done for a byte.  At the time at which the session would end, if no byte had come
 * since the last look, the sockets are asked when one has: TCP knows, whatever carries the flow.
 */

/* OPEN: when to look again; UINT64_MAX: never. */
uint64_t session_idle_due(struct session *s);

/* To be called when the session's timer has fired: look, if it is time.  May end the session. */
void session_idle_timer(struct session *s);

#endif
