/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * UDP in graft.bpf.c: a datagram of a flow that is entered is translated, or passes to the socket
 * and counts.  include/udp_contract.h has the words.
 *
 * Memory order.  The daemon publishes a flow by the places in its chains, with release; a reader
 * follows them, so each load depends on the one before.  Words are changed by atomic operations
 * with a result, which are full barriers.
 */
#pragma once

#include "graft_begin.h"
#include "graft_icmp.h"
#include "graft_packet.h"
#include "graft_translate.h"
#include "udp_contract.h"

#define IPV6_ROOM_LEAST (1280 - 40) /* less for itself no sender believes: sockets cut those */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct udp_flow);
} udp_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} udp_chains SEC(".maps");

/* Before the programs are loaded: the chains, a power of 2.  Behind them is the seed. */
const volatile __u32 udp_n_chains = 1;

struct udp_found {
	struct udp_flow *u;
	struct graft_leg *mine, *other; /* of the packet's leg */
	struct udp_leg *at;
};

/* False: there is none that P belongs to. */
static __always_inline bool find_flow(const struct packet *p, struct udp_found *f)
{
	__u32 chain = udp_n_chains, *at = bpf_map_lookup_elem(&udp_chains, &chain), place;

	if (!at)
		return false;
	chain = udp_hash(&p->tuple, *at) & (udp_n_chains - 1);
	at = bpf_map_lookup_elem(&udp_chains, &chain);
	if (!at)
		return false;
	place = READ_ONCE(*at);
	for (int i = 0; i < UDP_CHAIN_MOST && place; i++) {
		__u32 slot = (place - 1) >> 1;
		bool one = !(place & 1);

		f->u = bpf_map_lookup_elem(&udp_flows, &slot);
		if (!f->u)
			return false;
		f->mine = one ? &f->u->leg[1] : &f->u->leg[0];
		f->other = one ? &f->u->leg[0] : &f->u->leg[1];
		f->at = one ? &f->u->at[1] : &f->u->at[0];
		if (same_tuple(&f->mine->tuple, &p->tuple))
			return is_ipv6(f->mine) == p->ipv6;
		place = READ_ONCE(f->u->next[one]);
	}
	return false;
}

static __always_inline bool is_silent(const struct udp_leg *at, __u32 now, __s32 idle)
{
	return !at->heard || diff(now, at->heard) >= idle;
}

/* Both ends have been silent for too long. */
static __always_inline bool is_over(const struct udp_flow *u, __u32 now)
{
	return u->idle && is_silent(&u->at[0], now, u->idle) && is_silent(&u->at[1], now, u->idle);
}

/* The largest packet that leaves by leg OTHER of U. */
static __always_inline __u32 mtu_on(const struct udp_flow *u, const struct graft_leg *other)
{
	__u32 mtu = other->way.mtu;
	__u32 path = other == &u->leg[1] ? u->at[1].path_mtu : u->at[0].path_mtu;

	return path && path < mtu ? path : mtu;
}

/* Why what arrives on F's leg cannot be translated here, from now on; 0: it can. */
static __always_inline __u8 hindrance_of_flow(struct __sk_buff *skb, const struct udp_found *f)
{
	__u32 ways = graft_ways;
	__u8 why;

	if (READ_ONCE(f->other->way.ways) != ways)
		return GRAFT_WAY;
	if (f->at->seen == ways)
		return 0;
	why = hindrance_in(skb);
	if (!why)
		f->at->seen = ways;
	return why;
}

/* N datagrams pass, and count; BACK: those that follow shall, too.  WHY, if it is news. */
static __always_inline int pass_flow(struct udp_leg *at, __u32 n, __u8 why, bool back)
{
	if (why)
		at->why = why;
	for (int i = 0; i < 8 && back; i++) {
		__u32 word = READ_ONCE(at->word), to = word - UDP_ACTIVE + n * UDP_PASSED_ONE;

		if (!(word & UDP_ACTIVE))
			break;
		if (__sync_val_compare_and_swap(&at->word, word, to) == word)
			return PASS;
	}
	__sync_fetch_and_add(&at->word, n * UDP_PASSED_ONE);
	return PASS;
}

/* Translate P and send it to the other end. */
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
	if (p->ipv6 == is_ipv6(f->other) ? set_addresses(skb, p, f->other, changed) :
					   set_family(skb, p, f->other, changed))
		return DROP;
	return send_to(skb, f->other, p->l3);
}

/* P arrives.  Of IPv6 the stack takes none without a checksum. */
__noinline int udp_in(struct __sk_buff *skb, const struct packet *p)
{
	__u32 now = bpf_ktime_get_coarse_ns() >> UDP_TICK_SHIFT, head, mtu, size, n;
	__u32 gso = skb->gso_size;
	struct udp_found f;
	__u8 why;

	if (!p || (p->ipv6 && p->flags & NO_SUM) || !find_flow(p, &f) || is_over(f.u, now))
		return PASS;
	if (f.at->heard != now)
		f.at->heard = now;
	/* not gso_segs, which is 0 in what comes from virtual machines */
	n = gso ? (p->len + gso - 1) / gso : 1;
	if (!(READ_ONCE(f.at->word) & UDP_ACTIVE)) {
		if (!(__sync_fetch_and_add(&f.at->word, n * UDP_PASSED_ONE) & UDP_ACTIVE))
			return PASS;
		__sync_fetch_and_sub(&f.at->word, n * UDP_PASSED_ONE);
	}
	why = hindrance_of_flow(skb, &f);
	if (why)
		return pass_flow(f.at, n, why, true);
	head = ip_len(is_ipv6(f.other));
	why = p->odd;
	if (!why && p->flags & NO_SUM && is_ipv6(f.other))
		why = GRAFT_HEADERS;
	if (why)
		return pass_flow(f.at, n, why, false);
	mtu = mtu_on(f.u, f.other);
	size = head + sizeof(struct udphdr) + (gso && gso < p->len ? gso : p->len);
	if (size <= mtu)
		return translate(skb, p, &f, n);
	if (p->ipv6 && mtu < head + IPV6_ROOM_LEAST)
		mtu = head + IPV6_ROOM_LEAST;
	/* where its sender is, may not be known: nobody has answered it */
	if (p->df && size > mtu && READ_ONCE(f.mine->way.ways) == graft_ways)
		return too_big(skb, p, f.mine, f.other, mtu);
	return pass_flow(f.at, n, GRAFT_TOO_BIG, false);
}

/* P leaves, and is not one of those: it shows the way of its leg. */
__noinline int udp_out(struct __sk_buff *skb, const struct packet *p)
{
	struct udp_found f;

	if (p && find_flow(p, &f) && f.mine->way.ways != graft_ways && is_used(skb->ifindex))
		learn_way(skb, p, &f.mine->way);
	return PASS;
}
