/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * How a session of graft.bpf.c begins: what its sockets say, the offer, and the packet that may be
 * the first.
 */
#pragma once

#include "graft_packet.h"

/* --- the sockets --- */

/* Fill T from TUPLE for the kernel's look-ups; returns the size. */
static __always_inline __u32 sock_tuple(struct bpf_sock_tuple *t, const struct graft_tuple *tuple,
					bool ipv6)
{
	if (ipv6) {
		__builtin_memcpy(t->ipv6.saddr, &tuple->remote, sizeof(t->ipv6.saddr));
		__builtin_memcpy(t->ipv6.daddr, &tuple->local, sizeof(t->ipv6.daddr));
		t->ipv6.sport = tuple->remote_port;
		t->ipv6.dport = tuple->local_port;
		return sizeof(t->ipv6);
	}
	t->ipv4.saddr = tuple->remote.w[3];
	t->ipv4.daddr = tuple->local.w[3];
	t->ipv4.sport = tuple->remote_port;
	t->ipv4.dport = tuple->local_port;
	return sizeof(t->ipv4);
}

static __always_inline struct bpf_sock *look_up(struct __sk_buff *skb,
						const struct graft_tuple *tuple, bool ipv6)
{
	struct bpf_sock_tuple t = { 0 };

	return bpf_skc_lookup_tcp(skb, &t, sock_tuple(&t, tuple, ipv6), BPF_F_CURRENT_NETNS, 0);
}

#define ECN_OK 0x01       /* TCP_ECN_OK */
#define ECN_ACCURATE 0x10 /* TCP_ECN_MODE_ACCECN, since Linux 6.18: the ends count marks */

/* TSval that the socket would send now: never less than one that it has sent. */
static __always_inline __u32 clock_of(const struct tcp_sock *tp)
{
	__u64 now = bpf_ktime_get_ns(), last = tp->tcp_wstamp_ns;
	__u32 unit = 1000000;

	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		unit = 1000;
	return (__u32)((now > last ? now : last) / unit) + tp->tsoffset;
}

static __always_inline bool interface_is(__u32 ifindex, __u32 what)
{
	__u32 *is = bpf_map_lookup_elem(&interfaces, &ifindex);

	return is && *is & what;
}

/* GRAFT_OK, if translated packets may take the route DST. */
static __always_inline int hindrance_of(struct dst_entry *dst)
{
	if (bpf_core_field_exists(dst->xfrm) && dst->xfrm)
		return GRAFT_XFRM;
	if (dst->lwtstate)
		return GRAFT_ENCAP;
	return interface_is(dst->dev->ifindex, GRAFT_IF_USED) ? GRAFT_OK : GRAFT_INTERFACE;
}

/* The largest segment, with options, that path and peer take. */
static __always_inline __u32 mss_of(const struct tcp_sock *tp, bool ipv6)
{
	/* not mss_cache, which may be smaller: TCP bounds it by half of the peer's window */
	__u32 clamp = tp->rx_opt.mss_clamp;
	__u32 mtu = tp->inet_conn.icsk_pmtu_cookie - (ipv6 ? 60 : 40);
	__u32 probed = tp->inet_conn.icsk_mtup.search_low - (ipv6 ? 60 : 40);

	/* net.ipv4.tcp_mtu_probing: there was a black hole */
	if (BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_mtup.enabled) && probed < mtu)
		mtu = probed;
	return mtu < clamp ? mtu : clamp;
}

/* Why the connection of TP cannot be grafted, whatever the other connection is; or GRAFT_OK. */
static __always_inline int hindrance_at(struct tcp_sock *tp, bool established)
{
	struct dst_entry *dst = tp->inet_conn.icsk_inet.sk.sk_dst_cache;

	if (!established)
		return GRAFT_CLOSING;
	if (bpf_core_field_exists(tp->is_mptcp) && tp->is_mptcp)
		return GRAFT_MPTCP;
	return dst ? hindrance_of(dst) : GRAFT_WAY; /* the next packet looks one up */
}

/* Note in R the state of S's socket.  False: there is no socket. */
__noinline int see(struct __sk_buff *skb, const struct graft_side *s, struct seen *r)
{
	const struct graft_shape *shape;
	struct bpf_sock *sk;
	struct tcp_sock *tp;

	if (!s || !r)
		return false;
	sk = look_up(skb, &s->tuple, s->ipv6);
	if (!sk)
		return false;
	shape = bpf_sk_storage_get(&shapes, sk, NULL, 0);
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp) {
		bpf_sk_release(sk);
		return false;
	}
	r->established = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state == BPF_TCP_ESTABLISHED;
	r->rcv_nxt = tp->rcv_nxt;
	r->copied = tp->copied_seq;
	r->rcv_wup = tp->rcv_wup;
	r->snd_una = tp->snd_una;
	r->snd_nxt = tp->snd_nxt;
	r->write_seq = tp->write_seq;
	r->snd_wnd = tp->snd_wnd;
	r->max_window = tp->max_window;
	r->received = tp->bytes_received;
	r->unordered = tp->out_of_order_queue.rb_node != NULL;
	r->ts_recent = tp->rx_opt.ts_recent;
	r->clock = clock_of(tp);
	r->mss = mss_of(tp, s->ipv6);
	r->advmss = tp->advmss;
	r->timestamps = BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok);
	r->sack = BPF_CORE_READ_BITFIELD(tp, rx_opt.sack_ok) != 0;
	r->snd_shift = BPF_CORE_READ_BITFIELD(tp, rx_opt.snd_wscale);
	r->rcv_shift = BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale);
	r->ecn = tp->ecn_flags;
	r->room = tp->rcv_wup + tp->rcv_wnd - tp->rcv_nxt;
	r->rtt_us = tp->rtt_min.s[0].v + 1 ? tp->rtt_min.s[0].v : 0;
	r->from = tp->inet_conn.icsk_inet.sk.sk_rx_dst_ifindex;
	r->foreign = tp->inet_conn.icsk_inet.sk.sk_user_data || tp->inet_conn.icsk_ulp_ops;
	r->hindrance = hindrance_at(tp, r->established);
	if (shape && shape->mss && shape->mss < r->advmss)
		r->advmss = shape->mss;
	if (shape && shape->ecn_answered)
		r->ecn = ECN_OK;
	bpf_sk_release(sk);
	return true;
}

/* The state of S's socket, kept in element I of the scratch space; NULL: there is no socket. */
static __always_inline struct seen *seen_of(struct __sk_buff *skb, const struct graft_side *s,
					    unsigned int i)
{
	struct scratch *at = my_scratch();

	return at && see(skb, s, &at->seen[i]) ? &at->seen[i] : NULL;
}

/* --- offer --- */

#define SEGMENT_MOST 8960 /* of jumbo frames; Linux bounds larger segments by half of a window */

/*
 * Does the peer of TO have room for the segments of FROM's peer?  A sender with more data waits
 * until a full segment fits into the window.  A receiver may not announce its window again before
 * half of its buffer is free (RFC 9293, 3.8.6.2).  So a full segment must fit into that half,
 * rounded down to the unit of the sender's windows.  Else the sender would wait for its persist
 * timer.
 *
 * A Linux receiver without a window scale rounds its window down to segments of the received size.
 * After a segment that is larger than the window, the rounded window may be 0 for ever.
 */
static __always_inline bool has_room(const struct seen *to, const struct seen *from)
{
	__u32 segment = from->advmss < SEGMENT_MOST ? from->advmss : SEGMENT_MOST;

	return from->advmss <= to->max_window &&
	       to->max_window / 2 >= segment + (1U << from->rcv_shift) - 1;
}

static __always_inline int fit(const struct seen *a, const struct seen *b)
{
	if (a->timestamps != b->timestamps)
		return GRAFT_TIMESTAMPS;
	if ((a->ecn & ECN_OK) != (b->ecn & ECN_OK) ||
	    (a->ecn & ECN_OK && (a->ecn | b->ecn) & ECN_ACCURATE))
		return GRAFT_ECN;
	if (a->advmss > b->mss || b->advmss > a->mss)
		return GRAFT_MSS;
	if (!has_room(a, b) || !has_room(b, a))
		return GRAFT_WINDOW;
	return GRAFT_OK;
}

/*
 * Note if the programs have seen the whole handshake of S, whose socket is in state OWN.  S leads to a
 * client, or to a server of FORWARD.  Then netfilter has let both SYNs pass, and the way back is known.
 */
static __always_inline void prove(const struct graft_side *s, const struct seen *own, __u32 forward)
{
	struct graft_handshake *h = bpf_map_lookup_elem(&handshakes, &s->tuple);
	struct scratch *at = my_scratch();
	struct graft_proof *proof;

	if (!at || !h || h->in != own->rcv_nxt - (__u32)own->received || h->out != own->write_seq ||
	    h->way.ways != graft_ways)
		return;
	graft_set_proof_key(&at->key, &s->tuple, forward);
	at->proof.way = h->way;
	at->proof.hooked = h->hooked;
	at->proof.ns = bpf_ktime_get_coarse_ns();
	/*
	 * In place: bpf_map_update_elem() would put a new element in the place of the old one, which
	 * may at once be another key's, while syn_begin() still reads it.
	 */
	proof = bpf_map_lookup_elem(&proofs, &at->key);
	if (proof)
		*proof = at->proof;
	else
		bpf_map_update_elem(&proofs, &at->key, &at->proof, BPF_ANY);
}

/* The *_add fields are in numbers of the wire, all others in numbers of the socket. */
static __always_inline void set_up(struct graft_side *s, const struct graft_side *o,
				   const struct seen *own, const struct seen *other)
{
	struct graft_handshake *h = bpf_map_lookup_elem(&handshakes, &s->tuple);

	s->base_read = own->copied;
	s->base_write = own->write_seq;
	s->passed = own->rcv_nxt - 1;
	s->left = own->write_seq - 1;
	s->way.ways = graft_ways - 1;
	/* packets of the handshake count as seen, if they had the socket's numbers */
	if (h && h->in == own->rcv_nxt - (__u32)own->received)
		s->passed++;
	if (h && h->out == own->write_seq && h->way.ways == graft_ways) {
		s->left++;
		s->way = h->way;
	}
	bpf_map_delete_elem(&handshakes, &s->tuple);
	s->has_edge = 0;
	s->seq_add = other->write_seq + o->back_write - own->copied - s->back_read;
	s->ack_add = other->copied + o->back_read - own->write_seq - s->back_write;
	s->window_left = own->snd_shift;
	s->window_right = other->rcv_shift;
	s->read_shift = own->rcv_shift;
	s->timestamps = own->timestamps;
	s->sack = own->sack;
	s->ecn = own->ecn & ECN_OK;
	s->mss = own->mss;
}

/* Prepare the entry for the slot's new session. */
static __always_inline void clear(struct graft_entry *g, const struct graft_request *q)
{
	__builtin_memset(g, 0, sizeof(*g)); /* it stays FREE */
	for (int i = 0; i < 2; i++) {
		g->side[i].tuple = q->tuples[i];
		g->side[i].ipv6 = graft_addr_is_ipv6(&q->tuples[i].remote);
	}
	g->head.worker = q->worker;
	g->head.forward = q->forward;
	g->head.id = q->id;
}

/* Does a socket have the tuple of S?  Listening sockets and TIME_WAIT do not count. */
static __always_inline bool is_connected(struct __sk_buff *skb, const struct graft_side *s)
{
	struct bpf_sock *sk = look_up(skb, &s->tuple, s->ipv6);
	bool is;

	if (!sk)
		return false;
	is = sk->state != BPF_TCP_LISTEN && sk->state != BPF_TCP_TIME_WAIT;
	bpf_sk_release(sk);
	return is;
}

/* A new session stays FREE: the daemon makes it OFFERED once its tuples lead to it. */
static __always_inline int offer(struct __sk_buff *skb, const struct graft_request *q,
				 struct graft_entry *g)
{
	__u32 from = q->op == GRAFT_OFFER ? GRAFT_FREE : GRAFT_RETURNED;
	struct seen *a, *b;
	int r;

	if (READ_ONCE(g->head.state) != from)
		return GRAFT_BAD_REQUEST;
	if (from == GRAFT_FREE)
		clear(g, q);
	a = seen_of(skb, &g->side[0], 0);
	b = seen_of(skb, &g->side[1], 1);
	if (!a || !b)
		return GRAFT_NO_SOCKET;
	r = a->foreign || b->foreign ? GRAFT_FOREIGN : a->hindrance ?: b->hindrance;
	if (r)
		return r;
	if (from == GRAFT_FREE) { /* what follows does not concern sessions from the SYN on */
		prove(&g->side[0], a, 0);
		prove(&g->side[1], b, q->forward);
	}
	r = fit(a, b);
	if (r)
		return r;
	if (!q->near_us)
		g->far = GRAFT_ANYWHERE;
	else if (g->far != GRAFT_LOSSY)
		g->far = a->rtt_us + b->rtt_us > q->near_us ? GRAFT_LONG : GRAFT_NEAR;
	if (g->far >= GRAFT_LONG && !q->far_too)
		return g->far == GRAFT_LONG ? GRAFT_FAR : GRAFT_LOSS;
	set_up(&g->side[0], &g->side[1], a, b);
	set_up(&g->side[1], &g->side[0], b, a);
	g->looks = g->why_back = g->why_not = g->hold = 0;
	g->offered_ns = bpf_ktime_get_ns();
	if (from == GRAFT_RETURNED)
		__sync_val_compare_and_swap(&g->head.state, from, GRAFT_OFFERED);
	return GRAFT_OK;
}

/* --- the way of a socket --- */

#define ROUTE_HAS_ROUTER 2 /* RTF_GATEWAY */

/*
 * Why a packet that enters here does not count as seen; 0: it counts.  Programs behind ours may
 * decide about packets.  IPsec may have decrypted the packet.  At a bridge that calls iptables,
 * conntrack may have seen the packet before our program.  conntrack would see one half of a grafted
 * session, and call that half invalid.  At the ports of the bridge our program comes first.
 */
static __always_inline __u8 hindrance_in(struct __sk_buff *skb)
{
	struct sk_buff *b = (void *)skb;
	struct bpf_xfrm_state x;

	if (!interface_is(skb->ifindex, GRAFT_IF_USED))
		return GRAFT_INTERFACE;
	if (bpf_core_field_exists(((struct dst_entry *)0)->xfrm) &&
	    !bpf_skb_get_xfrm_state(skb, 0, &x, sizeof(x), 0))
		return GRAFT_XFRM;
	if (skb->ifindex != LOOPBACK && bpf_core_field_exists(b->_nfct) && BPF_CORE_READ(b, _nfct)) {
		graft_bridged = 1;
		return GRAFT_INTERFACE;
	}
	return 0;
}

static __always_inline __u8 router_of(struct dst_entry *dst, bool ipv6, __u32 hop[4])
{
	__u8 family;

	if (ipv6) {
		struct rt6_info *r6 = (void *)dst;

		if (!(BPF_CORE_READ(r6, rt6i_flags) & ROUTE_HAS_ROUTER))
			return GRAFT_VIA_REMOTE;
		BPF_CORE_READ_INTO((struct in6_addr *)hop, r6, rt6i_gateway);
		return GRAFT_VIA_IPV6;
	}
	family = BPF_CORE_READ((struct rtable *)dst, rt_gw_family);
	BPF_CORE_READ_INTO((struct in6_addr *)hop, (struct rtable *)dst, rt_gw6); /* a union */
	return family == AF_INET ? GRAFT_VIA_IPV4 : family ? GRAFT_VIA_IPV6 : GRAFT_VIA_REMOTE;
}

#define METRIC_MTU 4 /* bytes to RTAX_MTU */

/* The largest packet: as the route says, or the device. */
static __always_inline __u32 mtu_of(struct dst_entry *dst, bool ipv6)
{
	__u32 mtu = 0;

	bpf_probe_read_kernel(&mtu, sizeof(mtu),
			      (void *)((BPF_CORE_READ(dst, _metrics) & ~3UL) + METRIC_MTU));
	if (!mtu && ipv6)
		mtu = BPF_CORE_READ(dst, dev, ip6_ptr, cnf.mtu6);
	return mtu ?: BPF_CORE_READ(dst, dev, mtu);
}

/*
 * Note the interface, the router and the mark with which P, a packet of our socket, leaves.
 * Translated packets go the same way, so all rules apply to them.
 */
__noinline int learn_way(struct __sk_buff *skb, const struct packet *p, struct graft_way *w)
{
	/* a packet program's context is the packet itself */
	struct dst_entry *dst = (void *)(BPF_CORE_READ((struct sk_buff *)skb, _skb_refdst) & ~1UL);
	__u32 ways = graft_ways;

	if (!p || !w || !dst || BPF_CORE_READ(dst, lwtstate) ||
	    (bpf_core_field_exists(dst->xfrm) && BPF_CORE_READ(dst, xfrm)))
		return 0;
	w->via = skb->ifindex == LOOPBACK ? GRAFT_VIA_LOOKUP : router_of(dst, p->ipv6, w->hop);
	w->ifindex = skb->ifindex;
	w->mark = skb->mark;
	w->ttl = p->ttl;
	w->mtu = mtu_of(dst, p->ipv6);
	WRITE_ONCE(w->ways, ways);
	return 0;
}

/* --- hooks of netfilter --- */

/* enum nf_inet_hooks */
#define FORWARDED 2
#define POSTROUTING 4
/* enum nf_ip_hook_priorities */
#define SELINUX_FIRST (-225)
#define SELINUX_LAST 225

static __always_inline bool has_hooks(const struct nf_hook_entries *all)
{
	return all && BPF_CORE_READ(all, num_hook_entries);
}

/* Nft has hooks for what enters at, or LEAVES by, the device of the packet. */
static __always_inline bool is_hooked(const struct __sk_buff *skb, bool leaves)
{
	const struct net_device *dev = BPF_CORE_READ((struct sk_buff *)skb, dev);

	if (leaves)
		return bpf_core_field_exists(dev->nf_hooks_egress) &&
		       has_hooks(BPF_CORE_READ(dev, nf_hooks_egress));
	return bpf_core_field_exists(dev->nf_hooks_ingress) &&
	       has_hooks(BPF_CORE_READ(dev, nf_hooks_ingress));
}

/*
 * As has_hooks(), without those of security modules, which are there on each host with AppArmor or
 * SELinux.  These judge only what other hooks have marked (secmark).
 */
static __noinline bool has_rules(const struct nf_hook_entries *all)
{
	__u32 n = has_hooks(all) ? BPF_CORE_READ(all, num_hook_entries) : 0;
	char *ops = (char *)all + bpf_core_field_offset(struct nf_hook_entries, hooks) +
		    n * bpf_core_type_size(struct nf_hook_entry);

	for (__u32 i = 0; i < 2 && i < n; i++) {
		struct nf_hook_ops *op = NULL;
		int priority;

		bpf_probe_read_kernel(&op, sizeof(op), ops + i * sizeof(op));
		priority = BPF_CORE_READ(op, priority);
		if ((priority != SELINUX_FIRST && priority != SELINUX_LAST) ||
		    BPF_CORE_READ(op, priv)) /* a chain of nft */
			return true;
	}
	return n > 2;
}

/* How many places of the IP stack of NET have hooks: forwarded packets do not count. */
static __always_inline __u32 count_hooks(const struct net *net)
{
	struct nf_hook_entries *all[2][POSTROUTING + 1] = { 0 };
	__u32 n = 0;

	if (bpf_core_field_exists(net->nf))
		BPF_CORE_READ_INTO(&all[0], net, nf.hooks_ipv4);
	if (bpf_core_field_exists(net->nf.hooks_ipv6))
		BPF_CORE_READ_INTO(&all[1], net, nf.hooks_ipv6);
	for (int i = 0; i <= POSTROUTING; i++)
		if (i != FORWARDED)
			n += has_rules(all[0][i]) + has_rules(all[1][i]);
	return n;
}

/* Note that P, a SYN or its answer, enters or LEAVES. */
__noinline int note_handshake(struct __sk_buff *skb, const struct packet *p, __u32 leaves)
{
	struct graft_handshake *h, none = { 0 };
	struct graft_tuple key; /* Linux 6.1: a key is on the stack, or in a map */

	if (!p)
		return 0;
	key = p->tuple;
	h = bpf_map_lookup_elem(&handshakes, &key);
	if (!h && !(p->flags & ACK)) {
		bpf_map_update_elem(&handshakes, &key, &none, BPF_ANY);
		h = bpf_map_lookup_elem(&handshakes, &key);
	}
	if (!h)
		return 0;
	if (is_hooked(skb, leaves))
		h->hooked = 1;
	if (leaves) {
		h->out = p->seq + 1;
		learn_way(skb, p, &h->way);
	} else if (!hindrance_in(skb)) {
		h->in = p->seq + 1;
	}
	return 0;
}

/*
 * Can the way of S's socket be followed?  Only the socket's present route counts.  A socket that
 * has no route, or was not asked yet, is no hindrance.  Only a socket knows which IPsec policies
 * concern the session.  If the socket is gone, a way from before a change of policies is not
 * followed.
 */
__noinline int judge_way(struct __sk_buff *skb, const struct graft_side *s)
{
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	struct dst_entry *dst;
	int r = GRAFT_OK;

	if (!s || s->way.ways == graft_ways)
		return GRAFT_OK;
	sk = look_up(skb, &s->tuple, s->ipv6);
	if (!sk)
		return diff(s->way.ways, graft_ways_least) < 0 ? GRAFT_XFRM : GRAFT_OK;
	tp = bpf_skc_to_tcp_sock(sk);
	dst = tp ? tp->inet_conn.icsk_inet.sk.sk_dst_cache : NULL;
	/* a dead route is no hindrance: its device is gone, or IPsec has no key yet */
	if (dst && dst->obsolete <= 0 && dst->dev->ifindex)
		r = hindrance_of(dst);
	bpf_sk_release(sk);
	return r;
}

/*
 * Packets of S's end may have moved to an interface without program.  The frozen socket drops such
 * packets silently, and no program sees them.  Note that interface.
 */
__noinline int look_for_stray(struct __sk_buff *skb, const struct graft_side *s)
{
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	__u32 from = 0; /* not s->from: Linux 6.12 refuses one load for two kinds of pointers */

	if (!s || bpf_ktime_get_coarse_ns() - s->heard_ns < GRAFT_SILENT_NS)
		return 0;
	sk = look_up(skb, &s->tuple, s->ipv6);
	if (!sk)
		return 0;
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp)
		from = tp->inet_conn.icsk_inet.sk.sk_rx_dst_ifindex;
	bpf_sk_release(sk);
	if (from && from != s->from && !bpf_map_lookup_elem(&interfaces, &from))
		graft_stray = from;
	return 0;
}

#define POLICY_OUT 1   /* XFRM_POLICY_OUT */
#define POLICY_BLOCK 1 /* XFRM_USERPOLICY_BLOCK */

/* Note the numbers by which the kernel itself checks a cached route. */
static __always_inline int count_routes(void)
{
	struct task_struct *t = (void *)bpf_get_current_task();
	struct net *net = BPF_CORE_READ(t, nsproxy, net_ns);
	__u32 n;

	graft_hooks = count_hooks(net);
	graft_routes = BPF_CORE_READ(net, ipv4.rt_genid.counter);
	if (bpf_core_field_exists(net->ipv6.fib6_sernum))
		graft_routes += BPF_CORE_READ(net, ipv6.fib6_sernum.counter);
	if (!bpf_core_field_exists(net->xfrm))
		return GRAFT_OK;
	n = BPF_CORE_READ(net, xfrm.policy_count[POLICY_OUT]);
	if (bpf_core_field_exists(net->xfrm.policy_default) &&
	    BPF_CORE_READ(net, xfrm.policy_default[POLICY_OUT]) == POLICY_BLOCK)
		n += 1 << 30;
	/* a change inside a policy keeps the number of policies, but moves graft_routes */
	graft_policies = n ? n + graft_routes : 0;
	return GRAFT_OK;
}

/* --- a packet that may be the first --- */

/* The two words of P's timestamp option, if the option is at its usual place. */
static __always_inline bool timestamp_of(struct __sk_buff *skb, const struct packet *p,
					 __u32 words[2])
{
	__u32 option[3];

	if (p->header < 32 || bpf_skb_load_bytes(skb, p->l4 + 20, option, sizeof(option)) ||
	    option[0] != TIMESTAMP_WORD)
		return false;
	words[0] = bpf_ntohl(option[1]);
	words[1] = bpf_ntohl(option[2]);
	return true;
}

/*
 * GRAFT_OK, if S is quiet.  R is the state of its socket.  The socket must have received all bytes
 * up to NXT, and the daemon must have read them.  The bytes that the socket has sent must end at
 * UNA, and be acknowledged.
 */
static __always_inline int quiet(const struct graft_side *s, const struct seen *r, __u32 nxt,
				 __u32 una)
{
	if (!r->established)
		return GRAFT_CLOSING;
	if (r->unordered || r->rcv_nxt != nxt)
		return GRAFT_ORDER;
	if (s->left != r->snd_nxt)
		return GRAFT_UNSEEN;
	if (r->mss < s->mss) /* a black hole was found since the offer */
		return GRAFT_MSS;
	if (r->copied != nxt || r->snd_nxt != una || r->write_seq != una)
		return GRAFT_IN_HAND;
	return GRAFT_OK;
}

/* Freeze the socket of S, whose state is R.  `end` minus `begun`, the carried bytes, is kept. */
static __always_inline void freeze(struct graft_side *s, const struct seen *r)
{
	__u64 carried = s->end - s->begun;

	s->frozen_write = r->write_seq;
	s->frozen_read = r->rcv_nxt;
	s->window = r->max_window;
	s->tsval_sent = r->clock;
	s->tsecr_clamped = 1;
	s->data_ns = bpf_ktime_get_coarse_ns();
	s->acked = (1ULL << 32) + (__u32)(r->snd_nxt + s->back_write);
	s->end = (1ULL << 32) + (__u32)(r->rcv_nxt + s->back_read);
	s->begun = s->end - carried;
	s->edge = (__u32)s->end + GRAFT_LEASH;
	s->from = r->from;
	s->asked_ns = 0;
	s->refused = 0;
}

/* Set the timestamp fields of both sides.  TSVAL: the first translated packet's, from MINE. */
static __always_inline void join_clocks(struct graft_side *mine, struct graft_side *other,
					struct seen *a, struct seen *b, __u32 tsval)
{
	a->clock += mine->back_ts;
	b->clock += other->back_ts;
	mine->tsval_add = b->clock - tsval;
	other->tsval_add = a->clock - b->ts_recent;
	mine->tsecr_add = -other->tsval_add;
	other->tsecr_add = -mine->tsval_add;
	mine->tsecr_least = b->ts_recent;
	other->tsecr_least = a->ts_recent;
}

/* Can P be the first translated packet?  The caller holds LOCKED.  Sets the remaining fields. */
static __always_inline int look(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	/* as the socket numbers them */
	__u32 ts[2], seq = p->seq - mine->back_read, ack = p->ack - mine->back_write;
	struct seen *a, *b;
	int r;

	if (!p->len && seq + 1 == mine->passed)
		seq++; /* a window probe: a sender with a closed window sends nothing else */
	if (p->flags & (FIN | SYN | RST) || !(p->flags & ACK))
		return GRAFT_CLOSING;
	if (p->odd)
		return p->odd;
	if (mine->way.ways != graft_ways || other->way.ways != graft_ways)
		return GRAFT_WAY;
	a = seen_of(skb, mine, 0);
	r = a ? quiet(mine, a, seq, ack) : GRAFT_CLOSING;
	if (r)
		return r;
	if (diff(mine->passed, seq) > 0)
		return GRAFT_ORDER;
	b = seen_of(skb, other, 1);
	if (!b)
		return GRAFT_CLOSING;
	if (diff(other->passed, b->rcv_nxt) < 0)
		return GRAFT_UNSEEN;
	r = quiet(other, b, other->passed, b->snd_una);
	if (r)
		return r;
	/* the socket owes an ACK, which would be lost; or the daemon holds bytes */
	if ((!p->len && a->rcv_wup != a->rcv_nxt) ||
	    b->write_seq - other->base_write != a->copied - mine->base_read ||
	    a->write_seq - mine->base_write != b->copied - other->base_read)
		return GRAFT_IN_HAND;
	if (p->len > b->snd_wnd)
		return GRAFT_NO_ROOM;
	if (!is_sound(skb, p)) /* TSval sets the clocks for good */
		return GRAFT_ORDER;
	if (mine->timestamps && !timestamp_of(skb, p, ts))
		return GRAFT_NO_TIMESTAMP;
	if (mine->timestamps)
		join_clocks(mine, other, a, b, ts[0]);
	freeze(mine, a);
	freeze(other, b);
	f->g->before[f->side & 1] = a->received;
	f->g->before[!(f->side & 1)] = b->received;
	return GRAFT_OK;
}

static __always_inline void note_entering(struct graft_side *mine, const struct packet *p)
{
	if (!p->odd)
		grow_32(&mine->passed, end_of(p) - mine->back_read);
}

/* After so many looks only each 16th packet may look: the session is hardly ever quiet. */
#define LOOKS 256

/*
 * The session is OFFERED or LOCKED.  Returns the state that P finds; OFFERED: P goes to its socket;
 * 0: P is dropped.  If another packet is looking just now, P changes the count of LOCKED: then the
 * other packet cannot activate the graft.  P writes its end to `passed` before it changes the
 * count, so the next packet that looks sees P's end.
 */
__noinline int try_offer(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 side)
{
	int why = GRAFT_IN_HAND;
	struct graft_entry *g;
	struct found f;
	__u32 state = GRAFT_LOCKED;

	if (!p || !find_slot(slot, side, &f))
		return 0;
	g = f.g;
	for (int i = 0; i < 32; i++) {
		state = __sync_val_compare_and_swap(&g->head.state, GRAFT_OFFERED, GRAFT_LOCKED);
		if (state == GRAFT_OFFERED)
			break;
		if ((state & GRAFT_STATE_MASK) != GRAFT_LOCKED)
			return state & GRAFT_STATE_MASK;
		note_entering(f.mine, p);
		if (__sync_val_compare_and_swap(&g->head.state, state, state + GRAFT_PASSED_ONE) ==
		    state)
			return GRAFT_OFFERED;
	}
	if (state != GRAFT_OFFERED)
		return 0; /* it will be sent again */
	if (g->looks++ < LOOKS || !(g->looks & 15) || g->hold)
		why = look(skb, &f, p);
	if (!why) {
		if (__sync_val_compare_and_swap(&g->head.state, GRAFT_LOCKED, GRAFT_ACTIVE) ==
		    GRAFT_LOCKED)
			return GRAFT_ACTIVE;
		why = GRAFT_IN_HAND; /* another packet came at the same time */
	}
	g->why_not = why;
	note_entering(f.mine, p); /* it goes to its socket */
	/* LOCKED includes OFFERED's bit.  The result is used: else this would be no barrier. */
	return __sync_fetch_and_and(&g->head.state, GRAFT_OFFERED) ? GRAFT_OFFERED : 0;
}
