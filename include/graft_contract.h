/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The contract between the packet programs (bpf/graft.bpf.c) and the daemon
 * (user/datapath/graft/graft.h).
 *
 * A graft joins the two TCP connections of a session at packet level: a packet from one remote end
 * is translated and sent on to the other.  Both sockets of the daemon are frozen: no packet of a
 * remote end reaches them, and only their keepalive probes and resets leave the machine.
 *
 * Maps
 *   grafts   struct graft_entry by session slot, mapped into the daemon.
 *   tuples   tuple of an arriving packet of TCP or UDP -> slot and side: struct graft_bucket by hash
 *            of the tuple, mapped into the daemon.  The daemon writes places, and a SYN that begins
 *            a session (graft_index.c).  The last bucket begins with the seed of the hash.
 *   graft_rings  worker -> ring buffer of struct graft_event.
 *   handshakes  tuple, as in `tuples` -> struct graft_handshake.  The offer deletes it.
 *   interfaces  ifindex -> GRAFT_IF_*, of each interface that has the programs.  Two keys are no
 *            ifindex: GRAFT_IF_POLICIES and GRAFT_IF_PORTS.
 *   addresses  those of this machine to which clients of STANDBY sessions have connected.
 *   shapes   struct graft_shape by socket of the daemon: how its handshakes are changed.
 *   .bss     counters, and numbers that concern all sessions, such as graft_ways: graft_packet.h.
 *
 * A side is the connection to one remote end.  Side 0 leads to the client, side 1 to the upstream.
 * Seen from one side, the remote end of the other side is the *other end*.  The sequence numbers of
 * a side are the numbers on its wire.  So an ACK from the client has a number of side 0, although
 * the upstream has sent the acknowledged bytes.
 *
 * Transitions of the state, and by whom:
 *
 *   FREE       -> OFFERED    the daemon offers a session of which it holds no byte, and which the
 *                            offer program has set up
 *              -> SETTING    the daemon enters a session that another relay exports
 *   SETTING    -> STANDBY    the entry is complete
 *              -> FREE       a socket has one of its tuples
 *   STANDBY    -> ACTIVE     a packet of either side, while the client's destination address is on
 *                            this machine; or the daemon, if no relay exports the session any more
 *              -> FREE       the daemon takes the session out
 *   OFFERED    -> LOCKED     a packet of either side checks whether it can be the first translated
 *                            packet.  One packet checks at a time
 *              -> FREE       the daemon carries the session itself
 *              -> RETURNED   the same, if the session was grafted before
 *   LOCKED     -> OFFERED    the packet cannot be the first: it goes to its socket
 *              -> ACTIVE     the packet is the first: it is translated, and so are all later ones
 *              -> LOCKED     another packet goes to a socket, or comes from one.  It changes the
 *                            count in the upper bits, so the packet that checks cannot activate
 *                            the graft
 *   ACTIVE     -> DONE       both ends have got the other's FIN, or one has sent RST; or the daemon
 *                            resets both ends
 *              -> RETURNING  the daemon wants to carry the session again; or a packet came that
 *                            cannot be translated (`why_back`); or bulk began in a far session; or
 *                            an end sends again, and gets no ACK
 *              -> STANDBY    the client's destination address has left for another relay that has
 *                            the session
 *   RETURNING  -> LOCKED_2   a packet checks whether the session can return with it
 *              -> DONE       as above; or the session cannot return, and `why_back` is set
 *              -> ACTIVE     the daemon withdraws its wish; or the session cannot return (no
 *                            sockets, or half closed), and the only reason to return was bulk of
 *                            a far session, or a missing ACK
 *   LOCKED_2   -> RETURNING  the session cannot return: the packet is translated
 *              -> RETURNED   the session returns.  From now on packets are shifted between the wire
 *                            and the sockets, for the rest of the session
 *   RETURNED   -> OFFERED    the daemon offers the session again
 *              -> STANDBY    as ACTIVE, and the sockets hold no bytes
 *   DONE       -> CLOSED     the daemon closes the sockets
 *   CLOSED, RETURNED -> FREE   the slot is used again.  Until then late packets are translated
 *                            (CLOSED), or shifted (RETURNED).  After a SYN with the session's tuple
 *                            no packet finds the session any more (GRAFT_ANEW); nor, if CLOSED,
 *                            after a packet outside the window
 *
 * and of a session from the SYN on:
 *
 *   FREE       -> PREPARED   the daemon has chosen a server and a local port
 *   PREPARED   -> TAKEN      a SYN takes the slot from its stock
 *              -> FREE       the daemon takes the slot back
 *   TAKEN      -> SYN_SENT   the SYN goes on to the server
 *              -> GAVE_UP    the SYN goes to the listener: `why_back` is of enum graft_past
 *   SYN_SENT   -> TAKEN      one packet decides at a time: the answer, an ICMP error, a RST, or a
 *                            repeated SYN that the server has left without an answer
 *              -> GAVE_UP    the daemon expires the session
 *   TAKEN      -> ANSWERED   the server has accepted
 *   ANSWERED   -> ACTIVE     the client's first packet behind the answer
 *              -> DONE       a reset; or the daemon expires the session
 *   GAVE_UP    -> FREE       the daemon puts the slot
 *
 * TAKEN lasts for the run of one program.  No packet finds a FREE, PREPARED or GAVE_UP session.
 *
 * A session that came from another relay is `loose`: its numbers may be old.  So its packets are
 * sent on even outside the window, and the ends check them, as without a relay.  The numbers of
 * such a packet become the session's once a packet of the other end fits these numbers.  If other
 * relays know a session (`mirrored`), its packets with ACK and without RST are treated so, too.
 *
 * A session that the daemon resets is `killed`: its packets are shifted as if it were RETURNED, and
 * the stack answers late packets.  graft_decide.h has the tables of these decisions.
 *
 * Writers of a side's fields:
 *   the offer program          all, in FREE and RETURNED
 *   the packet that checks     all, in LOCKED and LOCKED_2
 *   each packet of the side    fields that are "tracked", with a compare-and-swap where two CPUs
 *                              must not undo each other
 *   packets from the side's socket   `way`
 *   the daemon                 all, in SETTING; and `way` of a session without sockets
 */
#pragma once

#include <asm/byteorder.h>
#include <linux/types.h>

/* The version of the pinned maps' layout: a daemon adopts only maps of its own version. */
#define GRAFT_LAYOUT 9

enum graft_state {
	GRAFT_FREE,
	GRAFT_OFFERED,
	GRAFT_ACTIVE,
	GRAFT_LOCKED, /* 3: an AND with 1 makes it OFFERED: see try_offer() */
	GRAFT_DONE,
	GRAFT_RETURNING,
	GRAFT_LOCKED_2,
	GRAFT_RETURNED,
	GRAFT_CLOSED,
	GRAFT_STANDBY,
	GRAFT_SETTING,
	GRAFT_PREPARED, /* from here on: of sessions from the SYN on */
	GRAFT_TAKEN,
	GRAFT_SYN_SENT,
	GRAFT_ANSWERED,
	GRAFT_GAVE_UP,
	GRAFT_STATES,
};

#define GRAFT_STATE_MASK 0xff /* of graft_head.state; above it the count of LOCKED */
#define GRAFT_PASSED_ONE 0x100

/*
 * The offer program answers why it refuses a session.  `why_not` says why the last packet that
 * checked was not the first, `why_back` why the session returns to its sockets.
 */
enum graft_refusal {
	GRAFT_OK,           /* in `why_not`: no packet has been looked at */
	GRAFT_NO_SOCKET,    /* gone, or of another network namespace */
	GRAFT_CLOSING,      /* not ESTABLISHED, or half closed; or a packet with SYN, FIN or RST */
	GRAFT_MPTCP,        /* one connection is a subflow of MPTCP */
	GRAFT_INTERFACE,    /* no packet programs at an interface, or filters of others */
	GRAFT_IN_HAND,      /* something is unread, not acknowledged, or in the daemon's hand */
	GRAFT_BAD_REQUEST,  /* the slot is not in the state for the operation, or does not exist */
	GRAFT_NO_SLOT,      /* all slots are in use, or a map is full */
	GRAFT_XFRM,         /* a policy of IPsec concerns it */
	GRAFT_ENCAP,        /* a route encapsulates its packets */
	GRAFT_FRAGMENTS,    /* an end sends some */
	GRAFT_HEADERS,      /* an end sends options of IPv4, or extension headers of IPv6 */
	GRAFT_TOO_BIG,      /* an end sends larger packets than the way takes, without DF */
	GRAFT_ORDER,        /* the packet is not the next one, or a socket waits for earlier ones */
	GRAFT_NO_TIMESTAMP, /* the packet has none, but the connection has */
	GRAFT_NO_ROOM,      /* the other end has no room for it */
	GRAFT_UNSEEN,  /* no packet with a socket's numbers was seen entering, or none leaving */
	GRAFT_WAY,     /* the way of a socket may have changed, or is not known */
	GRAFT_SILENT,  /* of UDP: its server does not answer any more */
	GRAFT_FOREIGN, /* other programs take bytes of a socket, or put some in (sockmap, ULP) */
	/* prove() in bpf/graft_begin.h comes before the refusals from here on */
	GRAFT_TIMESTAMPS, /* one connection has TCP timestamps, the other has not */
	GRAFT_MSS,        /* one end may send larger segments than the other takes */
	GRAFT_ECN,        /* one connection has ECN, the other has not, or another kind */
	GRAFT_WINDOW,     /* one end has little room for the segments of the other */
	GRAFT_FAR,        /* the way is long, and the ends take no short turns: or bulk has begun */
	GRAFT_LOSS,       /* as GRAFT_FAR, for a way that loses packets */
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

#define NO_SLOT UINT32_MAX

/* In `tuples`: where a tuple leads to.  0: nowhere; else graft_place(). */
#define GRAFT_PLACES 8

struct graft_bucket {
	__u32 place[GRAFT_PLACES];
};

#define GRAFT_PLACE_KIND 3U /* TCP or UDP, which have slots of their own */
#define GRAFT_PLACE_SIDE 4U /* or leg */
#define GRAFT_PLACE_SLOT 3  /* bits below the slot */

static inline __u32 graft_place(__u32 udp, __u32 slot, __u32 side)
{
	return slot << GRAFT_PLACE_SLOT | side * GRAFT_PLACE_SIDE | udp << 1 | 1;
}

static inline __attribute__((always_inline)) __u32 graft_hash(const struct graft_tuple *t,
							      __u32 seed)
{
	__u32 h = seed ^ ((__u32)t->remote_port << 16 | t->local_port);

	for (int i = 0; i < 4; i++) {
		h = (h ^ t->remote.w[i]) * 0x9e3779b1;
		h = (h ^ h >> 15 ^ t->local.w[i]) * 0x85ebca6b;
	}
	return h ^ h >> 13;
}

/* The way of our socket's packets to the remote end, learnt from one that left. */
struct graft_way {
	__u32 ifindex;
	__u32 mark;   /* skb->mark, which routes may depend on */
	__u32 mtu;    /* the IP header included */
	__u32 hop[4]; /* GRAFT_VIA_IPV4, _IPV6: the router */
	__u8 ttl;
	__u8 via;   /* enum graft_via */
	__u32 ways; /* graft_ways when the way was seen; written last */
};

/* One end of a session or flow, and the way to it. */
struct graft_leg {
	struct graft_tuple tuple;
	struct graft_way way;
};

/* The FIN of the remote end. */
enum graft_fin {
	GRAFT_FIN_NONE,
	GRAFT_FIN_SENT,
	GRAFT_FIN_ACKED, /* and the other end has acknowledged it */
};

/* Of the last packet of an end that did not fit (graft_decide.h); bits. */
enum graft_apart {
	GRAFT_APART = 1,
	GRAFT_APART_FIN = 2,   /* its stream ends at apart_end */
	GRAFT_APART_RESET = 4, /* a reset with the number apart_end has come */
};

struct graft_side {
	union {
		struct graft_leg leg;
		struct {
			struct graft_tuple tuple;
			struct graft_way way;
		};
	};

	/* Translation of packets from this side's remote end.  *_add: added, modulo 2^32. */
	__u32 seq_add, ack_add;
	__u32 tsval_add, tsecr_add;
	__u32 tsecr_least;   /* the least TSecr: the other end's TSval when the graft began */
	__u32 tsecr_clamped; /* 1: tsecr_least still counts */
	__u8 window_left;    /* shift that the remote end announced, */
	__u8 window_right;   /* and that the other end expects */
	__u8 read_shift;     /* of windows that our socket announces */
	__u8 timestamps;     /* 1: on both connections */
	__u8 ipv6;           /* 1: on the wire */
	__u8 refused;        /* 1: a route forbids packets.  The daemon sets 1, a new graft 0 */
	__u8 has_edge;       /* see `edge` */
	__u8 unused;

	/*
	 * The frozen socket's write_seq and rcv_nxt.  RETURNED: frozen_write is the end of the
	 * socket's sent bytes, tracked.
	 */
	__u32 frozen_write, frozen_read;

	/*
	 * The wire's number minus the socket's: of received bytes, sent bytes, and our TSval.  0
	 * until the session has returned.
	 */
	__u32 back_read, back_write, back_ts;

	/* Tracked.  The low half is the sequence number; the high half lets `end` count bytes. */
	__u64 acked __attribute__((aligned(64))); /* highest ACK from the remote end */
	__u64 end;        /* end of the bytes that the remote end has sent, a FIN included */
	__u64 begun;      /* not tracked: grafts of the session here have carried `end` minus
			   * `begun` bytes of the remote end, a FIN included */
	__u32 window;     /* largest that the remote end has offered, in bytes */
	__u32 tsval_sent; /* highest that was sent to the remote end */
	__u32 fin;        /* enum graft_fin */
	__u32 fin_end;
	__u64 heard_ns;  /* CLOCK_MONOTONIC of the last packet, */
	__u64 data_ns;   /* and of the last with new payload, or a new ACK */
	__u64 probed_ns; /* of the last keepalive probe of the frozen socket */
	__u16 reset;     /* DONE: the remote end has sent RST */
	__u8 believed;   /* loose: 1: a packet of this end was believed */
	__u8 apart;      /* enum graft_apart: see apart_end */

	/* Not tracked. */
	__u32 base_read, base_write; /* offer: copied_seq of the socket, and its write_seq */
	__u8 sack;                   /* 1: the socket has SACK */
	__u8 ecn;                    /* 1: both ends have ECN; the socket may lack it */
	__u16 mss;                   /* the socket's largest segment, options included */
	__u32 asked_at;              /* tracked: see asked_ns */
	/*
	 * OFFERED, tracked: the highest end of the packets that have gone to the socket, and of
	 * those that have come from it.  The offer sets both to one below the socket's numbers: no
	 * packet was seen yet.
	 */
	__u32 passed, left;
	/*
	 * How far the remote end may send: the right edge of the windows offered to that end.
	 * OFFERED, if has_edge: in numbers of the socket, by hold().  ACTIVE: in numbers of the
	 * wire, tracked, see GRAFT_LEASH.
	 */
	__u32 edge;
	__u32 apart_ms;      /* CLOCK_MONOTONIC of the packet of apart_end */
	__u32 lost, lost_to; /* tracked: how many windows lost bytes, and the end of the last one */
	/* Tracked, if `apart`: `end` and `acked` of a packet that did not fit (graft_decide.h). */
	__u32 apart_end, apart_acked;
	__u32 from; /* by freeze(): the interface of the socket's last packet */
	/*
	 * Tracked: when the remote end began to send again, or to probe, without a new ACK of
	 * either end.  asked_at: the sum of its number and of both ends' ACKs at that time.
	 */
	__u64 asked_ns;
} __attribute__((aligned(64)));

/* What was seen of the handshake of a connection that may become a session's. */
struct graft_handshake {
	struct graft_way way;
	__u32 in, out; /* the numbers behind the SYN that has entered, and the SYN that has left */
	__u32 hooked;  /* 1: netfilter has hooks at the devices by which these have passed */
	__u32 unused;
};

/*
 * How a handshake is changed, so that both connections of a session are alike.  The shape of a
 * connecting socket changes its SYN, that of a listening socket the SYNs that arrive.  An option is
 * taken out only if the other connection cannot have it.
 */
struct graft_shape {
	__u16 mss;          /* the largest that is announced; 0: any; always 0 for listeners */
	__u8 no_timestamps; /* 1: without the option */
	__u8 ecn;           /* enum graft_shape_ecn */
	__u8 ecn_answered;  /* by the packet programs: 1: the remote end has agreed to ECN */
	/* of a listening socket, by the worker that owns the socket */
	__u8 heeds_hooks; /* 1: no SYN takes a slot if netfilter would see its packets */
	__u16 stock;      /* the stock from which SYNs take slots, plus 1; 0: none */
};

enum graft_shape_ecn {
	GRAFT_ECN_KEEP,
	GRAFT_ECN_ASK,
	GRAFT_ECN_REMOVE,
};

/* The neighbour to whose link-layer address a packet is sent. */
enum graft_via {
	GRAFT_VIA_LOOKUP, /* the kernel looks it up: on loopback, or without sockets */
	GRAFT_VIA_REMOTE, /* the remote end */
	GRAFT_VIA_IPV4,
	GRAFT_VIA_IPV6,
};

/* A session that must go back to its sockets is ended if it has not done so after this time. */
#define GRAFT_STUCK_NS 5000000000ULL

/* A hold of a stream's senders ends after this time, see hold(). */
#define GRAFT_HOLD_MS 200

/*
 * A session returns to its sockets if an end retransmits or probes for this time, and neither
 * stream gets an ACK.  TCP has retransmitted twice by then: the time-out is 200 ms at least, and
 * doubles.  A lost fast retransmission is repeated earlier than that, so loss alone does not count
 * as silence.
 */
#define GRAFT_SILENT_NS 400000000ULL
/* If other relays know the session, ACKs may go by these.  Such a relay tells of the first one in 1 s. */
#define GRAFT_SILENT_TOLD_NS 2000000000ULL

/*
 * Over a long way, or one that loses packets, two connections carry bulk faster than one
 * (docs/design.md, "Distance").
 */
enum graft_far {
	GRAFT_ANYWHERE, /* it stays grafted: `near_us` is 0, or the session cannot return */
	GRAFT_NEAR,     /* it stays grafted, unless packets are lost */
	GRAFT_LONG,     /* its bulk goes back to the sockets */
	GRAFT_LOSSY,    /* the same, for the rest of the session */
};

/*
 * Bytes that an end may send in a turn, if LONG or LOSSY.  After three quarters the session is
 * RETURNING.  The sender then runs dry at its edge: after one round trip, or after two if its turn
 * began with an initial window (10 segments, RFC 6928).  A message of 16 KiB with a header fits.
 */
#define GRAFT_LEASH 24576

/* A session is LOSSY after GRAFT_LOSSES windows with losses, one per GRAFT_LOSS_BYTES at least. */
#define GRAFT_LOSSES 2
#define GRAFT_LOSS_BYTES (2 << 20)

/* Of `over`. */
enum graft_over {
	GRAFT_KEPT,       /* the slot is the session's */
	GRAFT_GIVEN_BACK, /* by the daemon: the sockets are closed: a SYN begins a new connection */
	GRAFT_ANEW,       /* by a packet of that connection: no packet finds the session any more */
};

enum graft_loose {
	GRAFT_STRICT,
	GRAFT_LOOSE,
	GRAFT_FOUND, /* both ends were believed; old ACKs, of bytes carried elsewhere, may come */
};

/* A thread of the daemon reads such a field while another thread writes it. */
#ifdef __bpf__
#define GRAFT_SHARED
#else
#define GRAFT_SHARED _Atomic
#endif

/*
 * The first part of an entry of TCP or UDP.  The daemon writes it.  For TCP the packet programs
 * also write the state, and the offer program writes worker, id and forward.
 */
struct graft_head {
	__u32 state;                 /* enum graft_state; of UDP FREE, ACTIVE, STANDBY alone */
	__u32 worker;                /* of TCP: its ring gets the events */
	GRAFT_SHARED __u64 id;       /* of the session */
	GRAFT_SHARED __u32 forward;  /* graft_tag() of its forward's name, for an adoption */
	GRAFT_SHARED __u32 source;   /* graft_tag() of the import that has the session; 0: none */
	GRAFT_SHARED __u32 mirrored; /* enum graft_mirrored */
	GRAFT_SHARED __u32
		alone_ms; /* STANDBY: no export since then (low half); or ALONE_* of graft.h */
};

/* All that is kept of a client's SYN: enough to make the SYN again. */
struct graft_syn {
	__u32 tsval;
	__u16 mss, window;
	__u8 shift; /* of the window scale option */
	__u8 flags; /* of the TCP header */
	__u8 ttl;
	__u8 has; /* GRAFT_SYN_*: the options */
	/* by the daemon, before a SYN: as graft_request.near_us */
	__u32 near_us;
};

#define GRAFT_SYN_SACK 1
#define GRAFT_SYN_STAMPS 2
#define GRAFT_SYN_SCALED 4

/* Of syn_flags. */
#define GRAFT_SYN_KNOWN_SEQ 1   /* the last number that the port has sent is known, */
#define GRAFT_SYN_KNOWN_TSVAL 2 /* and its last TSval: see graft_isn() */
#define GRAFT_SYN_BARE 4        /* the session began in the kernel, and has no sockets yet */

/*
 * Slots that SYNs may take, in the order of the daemon's choices.  A SYN takes that at `first`.  The
 * daemon adds slots at `last`, and takes them back as a SYN does.
 */
#define GRAFT_STOCK 512
#define GRAFT_STOCKS 256 /* of forwards */

struct graft_stock {
	__u32 first;                               /* compare-and-swap */
	__u32 missed __attribute__((aligned(64))); /* SYNs that found no slot: atomic */
	__u32 last __attribute__((aligned(64)));
	__u32 slot[GRAFT_STOCK];
};

/* An end whose SYN and answer the programs and netfilter have seen, at an offer. */
struct graft_proof_key {
	struct graft_tuple tuple; /* without the port at the remote end, or of a server at ours */
	__u32 forward;            /* of a server: graft_tag() of its forward; of a client 0 */
};

/* The key of the remote end of T: a server of FORWARD; or, if FORWARD is 0, a client. */
static inline __attribute__((always_inline)) void
graft_set_proof_key(struct graft_proof_key *k, const struct graft_tuple *t, __u32 forward)
{
	*k = (struct graft_proof_key){ .tuple = *t, .forward = forward };
	if (forward)
		k->tuple.local_port = 0;
	else
		k->tuple.remote_port = 0;
}

struct graft_proof {
	struct graft_way way;
	__u64 ns;
	__u64 hooked; /* as in graft_handshake */
};

/* A proof is believed for this time: a ban that netfilter has learned meanwhile is missed so long. */
#define GRAFT_PROOF_NS 10000000000ULL

/* Why a SYN of a forward with a stock goes to the listener. */
enum graft_past {
	GRAFT_PAST_UNPROVEN,        /* its client has no proof */
	GRAFT_PAST_ODD,             /* payload, or options that are not known */
	GRAFT_PAST_HALF_OPEN,       /* too many connections are half open */
	GRAFT_PAST_STOCK,           /* no slot is prepared */
	GRAFT_PAST_UNPROVEN_SERVER, /* the server has no proof */
	GRAFT_PAST_TUPLE,           /* another session, or a socket, has one of its tuples */
	GRAFT_PAST_NETFILTER,
	GRAFT_PAST_INTERFACE,
	GRAFT_PAST_REFUSED,
	GRAFT_PAST_UNREACHABLE, /* ICMP */
	GRAFT_PAST_CHALLENGED,
	GRAFT_PAST_SILENT,
	GRAFT_PAST_CLIENT, /* the client has begun another connection */
	GRAFT_PASTS,
};

struct graft_entry {
	struct graft_head head;
	union {
		struct {
			/*
			 * packets that were checked as a first translated packet; of a session from
			 * the SYN on: tries to return without sockets
			 */
			__u32 looks;
			__u32 why_not; /* enum graft_refusal: of the last check */
			/* by the daemon while OFFERED: 1: let senders run dry, see hold() */
			__u32 hold;
			/* by the daemon: since when (low half); GRAFT_HOLD_MS at most */
			__u32 held_ms;
		};
		struct graft_syn syn; /* PREPARED to ANSWERED */
	};
	__u64 offered_ns, ended_ns; /* CLOCK_MONOTONIC */
	__u64 before[2];            /* bytes that each socket has received */
	__u32 shifted;              /* 1: RETURNED, or OFFERED after that */
	__u32 over;                 /* enum graft_over */
	__u32 killed;               /* DONE, CLOSED: 1: the daemon closes the sockets with RST */
	__u32 why_back;             /* enum graft_refusal: why the session returns, */
	__u64 stuck_ns;             /* and since when */
	__u64 counted[2];           /* by the daemon: bytes of each side that its counters have */
	__u32 loose;                /* tracked: enum graft_loose */
	__u16 far;                  /* enum graft_far: offer; tracked */
	__u8 shaped;    /* by the daemon: how the handshakes were made alike, for an adoption */
	__u8 syn_flags; /* GRAFT_SYN_KNOWN_* and the like: the SYN; the daemon, in FREE */
	struct graft_side side[2];
} __attribute__((aligned(64)));

/* A slot takes at most 1 KB: this, struct udp_flow, and 4 buckets. */
_Static_assert(sizeof(struct graft_entry) == 640 && GRAFT_LAYOUT == 9,
	       "another size: another layout");

/*
 * Two times, in units of 2^30 ns and rounded down, differ by UNITS.  Returns how many milliseconds
 * lie between them at most.
 */
#define GRAFT_CLOCK_SHIFT 30
static inline __u32 graft_clock(__u32 units)
{
	return (units + 1) * 1074;
}

/* The knowledge that other relays have of a session. */
enum graft_mirrored {
	GRAFT_UNKNOWN,
	GRAFT_TOLD,      /* exported to one */
	GRAFT_CAME,      /* imported from one */
	GRAFT_HELPED,    /* exported, and one has told of packets that go by it */
	GRAFT_OVER,      /* one has exported that the session is over */
	GRAFT_YIELD,     /* another relay has it, too, and keeps it */
	GRAFT_CONDEMNED, /* `culvert kill` at another relay */
};

/* Size and values of graft_unsynced.  Its index is a port in network byte order. */
#define GRAFT_PORTS 65536
#define GRAFT_PORT_LISTENS 1 /* a forward listens at it */
#define GRAFT_PORT_SERVER 2  /* a server of a forward has it */

/* Value of `interfaces`. */
#define GRAFT_IF_USED 1   /* sessions may be grafted there */
#define GRAFT_IF_PORT 2   /* of a bridge: frames for the bridge are for us */
#define GRAFT_IF_BRIDGE 4 /* packets there were seen at a port before */

/* Keys of `interfaces` that are no ifindex. */
#define GRAFT_IF_POLICIES 0U      /* value: graft_policies */
#define GRAFT_IF_PORTS UINT32_MAX /* value 1: programs are at ports of bridges, too */

/* Input of the offer program, behind an Ethernet header. */
enum graft_op {
	GRAFT_OFFER,       /* set up a session in `slot`, which is FREE */
	GRAFT_OFFER_AGAIN, /* offer the session of `slot` again, which is RETURNED */
	GRAFT_KILL,   /* DONE: shift packets from now on, so the sockets' resets get to the ends */
	GRAFT_WAYS,   /* ACTIVE: can the sockets' ways be followed?  GRAFT_OK: as far as is known */
	GRAFT_ROUTES, /* count changes of the network namespace: graft_routes, graft_policies */
	GRAFT_STRAYS, /* ACTIVE: do packets go past the programs?  See graft_stray */
	GRAFT_SOCKETS, /* SETTING: GRAFT_IN_HAND: a socket has one of the tuples */
};

struct graft_request {
	__u32 op;
	__u32 slot;
	__u32 worker;
	__u64 id;
	__u32 forward;
	struct graft_tuple tuples[2];
	/* OFFER, OFFER_AGAIN: a session whose round trips add up to more is LONG; 0: none is */
	__u32 near_us;
	__u32 far_too; /* 1: offer a far session all the same */
};

/*
 * A wake-up is an interrupt that the CPU sends to itself, which costs more than all else about an
 * event.  So a worker is woken for the first event, and looks by itself for those that follow
 * within GRAFT_QUIET_MS.
 */
#define GRAFT_QUIET_MS 1
#define GRAFT_WORKERS 256
#define GRAFT_NOBODY 0xffffffffU /* the worker of a session that no worker has */

/* A packet has changed the state to DONE or RETURNED. */
struct graft_event {
	__u32 slot;
	__u32 unused;
	__u64 id; /* of the session that it is about */
};
