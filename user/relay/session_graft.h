/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * A session that is grafted, or may be.  It is offered once when it begins; user space carries it
 * until a packet finds it quiet.  Nobody is told of that, which saves short sessions a wake-up: so
 * ask session_is_grafted().
 */

/* Offer S if its engine wants that, nothing is against it, and user space has none of its bytes. */
void session_graft_offer(struct session *s);

/* When S, which was far, is offered for its silence; NEVER: it was not far. */
uint64_t session_graft_due(const struct session *s);
void session_graft_timer(struct session *s);
/* True if packets of S are translated, or were until it ended. */
bool session_is_grafted(const struct session *s);

/* What carries flow DIR. */
enum carrier session_carrier(const struct session *s, unsigned int dir);

/* Why bulk of S is at its sockets: REASON_FAR_BULK, REASON_LOSSY_BULK, or REASON_BULK: others. */
enum reason session_graft_bulk(const struct session *s);

/* S, if offered, has moved much, or many messages: hold its senders a moment, or give it up. */
void session_graft_hurry(struct session *s);

/*
 * Unless its engine grafts, take back the offer of S, or let S go back to its sockets.  False: the
 * latter, which takes until S is quiet.
 */
bool session_graft_detach(struct session *s);

/* An end is closing before S was grafted.  False: it is grafted, so that was no end of a stream. */
bool session_graft_withdraw(struct session *s);

/* S ends.  Before its sockets are closed; RESET: for both ends.  True: close them with RST. */
bool session_graft_end(struct session *s, bool reset);

/* Why S is not grafted, for operators; "": it is, or may be, or was never to be. */
const char *session_graft_hindrance(const struct session *s);

/* When it was last at work, in ms of CLOCK_MONOTONIC, and whether an end has sent FIN. */
uint64_t session_graft_active_ms(const struct session *s, bool *ret_half);

/*
 * Something has happened to S, which has a slot, or its ways may have changed: marks its end, or
 * follows.  True: S has come back to its sockets, and its flows are to run.
 */
bool session_graft_look(struct session *s);

/* Another relay knows S, and none is told any more what becomes of it. */
bool session_graft_is_shared(const struct session *s);
/*
 * Has the address of S left, for a relay that knows S?  Then it may be parted with.  True: what
 * carries it is STANDBY again, and S, without a graft, is to die without a word.
 */
bool session_graft_is_away(const struct session *s);
bool session_graft_part(struct session *s);

/* --- sessions that outlive a daemon --- */

/*
 * The worker stops: offer S if it can be grafted, and hold its senders.  True: it is grafted, and
 * the next daemon's.
 */
bool session_graft_leave_behind(struct session *s);

/* Make S, which is new, the session of SLOT, which a daemon before this one has left. */
void session_graft_adopt(struct session *s, uint32_t slot);
/* The sockets that its slot was given become those of S. */
void session_graft_take_sockets(struct session *s);
