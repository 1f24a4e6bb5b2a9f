/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The verdict program of the kernel tests: what it does with the skbs of a slot, one configuration
 * record says.  It is so simple that a test which fails points at the kernel and not at the program.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "traps.h"

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, KT_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} rx SEC(".maps"), tx SEC(".maps"), other SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KT_SLOTS);
	__type(key, __u64);   /* socket cookie */
	__type(value, __u32); /* slot */
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KT_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct kt_conf);
} conf SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, KT_SLOTS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct kt_stat);
} stat SEC(".maps");

SEC("sk_skb")
int kt_verdict(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);
	struct kt_conf *c;
	struct kt_stat *s;
	__u32 slot, *slotp;

	slotp = bpf_map_lookup_elem(&slots, &cookie);
	if (!slotp)
		return SK_DROP;
	slot = *slotp;
	c = bpf_map_lookup_elem(&conf, &slot);
	s = bpf_map_lookup_elem(&stat, &slot);
	if (!c || !s)
		return SK_DROP;

	s->runs++;
	if (!skb->len) {
		s->empty++;
		if (!(c->flags & KT_F_EMPTY_TOO))
			return SK_DROP;
	}
	switch (c->mode) {
	case KT_REDIRECT:
		s->bytes += skb->len;
		s->packets++;
		return bpf_sk_redirect_map(skb, &tx, slot ^ 1, 0);
	case KT_PASS:
		s->passed += skb->len;
		return SK_PASS;
	default:
		return SK_DROP;
	}
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
