/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/handed.h"
#include "relay/session.h"

/*
 * A session of TCP that user space carries, as a daemon hands it to the next one: its sockets, and
 * its bytes in hand.
 */

/*
 * Put S, whose worker waits, into B.  Bytes of S that are in a pipe go to a buffer.  SAME: the next
 * daemon has the same maps.  False: S stays with this daemon, or is grafted and needs no record.
 */
bool session_record_put(struct session *s, bool same, struct bundle *b);

/*
 * S is silent: it can be sent while its worker runs, since it is likely to be the same when workers
 * wait.
 */
bool session_record_is_settled(const struct session *s);

/* Put the sockets of S, which is grafted, into B, so that the next daemon need not make new ones. */
void session_record_frozen(const struct session *s, struct bundle *b);

/* The id of the session that R has. */
uint64_t session_record_id(const struct record *r);

struct session_record;
/*
 * Read FROM.  NULL: it is bad, or needs other maps than GS, or there is no memory.  The caller frees
 * the result.
 */
struct session_record *session_record_read(const struct graft_table *gs, const struct record *from);
/* The client of R; *RET_ADMITTED: the client was counted in. */
const union client_addr *session_record_client(const struct session_record *r, bool *ret_admitted);
/* Since when the session of R waits for a server's place; 0: it does not. */
uint64_t session_record_waits(const struct session_record *r);
/*
 * Give S, a new session in HEADER, what R says, and the sockets and bytes of FROM.  0: S has no
 * server yet; 1: it is connected; 2 + side: SIDE is dead; -ENOMEM.
 */
int session_record_apply(struct session *s, const struct session_record *r,
			 const struct record *from);
