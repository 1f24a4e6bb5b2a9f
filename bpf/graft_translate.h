/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How graft.bpf.c changes a packet: numbers, options, addresses, checksums. */
#pragma once

#include "graft_packet.h"

/* --- translation --- */

/* How a packet is changed: on its way to the other end, or between the wire and a socket. */
struct change {
	__s64 diff; /* returned: the checksum's change, without that of addresses */
	__u32 seq_add, ack_add, tsval_add, tsecr_add;
	__u16 source, dest; /* ports */
	__u8 left, right;   /* shifts of the window */
	__u8 grafted;       /* 1: the session's clocks follow the packet's */
	__u8 no_timestamps; /* 1: NOPs instead */
	__u32 slot, side;
	__u16 mss; /* of the option, at most; 0: any */
	__u8 flags_off, flags_on;
};

/*
 * Change TSval and TSecr.  F: the session, if its clocks follow the packet's, else NULL.  A TSecr
 * from before the graft echoes a clock that the other end never had: it becomes tsecr_least.
 */
static __always_inline void change_clocks(const struct change *c, const struct found *f,
					  __u32 words[2])
{
	__u32 tsval = bpf_ntohl(words[0]) + c->tsval_add,
	      tsecr = bpf_ntohl(words[1]) + c->tsecr_add;

	if (f)
		grow_32(&f->other->tsval_sent, tsval);
	if (f && f->mine->tsecr_clamped) {
		if (diff(tsecr, f->mine->tsecr_least) < 0)
			tsecr = f->mine->tsecr_least;
		else
			f->mine->tsecr_clamped = 0;
	}
	words[0] = bpf_htonl(tsval);
	words[1] = bpf_htonl(tsecr);
}

/*
 * The new window never exceeds the receiver's: a receiver may refuse a segment beyond its window.
 * A window below one unit becomes 0.  The receiver announces its window again when it has grown:
 * see has_room().
 */
static __always_inline __u16 new_window(const struct change *c, __u32 window)
{
	__u32 is = (window << c->left) >> c->right;

	return is > 65535 ? 65535 : is;
}

/*
 * Give P the addresses and the TTL of TO's socket, and correct all checksums.  L4_DIFF is the
 * difference that other changes of the L4 header make.
 */
__noinline int set_addresses(struct __sk_buff *skb, const struct packet *p,
			     const struct graft_leg *to, __s64 l4_diff)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u64 flags;
	__u32 sum, l3;
	__s64 addr_diff;

	if (!p || !to)
		return -1;
	l3 = p->l3 & L3_BITS;
	sum = sum_at(p);
	flags = sum_flags(p);
	if (!p->ipv6) {
		struct iphdr *ip = data + l3;
		__u32 was[3] = { 0 }, is[3] = { 0 };
		__s64 ip_diff;

		if ((void *)(ip + 1) > end)
			return -1;
		*(__u8 *)was = ip->ttl;
		*(__u8 *)is = ip->ttl = to->way.ttl;
		was[1] = ip->saddr;
		was[2] = ip->daddr;
		is[1] = ip->saddr = to->tuple.local.w[3];
		is[2] = ip->daddr = to->tuple.remote.w[3];
		addr_diff = bpf_csum_diff(was + 1, 8, is + 1, 8, 0);
		ip_diff = bpf_csum_diff(was, 12, is, 12, 0);
		bpf_l3_csum_replace(skb, l3 + 10, 0, ip_diff, 0);
	} else {
		struct ipv6hdr *ip = data + l3;
		struct graft_addr was[2], is[2] = { to->tuple.local, to->tuple.remote };

		if ((void *)(ip + 1) > end)
			return -1;
		__builtin_memcpy(was, &ip->saddr, sizeof(was));
		__builtin_memcpy(&ip->saddr, is, sizeof(is));
		ip->hop_limit = to->way.ttl;
		addr_diff = bpf_csum_diff((__be32 *)was, 32, (__be32 *)is, 32, 0);
	}
	bpf_l4_csum_replace(skb, sum, 0, l4_diff, flags);
	flags |= BPF_F_PSEUDO_HDR;
	if (p->ipv6 && !bpf_l4_csum_replace(skb, sum, 0, addr_diff, flags | CSUM_IPV6))
		return 0;
	return bpf_l4_csum_replace(skb, sum, 0, addr_diff, flags);
}

static __always_inline __u32 ip_len(bool ipv6)
{
	return ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
}

/*
 * Write an IP header at AT, from L's local to its remote address; BACK: from remote to local.  LEN
 * bytes follow the header.  The header's length field is 0 if LEN does not fit.
 */
static __always_inline void fill_ip(void *at, const struct graft_leg *l, bool back, __u8 protocol,
				    __u32 len, __u8 traffic, __u8 ttl)
{
	const struct graft_addr *from = back ? &l->tuple.remote : &l->tuple.local;
	const struct graft_addr *to = back ? &l->tuple.local : &l->tuple.remote;

	if (!is_ipv6(l)) {
		struct iphdr ip = { .tos = traffic,
				    .ttl = ttl,
				    .tot_len = len + 20 > 65535 ? 0 : bpf_htons(len + 20),
				    .frag_off = bpf_htons(0x4000),
				    .protocol = protocol,
				    .saddr = from->w[3],
				    .daddr = to->w[3] };

		*(__u8 *)&ip = 0x45;
		ip.check = folded(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
		__builtin_memcpy(at, &ip, sizeof(ip));
	} else {
		struct ipv6hdr *ip = at;

		*(__u32 *)ip = bpf_htonl(6U << 28 | (__u32)traffic << 20);
		ip->payload_len = len > 65535 ? 0 : bpf_htons(len);
		ip->nexthdr = protocol;
		ip->hop_limit = ttl;
		__builtin_memcpy(&ip->saddr, from, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, to, sizeof(ip->daddr));
	}
}

/*
 * As set_addresses(), for an end of the other family: P gets a new IP header.  Length and protocol
 * in the pseudo header have the same sum in both families.
 */
__noinline int set_family(struct __sk_buff *skb, const struct packet *p, const struct graft_leg *to,
			  __s64 l4_diff)
{
	__u32 l3, was, is, word;
	struct scratch *at = my_scratch();
	__s64 addr_diff;
	bool ipv6;

	if (!p || !to || !at)
		return -1;
	l3 = p->l3 & L3_BITS;
	was = p->ipv6 ? 32 : 8; /* bytes of both addresses, which end the header */
	ipv6 = is_ipv6(to);
	is = ipv6 ? 32 : 8;
	bpf_l4_csum_replace(skb, sum_at(p), 0, l4_diff, sum_flags(p));
	if (bpf_skb_load_bytes(skb, l3, &word, sizeof(word)) ||
	    bpf_skb_load_bytes(skb, l3 + ip_len(p->ipv6) - was, at->was, was) ||
	    bpf_skb_change_proto(skb, ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP), 0))
		return -1;
	fill_ip(at->is, to, false, is_udp(p) ? IPPROTO_UDP : IPPROTO_TCP, p->header + p->len,
		bpf_ntohl(word) >> (p->ipv6 ? 20 : 16), to->way.ttl);
	addr_diff = bpf_csum_diff((__be32 *)at->was, was, (__be32 *)(at->is + ip_len(ipv6) - is),
				  is, 0);
	if (bpf_skb_store_bytes(skb, l3, at->is, ip_len(ipv6), 0))
		return -1;
	return bpf_l4_csum_replace(skb, sum_at(p) - p->l4 + l3 + ip_len(ipv6), 0, addr_diff,
				   sum_flags(p) | BPF_F_PSEUDO_HDR);
}

/* Change a header whose only option is timestamps.  -1: the header is another, or not linear. */
static __always_inline int change_usual(struct __sk_buff *skb, const struct packet *p,
					struct change *c, const struct found *f)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 is[8], *at;

	if (p->header != 32 || !(p->flags & ACK))
		return -1;
	at = data + (p->l4 & L4_BITS);
	if ((void *)(at + 8) > end || at[5] != TIMESTAMP_WORD)
		return -1;
	__builtin_memcpy(is, at, sizeof(is));
	is[0] = c->source | (__u32)c->dest << 16;
	is[1] = bpf_htonl(p->seq + c->seq_add);
	is[2] = bpf_htonl(p->ack + c->ack_add);
	is[3] = (is[3] & bpf_htonl(0xffff0000)) | bpf_htonl(new_window(c, p->window));
	change_clocks(c, f, is + 6);
	/* before the packet changes: the BPF stack has no room for a copy of the old header */
	c->diff = bpf_csum_diff(at, sizeof(is), is, sizeof(is), 0);
	at[0] = is[0];
	at[1] = is[1];
	at[2] = is[2];
	at[3] = is[3];
	at[6] = is[6];
	at[7] = is[7];
	return 0;
}

_Static_assert(sizeof(struct change) <= sizeof(((struct scratch *)0)->no_change), "no_change");

struct walk {
	struct scratch *s;
	struct graft_syn *syn; /* options are noted here; or NULL */
	const struct change *c;
	struct found f; /* for change_clocks() */
};

static __always_inline void change_timestamp(struct walk *w, __u32 at)
{
	__u32 words[2];

	__builtin_memcpy(words, &w->s->is[at & 63], sizeof(words));
	change_clocks(w->c, w->f.mine ? &w->f : NULL, words);
	__builtin_memcpy(&w->s->is[at & 63], words, sizeof(words));
}

/* An edge of a SACK block.  RFC 2018, 2: an end that has not permitted SACK gets none, but NOPs. */
static __always_inline void change_edge(struct walk *w, __u32 at)
{
	__u32 edge;

	__builtin_memcpy(&edge, &w->s->is[at & 63], sizeof(edge));
	edge = bpf_htonl(bpf_ntohl(edge) + w->c->ack_add);
	if (w->f.mine && !w->f.other->sack)
		edge = OPTION_NOP * 0x01010101U;
	__builtin_memcpy(&w->s->is[at & 63], &edge, sizeof(edge));
}

static __always_inline void lower_mss(struct scratch *s, __u32 at, __u16 most)
{
	__u16 mss;

	__builtin_memcpy(&mss, &s->is[at & 63], sizeof(mss));
	if (bpf_ntohs(mss) <= most)
		return;
	mss = bpf_htons(most);
	__builtin_memcpy(&s->is[at & 63], &mss, sizeof(mss));
}

/* Note the option of a SYN at s->at. */
static __always_inline void note_option(struct scratch *s, __u8 kind, __u32 len)
{
	__u32 at = s->at + 2;
	__u32 tsval;
	__u16 mss;

	if (kind == OPTION_MSS && len == 4) {
		__builtin_memcpy(&mss, &s->is[at & 63], sizeof(mss));
		s->syn.mss = bpf_ntohs(mss);
	} else if (kind == OPTION_SCALE && len == 3) {
		s->syn.shift = s->is[at & 63] > 14 ? 14 : s->is[at & 63];
		s->syn.has |= GRAFT_SYN_SCALED;
	} else if (kind == OPTION_SACK_PERMITTED && len == 2) {
		s->syn.has |= GRAFT_SYN_SACK;
	} else if (kind == OPTION_TIMESTAMP && len == 10 && !(s->syn.has & GRAFT_SYN_STAMPS)) {
		__builtin_memcpy(&tsval, &s->is[at & 63], sizeof(tsval));
		s->syn.tsval = bpf_ntohl(tsval);
		s->syn.has |= GRAFT_SYN_STAMPS;
	} else {
		s->syn_odd = 1;
	}
}

/* One step for each byte at most: a header has room for 40 bytes of options. */
static long change_option(__u32 index, struct walk *w)
{
	struct scratch *s = w->s;
	__u32 len;
	__u8 kind;

	if (!s || !w->c || s->at >= s->header || s->at >= TCP_HEADER_MAX)
		return 1;
	kind = s->is[s->at & 63];
	if (kind == 1) {
		s->at++;
		return 0;
	}
	if (kind == 0)
		return 1;
	len = s->is[(s->at + 1) & 63];
	if (len < 2 || s->at + len > s->header ||
	    (kind == OPTION_SACK && len % sizeof(__u32) != 2)) {
		s->syn_odd = 1;
		return 1;
	}
	if (w->syn)
		note_option(s, kind, len);
	if (kind == OPTION_TIMESTAMP && len == 10 && w->c->no_timestamps)
		__builtin_memset(&s->is[s->at & 63], OPTION_NOP, 10);
	else if (kind == OPTION_TIMESTAMP && len == 10)
		change_timestamp(w, s->at + 2);
	if (kind == OPTION_MSS && len == 4 && w->c->mss)
		lower_mss(s, s->at + 2, w->c->mss);
	if (kind == OPTION_SACK && w->f.mine && !w->f.other->sack)
		s->is[s->at & 63] = s->is[(s->at + 1) & 63] = OPTION_NOP;
	for (__u32 i = 2; kind == OPTION_SACK && i < len && i < OPTIONS_MAX; i += sizeof(__u32))
		change_edge(w, s->at + i);
	s->at += len;
	return 0;
}

/* As change_usual(), for any TCP header. */
__noinline int change_any(struct __sk_buff *skb, const struct packet *p, struct change *c)
{
	__u32 header;
	struct scratch *s = my_scratch();
	struct walk w = { .s = s, .c = c };
	struct tcphdr *t;

	if (!s || !p || !c || (c->grafted && !find_slot(c->slot, c->side, &w.f)))
		return -1;
	header = p->header;
	/* LLVM would merge the comparisons, and the verifier of 6.1 would learn nothing */
	if (header < 20)
		return -1;
	barrier_var(header);
	if (header > TCP_HEADER_MAX)
		return -1;
	barrier_var(header);
	__builtin_memset(s->was, 0, sizeof(s->was));
	if (bpf_skb_load_bytes(skb, p->l4, s->was, header))
		return -1;
	s->was[16] = s->was[17] = 0; /* the checksum */
	__builtin_memcpy(s->is, s->was, sizeof(s->was));
	t = (struct tcphdr *)s->is;
	t->source = c->source;
	t->dest = c->dest;
	t->seq = bpf_htonl(p->seq + c->seq_add);
	if (p->flags & ACK)
		t->ack_seq = bpf_htonl(p->ack + c->ack_add);
	t->window = bpf_htons(new_window(c, p->window));
	s->is[13] = (p->flags & ~c->flags_off) | c->flags_on;
	s->at = 20;
	s->header = header;
	bpf_loop(OPTIONS_MAX, change_option, &w, 0);
	c->diff = bpf_csum_diff((__be32 *)s->was, 64, (__be32 *)s->is, 64, 0);
	if (bpf_skb_store_bytes(skb, p->l4, s->is, 16, 0))
		return -1;
	barrier_var(header);
	/* the verifier does not learn from "not 20" that bytes are left */
	if (header < 24)
		return 0;
	return bpf_skb_store_bytes(skb, p->l4 + 20, s->is + 20, header - 20, 0);
}

/* F: of a graft, else NULL. */
static __always_inline int change_header(struct __sk_buff *skb, const struct packet *p,
					 struct change *c, const struct found *f)
{
	return change_usual(skb, p, c, f) ? change_any(skb, p, c) : 0;
}

/* Change P's TCP header, and no more. */
static __always_inline int change_alone(struct __sk_buff *skb, const struct packet *p,
					struct change *c)
{
	if (change_header(skb, p, c, NULL))
		return DROP;
	bpf_l4_csum_replace(skb, p->l4 + 16, 0, c->diff, 0);
	return PASS;
}

/*
 * Send the packet the way of L.  bpf_redirect_neigh() takes an Ethernet header off, and drops a
 * packet without one.  A VLAN tag belongs to the received frame, and must not go on.
 */
static __always_inline int send_to(struct __sk_buff *skb, const struct graft_leg *l, __u32 l3)
{
	struct bpf_redir_neigh to = { .nh_family = AF_INET6 };
	const __u32 *hop = l->way.via == GRAFT_VIA_REMOTE ? l->tuple.remote.w : l->way.hop;

	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	if (!l3 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return DROP;
	skb->mark = l->way.mark;
	set_kind(skb, SENT);
	if (l->way.via == GRAFT_VIA_LOOKUP)
		return bpf_redirect_neigh(l->way.ifindex, NULL, 0, 0);
	if (l->way.via == GRAFT_VIA_IPV4 || (l->way.via == GRAFT_VIA_REMOTE && !is_ipv6(l))) {
		to.nh_family = AF_INET;
		to.ipv4_nh = l->way.via == GRAFT_VIA_IPV4 ? l->way.hop[0] : l->tuple.remote.w[3];
	} else {
		__builtin_memcpy(to.ipv6_nh, hop, sizeof(to.ipv6_nh));
	}
	return bpf_redirect_neigh(l->way.ifindex, &to, sizeof(to), 0);
}

/* Send P, whose L4 header has changed by L4_DIFF, the way of TO. */
static __always_inline int send_on(struct __sk_buff *skb, const struct packet *p,
				   const struct graft_leg *to, __s64 l4_diff)
{
	if (p->ipv6 == is_ipv6(to) ? set_addresses(skb, p, to, l4_diff) :
				     set_family(skb, p, to, l4_diff))
		return DROP;
	return send_to(skb, to, p->l3);
}
