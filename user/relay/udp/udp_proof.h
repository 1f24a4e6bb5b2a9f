/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/*
 * Proof of clients.  The sender of a forged address gets no answer, and an answer would hit a third
 * host.  So a session is unproven until its client has sent a datagram after an answer.  An
 * unproven session gives way to others when there is no room, and its answers are limited
 * (max-reply-factor).
 */

/* S, which is new, is the youngest of the unproven sessions. */
void udp_proof_begin(struct udp_session *s);
/* S leaves the list of its worker. */
void udp_proof_end(struct udp_session *s);

/* The client of S has sent a datagram: a proof, if S is ANSWERED. */
void udp_proof_give(struct udp_session *s);
/* True if user space or packet programs have seen the proof, which S may not show yet. */
bool udp_proof_seen(const struct udp_session *s);
/*
 * True if all answers may be sent to the client of S, since its address has proven itself here, in
 * another session, or by TCP.  That is no proof of S: a client can forge sessions with its own
 * address.
 */
bool udp_proof_of_address(struct udp_session *s);
/* True if max-reply-factor lets the answer M pass. */
bool udp_proof_allows(struct udp_session *s, const struct udp_message *m);

/*
 * The oldest unproven session, of F (NULL: of any forward) and of the host REMOTE (NULL: any): it
 * gives way.  NULL: there is none.
 */
struct udp_session *udp_proof_missing(struct worker *w, const struct forward *f,
				      const struct graft_addr *remote);
