/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sessions of graft.bpf.c that begin in the kernel: a SYN takes a slot that the daemon has prepared,
 * with a server, and goes on to that server.  The session is a graft from its first packet.
 *
 * A SYN is taken only if a session by sockets has proven both ways a moment ago: netfilter, routes
 * and the daemon's rules have seen that client and that server.  Any other SYN goes to the listener,
 * and graft_past counts the reason.  So does the SYN of a session whose server refuses it.
 */
#pragma once

#include "graft_begin.h"
#include "graft_decide.h"
#include "graft_packet.h"
#include "graft_syn.h"
#include "graft_translate.h"
#include "graft_work.h"

/* Count that a SYN goes to the listener.  Returns 0. */
static __always_inline int syn_past(__u32 why)
{
	if (why < GRAFT_PASTS)
		__sync_fetch_and_add(&graft_past[why], 1);
	return 0;
}

/* --- what the SYN says --- */

#define FLAG_AE 0x01 /* of byte 12: accurate ECN (RFC 9768) */

/* Note options and window of P, a SYN, in the scratch space.  False: P has more than is known. */
__noinline int syn_parse(struct __sk_buff *skb, const struct packet *p)
{
	struct scratch *s = my_scratch();
	struct walk w = { .s = s };
	__u32 header;

	if (!p || !s || (!(p->flags & ACK) && !s->shape.stock))
		return false;
	header = p->header;
	/* as in change_any() */
	if (header < 20)
		return false;
	barrier_var(header);
	if (header > TCP_HEADER_MAX)
		return false;
	barrier_var(header);
	__builtin_memset(s->is, 0, 64);
	if (bpf_skb_load_bytes(skb, p->l4, s->is, header) || s->is[12] & FLAG_AE)
		return false;
	s->syn = (struct graft_syn){
		.mss = 536, .window = p->window, .flags = p->flags, .ttl = p->ttl
	};
	s->syn_odd = 0;
	s->at = 20;
	s->header = header;
	w.c = (void *)s->no_change;
	w.syn = &s->syn;
	bpf_loop(OPTIONS_MAX, change_option, &w, 0);
	return !s->syn_odd;
}

/* --- proofs --- */

/* The proof of the end of T, a server of FORWARD; or, if FORWARD is 0, a client.  NULL: none. */
static __always_inline struct graft_proof *syn_proof(struct scratch *s, const struct graft_tuple *t,
						     __u32 forward)
{
	struct graft_proof *proof;

	graft_set_proof_key(&s->key, t, forward);
	proof = bpf_map_lookup_elem(&proofs, &s->key);
	if (!proof || proof->way.ways != graft_ways || proof->ns < graft_proven_from ||
	    bpf_ktime_get_coarse_ns() - proof->ns > GRAFT_PROOF_NS)
		return NULL;
	return proof;
}

/* --- the slot --- */

/* Take the next slot of stock I; NO_SLOT: there is none. */
static __always_inline __u32 syn_take(__u32 i)
{
	struct graft_stock *k = bpf_map_lookup_elem(&stocks, &i);

	for (int n = 0; k && n < 8; n++) {
		__u32 first = READ_ONCE(k->first), slot;

		if (diff(READ_ONCE(k->last), first) <= 0)
			break;
		slot = READ_ONCE(k->slot[first & (GRAFT_STOCK - 1)]);
		if (__sync_val_compare_and_swap(&k->first, first, first + 1) == first)
			return slot;
	}
	if (k)
		__sync_fetch_and_add(&k->missed, 1);
	return NO_SLOT;
}

/* The relation of a place in a bucket to a tuple. */
enum syn_place {
	SYN_PLACE_OTHER, /* also of a session that has the tuple, and may begin at any moment */
	SYN_PLACE_EMPTY,
	SYN_PLACE_OVER, /* a session that is over has the tuple, and stays over */
	SYN_PLACE_OWN,
	SYN_PLACE_RIVAL, /* another session has it */
};

__noinline int syn_place_is(const struct graft_tuple *t, __u32 place, __u32 own)
{
	__u32 slot = place >> GRAFT_PLACE_SLOT, state;
	struct graft_entry *g;

	if (!t)
		return SYN_PLACE_OTHER;
	if (!place)
		return SYN_PLACE_EMPTY;
	if (place == own)
		return SYN_PLACE_OWN;
	if ((place & GRAFT_PLACE_KIND) != graft_place(false, 0, 0))
		return SYN_PLACE_OTHER;
	g = bpf_map_lookup_elem(&grafts, &slot);
	if (!g || !same_tuple(place & GRAFT_PLACE_SIDE ? &g->side[1].tuple : &g->side[0].tuple, t))
		return SYN_PLACE_OTHER;
	state = READ_ONCE(g->head.state);
	/* a session may begin there at any moment: it keeps its place, and is seen later */
	if (state == GRAFT_FREE || state == GRAFT_PREPARED)
		return SYN_PLACE_OTHER;
	return state == GRAFT_GAVE_UP || READ_ONCE(g->over) != GRAFT_KEPT ? SYN_PLACE_OVER :
									    SYN_PLACE_RIVAL;
}

/*
 * Does the place OWN lead to T, and no other session that is not over has T?  ADD: let OWN lead to T
 * first, in the place of a session that is over, or in an empty one.
 */
__noinline int syn_owns(const struct graft_tuple *t, __u32 own, __u32 add)
{
	__u32 key = graft_n_buckets, has = 0, over = 0, empty = 0, at, was;
	struct graft_bucket *b = bpf_map_lookup_elem(&tuples, &key);

	if (!t || !b)
		return false;
	key = graft_hash(t, b->place[0]) & (graft_n_buckets - 1);
	b = bpf_map_lookup_elem(&tuples, &key);
	if (!b)
		return false;
	for (__u32 i = 0; i < GRAFT_PLACES; i++) {
		__u32 is = 1U << (syn_place_is(t, READ_ONCE(b->place[i]), own) & 7);

		/* without a branch, or the verifier would walk each way through the loop */
		barrier_var(is);
		has |= is;
		over |= (is >> SYN_PLACE_OVER & 1) << i;
		empty |= (is >> SYN_PLACE_EMPTY & 1) << i;
	}
	if (has & 1 << SYN_PLACE_RIVAL)
		return false;
	if (has & 1 << SYN_PLACE_OWN || !add)
		return !!(has & 1 << SYN_PLACE_OWN);
	if (!over && !empty)
		return false;
	at = over ?: empty;
	at &= -at;
	at = !(at & 0xf) << 2 | !(at & 0x33) << 1 | !(at & 0x55);
	barrier_var(at);
	at &= GRAFT_PLACES - 1;
	was = over ? READ_ONCE(b->place[at]) : 0;
	return __sync_val_compare_and_swap(&b->place[at], was, own) == was;
}

static __always_inline void syn_set_state(struct graft_entry *g, __u32 state)
{
	__sync_val_compare_and_swap(&g->head.state, GRAFT_TAKEN, state);
}

/* G goes from FROM to TAKEN, and belongs to the caller.  False: another packet was first. */
static __always_inline bool syn_seize(struct graft_entry *g, __u32 from)
{
	return __sync_val_compare_and_swap(&g->head.state, from, GRAFT_TAKEN) == from;
}

/* The session of G, which the caller has TAKEN, is over before it began.  HALF: it was counted. */
static __always_inline int syn_give_up(struct graft_entry *g, __u32 slot, __u32 why, bool half)
{
	g->why_back = why;
	g->ended_ns = bpf_ktime_get_coarse_ns();
	syn_set_state(g, GRAFT_GAVE_UP);
	if (half)
		__sync_fetch_and_add(&graft_half, -1);
	tell(g, slot);
	return syn_past(why);
}

/* The numbers with which the SYN P leaves, and all else that is known of G's session with it. */
static __always_inline void syn_set_up(struct __sk_buff *skb, struct graft_entry *g,
				       const struct packet *p, const struct scratch *s,
				       const struct graft_proof *client,
				       const struct graft_proof *server)
{
	struct graft_side *a = &g->side[0], *b = &g->side[1];
	__u32 near_us = g->syn.near_us, last = (__u32)a->end + a->seq_add, isn, tsval;
	__u64 now = bpf_ktime_get_ns();

	isn = graft_isn(g->syn_flags & GRAFT_SYN_KNOWN_SEQ, last, p->seq);
	tsval = graft_tsval(g->syn_flags & GRAFT_SYN_KNOWN_TSVAL, b->tsval_sent,
			    (__u32)(now / 1000000));
	g->syn = s->syn;
	g->syn.near_us = near_us;
	a->tuple = p->tuple;
	a->ipv6 = p->ipv6;
	a->way = client->way;
	b->way = server->way;
	a->from = skb->ifindex;
	a->base_read = p->seq;
	a->seq_add = isn - p->seq;
	b->ack_add = -a->seq_add;
	a->end = (1ULL << 32) + p->seq + 1;
	a->begun = a->end;
	a->heard_ns = a->data_ns = bpf_ktime_get_coarse_ns();
	g->syn_flags |= GRAFT_SYN_KNOWN_SEQ | GRAFT_SYN_BARE;
	if (s->syn.has & GRAFT_SYN_STAMPS) {
		a->tsval_add = tsval - s->syn.tsval;
		b->tsecr_add = -a->tsval_add;
		b->tsval_sent = tsval;
		g->syn_flags |= GRAFT_SYN_KNOWN_TSVAL;
	}
	g->far = near_us ? GRAFT_NEAR : GRAFT_ANYWHERE;
	g->offered_ns = now;
}

/* Why the SYN P may not take a slot; GRAFT_PASTS: it may. */
static __always_inline __u32 syn_hindrance(struct __sk_buff *skb, const struct packet *p,
					   const struct scratch *s)
{
	if (s->shape.heeds_hooks && (graft_hooks || is_hooked(skb, false)))
		return GRAFT_PAST_NETFILTER;
	if (p->odd || p->len || p->flags & ~(SYN | ECE | CWR) || skb->ifindex == LOOPBACK)
		return GRAFT_PAST_ODD;
	/* an IPv6 header with IPv4-mapped addresses: the stack drops such a packet */
	if (p->ipv6 != graft_addr_is_ipv6(&p->tuple.remote))
		return GRAFT_PAST_ODD;
	if (graft_policies || hindrance_in(skb))
		return GRAFT_PAST_INTERFACE;
	if (READ_ONCE(graft_half) >= graft_half_most)
		return GRAFT_PAST_HALF_OPEN;
	return GRAFT_PASTS;
}

/*
 * Let P, a SYN whose listener has the shape in the scratch space, take a slot.  Returns the slot
 * plus 1; or 0: P goes to the listener.
 */
__noinline int syn_begin(struct __sk_buff *skb, const struct packet *p, __u32 parsed)
{
	struct scratch *s = my_scratch();
	struct graft_proof *client, *server;
	struct graft_entry *g;
	__u32 why, slot;

	if (!p || !s || !s->shape.stock)
		return 0;
	why = parsed ? syn_hindrance(skb, p, s) : GRAFT_PAST_ODD;
	if (why != GRAFT_PASTS)
		return syn_past(why);
	client = syn_proof(s, &p->tuple, 0);
	if (!client)
		return syn_past(GRAFT_PAST_UNPROVEN);
	if (client->hooked && s->shape.heeds_hooks)
		return syn_past(GRAFT_PAST_NETFILTER);
	if (!is_sound(skb, p))
		return syn_past(GRAFT_PAST_ODD);
	slot = syn_take(s->shape.stock - 1);
	g = bpf_map_lookup_elem(&grafts, &slot);
	if (!g || !syn_seize(g, GRAFT_PREPARED))
		return syn_past(GRAFT_PAST_STOCK);
	g->head.worker = bpf_get_smp_processor_id() % (graft_syn_workers ?: 1);
	server = syn_proof(s, &g->side[1].tuple, g->head.forward);
	why = !server                                ? GRAFT_PAST_UNPROVEN_SERVER :
	      server->hooked && s->shape.heeds_hooks ? GRAFT_PAST_NETFILTER :
	      is_connected(skb, &g->side[1])         ? GRAFT_PAST_TUPLE :
						       GRAFT_PASTS;
	if (why != GRAFT_PASTS)
		return syn_give_up(g, slot, why, false);
	syn_set_up(skb, g, p, s, client, server);
	/*
	 * Behind the place, a second look: an import may have had the same tuple in mind, or the
	 * listener, with a copy of P.  At least one of the two sees the other: the import by its
	 * own second look, and the SYN|ACK of the listener's socket by leaves().
	 */
	if (!syn_owns(&p->tuple, graft_place(false, slot, 0), true) ||
	    !syn_owns(&p->tuple, graft_place(false, slot, 0), false) ||
	    !syn_owns(&g->side[1].tuple, graft_place(false, slot, 1), false) ||
	    is_connected(skb, &g->side[0]))
		return syn_give_up(g, slot, GRAFT_PAST_TUPLE, false);
	__sync_fetch_and_add(&graft_half, 1);
	syn_set_state(g, GRAFT_SYN_SENT);
	if (!READ_ONCE(graft_awake[g->head.worker & (GRAFT_WORKERS - 1)]))
		tell(g, slot);
	return slot + 1;
}

/* --- the answer --- */

/* The server has answered by P, whose options are in S.  The caller has TAKEN G. */
static __always_inline void syn_open(struct graft_entry *g, const struct packet *p,
				     const struct scratch *s)
{
	struct graft_side *a = &g->side[0], *b = &g->side[1];
	__u8 both = g->syn.has & s->syn.has;
	__u32 scaled = both & GRAFT_SYN_SCALED, isn = (__u32)a->end + a->seq_add;

	a->window_left = a->window_right = b->read_shift = scaled ? g->syn.shift : 0;
	b->window_left = b->window_right = a->read_shift = scaled ? s->syn.shift : 0;
	a->timestamps = b->timestamps = !!(both & GRAFT_SYN_STAMPS);
	a->sack = b->sack = !!(both & GRAFT_SYN_SACK);
	a->ecn = b->ecn = (g->syn.flags & (ECE | CWR)) == (ECE | CWR) &&
			  (p->flags & (ECE | CWR)) == ECE;
	a->mss = g->syn.mss;
	b->mss = s->syn.mss;
	a->window = g->syn.window;
	b->window = p->window;
	b->end = (1ULL << 32) + p->seq + 1;
	b->begun = b->end;
	b->acked = (1ULL << 32) + isn;
	a->acked = (1ULL << 32) + p->seq + 1;
	a->tsval_sent = s->syn.tsval; /* grow_32() from 0 would miss half of all clocks */
	a->frozen_read = (__u32)a->end;
	a->frozen_write = b->frozen_read = p->seq + 1;
	b->frozen_write = isn;
	a->edge = (__u32)a->end + GRAFT_LEASH;
	b->edge = (__u32)b->end + GRAFT_LEASH;
	b->from = 0;
	b->heard_ns = b->data_ns = bpf_ktime_get_coarse_ns();
	g->stuck_ns = bpf_ktime_get_ns() - g->offered_ns; /* how long the connect took */
	a->asked_ns = b->asked_ns = 0;
}

/* P, a packet of a session in SYN_SENT.  Returns enum graft_syn_verdict. */
__noinline int syn_packet(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 side)
{
	struct scratch *s = my_scratch();
	enum graft_syn_verdict verdict;
	struct graft_side *a;
	struct found f;
	bool fits;

	if (!p || !s || !find_slot(slot, side, &f))
		return GRAFT_SYN_DROP;
	a = &f.g->side[0];
	fits = f.side ? p->ack == (__u32)a->end + a->seq_add :
			p->seq == a->base_read + !!(p->flags & RST);
	verdict = graft_handshake(f.side, p->flags, fits, p->len,
				  (__u32)((bpf_ktime_get_ns() - f.g->offered_ns) / 1000000));
	if (verdict == GRAFT_SYN_AGAIN)
		return verdict;
	if (verdict == GRAFT_SYN_DROP || p->odd || !is_sound(skb, p) ||
	    (verdict == GRAFT_SYN_OPEN && !syn_parse(skb, p)) || !syn_seize(f.g, GRAFT_SYN_SENT))
		return GRAFT_SYN_DROP;
	if (verdict == GRAFT_SYN_OPEN) {
		syn_open(f.g, p, s);
		syn_set_state(f.g, GRAFT_ANSWERED);
		return verdict;
	}
	syn_give_up(f.g, f.slot,
		    verdict == GRAFT_SYN_SILENT     ? GRAFT_PAST_SILENT :
		    verdict == GRAFT_SYN_REFUSED    ? GRAFT_PAST_REFUSED :
		    verdict == GRAFT_SYN_CHALLENGED ? GRAFT_PAST_CHALLENGED :
						      GRAFT_PAST_CLIENT,
		    true);
	return verdict;
}

/* --- to the listener --- */

/* P, a SYN or the answer to one, goes to its socket; SHAPED: changed as has_shape() has found. */
__noinline int syn_to_socket(struct __sk_buff *skb, const struct packet *p, __u32 shaped)
{
	if (!p)
		return DROP;
	note_handshake(skb, p, false);
	return shaped ? shape_syn(skb, p, p->tuple.remote_port, p->tuple.local_port) : PASS;
}

#define SYN_TAKEN 16 /* above all verdicts of tc */

/*
 * P, a SYN or the answer to one, is of no session.  MAY_BEGIN: P may take a slot, if it is a SYN;
 * returns SYN_TAKEN plus the slot.
 */
__noinline int syn_arrived(struct __sk_buff *skb, const struct packet *p, __u32 may_begin)
{
	__u32 shaped = 0, slot;

	if (!p)
		return DROP;
	if (!(p->flags & ACK) || p->flags & ECE)
		shaped = has_shape(skb, p);
	if (!(p->flags & ACK) && may_begin) {
		/* not in syn_begin(), whose stack would be too deep */
		slot = syn_begin(skb, p, syn_parse(skb, p));
		if (slot)
			return SYN_TAKEN + slot - 1;
	}
	return syn_to_socket(skb, p, shaped);
}

/*
 * Turn the packet into the SYN of the client of SLOT, and let that SYN arrive again, from the
 * client's interface.  The packet came from the server; its IP header is at L3.
 */
__noinline int syn_remake(struct __sk_buff *skb, __u32 slot, __u32 l3)
{
	const __u16 length = 40; /* of the TCP header */
	struct scratch *s = my_scratch();
	struct graft_syn *syn;
	__be32 *options;
	__be16 protocol;
	bool sack, stamps, scaled;
	struct found f;
	__u32 ip;
	struct tcphdr *t;

	if (!s || !find_slot(slot, 0, &f))
		return DROP;
	syn = &f.g->syn;
	sack = syn->has & GRAFT_SYN_SACK;
	stamps = syn->has & GRAFT_SYN_STAMPS;
	scaled = syn->has & GRAFT_SYN_SCALED;
	l3 &= L3_BITS;
	ip = ip_len(f.mine->ipv6);
	protocol = f.mine->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	if (skb->protocol != protocol && bpf_skb_change_proto(skb, protocol, 0))
		return DROP;
	if (bpf_skb_change_tail(skb, l3 + ip + length, 0))
		return DROP;
	__builtin_memset(s->is, 0, sizeof(s->is));
	fill_ip(s->is, &f.mine->leg, true, IPPROTO_TCP, length, 0, syn->ttl);
	t = (void *)s->was;
	__builtin_memset(s->was, 0, sizeof(s->was));
	t->source = f.mine->tuple.remote_port;
	t->dest = f.mine->tuple.local_port;
	t->seq = bpf_htonl(f.mine->base_read);
	s->was[12] = length << 2;
	s->was[13] = syn->flags;
	t->window = bpf_htons(syn->window);
	/* NOPs stand for what the client's SYN did not have */
	options = (void *)(s->was + sizeof(*t));
	options[0] = bpf_htonl(OPTION_MSS << 24 | 4 << 16 | syn->mss);
	options[1] = bpf_htonl((sack ? OPTION_SACK_PERMITTED << 24 | 2 << 16 : 0x01010000) |
			       (stamps ? OPTION_TIMESTAMP << 8 | 10 : 0x0101));
	options[2] = bpf_htonl(stamps ? syn->tsval : 0x01010101);
	options[3] = bpf_htonl(stamps ? 0 : 0x01010101);
	options[4] = bpf_htonl(
		scaled ? OPTION_NOP << 24 | OPTION_SCALE << 16 | 3 << 8 | syn->shift : 0x01010101);
	t->check = folded(bpf_csum_diff(NULL, 0, (__be32 *)s->was, 40,
					bpf_csum_diff(NULL, 0, (__be32 *)&f.mine->tuple,
						      2 * sizeof(struct graft_addr),
						      bpf_htonl(length + IPPROTO_TCP))));
	if (bpf_skb_store_bytes(skb, l3, s->is, ip, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, l3 + ip, s->was, length, BPF_F_RECOMPUTE_CSUM))
		return DROP;
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
	if (!l3 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return DROP;
	bpf_skb_store_bytes(skb, ETH_HLEN - 2, &protocol, sizeof(protocol), 0);
	skb->mark = 0;
	set_kind(skb, REMADE);
	return bpf_redirect(f.mine->from, BPF_F_INGRESS);
}

/*
 * The packet is an ICMP error about the SYN of F, of which it quotes the number SEQ: as TCP in
 * SYN_SENT, take it for a refusal (RFC 5927, 5.2; Linux: tcp_v4_err()).
 */
static __always_inline int syn_unreachable(struct __sk_buff *skb, const struct found *f, __u32 l3,
					   __u32 seq)
{
	const struct graft_side *a = &f->g->side[0];

	if (!f->side || seq + 1 != (__u32)a->end + a->seq_add || !syn_seize(f->g, GRAFT_SYN_SENT))
		return PASS;
	syn_give_up(f->g, f->slot, GRAFT_PAST_UNREACHABLE, true);
	return syn_remake(skb, f->slot, l3);
}

/* P is a packet of a session in SYN_SENT.  SYN_TAKEN: P is to be translated. */
__noinline int syn_answered(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 side)
{
	int verdict = syn_packet(skb, p, slot, side);

	if (!p)
		return DROP;
	switch (verdict) {
	case GRAFT_SYN_AGAIN:
	case GRAFT_SYN_OPEN:
		return SYN_TAKEN;
	case GRAFT_SYN_ABANDONED:
		if (p->flags & RST)
			return DROP;
		__attribute__((fallthrough));
	case GRAFT_SYN_SILENT:
		return syn_to_socket(skb, p, has_shape(skb, p));
	case GRAFT_SYN_REFUSED:
	case GRAFT_SYN_CHALLENGED:
		return syn_remake(skb, slot, p->l3);
	default:
		return DROP;
	}
}
