/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP around graft.bpf.c: errors about packets that it has sent, and "too big" of its own; and the headers
 * of what is made here.
 */
#ifndef GRAFT_ICMP_H
#define GRAFT_ICMP_H

#include "graft_packet.h"
#include "graft_translate.h"

#define ICMP_V4 1
#define ICMP_V4_UNREACHABLE 3
#define ICMP_V4_TOO_BIG 4
#define ICMP_V6 58
#define ICMP_V6_TOO_BIG 2
#define ICMP_V6_INFO 128 /* from here on no errors */

struct icmp {
	__u8 type, code;
	__u16 sum;
	__u32 mtu;
};

/* A message that something was too big, and what it quotes. */
struct message_v4 {
	struct iphdr ip;
	struct icmp icmp;
	struct iphdr was;
	struct tcphdr tcp;
};

struct message_v6 {
	struct ipv6hdr ip;
	struct icmp icmp;
	struct ipv6hdr was;
	struct tcphdr tcp;
};

static __always_inline void fill_ipv4(struct iphdr *ip, __u32 from, __u32 to, __u8 protocol, __u32 len)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	*(__u8 *)ip = 0x45;
	ip->tot_len = bpf_htons(len);
	ip->frag_off = bpf_htons(0x4000);
	ip->ttl = OWN_TTL;
	ip->protocol = protocol;
	ip->saddr = from;
	ip->daddr = to;
	ip->check = folded(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
}

static __always_inline void fill_ipv6(struct ipv6hdr *ip, const struct graft_addr *from,
				      const struct graft_addr *to, __u8 protocol, __u32 len)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	*(__u8 *)ip = 0x60;
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = protocol;
	ip->hop_limit = OWN_TTL;
	__builtin_memcpy(&ip->saddr, from, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, to, sizeof(ip->daddr));
}

/*
 * The segment that is quoted.  A device that is to make the checksum of the packet that this was makes it here,
 * behind our back: so all words add up to nothing, and then so they do afterwards.
 */
static __always_inline void fill_quote(struct tcphdr *t, const struct graft_side *s, __u32 seq)
{
	__builtin_memset(t, 0, sizeof(*t));
	t->source = s->tuple.remote_port;
	t->dest = s->tuple.local_port;
	t->seq = bpf_htonl(seq);
	t->urg_ptr = folded(bpf_csum_diff(NULL, 0, (__be32 *)t, sizeof(*t), 0));
}

/* Make the packet, which has the room, tell the remote end of S that its segment SEQ exceeds MTU. */
__noinline int store_message(struct __sk_buff *skb, const struct graft_side *s, __u32 l3, __u32 seq,
			     __u32 mtu)
{
	__u32 zero = 0, tail[2] = { bpf_htonl(sizeof(struct message_v6) - sizeof(struct ipv6hdr)),
				    bpf_htonl(ICMP_V6) };
	struct scratch *at = bpf_map_lookup_elem(&scratch, &zero);
	struct message_v4 *v4;
	struct message_v6 *v6;
	__s64 sum;

	if (!at || !s)
		return -1;
	v4 = (void *)at->is;
	v6 = (void *)at->is;
	if (!s->ipv6) {
		v4->icmp = (struct icmp){ ICMP_V4_UNREACHABLE, ICMP_V4_TOO_BIG, 0, bpf_htonl(mtu) };
		fill_ipv4(&v4->ip, s->tuple.local.w[3], s->tuple.remote.w[3], ICMP_V4, sizeof(*v4));
		fill_ipv4(&v4->was, s->tuple.remote.w[3], s->tuple.local.w[3], IPPROTO_TCP, mtu + 1);
		fill_quote(&v4->tcp, s, seq);
		sum = bpf_csum_diff(NULL, 0, (__be32 *)&v4->icmp, sizeof(v4->icmp) + sizeof(v4->was), 0);
		v4->icmp.sum = folded(sum);
		return bpf_skb_store_bytes(skb, l3, v4, sizeof(*v4), 0);
	}
	v6->icmp = (struct icmp){ ICMP_V6_TOO_BIG, 0, 0, bpf_htonl(mtu) };
	fill_ipv6(&v6->ip, &s->tuple.local, &s->tuple.remote, ICMP_V6, bpf_ntohl(tail[0]));
	fill_ipv6(&v6->was, &s->tuple.remote, &s->tuple.local, IPPROTO_TCP, mtu + 1 - 40);
	fill_quote(&v6->tcp, s, seq);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&v6->ip.saddr, 32, 0);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)tail, sizeof(tail), (__u32)sum);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&v6->icmp, sizeof(v6->icmp) + sizeof(v6->was), (__u32)sum);
	v6->icmp.sum = folded(sum);
	return bpf_skb_store_bytes(skb, l3, v6, sizeof(*v6), 0);
}

/* What fits on side FROM, in the header of side TO. */
static __always_inline __u32 mtu_for(const struct graft_side *to, const struct graft_side *from, __u32 mtu)
{
	return mtu + (to->ipv6 ? 20 : 0) - (from->ipv6 ? 20 : 0);
}

/* P does not fit on the way to the other end: it becomes a message to its sender, of what its header takes. */
static __always_inline int too_big(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	int more = (p->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + sizeof(struct icmp);

	if (bpf_skb_change_tail(skb, p->l4 + sizeof(struct tcphdr), 0) ||
	    bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, 0) ||
	    store_message(skb, f->mine, p->l3, p->seq, mtu_for(f->mine, f->other, f->other->mtu)))
		return DROP;
	return send_to(skb, f->mine, p->l3);
}

/* An ICMP error, and the segment that it quotes: one that has left here. */
struct complaint {
	struct graft_tuple tuple; /* of the segment, turned round */
	__u32 seq, mtu;
	__u32 at;                 /* offset of the ICMP header */
	bool ipv6, too_big;
};

static __always_inline bool parse_icmp(struct __sk_buff *skb, __u32 l3, struct complaint *c)
{
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct message_v4 *v4;
	struct message_v6 *v6;
	struct icmp *icmp;
	struct tcphdr *t;

	if (!s)
		return false;
	v4 = (void *)s->is;
	v6 = (void *)s->is;
	c->ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (!c->ipv6) {
		icmp = &v4->icmp;
		t = &v4->tcp;
		if (skb->protocol != bpf_htons(ETH_P_IP) ||
		    bpf_skb_load_bytes(skb, l3, v4, sizeof(*v4) - 12) || *(__u8 *)&v4->ip != 0x45 ||
		    v4->ip.protocol != ICMP_V4 || v4->ip.frag_off & bpf_htons(0x3fff) ||
		    (icmp->type != ICMP_V4_UNREACHABLE && icmp->type != 11 && icmp->type != 12) ||
		    *(__u8 *)&v4->was != 0x45 || v4->was.protocol != IPPROTO_TCP)
			return false;
		c->tuple.remote.w[2] = c->tuple.local.w[2] = bpf_htonl(0xffff);
		c->tuple.remote.w[3] = v4->was.daddr;
		c->tuple.local.w[3] = v4->was.saddr;
		c->too_big = icmp->type == ICMP_V4_UNREACHABLE && icmp->code == ICMP_V4_TOO_BIG;
		c->mtu = bpf_ntohl(icmp->mtu) & 0xffff;
	} else {
		icmp = &v6->icmp;
		t = &v6->tcp;
		if (bpf_skb_load_bytes(skb, l3, v6, sizeof(*v6) - 12) || *(__u8 *)&v6->ip >> 4 != 6 ||
		    v6->ip.nexthdr != ICMP_V6 || icmp->type >= ICMP_V6_INFO ||
		    v6->was.nexthdr != IPPROTO_TCP)
			return false;
		__builtin_memcpy(&c->tuple.remote, &v6->was.daddr, sizeof(c->tuple.remote));
		__builtin_memcpy(&c->tuple.local, &v6->was.saddr, sizeof(c->tuple.local));
		c->too_big = icmp->type == ICMP_V6_TOO_BIG;
		c->mtu = bpf_ntohl(icmp->mtu);
	}
	c->tuple.remote_port = t->dest;
	c->tuple.local_port = t->source;
	c->seq = bpf_ntohl(t->seq);
	c->at = l3 + (c->ipv6 ? sizeof(v6->ip) : sizeof(v4->ip));
	return true;
}

/*
 * "Too big" concerns the end that has sent the segment: it is told.  The number must be of what is on the
 * way: who guesses it can as well forge the message for plain TCP.
 */
static __always_inline int pass_on_complaint(struct __sk_buff *skb, __u32 l3, const struct complaint *c,
					     struct found *f)
{
	struct graft_side *to = f->other;

	if (!c->too_big || diff(c->seq, (__u32)f->mine->acked) < 0 ||
	    diff(c->seq, (__u32)to->end + to->seq_add) >= 0)
		return PASS;
	if (to->ipv6 != c->ipv6 &&
	    bpf_skb_change_proto(skb, to->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP), 0))
		return DROP;
	if (bpf_skb_change_tail(skb, l3 + (to->ipv6 ? sizeof(struct message_v6) :
						      sizeof(struct message_v4)), 0) ||
	    store_message(skb, to, l3, c->seq - to->seq_add, mtu_for(to, f->mine, c->mtu)))
		return DROP;
	return send_to(skb, to, l3);
}

/* A packet that is not TCP.  Errors are for the end that has sent what they quote, or for our socket. */
__noinline int not_tcp(struct __sk_buff *skb, __u32 l3)
{
	struct complaint c = { 0 };
	struct found f;
	__u32 state, was, is;

	if (is_for_a_vlan(skb) || !parse_icmp(skb, l3, &c) || !find(&c.tuple, c.ipv6, &f))
		return PASS;
	state = READ_ONCE(f.g->state) & GRAFT_STATE_MASK;
	if (state == GRAFT_ACTIVE || state == GRAFT_RETURNING)
		return pass_on_complaint(skb, l3, &c, &f);
	if (state != GRAFT_RETURNED && !f.g->shifted)
		return PASS;
	/* our socket knows its own numbers only */
	was = bpf_htonl(c.seq);
	is = bpf_htonl(c.seq - f.mine->back_write);
	bpf_l4_csum_replace(skb, c.at + 2, was, is, sizeof(is));
	bpf_skb_store_bytes(skb, c.at + sizeof(struct icmp) + (c.ipv6 ? 40 : 20) + 4, &is, sizeof(is), 0);
	return PASS;
}

#endif
