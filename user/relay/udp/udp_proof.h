/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/*
 * If a sender forges its address, the answers go to a third host, and the sender sees none.  So a
 * session is unproven until its client has sent a datagram after an answer.  An unproven session
 * gives way to others when there is no room, and its answers are limited (max-reply-factor).
 */

/* S, which is new, is the youngest of the unproven sessions. */
void udp_proof_begin(struct udp_session *s);
/* S leaves the list of its worker. */
void udp_list_remove(struct udp_session *s);

/* The client of S has sent a datagram: a proof, if S is ANSWERED. */
void udp_proof_give(struct udp_session *s);
/* True if user space or packet programs have seen the proof.  S may still be ANSWERED. */
bool udp_proof_seen(const struct udp_session *s);
/* As udp_proof_seen(); if true, S becomes PROVEN. */
bool udp_proof_is_given(struct udp_session *s);
/*
 * True if all answers may be sent to the client of S, since its address has proven itself here, in
 * another session, or by TCP.  A proof elsewhere leaves S unproven: else a client could fill the
 * table from one proven address.
 */
bool udp_proof_of_address(struct udp_session *s);
/* True if max-reply-factor lets the answer M pass. */
bool udp_proof_allows(struct udp_session *s, const struct udp_message *m);
