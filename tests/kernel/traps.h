/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What the verdict programs of traps.bpf.c and the kernel tests share.
 *
 * Every socket of a test has a slot of its own; the target of a redirect is the socket in the
 * neighbouring slot (slot ^ 1).  kt_conf is written by user space only and kt_stat by the program
 * only, both through mappings, as in the real datapath.
 */
#pragma once

#include <linux/types.h>

#define KT_SLOTS 1024

enum kt_mode {
	KT_DROP,
	KT_REDIRECT,
	KT_PASS,
};

/* kt_conf.flags */
#define KT_F_EMPTY_TOO 1 /* treat skbs without data like any other: the trap T5 */

struct kt_conf {
	__u32 mode; /* enum kt_mode */
	__u32 flags;
};

struct kt_stat {
	__u64 runs;    /* of the program, empty skbs included */
	__u64 empty;   /* skbs without data */
	__u64 bytes;   /* redirected */
	__u64 packets; /* redirected */
	__u64 passed;  /* bytes */
};
