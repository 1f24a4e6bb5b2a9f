/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/* How a session joins the packet programs, and leaves them: enum udp_entry. */

/* S gets a slot, if it has none and may have one. */
void udp_activate_enter(struct udp_session *s);
/* Give S the SLOT of an active flow, which an earlier daemon or another relay has served. */
void udp_activate_adopt(struct udp_session *s, uint32_t slot);
/* S gives its slot back, if it has one. */
void udp_activate_leave(struct udp_session *s);
/* The engine of the forward has changed. */
void udp_activate_follow_engine(struct udp_session *s);

/* The client of S has sent a datagram, after a silence perhaps. */
void udp_activate_wake(struct udp_session *s);
/* Let S wait until the leg of its client is activated, if that leg is not active and may be. */
void udp_activate_wait(struct udp_session *s);
void udp_activate_wait_no_more(struct udp_session *s);
/* A look at US begins: the daemon is about to read one batch of datagrams from it. */
void udp_activate_before_read(const struct udp_listen_socket *us);
/*
 * The look has ended, and its datagrams were sent on: activate the sessions that wait.  QUIET: the
 * look has left no datagram in the socket.  True: some sessions still wait.
 */
bool udp_activate_after_read(const struct udp_listen_socket *us, bool quiet);
/* The same for the leg of the server of S.  WORD: the word of that leg when the look began. */
void udp_activate_server(struct udp_session *s, uint32_t word, bool quiet);
