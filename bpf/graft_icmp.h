/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP around graft.bpf.c: errors about packets that the programs have sent, and their own "too
 * big".
 */
#pragma once

#include <linux/icmpv6.h>

#include "graft_from_syn.h"
#include "graft_packet.h"
#include "graft_translate.h"

#define ICMP_V4_UNREACHABLE 3
#define ICMP_V4_TOO_BIG 4

struct icmp {
	__u8 type, code;
	__u16 sum;
	__u32 mtu;
};

/*
 * The checksum of a message, whose first LEN bytes are at AT.  The rest, the quoted TCP or UDP
 * header, adds up to 0.  ICMPv6 adds a pseudo header with ALL, the length of the whole message.
 */
static __always_inline __u16 sum_of(const struct graft_leg *l, void *at, __u32 len, __u32 all)
{
	struct {
		struct graft_addr from, to;
		__u32 len, protocol;
	} p = { l->tuple.local, l->tuple.remote, bpf_htonl(all), bpf_htonl(IPPROTO_ICMPV6) };
	__s64 sum = is_ipv6(l) ? bpf_csum_diff(NULL, 0, (__be32 *)&p, sizeof(p), 0) : 0;

	return folded(bpf_csum_diff(NULL, 0, at, len, (__u32)sum));
}

/* The length of a "too big" message: IP, ICMP, and a quote of IP and TCP. */
#define MESSAGE(ip) (2 * (ip) + sizeof(struct icmp) + sizeof(struct tcphdr))

#define UDP_LESS (sizeof(struct tcphdr) - sizeof(struct udphdr))

#define OF_UDP (1ULL << 32) /* instead of a number: the quote is of UDP */

/*
 * Turn the packet into a message to the remote end of L, "segment SEQ exceeds MTU", and send it.
 * The packet is as long as the message.  The device may still have to fill in the checksum of the
 * original packet (CHECKSUM_PARTIAL).  It then writes into the quoted TCP or UDP header, but the
 * checksum of the message must hold all the same.  So the words of the quoted header add up to 0:
 * then the device's checksum is 0, too, and changes no sum.  The field that makes the words add up
 * to 0 is one that no receiver believes: TCP's urgent pointer, or UDP's length.
 */
__noinline int send_message(struct __sk_buff *skb, const struct graft_leg *l, __u32 l3, __u64 seq,
			    __u32 mtu)
{
	__u32 ip, len;
	struct scratch *at = my_scratch();
	struct icmp *icmp;
	struct tcphdr *t;
	bool ipv6, udp = seq == OF_UDP;

	if (!at || !l)
		return DROP;
	ipv6 = is_ipv6(l);
	ip = ip_len(ipv6);
	len = MESSAGE(ip) - (udp ? UDP_LESS : 0);
	icmp = (void *)at->is + ip;
	t = (void *)(icmp + 1) + ip;
	fill_ip(at->is, l, false, ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP, len - ip, 0, OWN_TTL);
	fill_ip(icmp + 1, l, true, udp ? IPPROTO_UDP : IPPROTO_TCP, mtu + 1 - ip, 0, OWN_TTL);
	*icmp = (struct icmp){ .mtu = bpf_htonl(mtu), .type = ICMPV6_PKT_TOOBIG };
	if (!ipv6) {
		icmp->type = ICMP_V4_UNREACHABLE;
		icmp->code = ICMP_V4_TOO_BIG;
	}
	__builtin_memset(t, 0, sizeof(*t));
	t->source = l->tuple.remote_port;
	t->dest = l->tuple.local_port;
	if (!udp)
		t->seq = bpf_htonl(seq);
	*(udp ? &((struct udphdr *)t)->len :
		&t->urg_ptr) = folded(bpf_csum_diff(NULL, 0, (__be32 *)t, sizeof(*t), 0));
	icmp->sum = sum_of(l, icmp, sizeof(*icmp) + ip, len - ip);
	return bpf_skb_store_bytes(skb, l3, at->is, len, 0) ? DROP : send_to(skb, l, l3);
}

/* MTU of leg FROM as a size of packets on leg TO, which may be of the other family. */
static __always_inline __u32 mtu_for(const struct graft_leg *to, const struct graft_leg *from,
				     __u32 mtu)
{
	return mtu + (is_ipv6(to) ? 20 : 0) - (is_ipv6(from) ? 20 : 0);
}

/* P does not fit into MTU on the way to the other end: turn it into a message to its sender. */
static __always_inline int too_big(struct __sk_buff *skb, const struct packet *p,
				   const struct graft_leg *mine, const struct graft_leg *other,
				   __u32 mtu)
{
	__s32 more = ip_len(p->ipv6) + sizeof(struct icmp);
	__u32 quoted = is_udp(p) ? sizeof(struct udphdr) : sizeof(struct tcphdr);

	if (bpf_skb_change_tail(skb, p->l4 + quoted, 0) ||
	    bpf_skb_adjust_room(skb, more, BPF_ADJ_ROOM_MAC, 0))
		return DROP;
	return send_message(skb, mine, p->l3, is_udp(p) ? OF_UDP : p->seq,
			    mtu_for(mine, other, mtu));
}

/* An ICMP error, and the segment that it quotes: one that has left here. */
struct complaint {
	struct graft_tuple tuple; /* of the segment, turned round */
	__u32 seq, mtu;
	__u32 at; /* offset of the ICMP header */
	bool ipv6, too_big;
};

static __always_inline bool parse_icmp(struct __sk_buff *skb, __u32 l3, struct complaint *c)
{
	__u32 ip;
	struct scratch *s = my_scratch();
	struct icmp *icmp;
	struct tcphdr *t;
	__u8 *was;

	c->ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	ip = ip_len(c->ipv6);
	/* a quote has only the first 8 bytes of TCP */
	if (!s || (!c->ipv6 && skb->protocol != bpf_htons(ETH_P_IP)) ||
	    bpf_skb_load_bytes(skb, l3, s->is, MESSAGE(ip) - 12))
		return false;
	icmp = (void *)s->is + ip;
	was = (void *)(icmp + 1);
	t = (void *)was + ip;
	if (c->ipv6) {
		struct ipv6hdr *outer = (void *)s->is, *inner = (void *)was;

		if (s->is[0] >> 4 != 6 || outer->nexthdr != IPPROTO_ICMPV6 ||
		    icmp->type >= ICMPV6_INFOMSG_MASK || inner->nexthdr != IPPROTO_TCP)
			return false;
		__builtin_memcpy(&c->tuple.remote, &inner->daddr, sizeof(c->tuple.remote));
		__builtin_memcpy(&c->tuple.local, &inner->saddr, sizeof(c->tuple.local));
		c->too_big = icmp->type == ICMPV6_PKT_TOOBIG;
		c->mtu = bpf_ntohl(icmp->mtu);
	} else {
		struct iphdr *outer = (void *)s->is, *inner = (void *)was;

		if (s->is[0] != 0x45 || outer->protocol != IPPROTO_ICMP ||
		    outer->frag_off & bpf_htons(0x3fff) ||
		    (icmp->type != ICMP_V4_UNREACHABLE && icmp->type != 11 && icmp->type != 12) ||
		    was[0] != 0x45 || inner->protocol != IPPROTO_TCP)
			return false;
		c->tuple.remote.w[2] = c->tuple.local.w[2] = bpf_htonl(0xffff);
		c->tuple.remote.w[3] = inner->daddr;
		c->tuple.local.w[3] = inner->saddr;
		c->too_big = icmp->type == ICMP_V4_UNREACHABLE && icmp->code == ICMP_V4_TOO_BIG;
		c->mtu = bpf_ntohl(icmp->mtu) & 0xffff;
	}
	c->tuple.remote_port = t->dest;
	c->tuple.local_port = t->source;
	c->seq = bpf_ntohl(t->seq);
	c->at = l3 + ip;
	return true;
}

/*
 * "Too big" is sent on to the end that has sent the segment.  The quoted number must be that of
 * bytes on their way.  An attacker who guesses it could forge the message for plain TCP, too.
 */
static __always_inline int pass_on_complaint(struct __sk_buff *skb, __u32 l3,
					     const struct complaint *c, struct found *f)
{
	struct graft_side *to = f->other;

	if (!c->too_big || diff(c->seq, (__u32)f->mine->acked) < 0 ||
	    diff(c->seq, (__u32)to->end + to->seq_add) >= 0)
		return PASS;
	if (to->ipv6 != c->ipv6 &&
	    bpf_skb_change_proto(skb, to->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP), 0))
		return DROP;
	if (bpf_skb_change_tail(skb, l3 + MESSAGE(ip_len(to->ipv6)), 0))
		return DROP;
	return send_message(skb, &to->leg, l3, c->seq - to->seq_add,
			    mtu_for(&to->leg, &f->mine->leg, c->mtu));
}

/*
 * The packet is neither TCP nor UDP.  An ICMP error about TCP is for the end that has sent the
 * quoted segment, or for our socket.  Errors about UDP are for sockets.
 */
__noinline int not_ours(struct __sk_buff *skb, __u32 l3)
{
	struct complaint c = { 0 };
	struct found f;
	__u32 state, was, is;

	if (is_for_a_vlan(skb) || !parse_icmp(skb, l3, &c) || !find(&c.tuple, c.ipv6, &f))
		return PASS;
	state = READ_ONCE(f.g->head.state) & GRAFT_STATE_MASK;
	if (state == GRAFT_SYN_SENT && !c.too_big)
		return syn_unreachable(skb, &f, l3, c.seq);
	if (state == GRAFT_ACTIVE || state == GRAFT_RETURNING)
		return pass_on_complaint(skb, l3, &c, &f);
	if (state != GRAFT_RETURNED && !f.g->shifted)
		return PASS;
	/* our socket knows its own numbers only */
	was = bpf_htonl(c.seq);
	is = bpf_htonl(c.seq - f.mine->back_write);
	bpf_l4_csum_replace(skb, c.at + 2, was, is, sizeof(is));
	bpf_skb_store_bytes(skb, c.at + sizeof(struct icmp) + ip_len(c.ipv6) + 4, &is, sizeof(is),
			    0);
	return PASS;
}
