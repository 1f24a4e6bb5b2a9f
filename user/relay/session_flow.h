/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_FLOW_H
#define CULVERT_SESSION_FLOW_H

#include "relay/session.h"

/*
 * Drives both flows of a session from phase to phase (flow.h).  Each function may end the session:
 * look at s->state afterwards.
 */

/* The session is connected: choose the first carriers. */
void session_flows_start(struct session *s);

/* Move flow DIR as far as it goes.  FIN: epoll has reported EPOLLRDHUP or EPOLLHUP on its source. */
void session_flow_run(struct session *s, unsigned int dir, bool fin);

/*
 * SIDE is gone, because of CAUSE.  What it had said before is taken to the other end, which gets RST
 * then: at once, if there is nothing to take, else S is PARTING for a while.
 */
void session_part(struct session *s, unsigned int side, enum cause cause);
/* PARTING: go on if it is time, which s->flows[s->parted].due_ms says. */
void session_part_timer(struct session *s);

/* Give back the slots of S in the kernel's maps, if it has some.  Its sockets are closed. */
void session_give_slots(struct session *s);

/* What carries S in the kernel, if anything has: a session never has both. */
enum carrier session_kernel_carrier(const struct session *s);

/* What that has carried of flow DIR, in bytes. */
uint64_t session_kernel_bytes(const struct session *s, unsigned int dir);

/*
 * Add what S's kernel carrier has done since the last call to the counters.  Nobody tells of these
 * bytes, nor of a graft: so this is called when S ends, and whenever somebody wants to know.
 */
void session_count_kernel(struct session *s);

/* --- what a worker asks of all its sessions --- */

/* The verdict program has sent EV to WORKER. */
void session_kernel_event(void *worker, const void *event);

/* Events were lost, or kernel memory is short: look at every flow that is in the kernel. */
void session_sweep(struct worker *w);

/*
 * Forwards may have got other engines: let all flows follow.  Returns how many have not yet, but
 * will.
 */
unsigned int session_follow_engines(struct worker *w);

#endif
