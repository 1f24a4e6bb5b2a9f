/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_CONNECT_H
#define CULVERT_SESSION_CONNECT_H

#include "session.h"

/*
 * From the accepted client to the connected upstream: its addresses in order, each with its own
 * time-out.  Used by session.c only, while the session is CONNECTING.  Each of the first three may
 * open the session or end it: look at s->state afterwards.
 */

/* Begin with the first address. */
void session_connect(struct session *s);
/* epoll has reported EVENTS on the upstream's socket. */
void session_connect_answered(struct session *s, uint32_t events);
/* Time has passed: give up on this address, or try again. */
void session_connect_timer(struct session *s);

/* When to call session_connect_timer(), or to compute anew what to wait for. */
uint64_t session_connect_due(const struct session *s);
/* True at first: the client need not be watched yet. */
bool session_connect_is_quiet(const struct session *s);

/* Close one side, if it is open.  RST: with a reset.  In session.c. */
void session_close_side(struct session *s, unsigned int which, bool rst);

#endif
