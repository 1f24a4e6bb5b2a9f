/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * A session that is grafted, or may be.  A session is offered once when it begins, and user space
 * carries it until a packet finds it quiet.  No event reports the graft, to save short sessions a
 * wake-up.  Ask session_is_grafted().
 */

/* Offer S if its engine wants that, nothing is against it, and user space has none of its bytes. */
void session_graft_offer(struct session *s);

/*
 * The time at which S, refused as far or lossy, is offered again if it stays silent.  NEVER: S was
 * not refused as far or lossy.
 */
uint64_t session_graft_due(const struct session *s);
void session_graft_timer(struct session *s);
/* True if packets of S are translated, or were until it ended. */
bool session_is_grafted(const struct session *s);

/* The carrier of flow DIR. */
enum carrier session_carrier(const struct session *s, unsigned int dir);

/* Why bulk of S is not grafted: REASON_FAR_BULK, REASON_LOSSY_BULK, or REASON_BULK for others. */
enum reason session_graft_bulk(const struct session *s);

/*
 * S has moved many bytes or messages.  If S is offered, hold its senders a moment, or withdraw the
 * offer.
 */
void session_graft_hurry(struct session *s);

/*
 * If the forward's engine does not graft, withdraw the offer of S, or return S to its sockets.
 * False: S returns once it is quiet.  If the engine grafts, withdraw the return that an earlier order
 * began.
 */
bool session_graft_detach(struct session *s);

/* An end closes: withdraw the offer of S.  False: S is grafted, so its sockets have seen no FIN. */
bool session_graft_withdraw(struct session *s);

/*
 * S ends, and its sockets are still open.  RESET: both ends get RST.  True: close the sockets with
 * RST.
 */
bool session_graft_end(struct session *s, bool reset);

/*
 * S is to be reset.  If S is grafted without sockets, its ends would not hear of the reset: ask for
 * sockets.  True: wait for session_revive(), which ends S, with sockets or without.
 */
bool session_graft_awaits_sockets(struct session *s);

/* Why S is not grafted, for operators.  "": S is grafted, may yet be, or has another engine. */
const char *session_graft_hindrance(const struct session *s);

/* When S was last at work, in ms of CLOCK_MONOTONIC, and whether an end has sent FIN. */
uint64_t session_graft_active_ms(const struct session *s, bool *ret_half);

/*
 * S has a slot.  Its state may have changed, or the ways that packets of its sockets take (struct
 * graft_way).  Mark the end of S, or make its sockets probe: the probes show the ways.  True: S has
 * returned to its sockets: run its flows.
 */
bool session_graft_follow_state(struct session *s);

/* True if another relay knows S, which is grafted, but no relay takes the changes of S now. */
bool session_graft_is_shared(const struct session *s);
/* True if a relay knows S, which is grafted, and takes its changes now. */
bool session_graft_is_told(const struct session *s);
/*
 * True if S came from another relay that was taken for dead, and no packet of S has come here since.
 * Then session_graft_hand_over() forgets S.
 */
bool session_graft_is_unheard(const struct session *s);
/*
 * True if an end of S does not answer probes, perhaps for want of word of another relay.  Then
 * session_graft_hand_over() makes S an orphan.
 */
bool session_graft_is_apart(const struct session *s);
/*
 * True if the address of S has left this machine, and another relay knows S, which is grafted, or has
 * just returned to its sockets.
 */
bool session_graft_is_away(const struct session *s);
/* True if S, which is away, has returned to its sockets, and no other relay can send their bytes. */
bool session_graft_holds_bytes(const struct session *s);
/*
 * Make the slot of S, which is away or apart, STANDBY.  True: S has no graft any more, and has to end
 * without a packet.
 */
bool session_graft_hand_over(struct session *s);

/* --- sessions that outlive a daemon --- */

/*
 * The worker stops: offer S if it can be grafted, and hold its senders.  True: S is grafted, and
 * the next daemon gets it.
 */
bool session_graft_leave_behind(struct session *s);

/* Make the new session S that of SLOT, which an earlier daemon or another relay has served. */
void session_graft_adopt(struct session *s, uint32_t slot, enum reason reason);
/* Take over the sockets that were made for the slot of S. */
void session_graft_take_sockets(struct session *s);
