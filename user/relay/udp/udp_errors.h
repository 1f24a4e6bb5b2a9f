/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/* Errors of ICMP: an end is gone, cannot be reached, or gets no datagram of that size. */

/* Take the errors that the socket of S has. */
void udp_errors_take(struct udp_session *s);
/*
 * Another worker has taken an error about an answer of S that packet programs have translated.
 * True: the client is gone, and S ends.
 */
bool udp_errors_client_gone(struct udp_session *s);
/*
 * E, an error about an answer, has come by a socket to which clients of any worker send.  Returns
 * the session of W that E is about, whose end may be marked now; NULL: E is not about W's sessions.
 */
struct udp_session *udp_errors_of_client(struct worker *w, const struct udp_error *e);
/* Forget the MTUs of both paths, which may be larger by now.  If not, an error tells them again. */
void udp_errors_forget_mtu(struct udp_session *s);
