/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_PART_H
#define CULVERT_SESSION_PART_H

#include "relay/session.h"

/*
 * One end is gone: its RST has come, or TCP has given it up.  What it had said before is here, in
 * its receive queue, in the kernel's backlog or in our buffers, and without us the other end would
 * have got it ahead of the RST: a server that answers "too large" and closes with the request
 * unread, say.  So the other end gets it, and then RST.  What that one says meanwhile has nowhere
 * to go.
 */

/*
 * SIDE is gone, because of CAUSE.  If the session is OPEN, and SIDE has not sent FIN, it is PARTING
 * afterwards, or DEAD, if there was nothing to take or it could be taken at once; else it is reset.
 */
void session_part(struct session *s, unsigned int side, enum cause cause);

/* When to go on with a session that is PARTING, and what to do then. */
uint64_t session_part_due(struct session *s);
void session_part_timer(struct session *s);

#endif
