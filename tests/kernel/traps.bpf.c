/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Verdict programs for the kernel tests, driven by one configuration record per slot.
 *
 * kt_verdict is a plain cousin of the real datapath program: simple enough that a test which fails
 * points at the kernel and not at the program.  kt_tag and kt_drop are loaded by the tests that
 * need them.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "traps.h"

/* Only what is read; CO-RE finds it in the running kernel (tcp_sock is renamed to not collide). */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock___kt {
	long sk_rcvtimeo;
};
struct inet_sock___kt {
	struct sock___kt sk;
};
struct inet_connection_sock___kt {
	struct inet_sock___kt icsk_inet;
};
struct tcp_sock___kt {
	struct inet_connection_sock___kt inet_conn;
	__u32 write_seq;
	__u32 copied_seq;
};
struct tcp_skb_cb___kt {
	__u32 seq;
};
struct sk_buff___kt {
	char cb[48];
	unsigned int truesize;
};
#pragma clang attribute pop

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, KT_SLOTS);
	__type(key, __u32);
	__type(value, __u64);
} rx SEC(".maps"), tx SEC(".maps"), other SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, KT_SLOTS);
	__type(key, __u64); /* socket cookie */
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

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

struct kt_drop drop_cfg;
__u64 tag_seen;
__u64 tag_runs;

static __always_inline void notify(__u32 slot, __u32 kind, __u64 bytes)
{
	struct kt_event ev = { .slot = slot, .kind = kind, .bytes = bytes };

	bpf_ringbuf_output(&events, &ev, sizeof(ev), 0);
}

/* The look-up in a sockmap takes a reference, which has to go back on every path. */
static __always_inline int look_at_target(__u32 key, __u32 *ret_seq)
{
	struct tcp_sock___kt *tp;
	struct bpf_sock *sk;
	int r = -1;

	sk = bpf_map_lookup_elem(&tx, &key);
	if (!sk)
		return -1;
	tp = (struct tcp_sock___kt *)bpf_skc_to_tcp_sock(sk);
	if (tp) {
		*ret_seq = tp->write_seq;
		r = 0;
	}
	bpf_sk_release(sk);
	return r;
}

static __always_inline int pass(struct __sk_buff *skb, __u32 slot, struct kt_conf *c,
				struct kt_stat *s)
{
	if (s->passed == c->credit)
		notify(slot, KT_EV_PASSED, s->bytes);
	s->passed += skb->len;
	return SK_PASS;
}

static __always_inline int redirect(struct __sk_buff *skb, __u32 slot, struct kt_conf *c,
				    struct kt_stat *s)
{
	struct sk_buff___kt *k = (struct sk_buff___kt *)skb;
	__u32 seq, truesize = 0;

	if (c->flags & KT_F_WATCH) {
		if (!look_at_target(slot ^ 1, &seq))
			s->target_seq = seq;
		bpf_core_read(&truesize, sizeof(truesize), &k->truesize);
		s->truesize += truesize;
	}
	s->bytes += skb->len;
	s->packets++;
	return bpf_sk_redirect_map(skb, &tx, slot ^ 1, 0);
}

/* Section 3 of DATAPATH.md: soft limit notified once, hard limit enforced by passing. */
static __always_inline int bounded(struct __sk_buff *skb, __u32 slot, struct kt_conf *c,
				   struct kt_stat *s)
{
	__u64 backlog;
	__u32 seq;

	if (s->passed != c->credit)
		return pass(skb, slot, c, s);
	if (s->bytes < s->next_check)
		return redirect(skb, slot, c, s);
	if (look_at_target(slot ^ 1, &seq))
		return SK_DROP;
	if (!s->bytes && !s->passed)
		s->base_seq = seq;
	s->checks++;
	backlog = (__u32)(s->base_seq + (__u32)s->bytes + (__u32)c->credit - seq);
	if (backlog > s->backlog_max)
		s->backlog_max = backlog;
	if (c->soft_limit && backlog > c->soft_limit && !s->soft_told) {
		s->soft_told = 1;
		notify(slot, KT_EV_SOFT, s->bytes);
	}
	if (backlog > c->hard_limit)
		return pass(skb, slot, c, s);
	s->next_check = s->bytes + KT_CHECK_EVERY;
	return redirect(skb, slot, c, s);
}

/*
 * T3 and T17: an skb can begin with bytes that were read or redirected before.  TCP's own readers
 * skip them by comparing sequence numbers; a verdict has to do that itself.  copied_seq is the
 * reference at the insertion only: passed data moves it when it is read, not when it is passed.
 */
static __always_inline int trim(struct __sk_buff *skb, struct kt_conf *c, struct kt_stat *s)
{
	struct sk_buff___kt *k = (struct sk_buff___kt *)skb;
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock___kt *tp;
	__u32 seq = 0, old;

	if (bpf_core_read(&seq, sizeof(seq),
			  k->cb + bpf_core_field_offset(struct tcp_skb_cb___kt, seq)))
		return -1;
	if (s->epoch != c->epoch + 1) {
		if (!sk)
			return -1;
		tp = (struct tcp_sock___kt *)bpf_skc_to_tcp_sock(sk);
		if (!tp)
			return -1;
		s->next_seq = tp->copied_seq;
		s->epoch = c->epoch + 1;
	}
	old = s->next_seq - seq;
	s->next_seq = seq + skb->len;
	if (old > skb->len) /* a gap; would be a bug of the kernel */
		return -1;
	s->overlap += old;
	/* The helper cuts less than 4 KiB at a time; TCP merges skbs up to some 17 * 32 KiB. */
	for (int i = 0; i < 256 && old; i++) {
		__u32 step = old < 4095 ? old : 4095;

		if (bpf_skb_adjust_room(skb, -(__s32)step, 0, 0))
			return -1;
		old -= step;
	}
	return old ? -1 : 0;
}

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
	if ((c->flags & KT_F_TRIM) && trim(skb, c, s))
		s->untrimmed++;
	if (!skb->len) {
		s->empty++;
		if (!(c->flags & KT_F_EMPTY_TOO))
			return SK_DROP;
	}
	switch (c->mode) {
	case KT_REDIRECT:
		return redirect(skb, slot, c, s);
	case KT_PASS:
		return pass(skb, slot, c, s);
	case KT_BOUNDED:
		return bounded(skb, slot, c, s);
	default:
		return SK_DROP;
	}
}

/* F6: a tag of the socket itself, without a map: the receive time-out that user space set. */
SEC("?sk_skb")
int kt_tag(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock___kt *tp;

	if (!sk)
		return SK_DROP;
	tp = (struct tcp_sock___kt *)bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return SK_DROP;
	tag_seen = tp->inet_conn.icsk_inet.sk.sk_rcvtimeo;
	tag_runs++;
	return SK_PASS;
}

/* Loses some packets on lo, so that there are retransmissions to count. */
SEC("?tc")
int kt_drop(struct __sk_buff *skb)
{
	struct tcphdr th;
	struct iphdr ih;
	__u32 hlen;

	if (skb->protocol != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ih, sizeof(ih)) || ih.protocol != 6)
		return TC_ACT_OK;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + ih.ihl * 4, &th, sizeof(th)))
		return TC_ACT_OK;
	hlen = ETH_HLEN + ih.ihl * 4 + th.doff * 4;
	if (bpf_ntohs(th.dest) == drop_cfg.all[0] || bpf_ntohs(th.dest) == drop_cfg.all[1])
		return TC_ACT_SHOT;
	if (!drop_cfg.port || bpf_ntohs(th.dest) != drop_cfg.port || skb->len <= hlen)
		return TC_ACT_OK;
	if (!drop_cfg.every || ++drop_cfg.seen % drop_cfg.every ||
	    drop_cfg.dropped >= drop_cfg.most)
		return TC_ACT_OK;
	drop_cfg.dropped++;
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
