/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "datapath/tcp.h"

/*
 * idle-timeout, fin-timeout and keepalive: the end of a session that is silent, or has lost an end.
 *
 * A byte of TCP costs no work.  A timer fires when the session would end if no byte had come since
 * the last look.  Then the sockets are asked for the time of the last byte, which TCP knows
 * for any carrier.
 *
 * A session is silent while neither end sends a byte and neither takes one.  A byte that an end
 * takes counts, since bytes may wait for hours in the buffers of an end that reads slowly.
 */
struct idle {
	uint64_t since_ms; /* the last byte that is known of; 0: not open yet */
	uint64_t taken[2]; /* at the last look, by side */
	bool owed[2];
	bool half;           /* one end has sent FIN */
	uint64_t asked_ms;   /* when idle_is_gone() was called last; 0: not yet */
	uint64_t mute_ms[2]; /* by side: since when it owes an answer; 0: it owes none */
};

/* Look at both sides at NOW_MS; I->since_ms is then the time of the last byte. */
void idle_look(struct idle *i, uint64_t now_ms, const struct tcp_activity sides[2]);

/*
 * The interval of calls of idle_is_gone(), for a keepalive of KEEPALIVE_MS; 0: no calls, TCP is as
 * quick.
 */
uint64_t idle_ask_ms(unsigned int keepalive_ms);

/*
 * TCP probes an end if no bytes wait for it (SO_KEEPALIVE).  Otherwise TCP sends these bytes again,
 * or asks for room, at intervals of up to 120 s, 15 times (tcp_retries2).  idle_is_gone() is
 * quicker.  True if bytes wait for SIDE, number WHICH; four calls in a row have seen no answer; and
 * SIDE will have been silent for twice KEEPALIVE_MS by the next call.
 */
bool idle_is_gone(struct idle *i, uint64_t now_ms, unsigned int keepalive_ms,
		  const struct tcp_activity *side, unsigned int which);

struct session;

/* No daemon has watched S: let its silence begin now, not when the packet programs say. */
void session_idle_begin(struct session *s);
/* S is OPEN.  Returns when to look next, or NEVER. */
uint64_t session_idle_due(struct session *s);
/* The session's timer has fired: look, if it is time. */
void session_idle_timer(struct session *s);
