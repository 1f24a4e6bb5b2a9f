/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Decisions about packets of grafted sessions that other relays may know: three tables, as pure
 * functions.  bpf/graft.bpf.c measures the packet, asks, and acts.  docs/design.md ("Packets of
 * moved sessions") has the reasons; tests/unit/test_graft_decide.c has each row.  The first row of
 * a table that matches counts; "-" matches anything.
 */
#pragma once

#include <stdbool.h>

#include "graft_contract.h"

#define GRAFT_PURE static inline __attribute__((always_inline))

/*
 * May a packet be sent on, and is it believed: may its numbers become the session's?
 *
 *   loose    mirrored  fits  proves    verdict
 *   LOOSE    -         -     yes       CONFIRM
 *   LOOSE    -         yes   no        BELIEVE
 *   LOOSE    -         no    no        SEND
 *   -        -         yes   -         BELIEVE
 *   FOUND    -         no    yes       CONFIRM
 *   STRICT   yes       no    yes       CONFIRM
 *   -        -         no    -         DROP
 *
 * MIRRORED: another relay knows the session.  FITS: the packet is in the window.  PROVES: the
 * packet has ACK, and no RST, so a packet of the other end can confirm the packet's numbers.
 */
enum graft_verdict {
	GRAFT_DROP,
	GRAFT_SEND,    /* without belief */
	GRAFT_BELIEVE, /* sent on */
	GRAFT_CONFIRM, /* sent on; graft_follow() says whether it is believed */
};

GRAFT_PURE enum graft_verdict graft_judge(enum graft_loose loose, bool mirrored, bool fits,
					  bool proves)
{
	if (loose == GRAFT_LOOSE)
		return proves ? GRAFT_CONFIRM : fits ? GRAFT_BELIEVE : GRAFT_SEND;
	if (fits)
		return GRAFT_BELIEVE;
	return proves && (loose == GRAFT_FOUND || mirrored) ? GRAFT_CONFIRM : GRAFT_DROP;
}

/*
 * Which numbers of the session follow a packet of verdict CONFIRM?
 *
 *   fits  agrees  believed  follow
 *   yes   -       yes       NOTHING
 *   yes   -       no        PACKET
 *   no    yes     -         BOTH
 *   no    no      -         APART
 *
 * AGREES: the packet fits the other end's numbers that are kept apart.  BELIEVED: an earlier packet
 * of the same end was believed.
 */
enum graft_follow {
	GRAFT_FOLLOW_APART, /* nothing moves: the packet's numbers are kept apart, without belief */
	GRAFT_FOLLOW_NOTHING, /* believed: the numbers of the session are right already */
	GRAFT_FOLLOW_PACKET,  /* believed: the stream of its end goes on at the packet */
	GRAFT_FOLLOW_BOTH,    /* the same; the other stream goes on at the numbers kept apart */
};

GRAFT_PURE enum graft_follow graft_follow(bool fits, bool agrees, bool believed)
{
	if (fits)
		return believed ? GRAFT_FOLLOW_NOTHING : GRAFT_FOLLOW_PACKET;
	return agrees ? GRAFT_FOLLOW_BOTH : GRAFT_FOLLOW_APART;
}

/*
 * Where does an arriving packet go?
 *
 *   state               here  killed  fits   goes
 *   STANDBY             no    -       -      PAST
 *   SETTING             -     -       -      NOWHERE
 *   -                   -     yes     -      SHIFTED
 *   CLOSED              -     no      no     FORGET
 *   OFFERED, LOCKED     -     no      -      LOOK
 *   FREE, RETURNED      -     no      -      SOCKET
 *   -                   -     no      -      WORK
 *
 * HERE: the client's destination address, or the local address of the packet's leg, is on this
 * machine.  A STANDBY session that is HERE becomes ACTIVE before this table is asked.
 */
enum graft_arrival {
	GRAFT_TO_WORK,    /* the other end, translated; or its socket, if its session returns */
	GRAFT_TO_LOOK,    /* the check whether it is the first translated packet */
	GRAFT_TO_SOCKET,  /* its own socket, with the socket's numbers */
	GRAFT_TO_SHIFTED, /* the stack, which answers it with the socket's numbers */
	GRAFT_TO_FORGET,  /* the stack, and its session is not found any more */
	GRAFT_TO_PAST,    /* the next router */
	GRAFT_TO_NOWHERE, /* it is dropped, and will be sent again */
};

GRAFT_PURE enum graft_arrival graft_arrival(enum graft_state state, bool here, bool killed,
					    bool fits)
{
	if (state == GRAFT_STANDBY && !here)
		return GRAFT_TO_PAST;
	if (state == GRAFT_SETTING)
		return GRAFT_TO_NOWHERE;
	if (killed)
		return GRAFT_TO_SHIFTED;
	if (state == GRAFT_CLOSED && !fits)
		return GRAFT_TO_FORGET;
	if (state == GRAFT_OFFERED || state == GRAFT_LOCKED)
		return GRAFT_TO_LOOK;
	return state == GRAFT_FREE || state == GRAFT_RETURNED ? GRAFT_TO_SOCKET : GRAFT_TO_WORK;
}
