/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The contract between the packet programs (bpf/graft.bpf.c) and the daemon
 * (user/datapath/graft.c).
 *
 * A graft joins the two TCP connections of a session at packet level: what arrives from one remote
 * end is translated and sent on to the other.  Both sockets of the daemon stay as they are, frozen:
 * none of their packets leave the machine, and none of the remote ends' reach them.
 *
 * Maps
 *   grafts   struct graft_entry by session slot, mapped into the daemon.
 *   flows    tuple of a packet as it arrives -> slot and side.  Written by the offer program and,
 *            for tuples that are used anew, by the packet programs.
 *   graft_rings  worker -> ring buffer of struct graft_event.
 *   handshakes  the same tuples -> struct graft_handshake, until the offer.
 *   interfaces  where the programs are; and by number 0 graft_policies, as the daemon saw it last.
 *   addresses  of those that clients of STANDBY sessions connect to, the ones that are here.
 *   shapes   struct graft_shape by socket, of the daemon's sockets alone: how handshakes are changed.
 *   .bss     counters.
 *
 * A side is the connection to one remote end: 0 the client, 1 the upstream.  The other end of a
 * side is the remote end of the other side.  Sequence numbers of a side are those on its wire; so
 * an ACK from the client acknowledges numbers of side 0, whoever has sent the bytes.
 *
 * Transitions of the state, and by whom:
 *
 *   FREE       -> OFFERED    offer: nothing of the session is in the daemon's hand
 *              -> SETTING    the daemon enters what another relay has exported
 *   SETTING    -> STANDBY    it is whole
 *              -> FREE       it is taken out
 *   STANDBY    -> ACTIVE     a packet of either side, while the client's address is here; or the
 *                            daemon, when it has been here for long
 *              -> SETTING    the daemon changes it, or takes it out
 *   OFFERED    -> LOCKED     a packet of either side, to look whether it may be the first one that
 *                            is translated.  One packet looks at a time
 *              -> FREE       the daemon carries the session itself
 *              -> RETURNED   the same, if it was grafted before
 *   LOCKED     -> OFFERED    it may not: it goes to its socket
 *              -> ACTIVE     it may, and it is translated, as are all that follow
 *              -> LOCKED     another packet has passed to its socket meanwhile, or left it: the
 *                            count in the upper bits changes, so the one that looks cannot activate
 *   ACTIVE     -> DONE       both ends have got the other's FIN, or one has sent RST; or the daemon
 *                            resets both ends
 *              -> RETURNING  the daemon wants to carry the session again; or a packet came that
 *                            cannot be translated (`why_back`); or bulk began, and it is far; or
 *                            one end asks again and again, in vain
 *              -> STANDBY    the client's address has left for another relay that has the session
 *   RETURNING  -> LOCKED_2   a packet, to look whether the session may go back with it
 *              -> DONE       as above; or it cannot go back, and `why_back` is set
 *              -> ACTIVE     the daemon does not want it any more; or it was far, or an end asked
 *                            in vain, and it has no sockets, or half of it is closed
 *   LOCKED_2   -> RETURNING  it may not, and is translated
 *              -> RETURNED   it may.  From now on packets are shifted between the wire and the
 *                            sockets, for the rest of the session
 *   RETURNED   -> OFFERED    offer, again: nothing of the session is in the daemon's hand
 *   DONE       -> CLOSED     the daemon closes the sockets
 *   CLOSED, RETURNED -> FREE   the slot is used again; late packets are translated, or shifted,
 *                            until then, or until a SYN comes with such a tuple, or after CLOSED a
 *                            packet that is not in the window
 *
 * A session that came from another relay is `loose`: how old its numbers are is not known.  Of such
 * a session, and of those that other relays were told of (`mirrored`), each packet is sent on: the
 * ends check for themselves, as without a relay.  The numbers follow a packet that does not fit when
 * a packet of the other end fits that one.
 *
 * A session that the daemon resets is `killed`: its packets are shifted as if it were RETURNED, and
 * the stack answers what comes late.
 *
 * The fields of a side are written by the offer program in FREE, by the packet that holds LOCKED or
 * LOCKED_2, and, where the comment says "tracked", by each packet of that side, with a
 * compare-and-swap where two CPUs must not undo each other.  "Way": written by packets of its
 * socket that leave.  The daemon writes none of them, but in SETTING all, and the way of what has no
 * socket yet.
 */
#pragma once

#include <asm/byteorder.h>
#include <linux/types.h>

/* Changes with the layout of what is pinned: a daemon adopts only what has its own number. */
#define GRAFT_LAYOUT 6

enum graft_state {
	GRAFT_FREE,
	GRAFT_OFFERED,
	GRAFT_ACTIVE,
	GRAFT_LOCKED, /* has the bit of OFFERED */
	GRAFT_DONE,
	GRAFT_RETURNING,
	GRAFT_LOCKED_2,
	GRAFT_RETURNED,
	GRAFT_CLOSED,
	GRAFT_STANDBY,
	GRAFT_SETTING,
	GRAFT_STATES,
};

#define GRAFT_STATE_MASK 0xff /* of graft.state; above it the count of LOCKED */
#define GRAFT_PASSED_ONE 0x100

/*
 * Why a session is not grafted, or not any more: answer of the offer program, `why_back`, and
 * `why_not`: what keeps a packet from being the first one that is translated.
 */
enum graft_refusal {
	GRAFT_OK,           /* in `why_not`: no packet has been looked at */
	GRAFT_NO_SOCKET,    /* gone, or of another network namespace */
	GRAFT_CLOSING,      /* not ESTABLISHED, or half closed; or a packet with SYN, FIN or RST */
	GRAFT_TIMESTAMPS,   /* one connection has TCP timestamps, the other has not */
	GRAFT_MSS,          /* one end may send larger segments than the other takes */
	GRAFT_ECN,          /* one connection has ECN, the other has not, or another kind */
	GRAFT_MPTCP,        /* one connection is a flow of MPTCP */
	GRAFT_INTERFACE,    /* no packet program there, or others decide about packets, too */
	GRAFT_IN_HAND,      /* something is unread, not acknowledged, or in the daemon's hand */
	GRAFT_BAD_REQUEST,  /* the slot is not in the state that the operation wants, or is none */
	GRAFT_NO_SLOT,      /* all slots are in use, or a map is full */
	GRAFT_WINDOW,       /* one end has little room for the segments of the other */
	GRAFT_XFRM,         /* a policy of IPsec concerns it */
	GRAFT_ENCAP,        /* a route puts its packets into others */
	GRAFT_FRAGMENTS,    /* an end sends some */
	GRAFT_HEADERS,      /* an end sends options of IPv4, or extension headers of IPv6 */
	GRAFT_TOO_BIG,      /* an end sends more than the way takes, and must not be told (no DF) */
	GRAFT_ORDER,        /* the packet is not the next one, or a socket waits for earlier ones */
	GRAFT_NO_TIMESTAMP, /* it has none, where there should be one */
	GRAFT_NO_ROOM,      /* the other end has no room for it */
	GRAFT_UNSEEN,  /* no packets seen in and out on both sides, with the sockets' numbers */
	GRAFT_WAY,     /* the way of a socket may have changed, or is not known */
	GRAFT_FAR,     /* its way is long, and it does not converse, or has begun bulk */
	GRAFT_LOSS,    /* its way loses packets; else as GRAFT_FAR */
	GRAFT_SILENT,  /* of UDP: its server does not answer any more */
	GRAFT_FOREIGN, /* other programs take bytes of a socket, or put some in (sockmap, ULP) */
	GRAFT_REFUSALS,
};

/* In network byte order; IPv4 as ::ffff:a.b.c.d. */
struct graft_addr {
	__u32 w[4];
};

static inline __attribute__((always_inline)) int graft_addr_is_ipv6(const struct graft_addr *a)
{
	return a->w[0] || a->w[1] || a->w[2] != __constant_htonl(0xffff);
}

/* As in a packet that arrives from the remote end.  Ports in network byte order. */
struct graft_tuple {
	struct graft_addr remote, local;
	__u16 remote_port, local_port;
};

struct graft_place {
	__u32 slot, side;
};

/* The way of packets from our socket to its remote end, as one was seen leaving. */
struct graft_way {
	__u32 ifindex;
	__u32 mark;   /* skb->mark, which routes may depend on */
	__u32 mtu;    /* the IP header included */
	__u32 hop[4]; /* GRAFT_VIA_IPV4, _IPV6: the router */
	__u8 ttl;
	__u8 via;   /* enum graft_via */
	__u32 ways; /* graft_ways when it was seen; written last */
};

/* One end of what is joined, and how to get there. */
struct graft_leg {
	struct graft_tuple tuple;
	struct graft_way way;
};

struct graft_side {
	union {
		struct graft_leg leg;
		struct {
			struct graft_tuple tuple;
			struct graft_way way;
		};
	};

	/* Translation of what arrives from this side's remote end.  "+": added, modulo 2^32. */
	__u32 seq_add, ack_add;
	__u32 tsval_add, tsecr_add;
	__u32 tsecr_least;   /* the other end has not seen this clock: TSecr is at least that, */
	__u32 tsecr_clamped; /* while this is 1 */
	__u8 window_left;    /* shift that the remote end announced, */
	__u8 window_right;   /* and that the other end expects */
	__u8 read_shift;     /* of windows that our socket announces */
	__u8 timestamps;     /* 1: on both connections */
	__u8 ipv6;           /* 1: on the wire */
	__u8 refused;        /* by the daemon, until a graft begins: no packet may be sent there */

	/* The frozen socket's write_seq and rcv_nxt; RETURNED: what it has sent since, tracked. */
	__u32 frozen_write, frozen_read;

	/* The wire's numbers minus the socket's, 0 before the first return; ts: of what we send. */
	__u32 back_read, back_write, back_ts;

	/* Tracked.  The low half is the sequence number; the difference of two counts bytes. */
	__u64 acked __attribute__((aligned(64))); /* highest ACK from the remote end */
	__u64 end;        /* end of what the remote end has sent, a FIN included */
	__u64 begun;      /* not tracked: `end` minus this is what was carried, by all grafts */
	__u32 window;     /* largest that the remote end has offered, in bytes */
	__u32 tsval_sent; /* highest that was sent to the remote end */
	__u32 fin;        /* 1: the remote end has sent FIN, 2: and it is acknowledged */
	__u32 fin_end;
	__u64 heard_ns;  /* CLOCK_MONOTONIC of the last packet, */
	__u64 data_ns;   /* and of the last with new payload, or a new ACK of some */
	__u64 probed_ns; /* of the last keepalive probe of the frozen socket */
	__u16 reset;     /* DONE: the remote end has sent RST */
	__u8 caught;     /* loose: 1: a packet that is believed has come here */
	__u8 told;       /* 1: see told_end */

	/* Not tracked. */
	__u32 base_read, base_write; /* offer: copied_seq of the socket, and its write_seq */
	__u8 sack;                   /* 1: the socket has SACK */
	__u8 ecn;                    /* 1: both ends have ECN; the socket may not */
	__u16 mss;                   /* that it may send, with options */
	__u32 asked_at;              /* tracked: see asked_ns */
	/*
	 * OFFERED: tracked: the end of what was let pass to the socket, and of what has left it.
	 * One less than the socket's numbers at the offer, until a packet is seen.
	 */
	__u32 passed, left;
	/*
	 * The right edge of the window beyond which none is offered.  OFFERED: hold, once has_edge.
	 * ACTIVE, in numbers of the wire: tracked, see GRAFT_LEASH.
	 */
	__u32 edge, has_edge;
	__u32 lost, lost_to; /* tracked: windows of which bytes were lost, and the last one's end */
	/* Tracked, if `told`: `end` and `acked` of a packet that did not fit, see confirm(). */
	__u32 told_end, told_acked;
	__u32 from; /* freeze: the interface by which the socket had its last packet */
	/*
	 * Tracked: since then the remote end asks again, in vain.  asked_at: the sum of what both ends
	 * had acknowledged by then.
	 */
	__u64 asked_ns;
} __attribute__((aligned(64)));

/* What was seen of the handshake of a connection that may become a session's. */
struct graft_handshake {
	struct graft_way way;
	__u32 in, out; /* the numbers that follow the SYN that has entered, and that has left */
};

/*
 * The two handshakes of a session are made alike.  Of a socket that connects: its SYN.  Of one that
 * listens: the SYNs that it gets.  Only what the other connection cannot have is taken out.
 */
struct graft_shape {
	__u16 mss;          /* that is announced, at most; 0: any.  Not of one that listens */
	__u8 no_timestamps; /* 1: without the option */
	__u8 ecn;           /* enum graft_shape_ecn */
	__u8 ecn_answered; /* by the packet programs: 1: the remote end has ECN, for a graft's sake */
};

enum graft_shape_ecn {
	GRAFT_ECN_KEEP,
	GRAFT_ECN_ASK,
	GRAFT_ECN_REMOVE,
};

/* Who has the link-layer address to send to. */
enum graft_via {
	GRAFT_VIA_LOOKUP, /* on this machine: there is none, but a route is needed */
	GRAFT_VIA_REMOTE, /* the remote end */
	GRAFT_VIA_IPV4,
	GRAFT_VIA_IPV6,
};

/* A session that must go back to its sockets and finds no moment for that ends after this time. */
#define GRAFT_STUCK_NS 5000000000ULL

/* So long are the senders of a stream that is never quiet held, before it is given up. */
#define GRAFT_HOLD_MS 200

/*
 * If an end asks again for so long, and nothing is acknowledged, the session goes back to its
 * sockets.  TCP has sent again twice by then: the time-out is 200 ms at least, and doubles.  A
 * segment whose fast retransmission is lost is sent again sooner: that is loss, and no silence.
 */
#define GRAFT_SILENT_NS 400000000ULL

/*
 * Over a long way, or one that loses packets, two connections carry bulk faster than one
 * (docs/design.md, "Distance").
 */
enum graft_far {
	GRAFT_ANYWHERE, /* it stays grafted: so it was ordered, or it has no way back */
	GRAFT_NEAR,     /* it stays grafted, unless packets are lost */
	GRAFT_LONG,     /* its bulk goes back to the sockets */
	GRAFT_LOSSY,    /* the same, for the rest of the session */
};

/*
 * Bytes that an end may send in a turn, if LONG or LOSSY.  Three quarters make the session
 * RETURNING, and the sender runs dry at its edge, which takes one round trip, or two from a first
 * window (10 segments, RFC 6928).  A message of 16 KiB fits, with a header.
 */
#define GRAFT_LEASH 24576

/* LOSSY: so many windows had losses, more than one in so many bytes. */
#define GRAFT_LOSSES 2
#define GRAFT_LOSS_BYTES (2 << 20)

enum graft_loose {
	GRAFT_STRICT,
	GRAFT_LOOSE,
	GRAFT_FOUND, /* a packet has fitted: ACKs of what went by the other relay may still come */
};

struct graft_entry {
	__u32 state;
	__u32 looks;   /* packets that looked whether they may be the first */
	__u32 why_not; /* enum graft_refusal: the last look */
	__u32 hold;    /* by the daemon while OFFERED: 1: let senders run dry, see hold() */
	__u32 held_ms; /* by the daemon: since when (low half); GRAFT_HOLD_MS at most */
	__u32 worker;  /* by the daemon: whose ring */
	__u32 forward; /* by the daemon: a hash of its forward's name, for who adopts it */
	__u32 alone_ms; /* by the daemon: STANDBY: no relay tells of it since then (low half); 0: one does */
	__u64 id;                   /* by the daemon: of the session */
	__u64 offered_ns, ended_ns; /* CLOCK_MONOTONIC */
	__u64 before[2];            /* bytes that each socket has received */
	__u32 shifted;              /* 1: RETURNED, or OFFERED after that */
	__u32 over;                 /* by the daemon: 1: RETURNED, and the sockets are closed */
	__u32 killed;               /* DONE, CLOSED: 1: the daemon closes the sockets with RST */
	__u32 why_back;             /* enum graft_refusal: what came that cannot be translated, */
	__u64 stuck_ns;             /* and when */
	__u64 counted[2];           /* by the daemon: bytes of each side that its counters have */
	__u32 loose;                /* tracked: enum graft_loose */
	__u32 mirrored;             /* by the daemon: enum graft_mirrored */
	__u32 source; /* by the daemon: graft_tag() of the import that tells of it; 0: none */
	__u16 far;    /* enum graft_far: offer; tracked */
	__u16 shaped; /* by the daemon: how the handshakes were made alike, for who adopts it */
	struct graft_side side[2];
} __attribute__((aligned(64)));

/* 100,000 sessions take at most 1 KB each: this, and two entries of `flows`. */
_Static_assert(sizeof(struct graft_entry) == 640 && GRAFT_LAYOUT == 6,
	       "another size: another layout");

/* Milliseconds that a clock of timestamps has counted at most after so many units of 2^30 ns. */
#define GRAFT_CLOCK_SHIFT 30
static inline __u32 graft_clock(__u32 units)
{
	return (units + 1) * 1074;
}

/* The knowledge that other relays have of a session. */
enum graft_mirrored {
	GRAFT_UNKNOWN,
	GRAFT_TOLD, /* one has been told of it */
	GRAFT_OVER, /* one has had it since, to its end */
	GRAFT_CAME, /* it came from one */
};

/* Of graft_unsynced, whose index is a port in network byte order. */
#define GRAFT_PORTS 65536
#define GRAFT_PORT_LISTENS 1 /* a forward listens at it */
#define GRAFT_PORT_SERVER 2  /* a server of a forward has it */

/* Value of `interfaces`. */
#define GRAFT_IF_USED 1   /* sessions may be grafted there */
#define GRAFT_IF_PORT 2   /* of a bridge: frames for the bridge are for us */
#define GRAFT_IF_BRIDGE 4 /* what comes there was seen at a port before */

/* Keys of `interfaces` that are no interface: graft_policies, and 1: programs are at ports, too. */
#define GRAFT_IF_POLICIES 0U
#define GRAFT_IF_PORTS UINT32_MAX

/* Input of the offer program, behind an Ethernet header. */
enum graft_op {
	GRAFT_OFFER,       /* put the session into `slot`, which is FREE */
	GRAFT_OFFER_AGAIN, /* the same with that of `slot`, which is RETURNED */
	GRAFT_KILL,   /* DONE: shift packets from now on, so the sockets' resets get to the ends */
	GRAFT_WAYS,   /* ACTIVE: can the sockets' ways be followed?  GRAFT_OK: as far as is known */
	GRAFT_ROUTES, /* count changes of the network namespace: graft_routes, graft_policies */
	GRAFT_STRAYS, /* ACTIVE: do packets go past the programs?  See graft_stray */
	GRAFT_ENTER,  /* SETTING: enter the tuples in `flows`; GRAFT_IN_HAND: a socket has one, */
	GRAFT_FORGET, /* and take them out */
};

struct graft_request {
	__u32 op;
	__u32 slot;
	__u32 worker;
	__u64 id;
	__u32 forward;
	struct graft_tuple tuples[2];
	/* OFFER, OFFER_AGAIN: microseconds: round trips that are longer together are LONG; 0: any */
	__u32 near_us;
	__u32 far_too; /* 1: offer it all the same */
};

/*
 * A wake-up is an interrupt that the CPU sends to itself, which costs more than all else about an
 * event.  So a worker is woken for the first event, and looks by itself for those that follow
 * within GRAFT_QUIET_MS.
 */
#define GRAFT_QUIET_MS 1
#define GRAFT_WORKERS 256
#define GRAFT_NOBODY 0xffffffffU /* the worker of what no session has */

/* A packet has changed the state to DONE or RETURNED. */
struct graft_event {
	__u32 slot;
	__u32 unused;
	__u64 id; /* of the session that it is about */
};
