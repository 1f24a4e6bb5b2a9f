// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet programs: they join the two TCP connections of a session, or both legs of a flow of
 * UDP.  include/graft_contract.h has the states, and the writer of each field; docs/design.md
 * ("Graft") the whole story.
 *
 * Theory of operation
 *   - The daemon runs graft_offer (BPF_PROG_TEST_RUN) when it holds no byte of the session.
 *     graft_offer notes both sockets' sequence numbers, from which all offsets follow.  The daemon
 *     then enters both tuples in `tuples`.
 *   - graft_in sees arriving packets.  While a session is OFFERED, graft_in looks at both sockets.
 *     A packet may be the first translated one if neither socket has unread, unsent or
 *     unacknowledged bytes.  The programs must also have seen packets of both sockets, entering and
 *     leaving.  No socket lock is needed: each number only grows, and has a bound, which it has
 *     reached when the check succeeds.  graft_begin.h has the code; docs/design.md ("The first
 *     translated packet") has the proof.
 *   - From then on graft_in translates addresses, ports, sequence and acknowledgement numbers,
 *     windows and options, and sends the packet to the other end: graft_work.h, graft_translate.h.
 *   - graft_out sees leaving packets, and learns the way from them.  Of the packets of frozen
 *     sockets only probes and resets may leave.  Any other packet is dropped, or turned into an
 *     answer to its socket.
 *   - A packet that cannot be translated sends its session back to its sockets:
 *     graft_return_kill.h.
 *   - graft_udp.h does the same for UDP, which is simpler.
 *   - A packet that we send carries a mark in skb->cb, so that graft_out lets it go.
 *
 * Memory order.  g->head.state is changed by atomic operations with a result, which are full
 * barriers: whoever sees ACTIVE sees the offsets.  A "tracked" field may lack the packets that
 * other CPUs have in hand.
 */
#include "graft_begin.h"
#include "graft_decide.h"
#include "graft_from_syn.h"
#include "graft_icmp.h"
#include "graft_packet.h"
#include "graft_return_kill.h"
#include "graft_syn.h"
#include "graft_translate.h"
#include "graft_udp.h"
#include "graft_work.h"

/* --- what arrives --- */

/*
 * Another connection has a tuple of G's session, which is over.  WAS: of `over`.  The daemon may
 * give the slot back meanwhile.  Then the swap fails, and the next packet sets GRAFT_ANEW.
 */
static __always_inline void forget(struct graft_entry *g, __u32 was)
{
	__sync_val_compare_and_swap(&g->over, was, GRAFT_ANEW);
}

/*
 * Find the session of P, which has arrived or LEAVES.  A SYN finds none that is over: it begins a new
 * connection.  A SYN that leaves shows that the socket of a RETURNED session is closed, even if the
 * daemon has not given the slot back.
 */
static __always_inline bool find_session(const struct packet *p, struct found *f, bool leaves)
{
	__u32 state, over;

	if (!find(&p->tuple, p->ipv6, f))
		return false;
	state = READ_ONCE(f->g->head.state);
	over = READ_ONCE(f->g->over);
	if (!(p->flags & SYN) || (state != GRAFT_DONE && state != GRAFT_CLOSED &&
				  (state != GRAFT_RETURNED || (!over && !leaves))))
		return true;
	forget(f->g, over);
	return false;
}

static __always_inline __u32 state_of(const struct graft_entry *g)
{
	return READ_ONCE(g->head.state) & GRAFT_STATE_MASK;
}

/*
 * True: P goes to its own socket.  GRAFT_FREE is 0, with which try_offer() and try_return() also
 * say "drop P".  So to_socket() drops P in FREE, unless the entry really is FREE.
 */
static __always_inline bool is_for_socket(__u32 state)
{
	return state == GRAFT_FREE || state == GRAFT_OFFERED || state == GRAFT_RETURNED;
}

static __always_inline int to_socket(struct __sk_buff *skb, struct found *f, struct packet *p,
				     __u32 state)
{
	if (state == GRAFT_FREE)
		return READ_ONCE(f->g->head.state) ? DROP : PASS;
	if (p->ce && is_deaf(skb, p, f->mine->ecn))
		return DROP;
	if (state == GRAFT_OFFERED && !f->g->shifted)
		return PASS;
	if (diff(p->ack, f->mine->frozen_write + f->mine->back_write) > 0)
		p->ack = f->mine->frozen_write + f->mine->back_write; /* see look_back() */
	return shift(skb, f->mine, p, false);
}

/* P is translated, or its session goes back to its sockets. */
static __always_inline int to_work(struct __sk_buff *skb, struct found *f, struct packet *p,
				   __u32 state)
{
	if (!f->other->way.mtu) /* of another relay, and there is no route */
		return DROP;
	p->odd = hindrance_for(skb, f, p);
	if (p->odd) /* a session that is half open has nothing to go back to */
		return state == GRAFT_ANSWERED ? DROP : go_back(skb, f, p);
	/* an odd packet was dropped: drop later ones, or the session could not return */
	if (state != GRAFT_ACTIVE && f->g->why_back && !(p->flags & (SYN | RST)) &&
	    diff(p->seq, (__u32)f->mine->end) > 0)
		return DROP;
	state = return_if_better(f, p, state);
	if (state == GRAFT_RETURNING || state == GRAFT_LOCKED_2) {
		state = try_return(skb, p, f->slot, f->side);
		if (state == GRAFT_RETURNED && f->g->why_back >= GRAFT_FAR && !p->len)
			state = GRAFT_STATES; /* no socket gets P: see unleash() */
	}
	return is_for_socket(state) ? to_socket(skb, f, p, state) : pass_on(skb, f, p, state);
}

static __always_inline int arrived(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	__u32 state = state_of(f->g);
	bool here = state != GRAFT_STANDBY || is_here(&f->mine->tuple, &f->g->side[0].tuple);
	enum graft_arrival to;

	if (state == GRAFT_STANDBY && here) {
		__sync_val_compare_and_swap(&f->g->head.state, GRAFT_STANDBY, GRAFT_ACTIVE);
		state = state_of(f->g);
	}
	to = graft_arrival(state, here, f->g->killed,
			   state != GRAFT_CLOSED || is_inside(p, f->g, f->mine, f->other));
	if (to == GRAFT_TO_HANDSHAKE) {
		int r = syn_answered(skb, p, f->slot, f->side);

		if (r != SYN_TAKEN)
			return r;
		state = GRAFT_ANSWERED;
		to = GRAFT_TO_WORK;
	}
	if (to == GRAFT_TO_LOOK) {
		p->odd = p->odd ?: hindrance_in(skb);
		state = try_offer(skb, p, f->slot, f->side);
		to = is_for_socket(state) ? GRAFT_TO_SOCKET : GRAFT_TO_WORK;
	}
	switch (to) {
	case GRAFT_TO_WORK:
		return to_work(skb, f, p, state);
	case GRAFT_TO_SOCKET:
		return to_socket(skb, f, p, state);
	case GRAFT_TO_SHIFTED:
		return shift(skb, f->mine, p, false);
	case GRAFT_TO_NOWHERE:
		return DROP;
	case GRAFT_TO_FORGET: /* P may be of another relay's connection: the stack answers */
		forget(f->g, GRAFT_GIVEN_BACK);
		return PASS;
	default:
		return PASS; /* the stack sends it on as a router does, to the session's relay */
	}
}

static __always_inline int in(struct __sk_buff *skb, __u32 l2)
{
	struct packet p;
	struct found f;
	int r;

	if (is_kind(skb, TO_NOBODY))
		return DROP;
	if (is_kind(skb, TO_SOCKET)) {
		skb->mark = 0;
		bpf_skb_change_type(skb, PACKET_TO_US); /* it was on its way out */
		return PASS;
	}
	if (graft_bridged && interface_is(skb->ifindex, GRAFT_IF_BRIDGE))
		return PASS;
	/* TCP ignores these, too: promiscuous devices see others' packets, and copies of ours */
	if (is_kind(skb, REMADE))
		bpf_skb_change_type(skb, PACKET_TO_US);
	else if (skb->pkt_type != PACKET_TO_US &&
		 !(graft_bridged && interface_is(skb->ifindex, GRAFT_IF_PORT)))
		return PASS;
	if (!parse(skb, l2, &p))
		return not_ours(skb, l2);
	if (is_udp(&p))
		return udp_in(skb, &p);
	if (!find_session(&p, &f, false)) {
		if (p.ce && is_deaf(skb, &p, 0))
			return DROP;
		if (!(p.flags & SYN))
			return PASS;
		r = syn_arrived(skb, &p, !is_kind(skb, REMADE));
		if (r < SYN_TAKEN || !find_slot(r - SYN_TAKEN, 0, &f))
			return r;
	}
	return arrived(skb, &f, &p);
}

/* --- what leaves --- */

/*
 * Turn P, a packet of the frozen socket of S, into an answer to that socket, with ACK and FLAGS.
 * The stack has left P's checksum to the device, so nobody verifies it.
 */
__noinline int give_back(struct __sk_buff *skb, const struct packet *p, const struct graft_side *s,
			 __u32 ack, __u32 flags)
{
	__u32 len, l3, *words;
	struct scratch *at = my_scratch();
	struct tcphdr *t;

	if (!p || !s || !at)
		return DROP;
	l3 = p->l3 & L3_BITS;
	len = p->header == 32 ? 32 : 20;
	if (p->odd || p->l4 != l3 + ip_len(s->ipv6) || bpf_skb_load_bytes(skb, p->l4, at->was, len))
		return DROP;
	words = (void *)at->was;
	if (words[5] == TIMESTAMP_WORD) { /* a header of 20 bytes ends before these words */
		words[6] = words[7];
		words[7] = 0; /* or the socket would measure a round trip to this machine itself */
	} else {              /* SACK: NOP instead */
		words[5] = words[6] = words[7] = bpf_htonl(0x01010101);
	}
	t = (void *)at->was;
	t->source = p->tuple.remote_port;
	t->dest = p->tuple.local_port;
	t->seq = bpf_htonl(s->frozen_read);
	t->ack_seq = bpf_htonl(ack);
	at->was[12] = len << 2;
	at->was[13] = flags;
	t->urg_ptr = 0;
	fill_ip(at->is, &s->leg, true, IPPROTO_TCP, len, 0, OWN_TTL);
	if (bpf_skb_change_tail(skb, p->l4 + len, 0) ||
	    bpf_skb_store_bytes(skb, l3, at->is, ip_len(s->ipv6), 0) ||
	    bpf_skb_store_bytes(skb, p->l4, at->was, len, 0))
		return DROP;
	set_kind(skb, TO_SOCKET);
	/*
	 * A second ACK says that both the segment and its probe have arrived.  After one ACK alone
	 * tcp_process_tlp_ack() would take the segment for lost, and halve the window (Linux 6.18).
	 */
	if (p->len && skb->ifindex != LOOPBACK)
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	/* on loopback P keeps its route, without which 127.0.0.0/8 is martian */
	return skb->ifindex == LOOPBACK ? PASS : bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/*
 * Has the remote end been heard since the frozen socket probed it last (SO_KEEPALIVE)?  Then the
 * socket is told so, and it asks again after its interval.
 */
static __always_inline bool is_heard(struct graft_side *mine)
{
	bool heard = mine->heard_ns >= mine->probed_ns;

	mine->probed_ns = bpf_ktime_get_coarse_ns();
	return heard;
}

/*
 * Let P, a keepalive probe or a reset, go out with the numbers of the wire.  If the remote end is
 * there it answers a probe, and is heard; if not, the frozen socket gives up as any other.
 *
 * Linux 6.18 does not answer a probe with an old timestamp.  If another relay has served the
 * session, the last timestamp is not known, so the program guesses: 1,000 ticks a second since the
 * other end was heard.  A timestamp that is ahead does no harm: the probe's number is not in the
 * window, so nobody remembers the timestamp.
 */
static __always_inline int let_out(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	struct change c = { .source = mine->tuple.local_port, .dest = mine->tuple.remote_port };
	__u32 ts[2], tsval = mine->tsval_sent;

	c.seq_add = (__u32)other->end + other->seq_add - !(p->flags & RST) - p->seq;
	c.ack_add = (__u32)mine->end - p->ack;
	if (f->g->loose || f->g->head.mirrored)
		tsval += graft_clock((__u32)(bpf_ktime_get_ns() >> GRAFT_CLOCK_SHIFT) -
				     (__u32)(other->heard_ns >> GRAFT_CLOCK_SHIFT));
	if (timestamp_of(skb, p, ts) && diff(tsval, ts[0]) > 0)
		c.tsval_add = tsval - ts[0];
	return change_alone(skb, p, &c);
}

/*
 * A packet of a frozen socket.
 *   - Bytes that the first translated packet has acknowledged: the socket gets an ACK.
 *   - A keepalive probe: the same; but the probe goes out if the remote end is silent.
 *   - FIN: the daemon died.  The socket gets a reset, so that the next daemon can make it anew.
 *   - SYN: a new socket was given the same tuple.  The SYN is refused.
 *   - RST: the socket has died (ss -K, or keepalive gives up), and the reset goes out; but it is dropped
 *     if the session is over, or another relay knows the session: it may go on there.
 */
static __always_inline int of_frozen(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	__u32 ack = f->mine->frozen_write;

	if (p->flags & SYN)
		return give_back(skb, p, f->mine, p->seq + 1, RST | ACK);
	if (p->flags & RST)
		return f->g->ended_ns || f->g->head.mirrored || f->g->head.worker == GRAFT_NOBODY ?
			       DROP :
			       let_out(skb, f, p);
	if (!p->len && !(p->flags & FIN) && diff(p->seq, ack) >= 0)
		return DROP;
	if (!p->len && !(p->flags & FIN) && p->seq == ack - 1 && !is_heard(f->mine))
		return let_out(skb, f, p);
	if (diff(end_of(p), ack) > 0)
		ack = end_of(p);
	return give_back(skb, p, f->mine, ack, p->flags & FIN ? RST | ACK : ACK);
}

/*
 * Hold: the right edge of the window that our socket offers stays where it is.  The sender runs
 * dry, without loss, and the session is quiet for a moment.  The program itself ends the hold,
 * after GRAFT_HOLD_MS: the daemon may get no event, or may be stopped.  After the hold, the answer
 * to the sender's next window probe has the real window.
 */
static __always_inline void hold(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	struct graft_side *mine = f->mine;
	__u32 shift = mine->read_shift & 15, edge = p->ack + ((__u32)p->window << shift), room;
	__u16 was = bpf_htons(p->window), is;

	if (!f->g->hold || (__u32)(bpf_ktime_get_ns() / 1000000) - f->g->held_ms >= GRAFT_HOLD_MS ||
	    !(p->flags & ACK) || p->flags & (SYN | RST | FIN))
		return;
	if (!mine->has_edge) {
		mine->edge = edge;
		mine->has_edge = 1;
	}
	room = diff(mine->edge, p->ack) > 0 ? mine->edge - p->ack : 0;
	is = bpf_htons(room >> shift);
	if (room >> shift >= p->window)
		return;
	bpf_skb_store_bytes(skb, p->l4 + 14, &is, sizeof(is), 0);
	bpf_l4_csum_replace(skb, p->l4 + 16, was, is, 2);
	p->window = room >> shift;
}

/*
 * The state in which a leaving packet finds its session; GRAFT_STATES: drop the packet.  A leaving
 * packet has an ACK.  A packet that checks just now may have read the socket's numbers before that
 * ACK.  So the leaving packet changes the count of LOCKED, and the check fails.  In OFFERED the
 * barrier shows the new numbers to the next packet that checks.
 */
static __always_inline __u32 state_for_leaving(struct graft_entry *g)
{
	for (int i = 0; i < 32; i++) {
		__u32 state = READ_ONCE(g->head.state);

		if (state == GRAFT_OFFERED)
			state = __sync_fetch_and_add(&g->head.state, 0);
		if ((state & GRAFT_STATE_MASK) != GRAFT_LOCKED)
			return state & GRAFT_STATE_MASK;
		if (__sync_val_compare_and_swap(&g->head.state, state, state + GRAFT_PASSED_ONE) ==
		    state)
			return GRAFT_LOCKED;
	}
	return GRAFT_STATES;
}

/* P, of a socket at work, shows the way.  If several interfaces send P, the first one counts. */
static __always_inline void note_leaving(struct __sk_buff *skb, struct found *f,
					 const struct packet *p)
{
	__u32 end = end_of(p);

	if (p->odd)
		return;
	if (!p->len && end + 1 == f->mine->base_write)
		end++; /* a keepalive probe */
	if (diff(end, f->mine->left) > 0 || f->mine->way.ways != graft_ways)
		learn_way(skb, p, &f->mine->way);
	grow_32(&f->mine->left, end);
}

static __always_inline int leaves(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	if (f->g->killed)
		return shift(skb, f->mine, p, true);
	switch (state_for_leaving(f->g)) {
	case GRAFT_STATES:
		return DROP;
	case GRAFT_FREE:
		return PASS;
	case GRAFT_OFFERED:
	case GRAFT_LOCKED:
		note_leaving(skb, f, p);
		hold(skb, f, p);
		if (!f->g->shifted)
			return PASS;
		__attribute__((fallthrough));
	case GRAFT_RETURNED:
		grow_32(&f->mine->frozen_write, end_of(p));
		return shift(skb, f->mine, p, true);
	case GRAFT_STANDBY: /* answers of the stack, and packets of closed sockets */
	case GRAFT_SETTING:
	case GRAFT_TAKEN:
	case GRAFT_SYN_SENT:
	case GRAFT_ANSWERED:
		return p->flags & SYN ? of_frozen(skb, f, p) : DROP;
	default:
		if (f->mine->way.ways != graft_ways)
			learn_way(skb, p, &f->mine->way);
		return of_frozen(skb, f, p);
	}
}

/*
 * DROP on the way out looks like congestion: __tcp_transmit_skb() calls tcp_enter_cwr().  Bulk that
 * returns to the socket would begin with half of its window.  DROP on the way in is silent.
 */
static __always_inline int swallow(struct __sk_buff *skb)
{
	set_kind(skb, TO_NOBODY);
	return skb->ifindex == LOOPBACK ? PASS : bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Does a socket of P's tuple wait for SYN-ACK?  It resets an earlier connection of the server. */
static __always_inline bool is_connecting(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock *sk = look_up(skb, &p->tuple, p->ipv6);
	bool is = sk && sk->state == BPF_TCP_SYN_SENT;

	if (sk)
		bpf_sk_release(sk);
	return is;
}

static __always_inline int out(struct __sk_buff *skb, __u32 l2)
{
	struct packet p;
	struct found f;

	if (is_kind(skb, SENT) || !parse(skb, l2, &p))
		return PASS;
	reverse(&p);
	if (is_udp(&p))
		return udp_out(skb, &p);
	if (find_session(&p, &f, true)) {
		int to = leaves(skb, &f, &p);

		return to == DROP ? swallow(skb) : to;
	}
	if (p.flags & SYN) {
		note_handshake(skb, &p, true);
		return p.flags & ACK ? PASS : shape_leaving(skb, &p);
	}
	/* a reset of the stack, not of a socket: the connection may be another relay's */
	if ((p.flags & (RST | ACK)) == RST && !skb->ingress_ifindex &&
	    (graft_unsynced[p.tuple.local_port] & GRAFT_PORT_LISTENS ||
	     graft_unsynced[p.tuple.remote_port] & GRAFT_PORT_SERVER) &&
	    !is_connecting(skb, &p))
		return DROP;
	return PASS;
}

/* --- entry points: devices with an Ethernet header, and those without --- */

SEC("tc")
int graft_offer(struct __sk_buff *skb)
{
	struct graft_request q;
	struct graft_entry *g;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &q, sizeof(q)))
		return GRAFT_BAD_REQUEST;
	g = bpf_map_lookup_elem(&grafts, &q.slot);
	if (!g)
		return GRAFT_BAD_REQUEST;
	switch (q.op) {
	case GRAFT_KILL:
		return kill(g);
	case GRAFT_WAYS:
		return judge_way(skb, &g->side[0]) ?: judge_way(skb, &g->side[1]);
	case GRAFT_ROUTES:
		return count_routes();
	case GRAFT_STRAYS:
		return look_for_stray(skb, &g->side[0]) ?: look_for_stray(skb, &g->side[1]);
	case GRAFT_SOCKETS:
		return is_connected(skb, &g->side[0]) || is_connected(skb, &g->side[1]) ?
			       GRAFT_IN_HAND :
			       GRAFT_OK;
	}
	return offer(skb, &q, g);
}

SEC("tc")
int graft_in(struct __sk_buff *skb)
{
	return in(skb, ETH_HLEN);
}

SEC("tc")
int graft_out(struct __sk_buff *skb)
{
	return out(skb, ETH_HLEN);
}

SEC("tc")
int graft_in_l3(struct __sk_buff *skb)
{
	return in(skb, 0);
}

SEC("tc")
int graft_out_l3(struct __sk_buff *skb)
{
	return out(skb, 0);
}

char _license[] SEC("license") = "Dual BSD/GPL";
