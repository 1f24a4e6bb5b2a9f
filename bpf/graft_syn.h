/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * graft.bpf.c makes the two handshakes of a session alike.  `shapes` has the changes, by socket of
 * the daemon.  See docs/design.md, "Shaped handshakes".
 */
#pragma once

#include "graft_begin.h"
#include "graft_packet.h"
#include "graft_translate.h"

static __always_inline struct graft_shape *kept_shape(void)
{
	struct scratch *at = my_scratch();

	return at ? &at->shape : NULL;
}

/*
 * Change the SYN P, which comes from the port SOURCE, as kept_shape() says.  A SYN with payload
 * (Fast Open) is left alone.
 */
__noinline int shape_syn(struct __sk_buff *skb, const struct packet *p, __u16 source, __u16 dest)
{
	struct graft_shape *shape = kept_shape();
	struct change c = { .source = source, .dest = dest };

	if (!p || !shape || p->len)
		return PASS;
	c.mss = shape->mss;
	c.no_timestamps = shape->no_timestamps;
	if (shape->ecn == GRAFT_ECN_ASK)
		c.flags_on = ECE | CWR;
	if (shape->ecn == GRAFT_ECN_REMOVE)
		c.flags_off = ECE | CWR;
	return change_alone(skb, p, &c);
}

/*
 * Shape P, a SYN that leaves.  A repeated SYN asks for no ECN, as in tcp_ecn_clear_syn(): some
 * firewalls drop SYNs that do.
 */
static __always_inline int shape_leaving(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock *sk = skb->sk ? bpf_sk_fullsock(skb->sk) : NULL;
	struct graft_shape *shape = sk ? bpf_sk_storage_get(&shapes, sk, NULL, 0) : NULL;
	struct graft_shape *kept = kept_shape();
	struct tcp_sock *tp = shape ? bpf_skc_to_tcp_sock(sk) : NULL;

	if (!tp || !kept)
		return PASS;
	*kept = *shape;
	if (tp->inet_conn.icsk_retransmits)
		kept->ecn = GRAFT_ECN_KEEP;
	return shape_syn(skb, p, p->tuple.local_port, p->tuple.remote_port);
}

/* Does the stack answer SYNs by cookies?  Only a timestamp lets a cookie keep the SYN's options. */
static __always_inline bool makes_cookies(const struct tcp_sock *tp)
{
	const struct inet_connection_sock *c = &tp->inet_conn;
	const struct sock *sk = &c->icsk_inet.sk;

	return c->icsk_accept_queue.qlen.counter >= (int)sk->sk_max_ack_backlog ||
	       sk->__sk_common.skc_net.net->ipv4.sysctl_tcp_syncookies == 2;
}

/* P, a SYN or the answer to our SYN, arrives.  True: P is to be changed. */
__noinline int has_shape(struct __sk_buff *skb, const struct packet *p)
{
	struct graft_shape *at, *kept = kept_shape();
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	bool has = false;

	if (!p || !kept)
		return false;
	kept->stock = 0;
	sk = look_up(skb, &p->tuple, p->ipv6);
	if (!sk)
		return false;
	at = bpf_sk_storage_get(&shapes, sk, NULL, 0);
	if (at && p->flags & ACK) {
		at->ecn_answered = at->ecn == GRAFT_ECN_ASK && (p->flags & (ECE | CWR)) == ECE;
	} else if (at && sk->state == BPF_TCP_LISTEN) {
		*kept = *at;
		tp = bpf_skc_to_tcp_sock(sk);
		has = tp && (at->no_timestamps || at->ecn) && !makes_cookies(tp);
	}
	bpf_sk_release(sk);
	return has;
}

/*
 * True: P has met congestion, and its socket would not hear of it: the socket has no ECN, but its
 * remote end has.  That is so if the program has asked for ECN, or if the socket was made anew.
 * The caller drops P, which slows the sender down, too.
 */
__noinline int is_deaf(struct __sk_buff *skb, const struct packet *p, __u32 ecn)
{
	const struct graft_shape *shape;
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	bool deaf = false;

	if (!p)
		return false;
	sk = look_up(skb, &p->tuple, p->ipv6);
	if (!sk)
		return false;
	shape = bpf_sk_storage_get(&shapes, sk, NULL, 0);
	tp = bpf_skc_to_tcp_sock(sk);
	if (tp && (ecn || (shape && shape->ecn_answered)))
		deaf = !(tp->ecn_flags & ECN_OK);
	bpf_sk_release(sk);
	return deaf;
}
