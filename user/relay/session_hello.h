/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

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
