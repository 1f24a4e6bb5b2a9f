/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/addr.h"
#include "datapath/stats.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * Who may have a session: how many there may be in all, of one forward, of one client, and of one
 * client at one forward.  Each limit holds beside the others.  Any thread may call any of this.
 */

/* Count a session of F in before its client is known.  CAUSE_NONE, or why there is no room. */
enum cause admission_enter(struct shared *shared, struct forward *f);
/* Do the rules of F allow CLIENT?  If not, W counts and logs it. */
bool admission_allows(struct worker *w, struct forward *f, const union client_addr *client);
/*
 * admission_enter() has counted a session of F: count the session for CLIENT as well.  PROVEN:
 * CLIENT is known to receive at its address, as after a handshake of TCP.  Returns CAUSE_NONE; or
 * CAUSE_CLIENT_LIMIT, which is logged: CLIENT has as many sessions as it may; or CAUSE_NO_MEMORY.
 * After a failure the caller ends the connection by RST, so that the client does not wait behind
 * its own sessions.
 */
enum cause admission_enter_client(struct shared *shared, struct forward *f,
				  const union client_addr *client, bool proven);
/* admission_enter() and admission_enter_client() in one. */
enum cause admission_enter_with(struct shared *shared, struct forward *f,
				const union client_addr *client, bool proven);
/*
 * The session ends, or never began: undo both calls; if CLIENT is NULL, admission_enter() alone.  F
 * may be freed by the time that this returns.
 */
void admission_leave(struct shared *shared, struct forward *f, const union client_addr *client);
