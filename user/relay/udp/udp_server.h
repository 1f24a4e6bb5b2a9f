/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/* The server of a session: chosen, connected, doubted when it is silent, blamed when it fails. */

/*
 * Connect S to an address of a server.  Returns CAUSE_NONE, or the cause for which S has no server.
 * A server without a route is set aside: the next session gets another one.
 */
enum cause udp_server_choose(struct udp_session *s);
/* Connect S, which is adopted, with the addresses that its FLOW has.  -errno. */
int udp_server_adopt(struct udp_session *s, const volatile struct udp_flow *flow);
/* BEFORE was given up, and S takes its place for the same client: S gets what BEFORE has tried. */
void udp_server_succeed(struct udp_session *s, const struct udp_session *before);

/* The server of S has answered. */
void udp_server_answered(struct udp_session *s);
/*
 * True if the server owes S its first answer, and has an address that the client has not asked.
 * Then the client's next datagram is to come to user space, which may try that address.
 */
bool udp_server_is_awaited(const struct udp_session *s);
/* Doubt the server of S, if the client has asked in vain for idle-timeout. */
void udp_server_doubt(struct udp_session *s);
/* A datagram of the client has come.  True: nobody answers, so S has to end and to begin anew. */
bool udp_server_is_given_up(struct udp_session *s);
/*
 * The server of S cannot be reached: ERROR.  If S has not heard the server since the client asked,
 * S ends now or, where another address is left, with the client's next datagram.
 */
void udp_server_unreachable(struct udp_session *s, int error);
/* The server of S was blamed by any worker since S began. */
bool udp_server_is_lost(const struct udp_session *s);
