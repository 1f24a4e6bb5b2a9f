/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types the BPF programs read, kept by hand.
 *
 * CO-RE relocates every access against the running kernel's BTF, so a type needs only the fields
 * that are used, and neither their offsets nor their neighbours matter.  A field that is missing in
 * the running kernel makes the load fail with its name, which `culvert probe` reports.
 *
 * To add a type: look it up with
 *     bpftool btf dump file /sys/kernel/btf/vmlinux format c
 * and copy the names (not the layout) of the fields that are needed.  Everything that is UAPI
 * (struct __sk_buff, map types, return codes) comes from <linux/bpf.h>.
 */
#ifndef CULVERT_VMLINUX_H
#define CULVERT_VMLINUX_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/linux/tcp.h */
struct tcp_sock {
	__u32 write_seq;  /* tail + 1 of the data held in the send buffer */
	__u32 copied_seq; /* head of the data that was not read yet */
};

/* include/net/tcp.h: lies in sk_buff.cb while TCP has the skb */
struct tcp_skb_cb {
	__u32 seq; /* of the first byte */
};

/* include/linux/skbuff.h */
struct sk_buff {
	char cb[48];
	unsigned int truesize; /* memory that the skb occupies */
};

#pragma clang attribute pop

#endif
