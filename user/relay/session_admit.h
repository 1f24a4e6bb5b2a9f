/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_ADMIT_H
#define CULVERT_SESSION_ADMIT_H

#include <stdbool.h>
#include <sys/socket.h>

#include "relay/forward.h"
#include "relay/worker.h"

/*
 * Count a session of F, which admission_enter() has counted in, as one of CLIENT's.  False: it has
 * as many as it may, which is logged; the caller counts CAUSE_CLIENT_LIMIT and ends the connection,
 * by RST, so that the client is not left to wait behind its own sessions.
 */
bool session_admit_client(struct worker *w, struct forward *f, const struct sockaddr *client);

#endif
