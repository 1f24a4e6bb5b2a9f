/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_STAY_H
#define CULVERT_SESSION_STAY_H

#include "datapath/carrier_sockmap.h"
#include "datapath/policy.h"
#include "relay/session.h"

/*
 * A flow's stay in the kernel: the way in and out again.  Used by session_flow.c, and by session_part.c.  Each of
 * these but the first may end the session: look at s->state afterwards.
 */

/* Nothing is known that speaks against carrying flow DIR there. */
bool session_stay_may(const struct session *s, unsigned int dir);

/*
 * Flow DIR enters the kernel for REASON if it can: else it stays where it is, and either keeps why,
 * or is to be tried again when what it has to read has been read.
 */
void session_stay_enter(struct session *s, unsigned int dir, enum reason reason);

/* Packets of flow DIR since it has entered, modulo 2^32. */
uint32_t session_stay_packets(const struct session *s, unsigned int dir);

/* Flow DIR, which is there, shall leave, to be carried as D says. */
void session_stay_leave(struct session *s, unsigned int dir, struct decision d);

/* The same, because the program says so, by KIND (enum culvert_event_kind). */
void session_stay_demote(struct session *s, unsigned int dir, unsigned int kind);

/*
 * The steps of a flow that is FLOW_LEAVING, FLOW_DRAINING and FLOW_FINISHING.  True: it is done;
 * false: it goes on, or the session has ended.
 */
bool session_stay_has_left(struct session *s, unsigned int dir);
bool session_stay_has_drained(struct session *s, unsigned int dir);
bool session_stay_has_finished(struct session *s, unsigned int dir);

/* The source of flow DIR is dead.  STEP_DONE: the target's TCP has what the kernel had of it. */
enum step session_stay_rest(struct session *s, unsigned int dir);

/* EOF was read: was it a FIN?  Only a session that has been in the kernel need ask. */
bool session_stay_ended(struct session *s, unsigned int dir);

#endif
