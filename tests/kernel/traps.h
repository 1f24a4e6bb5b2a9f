/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the verdict programs of traps.bpf.c and the kernel tests share.
 *
 * Every socket of a test has a slot of its own; the target of a redirect is the socket in the
 * neighbouring slot (slot ^ 1).  kt_conf is written by user space only and kt_stat by the program
 * only, both through mappings, as in the real datapath.
 */
#ifndef KT_TRAPS_H
#define KT_TRAPS_H

#include <linux/types.h>

#define KT_SLOTS 1024
#define KT_CHECK_EVERY (64 * 1024) /* redirected bytes between two looks at the backlog */

enum kt_mode {
	KT_DROP,
	KT_REDIRECT,
	KT_PASS,
	KT_BOUNDED, /* redirect below hard_limit, pass above it, resume when credit == passed */
};

/* kt_conf.flags */
#define KT_F_EMPTY_TOO 1 /* treat skbs without data like any other: the trap T5 */
#define KT_F_WATCH 2	 /* record the target's write_seq and the skb's truesize */
#define KT_F_TRIM 4	 /* cut off what the stream has had already: the remedy of T3 and T17 */

struct kt_conf {
	__u32 mode; /* enum kt_mode */
	__u32 flags;
	__u32 epoch; /* for KT_F_TRIM: changed before each insertion */
	__u32 pad;
	__u64 soft_limit; /* bytes; 0: none */
	__u64 hard_limit; /* bytes */
	__u64 credit;	  /* passed bytes that user space has written to the target */
};

struct kt_stat {
	__u64 runs;	/* of the program, empty skbs included */
	__u64 empty;	/* skbs without data */
	__u64 bytes;	/* redirected */
	__u64 packets;	/* redirected */
	__u64 passed;	/* bytes */
	__u64 checks;	/* of the backlog */
	__u64 next_check; /* value of bytes at which the backlog is looked at again */
	__u64 backlog_max; /* largest backlog seen by a check */
	__u64 soft_told;
	__u64 truesize; /* of what was redirected, with KT_F_WATCH */
	__u64 overlap; /* bytes found by KT_F_TRIM */
	__u64 untrimmed; /* times that cutting failed */
	__u32 base_seq; /* the target's write_seq when bytes was 0 */
	__u32 target_seq; /* the target's write_seq at the last look */
	__u32 next_seq; /* first sequence number that no verdict has had, for KT_F_TRIM */
	__u32 epoch; /* conf.epoch + 1 for which next_seq holds */
};

enum kt_event_kind { KT_EV_SOFT = 1, KT_EV_PASSED = 2 };

struct kt_event {
	__u32 slot;
	__u32 kind; /* enum kt_event_kind */
	__u64 bytes; /* redirected so far */
};

/* The tc program that loses packets: TCP segments with data to one port, or all to two. */
struct kt_drop {
	__u32 port; /* destination, host order; 0: off */
	__u32 every; /* lose each n-th */
	__u32 most;  /* stop after so many */
	__u32 seen;
	__u32 dropped;
	__u32 all[2]; /* lose everything to these ports; 0: off */
};

#endif
