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
 *   SETTING, TAKEN      -     -       -      NOWHERE
 *   PREPARED, GAVE_UP   -     -       -      NOWHERE
 *   SYN_SENT            -     -       -      HANDSHAKE
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
	GRAFT_TO_WORK,      /* the other end, translated; or its socket, if its session returns */
	GRAFT_TO_LOOK,      /* the check whether it is the first translated packet */
	GRAFT_TO_SOCKET,    /* its own socket, with the socket's numbers */
	GRAFT_TO_SHIFTED,   /* the stack, which answers it with the socket's numbers */
	GRAFT_TO_FORGET,    /* the stack, and its session is not found any more */
	GRAFT_TO_PAST,      /* the next router */
	GRAFT_TO_NOWHERE,   /* it is dropped, and will be sent again */
	GRAFT_TO_HANDSHAKE, /* graft_handshake() */
};

GRAFT_PURE enum graft_arrival graft_arrival(enum graft_state state, bool here, bool killed,
					    bool fits)
{
	if (state == GRAFT_STANDBY && !here)
		return GRAFT_TO_PAST;
	if (state == GRAFT_SETTING || state == GRAFT_TAKEN || state == GRAFT_PREPARED ||
	    state == GRAFT_GAVE_UP)
		return GRAFT_TO_NOWHERE;
	if (state == GRAFT_SYN_SENT)
		return GRAFT_TO_HANDSHAKE;
	if (killed)
		return GRAFT_TO_SHIFTED;
	if (state == GRAFT_CLOSED && !fits)
		return GRAFT_TO_FORGET;
	if (state == GRAFT_OFFERED || state == GRAFT_LOCKED)
		return GRAFT_TO_LOOK;
	return state == GRAFT_FREE || state == GRAFT_RETURNED ? GRAFT_TO_SOCKET : GRAFT_TO_WORK;
}

/*
 * A packet of a session whose SYN was sent to the server, which has not answered yet.
 *
 *   from    packet                             fits  age       verdict
 *   client  SYN, without ACK and RST           yes   < AGAIN   SYN_AGAIN
 *   client  SYN, without ACK and RST           yes   >= AGAIN  SYN_SILENT
 *   client  SYN, without ACK and RST           no    -         SYN_ABANDONED
 *   client  RST                                yes   -         SYN_ABANDONED
 *   client  -                                  -     -         SYN_DROP
 *   server  SYN and ACK, without RST           yes   -         SYN_OPEN
 *   server  RST and ACK                        yes   -         SYN_REFUSED
 *   server  ACK alone, without payload         no    -         SYN_CHALLENGED
 *   server  -                                  -     -         SYN_DROP
 *
 * FITS: of the client, the sequence number is that of its SYN, or of a RST the next one; of the
 * server, the acknowledgement number is behind our SYN.  AGE: of the client's first SYN.  A server
 * challenges if it still has a connection of the port (RFC 5961, 4.2): to the listener's sockets
 * that connection is no hindrance, because they use another port.  All other packets of the server
 * may be late ones of the port's last session.
 */
enum graft_syn_verdict {
	GRAFT_SYN_DROP,
	GRAFT_SYN_AGAIN, /* sent on to the same server */
	GRAFT_SYN_OPEN,
	/* the session gives up: */
	GRAFT_SYN_SILENT,     /* the packet goes to the listener */
	GRAFT_SYN_ABANDONED,  /* SYN: to the listener; RST: nobody gets it */
	GRAFT_SYN_REFUSED,    /* the client's SYN is made again for the listener */
	GRAFT_SYN_CHALLENGED, /* as REFUSED */
};

/* TCP sends a SYN again after 1 s (RFC 6298); some clients sooner, Linux's at 200 ms at least. */
#define GRAFT_SYN_AGAIN_MS 300

#define GRAFT_FLAGS_FIN 0x01
#define GRAFT_FLAGS_SYN 0x02
#define GRAFT_FLAGS_RST 0x04
#define GRAFT_FLAGS_ACK 0x10

GRAFT_PURE enum graft_syn_verdict graft_handshake(bool server, __u8 flags, bool fits, bool payload,
						  __u32 age_ms)
{
	const bool syn = flags & GRAFT_FLAGS_SYN, ack = flags & GRAFT_FLAGS_ACK,
		   rst = flags & GRAFT_FLAGS_RST;

	if (!server && syn && !ack && !rst)
		return !fits                       ? GRAFT_SYN_ABANDONED :
		       age_ms < GRAFT_SYN_AGAIN_MS ? GRAFT_SYN_AGAIN :
						     GRAFT_SYN_SILENT;
	if (!server)
		return rst && fits ? GRAFT_SYN_ABANDONED : GRAFT_SYN_DROP;
	if (!ack)
		return GRAFT_SYN_DROP;
	if (fits)
		return rst ? GRAFT_SYN_REFUSED : syn ? GRAFT_SYN_OPEN : GRAFT_SYN_DROP;
	return !syn && !rst && !(flags & GRAFT_FLAGS_FIN) && !payload ? GRAFT_SYN_CHALLENGED :
									GRAFT_SYN_DROP;
}

/*
 * The numbers of a new connection from a port whose last connection to the same server may still be
 * in TIME_WAIT there.  The server takes a SYN whose ISN is above the last number (RFC 9293, 3.10.7.4;
 * Linux: tcp_timewait_state_process()), and whose TSval, if there are timestamps, is above the last
 * TSval (PAWS, RFC 7323).  KNOWN: LAST is known.
 */
GRAFT_PURE __u32 graft_isn(bool known, __u32 last, __u32 seq)
{
	/*
	 * 22 random bits of the client's number: too many for a blind attacker to guess, and few
	 * enough for a port that is used ten times a second to stay below 2^31 for a minute
	 */
	return known ? last + 65537 + (seq & 0x3fffff) : seq;
}

GRAFT_PURE __u32 graft_tsval(bool known, __u32 last, __u32 now_ms)
{
	return known && (__s32)(now_ms - last) <= 0 ? last + 1 : now_ms;
}
