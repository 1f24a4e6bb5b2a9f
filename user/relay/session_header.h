/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * The PROXY headers of a session: from its client, in the state HEADER, and to its upstream, at the
 * end of CONNECTING.
 */

/* A new session: it begins in HEADER if its forward receives headers, or TLS hellos.  -ENOMEM. */
int session_header_expect(struct session *s);

/*
 * Look for the client's header.  ENDED: epoll has reported the end of the stream.  True: the header
 * was read, or none is expected.  S is reset if the header is bad, or late (told->due_ms).
 */
bool session_header_read(struct session *s, bool ended);

/* Send a header to the upstream, if the forward sends headers.  False: S is reset. */
bool session_header_send(struct session *s);

/*
 * The TLS hello of a session, in the state HEADER, where its forward has [sni] sections.  The
 * hello is looked at, and stays in the socket.
 */

/*
 * Look for the hello, after any PROXY header.  ENDED: epoll has reported the end of the stream.
 * True: no hello is expected; or it was whole, and S->forward is the forward that it names.  S is
 * reset, after a TLS alert, if the hello is bad, or late (told->due_ms), or if no forward has its
 * name.
 */
bool session_hello_read(struct session *s, bool ended);

/*
 * PostgreSQL: the client has asked for TLS before its hello, so the server is asked, too.  S is
 * connected.  True: the server was asked, and S waits until session_postgres_hear() returns true, or S
 * ends.
 */
bool session_postgres_ask(struct session *s);
bool session_postgres_hear(struct session *s);
static inline bool session_postgres_waits(const struct session *s)
{
	return s->told && s->told->postgres == POSTGRES_SERVER;
}
