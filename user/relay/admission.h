/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/addr.h"
#include "datapath/stats.h"
#include "relay/forward.h"
#include "relay/worker.h"

/*
 * Access rules, and limits of sessions: in all, of one forward, of one client, and of one client at
 * one forward.  Each limit holds beside the others.  Any thread may call any of this.
 */

/* Count a session of F in before its client is known.  CAUSE_NONE, or why there is no room. */
enum cause admission_enter(struct shared *shared, struct forward *f);
/* The same within accept-rate; if that is why not, *RET_DUE_MS says when there is room. */
enum cause admission_enter_at_rate(struct shared *shared, struct forward *f, uint64_t now_ms,
				   uint64_t *ret_due_ms);
/* Undo it: no session has come. */
void admission_undo(struct shared *shared, struct forward *f);
/* Do the rules of F allow CLIENT?  If not, W counts and logs it. */
bool admission_allows(struct worker *w, struct forward *f, const union client_addr *client);
/*
 * admission_enter() has counted a session of F: count the session for CLIENT as well.  PROVEN:
 * CLIENT is known to receive at its address, as after a handshake of TCP.  Returns CAUSE_NONE,
 * CAUSE_NO_MEMORY or, if CLIENT is at a limit, CAUSE_CLIENT_LIMIT.  CAUSE_CLIENT_LIMIT is logged.
 * After a failure the caller resets the connection: the client must not wait until one of its other
 * sessions ends.
 */
enum cause admission_enter_client(struct shared *shared, struct forward *f,
				  const union client_addr *client, bool proven);
/* admission_enter() and admission_enter_client() in one. */
enum cause admission_enter_with(struct shared *shared, struct forward *f,
				const union client_addr *client, bool proven);
/*
 * A session of F and CLIENT (NULL: not known yet) that lives already: limits hold back new sessions
 * alone.  False: no memory.
 */
bool admission_adopt(struct shared *shared, struct forward *f, const union client_addr *client,
		     bool proven);
/*
 * The session ends, or never began: undo admission_enter() and, unless CLIENT is NULL,
 * admission_enter_client().  F may be freed by the time that this returns.
 */
void admission_leave(struct shared *shared, struct forward *f, const union client_addr *client);
