/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * The PROXY headers of a session: the one that its client begins with, in the state HEADER, and the
 * one that its upstream is sent, at the end of CONNECTING.
 */

/* A new session: it begins in HEADER if its forward receives headers, or TLS hellos.  -ENOMEM. */
int session_header_expect(struct session *s);

/*
 * Look at what has come.  ENDED: epoll has reported that no more will.  True: it was read, or none is
 * to come.  S is reset if that is bad, or late (told->due_ms).
 */
bool session_header_look(struct session *s, bool ended);

/* Send the upstream's header, if it gets one.  False: that was not possible, and S is reset. */
bool session_header_send(struct session *s);

/*
 * The TLS hello of a session, in the state HEADER, where its forward has [sni] sections.  It is
 * looked at, and stays in the socket.
 */

/*
 * Look at what has come, behind a PROXY header.  ENDED: epoll has reported that no more will.  True:
 * there is none to come, or it was whole, and S->forward is whose session S is now.  S is reset, after
 * a TLS alert, if it is bad, or late (told->due_ms), or if nobody has its name.
 */
bool session_hello_look(struct session *s, bool ended);
