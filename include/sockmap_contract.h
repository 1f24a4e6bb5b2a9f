/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The contract between the verdict program (bpf/sockmap.bpf.c) and the daemon
 * (user/datapath/sockmap/sockmap.c).
 *
 * A session has two sockets and two slots: 2n for the client's, 2n + 1 for the upstream's.  The
 * flow of a slot is the flow that is *read* from the slot's socket; its target is the other slot
 * of the pair.
 *
 * Maps
 *   rx       sockmap with the verdict program.  A flow is in the kernel exactly while its source
 *            socket is in rx.
 *   tx       sockmap without a program: the redirect targets.  Both sockets of a session stay in it
 *            from the first promotion to close(2), so their psocks, and what is queued on them,
 *            survive every removal from rx.
 *   slots    socket cookie -> slot.
 *   stats    struct culvert_stat by slot, mapped into the daemon.  Written by the program, and only
 *            while it holds the source's socket lock: one writer at a time.  While no socket has
 *            the slot the daemon clears bytes, passed, dropped and backlog_max, and no other field.
 *   ctls     struct culvert_ctl by slot, mapped into the daemon.  Written by the daemon only.
 *   rings    worker -> ring buffer of struct culvert_event.
 *   .bss     the program's globals, mapped into the daemon: `memory`, see below, and counters.
 *
 * Gate.  While a socket is in rx the filter culvert_gate is attached to it.  A closed gate keeps
 * segments with payload or FIN out of TCP, and the peer sends them again.  Two sides close it:
 *   - The program, for the rest of the socket's stay in rx (stat.closed == ctl.epoch), if passing
 *     would not bound memory (reverse_has_backlog()), or if bytes were lost (stat.lost ==
 *     ctl.epoch).  After a loss no later byte may reach the target, so the program also drops the
 *     bytes that TCP holds already.
 *   - The daemon (ctl.fence), while it takes the socket out of rx.
 *
 * Memory of all flows.  A flow is charged for the backlog that the program saw at its last look, if
 * that backlog is over CULVERT_UNCHARGED.  stat.backlog is the flow's charge, memory.charged the
 * sum.  At the end of a stay in the kernel the daemon adds stat.backlog to memory.released.  Each
 * of the two sums is written by one side, with atomic adds, and their difference is the memory in
 * use.
 *   - Once for each stay: the daemon releases only while stat.epoch == ctl.epoch, that is, if the
 *     program has run in this very stay.  The daemon then moves ctl.epoch on, so that nothing is
 *     left to release.  The program begins each epoch with a stat.backlog of 0.
 *   - After the last charge: the daemon first takes the source's socket lock, which waits for the
 *     last run of the program, and releases only when no run can follow.  No run can follow once
 *     the flow is out of rx and its backlog has drained, once the flow has finished, or once
 *     the sockets are closed.
 *   - A quiet flow is charged for its backlog at the last look, until it goes on or leaves.  Near
 *     memory_limit the daemon lets such flows leave.
 * Above three quarters of memory_limit the program tells the daemon of each charged flow.  Above
 * memory_limit the program looks at the backlog for each skb, and a charged flow counts as over its
 * hard limit: no daemon is needed.  All flows together may exceed memory_limit, each by
 * CULVERT_UNCHARGED, the bytes between two looks, one skb, and the bytes that TCP holds when the
 * gate closes.
 *
 * Order without a lock.  The program redirects while stat.passed == ctl.credit, that is, while
 * every byte that was ever handed to user space has been written to the target.  Once over the hard
 * limit it passes (or closes the gate, see above), and goes on passing until the daemon has caught
 * up.  The two counters are a Dekker pair: the program stores `passed`, then loads `credit`
 * again; the daemon stores `credit`, then loads `passed`; both with full barriers.  So either the
 * daemon sees the new passed byte or the program sees the new credit and sends
 * CULVERT_EVENT_PASSED: no wake-up is lost.
 */
#pragma once

#include <linux/types.h>

/* The backlog of a flow is looked at after so many redirected bytes or packets, not for each. */
#define CULVERT_CHECK_BYTES (64 * 1024)
#define CULVERT_CHECK_PACKETS 64

/* A flow is not charged for a backlog of so many bytes; see "Memory of all flows" above. */
#define CULVERT_UNCHARGED (16 * 1024)

/*
 * The slab allocator really uses more for an skb than its truesize: tests/kernel/test_facts.c has
 * seen 248 to 251 bytes on Linux 6.1, 289 to 291 on 6.12, and 278 to 291 on 6.18.
 */
#define CULVERT_SKB_EXTRA 320

/*
 * Written by the program.  Bytes are payload unless said otherwise.  The first of the two cache
 * lines has all fields that a redirected skb changes, or the gate looks at.
 *
 * Fields of 32 bits or less are used as differences, modulo their size.  A turn ends, or is
 * reported as bulk, at the first look after ctl.bulk_bytes.  So the bytes of a turn are bounded,
 * and so are its packets.  Answers have no bound: 2^32 of them in one turn would count as none, and
 * the flow could be called bulk, which is only a hint.
 */
struct culvert_stat {
	__u64 bytes;        /* redirected to the target */
	__u64 packets;      /* redirected skbs */
	__u64 passed;       /* bytes handed to user space (SK_PASS) */
	__u64 overhead;     /* memory of all redirected skbs beyond their payload */
	__u32 expected_seq; /* target's write_seq when all redirected and passed bytes are in it */
	__u32 next_seq;     /* source's sequence number of the next byte of the stream */
	__u32 epoch;        /* ctl.epoch for which these fields were started */
	__u32 closed;       /* ctl.epoch in which the gate was closed last */
	__u32 lost;         /* ctl.epoch in which bytes were dropped last */
	__u32 unchecked_bytes; /* since the last look at the backlog, like the next field */
	__u16 unchecked_packets;
	__u16 told;          /* events sent in this epoch: 1 << kind */
	__u32 mark_seq;      /* a point of the stream: its sequence number on the target, */
	__u64 mark_overhead; /* ... and the value of `overhead` there */
	__u64 sent_overhead; /* `overhead` of the skbs known to have left the backlog */
	__u64 backlog_max;   /* largest memory estimate of the target's backlog */
	__u64 dropped;       /* bytes that could not be carried: the session must be reset */
	__u64 overlap;       /* bytes that came twice, and were cut off */
	__u64 turn_bytes;    /* stat.bytes when the current turn began */
	__u32 turn_packets;  /* stat.packets at that time */
	__u32 turn_answers;  /* the reverse flow's packets at that time */
	__u64 backlog;       /* the flow's charge in the stay `epoch` */
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct culvert_stat) == 128, "two cache lines for each flow");

/* Written by the daemon. */
struct culvert_ctl {
	__u64 credit;     /* passed bytes that the daemon has written to the target */
	__u64 soft_limit; /* memory estimate at which the daemon is told once */
	__u64 hard_limit; /* memory estimate from which the program passes, or closes the gate */
	__u64 bulk_bytes; /* a turn this long may be bulk; 0: never */
	__u32 bulk_ratio; /* ... if it has so many bytes for each packet that comes back */
	__u32 bulk_skb;   /* ... and for each packet of its own */
	__u32 worker;     /* whose ring */
	__u32 epoch;      /* changes with each owner of the slot, with each entry into rx, and
			   * when the backlog has drained after a removal */
	__u32 no_pass;    /* the flow is being taken out of rx: do not begin to pass */
	__u32 fence;      /* ... and the gate is closed */
	__u64 counted;    /* redirected bytes that the daemon's counters have */
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct culvert_ctl) == 64, "one cache line for each flow");

enum culvert_event_kind {
	CULVERT_EVENT_SOFT = 1,   /* the backlog is over the soft limit (once an epoch) */
	CULVERT_EVENT_PASSED = 2, /* bytes were passed and nothing had been outstanding */
	CULVERT_EVENT_BULK = 3,   /* the flow looks like bulk (once an epoch) */
	CULVERT_EVENT_LOST = 4,   /* bytes were dropped: the target was gone (once an epoch) */
	/* all flows together are near memory_limit, and this one is charged (once an epoch) */
	CULVERT_EVENT_MEMORY = 5,
};

struct culvert_event {
	__u32 slot;
	__u16 kind;
	__u16 epoch; /* low half of ctl.epoch: shows that an event is of an earlier stay */
};
