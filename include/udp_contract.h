/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The contract between the packet programs (bpf/graft_udp.h) and the daemon
 * (user/datapath/graft/udp_graft.c) about flows of UDP: the datagrams between one client and one
 * server.
 *
 * A flow has two legs: 0 to the client, 1 to the server.  A datagram that arrives on a leg is
 * translated and leaves by the other leg, or passes to the daemon's socket.  Each leg has a word of
 * its own for that.
 *
 * Map
 *   udp_flows    struct udp_flow by slot, mapped into the daemon.  `tuples` leads to the slot.
 *
 * The daemon writes the state.  FREE: there is no flow.  ACTIVE: a session of this daemon, or of an
 * earlier one, has the flow.  STANDBY: another relay has it.  Both legs of a STANDBY flow are
 * UDP_ACTIVE, but all datagrams pass, and do not count, until the client's destination address is
 * on this machine.  The daemon adopts the flow after the first datagram that is translated then.
 *
 * The word of a leg: bit 0, UDP_ACTIVE: arriving datagrams are translated.  Above it the number of
 * datagrams that have passed to the socket.
 *
 *   passing -> ACTIVE   the daemon, when it has sent on all passed datagrams (by the count), and
 *                       the other leg's way is known
 *   ACTIVE  -> passing  the daemon takes the flow back; or a packet program, if the way is not
 *                       known any more and a socket takes the datagrams, or if packets may not be
 *                       translated (`why`)
 *
 * A datagram that cannot be translated passes, and counts, whatever the word says.
 */
#pragma once

#include "graft_contract.h"

#define UDP_ACTIVE 1U
#define UDP_PASSED_ONE 2U

/* The unit of `heard` and `idle`: 2^20 ns of CLOCK_MONOTONIC, about 1 ms. */
#define UDP_TICK_SHIFT 20

/*
 * Once a server that has answered is silent for 8 s, its client's datagrams go by the sockets.
 * A flow of RTCP has no other answers than reports, which come each 5 s.
 */
#define UDP_SILENT_TICKS (8000000000ULL >> UDP_TICK_SHIFT)

struct udp_leg {
	__u32 word;
	__u32 seen;     /* graft_ways when hindrance_in() was asked last */
	__u32 heard;    /* ticks when a datagram arrived last; 0: never.  By the packet programs,
			  * at first by the daemon */
	__u16 path_mtu; /* by the daemon: of datagrams that leave here; 0: not known */
	__u8 why;       /* enum graft_refusal: of the last datagram that could not be translated */
	__u8 gone;      /* by the daemon, of leg 0: 1: an error says that the client is gone */
	__u64 packets, bytes; /* of translated datagrams that arrived here; payload */
};

struct udp_flow {
	struct graft_head head;
	struct graft_leg leg[2]; /* "way": by datagrams that leave there; the rest by the daemon */
	__u32 idle;              /* by the daemon: over after so many silent ticks; 0: never */
	__u32 born;              /* by the daemon: ticks */
	__u32 from[2];           /* by leg: the interface of the datagram that set `seen` */
	struct udp_leg at[2];
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct udp_flow) == 256 && GRAFT_LAYOUT == 9, "another size: another layout");
