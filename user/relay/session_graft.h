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

/* What carries flow DIR. */
enum carrier session_carrier(const struct session *s, unsigned int dir);

/* S is offered, and has moved much, or many messages: hold its senders for a moment, or give it up. */
void session_graft_hurry(struct session *s);

/*
 * Unless its engine grafts, take back the offer of S, or let S go back to its sockets.  False: the
 * latter, which takes until S is quiet.
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

/* The packet programs have sent EVENT, a struct graft_event, to WORKER. */
void session_graft_event(void *worker, const void *event);

/* --- sessions that outlive a daemon --- */

/*
 * The worker stops: offer what can be grafted, hold its senders, and leave what is grafted to the
 * next daemon.  To be called again while sessions are left.
 */
void session_graft_leave_behind(struct worker *w);

/*
 * Make the session of SLOT, which a daemon before this one has left, one of F and of W, before W
 * runs.  -errno: it cannot be.
 */
int session_graft_adopt(struct worker *w, struct forward *f, uint32_t slot);

/* What a session remembers of its forward for the next daemon. */
uint32_t session_graft_tag(const struct forward *f);

/* Events were lost, or ways may have changed: look at all sessions that are grafted. */
void session_graft_sweep(struct worker *w);
/* After a batch of events: the same, if shared->graft_news says so. */
void session_graft_news(struct worker *w);

#endif
