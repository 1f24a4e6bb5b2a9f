/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

#include "datapath/stats.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * Who may have a session: how many there may be in all, of one forward, of one client, and of one
 * client at one forward.  Each limit holds beside the others.  Any thread may call any of this.
 */

/* Count a session of F in before its client is known.  False: there is no room, see *RET_WHY. */
bool admission_enter(struct shared *shared, struct forward *f, enum cause *ret_why);
/*
 * The client of that session is known: count the session as one of CLIENT's.  False: CLIENT has as
 * many as it may, which is logged, or there is no memory, see *RET_WHY.  The caller ends the
 * connection by RST, so that the client does not wait behind its own sessions.
 */
bool admission_enter_client(struct shared *shared, struct forward *f, const struct sockaddr *client,
			    enum cause *ret_why);
/*
 * The session ends, or never began: undo both, or if CLIENT is NULL, the first alone.  F may be freed
 * by the time that this returns.
 */
void admission_leave(struct shared *shared, struct forward *f, const struct sockaddr *client);
