/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_GRAFT_H
#define CULVERT_SESSION_GRAFT_H

#include "relay/session.h"

/*
 * A session that is grafted, or may be.  It is offered once when it begins; user space carries it
 * until a packet finds it quiet.  Nobody is told of that, which saves short sessions a wake-up: so
 * ask session_is_grafted().
 */

/* Offer S if its engine wants that, nothing speaks against it, and user space has none of its bytes. */
void session_graft_offer(struct session *s);

/* True if packets of S are translated, or were until it ended. */
bool session_is_grafted(const struct session *s);

/* S is offered, and has moved much, or many messages: hold its senders for a moment, or give it up. */
void session_graft_hurry(struct session *s);

/*
 * S is not to be grafted any more: its offer is taken back, or it goes back to its sockets.  False:
 * the latter, and it takes until the next time it is quiet.
 */
bool session_graft_leave(struct session *s);

/* An end is closing before S was grafted.  False: it is grafted, so that was no end of a stream. */
bool session_graft_withdraw(struct session *s);

/* S ends.  Before its sockets are closed; RESET: for both ends.  True: close them with RST. */
bool session_graft_end(struct session *s, bool reset);

/* Why S is not grafted, for operators; "": it is, or may be, or was never to be. */
const char *session_graft_hindrance(const struct session *s);

/* When it was last at work, in ms of CLOCK_MONOTONIC, and whether an end has sent FIN. */
uint64_t session_graft_active_ms(const struct session *s, bool *ret_half);

/* The packet programs have sent EV to WORKER. */
void session_graft_event(void *worker, const struct graft_event *ev);

/* Events were lost: look at all sessions that are grafted. */
void session_graft_sweep(struct worker *w);

#endif
