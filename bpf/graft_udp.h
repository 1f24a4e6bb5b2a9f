/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UDP in graft.bpf.c: a datagram of an entered flow is translated, or passes to the socket and is
 * counted.  include/udp_contract.h explains flows, legs, and a leg's word.
 *
 * Memory order.  Words are changed by atomic operations with a result, which are full barriers.
 */
#pragma once

#include "graft_begin.h"
#include "graft_icmp.h"
#include "graft_packet.h"
#include "graft_translate.h"

#define ROOM_LEAST (1280 - 40) /* senders ignore a smaller MTU, which may be forged */

struct udp_found {
	struct udp_flow *u;
	struct graft_leg *mine, *other; /* of the packet's leg */
	struct udp_leg *at, *at_other;
	__u32 *from; /* the interface of its leg */
};

/* False: P belongs to no flow. */
static __always_inline bool find_flow(const struct packet *p, struct udp_found *f)
{
	__u32 place = find_place(&p->tuple, true), slot = place >> GRAFT_PLACE_SLOT;
	bool one = place & GRAFT_PLACE_SIDE;

	f->u = place ? bpf_map_lookup_elem(&udp_flows, &slot) : NULL;
	if (!f->u)
		return false;
	f->mine = one ? &f->u->leg[1] : &f->u->leg[0];
	f->other = one ? &f->u->leg[0] : &f->u->leg[1];
	f->at = one ? &f->u->at[1] : &f->u->at[0];
	f->at_other = one ? &f->u->at[0] : &f->u->at[1];
	f->from = one ? &f->u->from[1] : &f->u->from[0];
	return is_ipv6(f->mine) == p->ipv6;
}

/* No datagram has come for IDLE ticks. */
static __always_inline bool is_silent(const struct udp_leg *at, __u32 now, __s32 idle)
{
	return !at->heard || diff(now, at->heard) >= idle;
}

/* Does a socket take P?  Once the daemon has ended, none does. */
static __always_inline bool has_socket(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock_tuple t = { 0 };
	struct bpf_sock *sk = bpf_sk_lookup_udp(skb, &t, sock_tuple(&t, &p->tuple, p->ipv6),
						BPF_F_CURRENT_NETNS, 0);
	if (sk)
		bpf_sk_release(sk);
	return sk;
}

/* Why datagrams that arrive on F's leg cannot be translated from now on; 0: they can. */
static __always_inline __u8 hindrance_of_flow(struct __sk_buff *skb, const struct packet *p,
					      const struct udp_found *f, __u32 now)
{
	__u32 ways = graft_ways, known = READ_ONCE(f->other->way.ways);
	__u8 why;

	/*
	 * the way to the server may be dead, with no route changed: the stack finds another; or the
	 * answers go by another relay
	 */
	if (f->at == &f->u->at[0] && f->at_other->heard && f->u->head.state != GRAFT_STANDBY &&
	    is_silent(f->at_other, now, UDP_SILENT_TICKS) && has_socket(skb, p))
		return f->at->why = GRAFT_SILENT;
	/* without a socket the old way is better than none, unless IPsec policies changed */
	if (known != ways && (diff(known, graft_ways_least) < 0 ||
			      (f->u->head.state != GRAFT_STANDBY && has_socket(skb, p))))
		return f->at->why = GRAFT_WAY;
	if (f->at->seen == ways)
		return 0;
	why = hindrance_in(skb);
	f->at->why = why;
	*f->from = skb->ifindex;
	f->at->seen = ways;
	return why;
}

/* N datagrams pass, and count.  BACK: later datagrams pass, too. */
static __always_inline int pass_flow(struct udp_leg *at, __u32 n, bool back)
{
	__u32 word = READ_ONCE(at->word), to = word - UDP_ACTIVE + n * UDP_PASSED_ONE;

	if (!back || !(word & UDP_ACTIVE) ||
	    __sync_val_compare_and_swap(&at->word, word, to) != word)
		__sync_fetch_and_add(&at->word, n * UDP_PASSED_ONE);
	return PASS;
}

static __always_inline int translate(struct __sk_buff *skb, const struct packet *p,
				     const struct udp_found *f, __u32 n)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 *ports = data + (p->l4 & L4_BITS), was, is;
	__s64 changed;

	if ((void *)(ports + 2) > end)
		return DROP;
	was = *ports;
	is = f->other->tuple.local_port | (__u32)f->other->tuple.remote_port << 16;
	*ports = is;
	changed = bpf_csum_diff(&was, sizeof(was), &is, sizeof(is), 0);
	__sync_fetch_and_add(&f->at->packets, n);
	__sync_fetch_and_add(&f->at->bytes, p->len);
	return send_on(skb, p, f->other, changed);
}

static __always_inline __u32 mtu_of_flow(const struct udp_found *f)
{
	__u32 mtu = f->other->way.mtu, path_mtu = f->at_other->path_mtu;

	return path_mtu && path_mtu < mtu ? path_mtu : mtu;
}

/* P arrives.  The stack takes no IPv6 datagram without a checksum. */
__noinline int udp_in(struct __sk_buff *skb, const struct packet *p)
{
	__u32 now = bpf_ktime_get_coarse_ns() >> UDP_TICK_SHIFT, head, mtu, len, n = 1;
	struct udp_found f;

	if (!p || (p->ipv6 && p->flags & NO_SUM) || !find_flow(p, &f))
		return PASS;
	if (f.u->head.state == GRAFT_STANDBY && !is_here(&f.mine->tuple, &f.u->leg[0].tuple))
		return PASS;
	if (f.u->idle && f.u->head.state != GRAFT_STANDBY && is_silent(f.at, now, f.u->idle) &&
	    is_silent(f.at_other, now, f.u->idle))
		return PASS;
	if (f.at->heard != now)
		f.at->heard = now;
	len = p->len;
	/* not gso_segs, which is 0 in what comes from virtual machines */
	if (skb->gso_size && skb->gso_size < len) {
		n = (len + skb->gso_size - 1) / skb->gso_size;
		len = skb->gso_size;
	}
	if (!(READ_ONCE(f.at->word) & UDP_ACTIVE)) {
		if (!(__sync_fetch_and_add(&f.at->word, n * UDP_PASSED_ONE) & UDP_ACTIVE))
			return PASS;
		__sync_fetch_and_sub(&f.at->word, n * UDP_PASSED_ONE);
	}
	if (hindrance_of_flow(skb, p, &f, now))
		return pass_flow(f.at, n, true);
	/* another interface than before: the stack knows whether the flow may come by it */
	if (*f.from != skb->ifindex)
		return pass_flow(f.at, n, false);
	head = ip_len(is_ipv6(f.other));
	mtu = mtu_of_flow(&f);
	len += head + sizeof(struct udphdr);
	if (p->odd || (p->flags & NO_SUM && is_ipv6(f.other))) {
		f.at->why = p->odd ?: GRAFT_HEADERS;
		return pass_flow(f.at, n, false);
	}
	if (len <= mtu)
		return translate(skb, p, &f, n);
	if (!mtu) { /* there is no route: the daemon looks for one, once it sees the packet */
		__sync_fetch_and_add(&f.at->packets, n);
		return DROP;
	}
	if (mtu < head + ROOM_LEAST)
		mtu = head + ROOM_LEAST;
	/*
	 * Before the first answer the way to the sender is not known.  Connected sockets of this
	 * machine ignore the message.
	 */
	if (p->df && len > mtu && READ_ONCE(f.mine->way.ways) == graft_ways &&
	    !same_addr(&p->tuple.remote, &p->tuple.local))
		return too_big(skb, p, f.mine, f.other, mtu);
	f.at->why = GRAFT_TOO_BIG;
	return pass_flow(f.at, n, false);
}

/* P leaves, and was not translated: it shows the way of its leg. */
__noinline int udp_out(struct __sk_buff *skb, const struct packet *p)
{
	struct udp_found f;

	if (p && find_flow(p, &f) && f.mine->way.ways != graft_ways &&
	    interface_is(skb->ifindex, GRAFT_IF_USED))
		learn_way(skb, p, &f.mine->way);
	return PASS;
}
