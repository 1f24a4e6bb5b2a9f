/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_CONNECT_H
#define CULVERT_SESSION_CONNECT_H

#include "session.h"

/*
 * From the accepted client to the connected upstream: its addresses as happy_eyeballs.h says, each
 * attempt with its own time-out.  Used by session.c only, while the session is CONNECTING.  Each of
 * the first three may open the session or end it: look at s->state afterwards.
 */

/* Begin with the first address. */
void session_connect(struct session *s);
/* epoll has reported EVENTS on the socket of attempt I; 0 is that of sides[UPSTREAM]. */
void session_connect_answered(struct session *s, unsigned int i, uint32_t events);
/* Time has passed: give up on an address, begin with the next, or try again. */
void session_connect_timer(struct session *s);

/* When to call session_connect_timer(), or to compute anew what to wait for. */
uint64_t session_connect_due(struct session *s);
/* True at first: the client need not be watched yet. */
bool session_connect_is_quiet(const struct session *s);

/* The session is open, or ends: give up all attempts but that of sides[UPSTREAM]. */
void session_connect_end(struct session *s);
/* Free what was given up during the batch. */
void session_connect_reap(struct worker *w);

/* To be called at the end of every handler that left the session alive.  In session.c. */
void session_update(struct session *s);
/* Close one side, if it is open.  RST: with a reset.  In session.c. */
void session_close_side(struct session *s, unsigned int which, bool rst);

#endif
