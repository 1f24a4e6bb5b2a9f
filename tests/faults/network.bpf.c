/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A bad network: on the way into a device packets are dropped, doubled, or put behind those that
 * wait already.  The shares are set from user space and of 65536.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

/* Of a packet that has been here before. */
#define MARK 0x63766c74

volatile __u32 drop_share, double_share, reorder_share;
volatile __u64 packets, dropped, doubled, reordered;

static __always_inline int is_picked(__u32 share)
{
	return share && (bpf_get_prandom_u32() & 0xffff) < share;
}

SEC("tc")
int disturb(struct __sk_buff *skb)
{
	if (skb->mark == MARK)
		return TC_ACT_OK;
	__sync_fetch_and_add(&packets, 1);
	if (is_picked(drop_share)) {
		__sync_fetch_and_add(&dropped, 1);
		return TC_ACT_SHOT;
	}
	if (is_picked(double_share)) {
		skb->mark = MARK;
		__sync_fetch_and_add(&doubled, 1);
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
		return TC_ACT_OK;
	}
	if (is_picked(reorder_share)) {
		skb->mark = MARK;
		__sync_fetch_and_add(&reordered, 1);
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	}
	return TC_ACT_OK;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
