// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The packet programs: they join the two TCP connections of a session.  include/graft.h has the
 * states and who writes what; docs/design.md ("Graft") the whole story.
 *
 * Theory of operation
 *   - graft_offer is run by the daemon (BPF_PROG_TEST_RUN) when it has none of the session's bytes
 *     in its hands.  It notes both sockets' sequence numbers, from which all offsets follow, and
 *     enters both tuples in `flows`.
 *   - graft_in sees what arrives on an interface.  While a session is OFFERED it looks at both
 *     sockets: if neither has anything unread, unsent or unacknowledged, this very packet may be
 *     the first one that is translated.  Each of the numbers looked at only grows, and is at its
 *     bound when they are all equal, so no socket lock is needed.
 *   - From then on graft_in translates addresses, ports, sequence and acknowledgement numbers,
 *     windows and options, and sends the packet to the other end.
 *   - graft_out sees what leaves.  The frozen sockets' packets do not: they are dropped, or given
 *     back as the ACK that the socket waits for.
 *   - What was sent by us carries a mark in skb->cb, so that graft_out lets it go.
 *
 * Memory order.  g->state is changed by compare-and-swap alone, which is a full barrier: whoever
 * sees ACTIVE sees the offsets.  What is "tracked" may be behind by the packets that other CPUs have
 * in hand.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "culvert_graft.h"
#include "vmlinux.h"

#define PASS TC_ACT_UNSPEC /* to the next program, or to the stack: TCX_NEXT is the same */
#define DROP TC_ACT_SHOT

#define ESTABLISHED 1
#define PACKET_TO_US 0 /* PACKET_HOST */
#define LOOPBACK 1 /* ifindex in each network namespace */

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10

#define TCP_HEADER_MAX 60
#define OPTIONS_MAX (TCP_HEADER_MAX - 20)
/* NOP, NOP, and the header of a timestamp option: what nearly each segment begins with. */
#define TIMESTAMP_WORD bpf_htonl(0x0101080a)
#define OPTION_TIMESTAMP 8
#define OPTION_SACK 5

/*
 * skb->cb of what we have sent, and of what we give back to a socket; skb->mark of our resets.  The
 * next program of the hook may be that of another daemon, whose packet it is: so nothing is erased.
 */
#define OURS 0x67726166
#define SENT 0x74656421
#define TO_SOCKET 0x74656422
#define MARK_RESET 0x67726132

/* Linux 6.16; older kernels refuse it with EINVAL. */
#define CSUM_IPV6 (1ULL << 7)

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))

/* map sizes are placeholders: the daemon sets them before it loads */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct graft_entry);
} grafts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__type(key, struct graft_tuple);
	__type(value, struct graft_place);
} flows SEC(".maps");

/* Interfaces that both programs are attached to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

struct graft_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct graft_ring);
} graft_rings SEC(".maps");

/*
 * A TCP header; the rest is for what the verifier cannot see that no option reaches.  The walk over
 * the options is here and not on the stack, whose values the verifier would follow through each step.
 */
struct scratch {
	__u8 was[64] __attribute__((aligned(8))), is[64 + 36] __attribute__((aligned(8)));
	__u32 at, header;
	__u32 edges; /* bytes of SACK blocks that follow */
	__u32 erase; /* bytes that become NOPs */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

__u64 graft_events_lost; /* the ring was full: the states say it all */
__u64 graft_outside;     /* packets dropped because they are not in the window */

static __s32 diff(__u32 a, __u32 b)
{
	return (__s32)(a - b);
}

static __always_inline bool is_kind(const struct __sk_buff *skb, __u32 kind)
{
	return skb->cb[3] == OURS && skb->cb[4] == kind;
}

static __always_inline void set_kind(struct __sk_buff *skb, __u32 kind)
{
	skb->cb[3] = OURS;
	skb->cb[4] = kind;
}

static void tell(const struct graft_entry *g, __u32 slot, __u32 kind)
{
	struct graft_event ev = { .slot = slot, .kind = kind, .id = g->id };
	__u32 worker = g->worker;
	void *ring = bpf_map_lookup_elem(&graft_rings, &worker);

	if (!ring || bpf_ringbuf_output(ring, &ev, sizeof(ev), 0))
		__sync_fetch_and_add(&graft_events_lost, 1);
}

/* --- a packet --- */

/* For the verifier, which forgets what it knew of the two offsets once they are in memory. */
#define L3_BITS 15
#define L4_BITS 63

struct packet {
	struct graft_tuple tuple; /* of a packet that arrives; see reverse() */
	__u32 l3, l4;             /* offsets of the headers */
	__u32 seq, ack;
	__u32 len;    /* of payload */
	__u16 window;
	__u8 header; /* bytes of the TCP header */
	__u8 flags;
	__u8 ipv6;
	__u8 ttl;
};

static __u32 end_of(const struct packet *p)
{
	return p->seq + p->len + (p->flags & FIN);
}

static __always_inline bool parse_addresses(struct packet *p, void *at, void *end, __u32 *ret_total)
{
	if (!p->ipv6) {
		struct iphdr *ip = at;

		if ((void *)(ip + 1) > end || *(__u8 *)ip != 0x45 || ip->protocol != IPPROTO_TCP ||
		    ip->frag_off & bpf_htons(0x3fff))
			return false;
		p->tuple.remote.w[2] = p->tuple.local.w[2] = bpf_htonl(0xffff);
		p->tuple.remote.w[3] = ip->saddr;
		p->tuple.local.w[3] = ip->daddr;
		p->ttl = ip->ttl;
		*ret_total = bpf_ntohs(ip->tot_len);
	} else {
		struct ipv6hdr *ip = at;

		if ((void *)(ip + 1) > end || *(__u8 *)ip >> 4 != 6 || ip->nexthdr != IPPROTO_TCP)
			return false;
		__builtin_memcpy(&p->tuple.remote, &ip->saddr, sizeof(p->tuple.remote));
		__builtin_memcpy(&p->tuple.local, &ip->daddr, sizeof(p->tuple.local));
		p->ttl = ip->hop_limit;
		*ret_total = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	}
	return true;
}

/*
 * False: not a packet that could be of a graft, or none that the stack would take.  An accelerated
 * VLAN tag means that the packet is for another device than this one, which will see it again.  GSO
 * packets above 64 KiB (BIG TCP) have no total length, or none that fits.
 */
static __always_inline bool parse(struct __sk_buff *skb, __u32 l2, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *t;
	__u32 total;

	if (skb->vlan_present)
		return false;
	__builtin_memset(p, 0, sizeof(*p));
	p->l3 = l2;
	p->ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (!p->ipv6 && skb->protocol != bpf_htons(ETH_P_IP))
		return false;
	p->l4 = l2 + (p->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
	if (data + p->l4 + sizeof(*t) > end) {
		if (skb->len < p->l4 + sizeof(*t) || bpf_skb_pull_data(skb, p->l4 + sizeof(*t)))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		if (data + p->l4 + sizeof(*t) > end)
			return false;
	}
	if (!parse_addresses(p, data + l2, end, &total))
		return false;
	t = data + p->l4;
	if ((void *)(t + 1) > end)
		return false;
	p->tuple.remote_port = t->source;
	p->tuple.local_port = t->dest;
	p->seq = bpf_ntohl(t->seq);
	p->ack = bpf_ntohl(t->ack_seq);
	p->window = bpf_ntohs(t->window);
	p->flags = ((__u8 *)t)[13];
	p->header = (((__u8 *)t)[12] >> 4) * 4;
	if (skb->len - l2 > 65535)
		total = skb->len - l2;
	if (p->header < sizeof(*t) || total < p->l4 - l2 + p->header || total > skb->len - l2)
		return false;
	p->len = total - (p->l4 - l2) - p->header;
	return true;
}

/* As if the packet, which leaves, had arrived from where it goes to. */
static __always_inline void reverse(struct packet *p)
{
	struct graft_addr a = p->tuple.remote;
	__u16 port = p->tuple.remote_port;

	p->tuple.remote = p->tuple.local;
	p->tuple.local = a;
	p->tuple.remote_port = p->tuple.local_port;
	p->tuple.local_port = port;
}

static __always_inline bool same_tuple(const struct graft_tuple *a, const struct graft_tuple *b)
{
	__u32 other = 0;

	for (int i = 0; i < 4; i++)
		other |= (a->remote.w[i] ^ b->remote.w[i]) | (a->local.w[i] ^ b->local.w[i]);
	return !other && a->remote_port == b->remote_port && a->local_port == b->local_port;
}

struct found {
	struct graft_entry *g;
	struct graft_side *mine, *other; /* of the packet's side */
	__u32 slot;
	__u32 side;
};

/*
 * False: P belongs to no graft.  An entry may be old, and its slot another session's.  An IPv6 header
 * with IPv4-mapped addresses is not of an IPv4 session.
 */
static __always_inline bool find(const struct graft_tuple *t, bool ipv6, struct found *f)
{
	struct graft_place *place = bpf_map_lookup_elem(&flows, t);

	if (!place)
		return false;
	f->slot = place->slot;
	f->side = place->side & 1;
	f->g = bpf_map_lookup_elem(&grafts, &f->slot);
	if (!f->g)
		return false;
	f->mine = f->side ? &f->g->side[1] : &f->g->side[0];
	f->other = f->side ? &f->g->side[0] : &f->g->side[1];
	return f->mine->ipv6 == ipv6 && same_tuple(&f->mine->tuple, t);
}

/* --- the sockets --- */

static __always_inline struct bpf_sock *look_up(struct __sk_buff *skb, const struct graft_side *s)
{
	struct bpf_sock_tuple t = { 0 };

	if (s->ipv6) {
		__builtin_memcpy(t.ipv6.saddr, &s->tuple.remote, sizeof(t.ipv6.saddr));
		__builtin_memcpy(t.ipv6.daddr, &s->tuple.local, sizeof(t.ipv6.daddr));
		t.ipv6.sport = s->tuple.remote_port;
		t.ipv6.dport = s->tuple.local_port;
		return bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	t.ipv4.saddr = s->tuple.remote.w[3];
	t.ipv4.daddr = s->tuple.local.w[3];
	t.ipv4.sport = s->tuple.remote_port;
	t.ipv4.dport = s->tuple.local_port;
	return bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/*
 * What is needed of one socket, and no more: graft_in, try_offer, look and see share 512 bytes of
 * stack, of which Linux 6.1 gives each a multiple of 32.
 */
struct seen {
	__u64 received; /* bytes of payload since the connection began */
	__u32 rcv_nxt, copied, rcv_wup, snd_una, snd_nxt, write_seq, snd_wnd, max_window, clock, ts_recent;
};

/* TSval that the socket would send now: never less than one that it has sent. */
static __always_inline __u32 clock_of(const struct tcp_sock *tp)
{
	__u64 now = bpf_ktime_get_ns(), last = tp->tcp_wstamp_ns;
	__u32 unit = 1000000;

	if (bpf_core_field_exists(tp->tcp_usec_ts) && BPF_CORE_READ_BITFIELD(tp, tcp_usec_ts))
		unit = 1000;
	return (__u32)((now > last ? now : last) / unit) + tp->tsoffset;
}

__noinline int see(struct __sk_buff *skb, const struct graft_side *s, struct seen *r)
{
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	bool unordered;
	__u8 state;

	if (!s || !r)
		return GRAFT_LOOK_GONE;
	sk = look_up(skb, s);
	if (!sk)
		return GRAFT_LOOK_GONE;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp) {
		bpf_sk_release(sk);
		return GRAFT_LOOK_GONE;
	}
	state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	r->rcv_nxt = tp->rcv_nxt;
	r->copied = tp->copied_seq;
	r->rcv_wup = tp->rcv_wup;
	r->snd_una = tp->snd_una;
	r->snd_nxt = tp->snd_nxt;
	r->write_seq = tp->write_seq;
	r->snd_wnd = tp->snd_wnd;
	r->max_window = tp->max_window;
	r->received = tp->bytes_received;
	unordered = tp->out_of_order_queue.rb_node != NULL;
	r->ts_recent = tp->rx_opt.ts_recent;
	r->clock = clock_of(tp);
	bpf_sk_release(sk);
	if (state != ESTABLISHED)
		return GRAFT_LOOK_CLOSED;
	return unordered ? GRAFT_LOOK_ORDER : GRAFT_LOOK_OK;
}

/* --- offer --- */

/* What must fit of one connection to the other. */
struct traits {
	__u32 mss, advmss, max_window, ifindex, mark, copied, rcv_nxt, write_seq;
	__u8 timestamps, sack, ecn, mptcp, snd_shift, rcv_shift;
};

/* The largest segment, with options, that gets to the peer, which is willing to take it. */
static __always_inline __u32 mss_of(const struct tcp_sock *tp, bool ipv6)
{
	/* not mss_cache, which is never more than half of the peer's window: 32 KiB at first */
	__u32 clamp = tp->rx_opt.mss_clamp;
	__u32 mtu = tp->inet_conn.icsk_pmtu_cookie - (ipv6 ? 60 : 40);

	return mtu < clamp ? mtu : clamp;
}

__noinline int traits_of(struct __sk_buff *skb, const struct graft_side *s, struct traits *r)
{
	struct bpf_sock *sk;
	struct tcp_sock *tp;
	struct dst_entry *dst;
	__u8 state;

	if (!s || !r)
		return GRAFT_NO_SOCKET;
	sk = look_up(skb, s);
	if (!sk)
		return GRAFT_NO_SOCKET;
	tp = bpf_skc_to_tcp_sock(sk);
	if (!tp) {
		bpf_sk_release(sk);
		return GRAFT_NO_SOCKET;
	}
	state = tp->inet_conn.icsk_inet.sk.__sk_common.skc_state;
	r->mss = mss_of(tp, s->ipv6);
	r->advmss = tp->advmss;
	r->max_window = tp->max_window;
	r->copied = tp->copied_seq;
	r->rcv_nxt = tp->rcv_nxt;
	r->write_seq = tp->write_seq;
	r->timestamps = BPF_CORE_READ_BITFIELD(tp, rx_opt.tstamp_ok);
	r->sack = BPF_CORE_READ_BITFIELD(tp, rx_opt.sack_ok) != 0;
	r->snd_shift = BPF_CORE_READ_BITFIELD(tp, rx_opt.snd_wscale);
	r->rcv_shift = BPF_CORE_READ_BITFIELD(tp, rx_opt.rcv_wscale);
	r->ecn = tp->ecn_flags;
	r->mptcp = 0;
	if (bpf_core_field_exists(tp->is_mptcp))
		r->mptcp = tp->is_mptcp;
	r->mark = tp->inet_conn.icsk_inet.sk.sk_mark;
	dst = tp->inet_conn.icsk_inet.sk.sk_dst_cache;
	r->ifindex = dst && dst->dev ? dst->dev->ifindex : 0;
	bpf_sk_release(sk);
	return state == ESTABLISHED ? GRAFT_OK : GRAFT_CLOSING;
}

#define ECN_OK 0x01        /* TCP_ECN_OK */
#define ECN_ACCURATE 0x10  /* TCP_ECN_MODE_ACCECN, since Linux 6.18: it counts, end to end */

static __always_inline int fit(const struct traits *a, const struct traits *b)
{
	if (a->timestamps != b->timestamps)
		return GRAFT_TIMESTAMPS;
	if ((a->ecn & ECN_OK) != (b->ecn & ECN_OK) ||
	    (a->ecn & ECN_OK && (a->ecn | b->ecn) & ECN_ACCURATE))
		return GRAFT_ECN;
	if (a->mptcp || b->mptcp)
		return GRAFT_MPTCP;
	if (a->advmss > b->mss || b->advmss > a->mss)
		return GRAFT_MSS;
	/*
	 * A sender's segments are never more than half of the window that it knows, so far ours.  To a
	 * receiver without a window scale that is given more than it has offered, Linux may never offer
	 * anything again: it rounds its window down to such segments.
	 */
	if (a->advmss > b->max_window || b->advmss > a->max_window)
		return GRAFT_WINDOW;
	if (!bpf_map_lookup_elem(&interfaces, &a->ifindex) ||
	    !bpf_map_lookup_elem(&interfaces, &b->ifindex))
		return GRAFT_INTERFACE;
	return GRAFT_OK;
}

/* Numbers to add are those of the wire, all others those of the socket. */
static __always_inline void set_up(struct graft_side *s, const struct graft_side *o,
				   const struct traits *own, const struct traits *other)
{
	s->ifindex = own->ifindex;
	s->mark = own->mark;
	s->base_read = own->copied;
	s->base_write = own->write_seq;
	s->passed = own->rcv_nxt;
	s->has_edge = 0;
	s->seq_add = other->write_seq + o->back_write - own->copied - s->back_read;
	s->ack_add = other->copied + o->back_read - own->write_seq - s->back_write;
	s->window_left = own->snd_shift;
	s->window_right = other->rcv_shift;
	s->read_shift = own->rcv_shift;
	s->timestamps = own->timestamps;
	s->no_sack = own->sack && !other->sack;
}

static __always_inline bool is_ipv4(const struct graft_addr *a)
{
	return !a->w[0] && !a->w[1] && a->w[2] == bpf_htonl(0xffff);
}

/* What the slot's last session has left in `flows`. */
static __always_inline void forget(struct graft_entry *g, __u32 slot)
{
	for (int i = 0; i < 2; i++) {
		struct graft_place *place = bpf_map_lookup_elem(&flows, &g->side[i].tuple);

		if (place && place->slot == slot)
			bpf_map_delete_elem(&flows, &g->side[i].tuple);
	}
}

/* The slot's new session. */
static __always_inline void clear(struct graft_entry *g, const struct graft_request *q)
{
	forget(g, q->slot);
	__builtin_memset(&g->side[0], 0, sizeof(g->side[0]));
	__builtin_memset(&g->side[1], 0, sizeof(g->side[1]));
	g->side[0].tuple = q->tuples[0];
	g->side[1].tuple = q->tuples[1];
	g->side[0].ipv6 = !is_ipv4(&q->tuples[0].remote);
	g->side[1].ipv6 = !is_ipv4(&q->tuples[1].remote);
	g->shifted = 0;
	g->active_ns = g->ended_ns = 0;
	g->worker = q->worker;
	g->forward = q->forward;
	g->id = q->id;
}

static __always_inline int enter(const struct graft_entry *g, __u32 slot)
{
	struct graft_place place = { .slot = slot };

	if (bpf_map_update_elem(&flows, &g->side[0].tuple, &place, BPF_ANY))
		return GRAFT_NO_SLOT;
	place.side = 1;
	if (!bpf_map_update_elem(&flows, &g->side[1].tuple, &place, BPF_ANY))
		return GRAFT_OK;
	bpf_map_delete_elem(&flows, &g->side[0].tuple);
	return GRAFT_NO_SLOT;
}

static __always_inline int offer(struct __sk_buff *skb, const struct graft_request *q,
				 struct graft_entry *g)
{
	__u32 from = q->op == GRAFT_OFFER ? GRAFT_FREE : GRAFT_RETURNED;
	struct traits a = { 0 }, b = { 0 };
	int r;

	if (READ_ONCE(g->state) != from)
		return GRAFT_BAD_REQUEST;
	if (from == GRAFT_FREE)
		clear(g, q);
	r = traits_of(skb, &g->side[0], &a);
	r = r ?: traits_of(skb, &g->side[1], &b);
	r = r ?: fit(&a, &b);
	if (r)
		return r;
	set_up(&g->side[0], &g->side[1], &a, &b);
	set_up(&g->side[1], &g->side[0], &b, &a);
	g->looks = 0;
	g->why_not = 0;
	g->hold = 0;
	g->offered_ns = bpf_ktime_get_ns();
	if (from == GRAFT_FREE)
		r = enter(g, q->slot);
	if (!r)
		__sync_val_compare_and_swap(&g->state, from, GRAFT_OFFERED);
	return r;
}

/* --- a packet that may be the first --- */

/* The two words of P's timestamp option, if that is where it always is. */
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

/* S has sent up to END, and acknowledged up to ACKED; no count of either is ever below 0. */
static __always_inline void begin(struct graft_side *s, __u32 end, __u32 acked)
{
	__u64 carried = s->end - s->begun;

	s->acked = (1ULL << 32) + acked;
	s->end = (1ULL << 32) + end;
	s->begun = s->end - carried;
}

/* May P be the first that is translated?  The caller holds LOCKED.  Sets what is left to set. */
__noinline int look(struct __sk_buff *skb, struct graft_entry *g, __u32 side,
			   const struct packet *p)
{
	struct graft_side *mine, *other;
	struct seen a, b;
	__u32 ts[2], seq, ack; /* as the socket numbers them */
	int r;

	if (!g || !p)
		return GRAFT_LOOK_GONE;
	mine = side ? &g->side[1] : &g->side[0];
	other = side ? &g->side[0] : &g->side[1];
	seq = p->seq - mine->back_read;
	ack = p->ack - mine->back_write;
	if (!p->len && seq + 1 == mine->passed)
		seq++; /* a window probe: all that a sender sends whose window is closed */
	if (p->flags & (FIN | SYN | RST) || !(p->flags & ACK) || p->ttl < 2)
		return GRAFT_LOOK_KIND;
	r = see(skb, mine, &a);
	if (r)
		return r;
	if (a.rcv_nxt != seq || mine->passed != seq)
		return GRAFT_LOOK_ORDER;
	if (a.copied != seq)
		return GRAFT_LOOK_UNREAD;
	if (a.snd_nxt != ack || a.write_seq != ack)
		return GRAFT_LOOK_OWED;
	if (!p->len && a.rcv_wup != a.rcv_nxt)
		return GRAFT_LOOK_ACK_DUE;
	r = see(skb, other, &b);
	if (r)
		return r;
	if (b.copied != b.rcv_nxt || other->passed != b.rcv_nxt)
		return GRAFT_LOOK_OTHER_UNREAD;
	if (b.snd_una != b.write_seq || b.snd_nxt != b.write_seq)
		return GRAFT_LOOK_OTHER_OWED;
	if (b.write_seq - other->base_write != a.copied - mine->base_read ||
	    a.write_seq - mine->base_write != b.copied - other->base_read)
		return GRAFT_LOOK_IN_HAND;
	if (p->len > b.snd_wnd)
		return GRAFT_LOOK_WINDOW;
	if (mine->timestamps) {
		if (!timestamp_of(skb, p, ts))
			return GRAFT_LOOK_TIMESTAMP;
		a.clock += mine->back_ts;
		b.clock += other->back_ts;
		mine->tsval_add = b.clock - ts[0];
		other->tsval_add = a.clock - b.ts_recent;
		mine->tsecr_add = -other->tsval_add;
		other->tsecr_add = -mine->tsval_add;
		mine->tsecr_least = b.ts_recent;
		other->tsecr_least = a.ts_recent;
		mine->tsecr_clamped = other->tsecr_clamped = 1;
		mine->tsval_sent = a.clock;
		other->tsval_sent = b.clock;
	}
	mine->frozen_write = a.write_seq;
	mine->frozen_read = a.rcv_nxt;
	other->frozen_write = b.write_seq;
	other->frozen_read = b.rcv_nxt;
	mine->data_ns = other->data_ns = bpf_ktime_get_coarse_ns();
	g->before[side & 1] = a.received;
	g->before[!(side & 1)] = b.received;
	mine->window = a.max_window;
	other->window = b.max_window;
	begin(mine, seq + mine->back_read, p->ack);
	begin(other, b.rcv_nxt + other->back_read, b.snd_una + other->back_write);
	return GRAFT_LOOK_OK;
}

/* Let *AT grow to END, whose low half is compared; other CPUs may do the same. */
static __always_inline void grow(__u64 *at, __u32 to)
{
	for (int i = 0; i < 4; i++) {
		__u64 was = READ_ONCE(*at);
		__s32 more = diff(to, (__u32)was);

		if (more <= 0 || __sync_val_compare_and_swap(at, was, was + more) == was)
			return;
	}
}

static __always_inline void grow_32(__u32 *at, __u32 to)
{
	for (int i = 0; i < 4; i++) {
		__u32 was = READ_ONCE(*at);

		if (diff(to, was) <= 0 || __sync_val_compare_and_swap(at, was, to) == was)
			return;
	}
}

/*
 * OFFERED or LOCKED: become the one who looks.  False: P goes to its socket, or is dropped: *RET_STATE
 * is 0.  If another packet is looking just now, the count that P leaves keeps that one from activating
 * the graft.  Whoever looks after that one must find P's end in `passed`, so that is first.
 */
static __always_inline bool lock_offer(struct graft_entry *g, struct graft_side *mine,
				       const struct packet *p, __u32 *ret_state)
{
	for (int i = 0; i < 32; i++) {
		__u32 state = READ_ONCE(g->state);

		*ret_state = state & GRAFT_STATE_MASK;
		if (*ret_state == GRAFT_OFFERED) {
			if (__sync_val_compare_and_swap(&g->state, state, GRAFT_LOCKED) == state)
				return true;
		} else if (*ret_state == GRAFT_LOCKED) {
			grow_32(&mine->passed, end_of(p) - mine->back_read);
			if (__sync_val_compare_and_swap(&g->state, state,
							state + GRAFT_PASSED_ONE) == state)
				return false;
		} else {
			return false;
		}
	}
	*ret_state = 0; /* it will be sent again */
	return false;
}

/* Packets that look; then one of 16, for a session that is hardly ever quiet. */
#define LOOKS 256

/* Returns the state in which P finds its session.  OFFERED: P goes to its socket. */
__noinline int try_offer(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 side)
{
	struct graft_entry *g = bpf_map_lookup_elem(&grafts, &slot);
	struct graft_side *mine;
	int why = GRAFT_LOOK_RACE;
	__u32 state;

	if (!g || !p)
		return 0;
	mine = side ? &g->side[1] : &g->side[0];
	if (!lock_offer(g, mine, p, &state))
		return state == GRAFT_LOCKED ? GRAFT_OFFERED : state;
	if (g->looks++ < LOOKS || !(g->looks & 15) || g->hold)
		why = look(skb, g, side, p);
	if (!why) {
		g->active_ns = bpf_ktime_get_ns();
		if (__sync_val_compare_and_swap(&g->state, GRAFT_LOCKED, GRAFT_ACTIVE) ==
		    GRAFT_LOCKED)
			return GRAFT_ACTIVE;
		why = GRAFT_LOOK_RACE;
	}
	g->why_not = why;
	grow_32(&mine->passed, end_of(p) - mine->back_read); /* it goes to its socket */
	for (int i = 0; i < 32; i++) {
		state = READ_ONCE(g->state);
		if ((state & GRAFT_STATE_MASK) != GRAFT_LOCKED ||
		    __sync_val_compare_and_swap(&g->state, state, GRAFT_OFFERED) == state)
			break;
	}
	return GRAFT_OFFERED;
}

/* --- translation --- */

static __always_inline __u16 folded(__s64 sum)
{
	__u32 s = (__u32)sum;

	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return (__u16)~s;
}

/* How a packet is changed: on its way to the other end, or between the wire and a socket. */
struct change {
	__s64 diff; /* returned: of the checksum, without addresses */
	__u32 seq_add, ack_add, tsval_add, tsecr_add;
	__u16 source, dest; /* ports */
	__u8 left, right;   /* shifts of the window */
	__u8 no_sack;
	__u8 grafted; /* both sides remember clocks: */
	__u32 slot, side;
};

static __always_inline struct change through(const struct found *f)
{
	const struct graft_side *mine = f->mine;

	return (struct change){
		.source = f->other->tuple.local_port, .dest = f->other->tuple.remote_port,
		.seq_add = mine->seq_add, .ack_add = mine->ack_add,
		.tsval_add = mine->tsval_add, .tsecr_add = mine->tsecr_add,
		.left = mine->window_left & 15, .right = mine->window_right & 15,
		.no_sack = mine->no_sack,
		.grafted = 1, .slot = f->slot, .side = f->side,
	};
}

/*
 * Change TSval and TSecr.  MINE, OTHER: of a graft, else NULL.  The other end must not be told of a
 * clock that it has not sent yet, or has forgotten.
 */
static __always_inline void change_clocks(const struct change *c, struct graft_side *mine,
					  struct graft_side *other, __u32 words[2])
{
	__u32 tsval = bpf_ntohl(words[0]) + c->tsval_add, tsecr = bpf_ntohl(words[1]) + c->tsecr_add;

	if (other)
		grow_32(&other->tsval_sent, tsval);
	if (mine && mine->tsecr_clamped) {
		if (diff(tsecr, mine->tsecr_least) < 0)
			tsecr = mine->tsecr_least;
		else
			mine->tsecr_clamped = 0;
	}
	words[0] = bpf_htonl(tsval);
	words[1] = bpf_htonl(tsecr);
}

/*
 * A window that is not closed stays so: of one with less than a unit nobody would tell when it grows.
 * TCP takes what goes beyond it, or lets it come again.
 */
static __always_inline __u16 new_window(const struct change *c, __u32 window)
{
	__u32 is = (window << c->left) >> c->right;

	if (!is)
		return window != 0;
	return is > 65535 ? 65535 : is;
}

/* Give P the addresses of TO, one hop less if it is sent on, and sums that hold after TCP_DIFF. */
__noinline int set_addresses(struct __sk_buff *skb, const struct packet *p,
				    const struct graft_tuple *to, __s64 tcp_diff)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	__u32 sum, l3;
	__s64 addr_diff;

	if (!p || !to)
		return -1;
	l3 = p->l3 & L3_BITS;
	sum = p->l4 + 16;
	if (!p->ipv6) {
		struct iphdr *ip = data + l3;
		__u32 was[3] = { 0 }, is[3] = { 0 };
		__s64 ip_diff;

		if ((void *)(ip + 1) > end)
			return -1;
		*(__u8 *)was = ip->ttl;
		*(__u8 *)is = ip->ttl = ip->ttl - 1;
		was[1] = ip->saddr;
		was[2] = ip->daddr;
		is[1] = ip->saddr = to->local.w[3];
		is[2] = ip->daddr = to->remote.w[3];
		addr_diff = bpf_csum_diff(was + 1, 8, is + 1, 8, 0);
		ip_diff = bpf_csum_diff(was, 12, is, 12, 0);
		bpf_l3_csum_replace(skb, l3 + 10, 0, ip_diff, 0);
		bpf_l4_csum_replace(skb, sum, 0, tcp_diff, 0);
		return bpf_l4_csum_replace(skb, sum, 0, addr_diff, BPF_F_PSEUDO_HDR);
	} else {
		struct ipv6hdr *ip = data + l3;
		struct graft_addr was[2], is[2] = { to->local, to->remote };

		if ((void *)(ip + 1) > end)
			return -1;
		__builtin_memcpy(was, &ip->saddr, sizeof(was));
		__builtin_memcpy(&ip->saddr, is, sizeof(is));
		ip->hop_limit--;
		addr_diff = bpf_csum_diff((__be32 *)was, 32, (__be32 *)is, 32, 0);
		bpf_l4_csum_replace(skb, sum, 0, tcp_diff, 0);
		if (!bpf_l4_csum_replace(skb, sum, 0, addr_diff, BPF_F_PSEUDO_HDR | CSUM_IPV6))
			return 0;
		return bpf_l4_csum_replace(skb, sum, 0, addr_diff, BPF_F_PSEUDO_HDR);
	}
}

/*
 * The same where the other end has the other family: P gets a new IP header.  The pseudo header's
 * length and protocol add up to the same in both.
 */
__noinline int set_family(struct __sk_buff *skb, const struct packet *p,
				 const struct graft_tuple *to, __s64 tcp_diff)
{
	struct iphdr v4 = { 0 };
	struct ipv6hdr v6 = { 0 };
	__u32 l3, len;
	__s64 addr_diff;
	__u8 traffic;

	if (!p || !to)
		return -1;
	l3 = p->l3 & L3_BITS;
	len = p->header + p->len;
	bpf_l4_csum_replace(skb, p->l4 + 16, 0, tcp_diff, 0);
	if (!p->ipv6) {
		if (bpf_skb_load_bytes(skb, l3, &v4, sizeof(v4)) ||
		    bpf_skb_change_proto(skb, bpf_htons(ETH_P_IPV6), 0))
			return -1;
		*(__be32 *)&v6 = bpf_htonl(6U << 28 | (__u32)v4.tos << 20);
		v6.payload_len = bpf_htons(len > 65535 ? 0 : len);
		v6.nexthdr = IPPROTO_TCP;
		v6.hop_limit = v4.ttl - 1;
		__builtin_memcpy(&v6.saddr, &to->local, sizeof(v6.saddr));
		__builtin_memcpy(&v6.daddr, &to->remote, sizeof(v6.daddr));
		addr_diff = bpf_csum_diff(&v4.saddr, 8, (__be32 *)&v6.saddr, 32, 0);
		if (bpf_skb_store_bytes(skb, l3, &v6, sizeof(v6), 0))
			return -1;
		return bpf_l4_csum_replace(skb, l3 + sizeof(v6) + 16, 0, addr_diff,
					   BPF_F_PSEUDO_HDR);
	}
	if (bpf_skb_load_bytes(skb, l3, &v6, sizeof(v6)) ||
	    bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0))
		return -1;
	traffic = (bpf_ntohl(*(__be32 *)&v6) >> 20) & 0xff;
	*(__u8 *)&v4 = 0x45;
	v4.tos = traffic;
	len += sizeof(v4);
	v4.tot_len = bpf_htons(len > 65535 ? 0 : len);
	v4.frag_off = bpf_htons(0x4000); /* as the TCP of IPv6 expects */
	v4.ttl = v6.hop_limit - 1;
	v4.protocol = IPPROTO_TCP;
	v4.saddr = to->local.w[3];
	v4.daddr = to->remote.w[3];
	v4.check = folded(bpf_csum_diff(NULL, 0, (__be32 *)&v4, sizeof(v4), 0));
	addr_diff = bpf_csum_diff((__be32 *)&v6.saddr, 32, &v4.saddr, 8, 0);
	if (bpf_skb_store_bytes(skb, l3, &v4, sizeof(v4), 0))
		return -1;
	return bpf_l4_csum_replace(skb, l3 + sizeof(v4) + 16, 0, addr_diff, BPF_F_PSEUDO_HDR);
}

/* A header with no more than timestamps: -1 if P has another one, or it is not in one piece. */
static __always_inline int change_usual(struct __sk_buff *skb, const struct packet *p,
					struct change *c, struct graft_side *mine,
					struct graft_side *other)
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
	change_clocks(c, mine, other, is + 6);
	/* before the packet is changed: a copy of it would be too much for the stack, see struct seen */
	c->diff = bpf_csum_diff(at, sizeof(is), is, sizeof(is), 0);
	at[0] = is[0];
	at[1] = is[1];
	at[2] = is[2];
	at[3] = is[3];
	at[6] = is[6];
	at[7] = is[7];
	return 0;
}

struct walk {
	struct scratch *s;
	const struct change *c;
	struct graft_side *mine, *other; /* for change_clocks() */
};

static __always_inline void change_timestamp(struct walk *w, __u32 at)
{
	__u32 words[2];

	__builtin_memcpy(words, &w->s->is[at & 63], sizeof(words));
	change_clocks(w->c, w->mine, w->other, words);
	__builtin_memcpy(&w->s->is[at & 63], words, sizeof(words));
}

static __always_inline void change_edge(struct scratch *s, __u32 ack_add)
{
	__u32 edge;

	__builtin_memcpy(&edge, &s->is[s->at & 63], sizeof(edge));
	edge = bpf_htonl(bpf_ntohl(edge) + ack_add);
	__builtin_memcpy(&s->is[s->at & 63], &edge, sizeof(edge));
	s->at += sizeof(edge);
	s->edges -= sizeof(edge);
}

/* One step for each byte at most: a header has room for 40 bytes of options. */
static long change_option(__u32 index, struct walk *w)
{
	struct scratch *s = w->s;
	__u32 len;
	__u8 kind;

	if (!s || !w->c || s->at >= s->header || s->at >= TCP_HEADER_MAX)
		return 1;
	if (s->edges >= sizeof(__u32)) {
		change_edge(s, w->c->ack_add);
		return 0;
	}
	s->at += s->edges; /* no whole edge */
	s->edges = 0;
	if (s->at >= s->header)
		return 1;
	kind = s->is[s->at & 63];
	if (s->erase || kind == 1) {
		s->is[s->at & 63] = 1;
		s->erase -= !!s->erase;
		s->at++;
		return 0;
	}
	if (kind == 0)
		return 1;
	len = s->is[(s->at + 1) & 63];
	if (len < 2 || s->at + len > s->header)
		return 1;
	if (kind == OPTION_SACK && w->c->no_sack) {
		s->is[s->at & 63] = 1;
		s->at++;
		s->erase = len - 1;
		return 0;
	}
	if (kind == OPTION_SACK) {
		s->edges = len - 2;
		len = 2;
	} else if (kind == OPTION_TIMESTAMP && len == 10) {
		change_timestamp(w, s->at + 2);
	}
	s->at += len;
	return 0;
}

/* Any TCP header. */
__noinline int change_any(struct __sk_buff *skb, const struct packet *p, struct change *c)
{
	__u32 zero = 0, header;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct walk w = { .s = s, .c = c };
	struct graft_entry *g;
	struct tcphdr *t;

	if (!s || !p || !c)
		return -1;
	if (c->grafted) {
		__u32 slot = c->slot;

		g = bpf_map_lookup_elem(&grafts, &slot);
		if (!g)
			return -1;
		w.mine = c->side ? &g->side[1] : &g->side[0];
		w.other = c->side ? &g->side[0] : &g->side[1];
	}
	header = p->header;
	/* LLVM would make one comparison of both, of which the verifier of 6.1 learns nothing */
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
	s->at = 20;
	s->header = header;
	s->edges = s->erase = 0;
	bpf_loop(OPTIONS_MAX, change_option, &w, 0);
	c->diff = bpf_csum_diff((__be32 *)s->was, 64, (__be32 *)s->is, 64, 0);
	if (bpf_skb_store_bytes(skb, p->l4, s->is, 16, 0))
		return -1;
	barrier_var(header);
	/* nor does it learn of "not 20" that something is left */
	if (header < 24)
		return 0;
	return bpf_skb_store_bytes(skb, p->l4 + 20, s->is + 20, header - 20, 0);
}

static __always_inline int change_header(struct __sk_buff *skb, const struct packet *p,
					 struct change *c, struct graft_side *mine,
					 struct graft_side *other)
{
	return change_usual(skb, p, c, mine, other) ? change_any(skb, p, c) : 0;
}

/* bpf_redirect_neigh() takes an Ethernet header off, and drops what has none. */
static __always_inline int send_to(struct __sk_buff *skb, const struct graft_side *s, __u32 l3)
{
	if (!l3 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return DROP;
	skb->mark = s->mark;
	set_kind(skb, SENT);
	return bpf_redirect_neigh(s->ifindex, NULL, 0, 0);
}

/* --- a session at work --- */

/* Accept what a TCP would accept, and some more: windows shrink, and our view is a packet late. */
#define WINDOW_LEAST 65536

/* The segments that the other end has acknowledged, in the numbers of this side. */
static __always_inline __u32 acked_of(const struct graft_side *mine, const struct graft_side *other)
{
	return (__u32)READ_ONCE(other->acked) + other->ack_add;
}

/*
 * Is P in the window?  A blind attacker has to guess that, as with plain TCP: what is outside does
 * not change what we remember, and does not reach the other end.
 */
static __always_inline bool is_inside(const struct packet *p, const struct graft_side *mine,
				      const struct graft_side *other)
{
	__u32 window = READ_ONCE(other->window), back = READ_ONCE(mine->window);
	__u32 acked = acked_of(mine, other), sent;

	window = window > WINDOW_LEAST ? window : WINDOW_LEAST;
	if (diff(p->seq, acked) > (__s32)window || diff(end_of(p), acked) < -(__s32)window)
		return false;
	if (!(p->flags & ACK))
		return p->flags & RST;
	/* the highest that was sent to this end, in the numbers of this side */
	sent = (__u32)READ_ONCE(other->end) + other->seq_add;
	back = back > WINDOW_LEAST ? back : WINDOW_LEAST;
	return diff(p->ack, sent) <= 0 && diff(p->ack, sent) >= -(__s32)back * 2;
}

/* What P tells of both streams.  A reset has no bytes, and may be one that is only challenged. */
static __always_inline void note(struct graft_side *mine, const struct packet *p)
{
	bool more = !(p->flags & RST) && diff(end_of(p), (__u32)mine->end) > 0;
	bool acked = p->flags & ACK && diff(p->ack, (__u32)mine->acked) > 0;

	if (more)
		grow(&mine->end, end_of(p));
	if (acked)
		grow(&mine->acked, p->ack);
	if (more || acked)
		mine->data_ns = bpf_ktime_get_coarse_ns();
}

/*
 * P is a reset that the other end takes: it has the number that is expected there, behind all that
 * was acknowledged, or behind all that was sent.  Any other is only challenged (RFC 5961), and who is
 * challenged knows the number.
 */
static __always_inline bool is_reset(const struct found *f, const struct packet *p)
{
	return p->flags & RST &&
	       (p->seq == acked_of(f->mine, f->other) || p->seq == (__u32)f->mine->end);
}

/* Returns true if both ends have the other's FIN. */
static __always_inline bool track_fin(struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;

	if (p->flags & FIN && !mine->fin) {
		mine->fin_end = end_of(p);
		mine->fin = 1;
	}
	if (other->fin == 1 && p->flags & ACK && diff(p->ack + mine->ack_add, other->fin_end) >= 0)
		other->fin = 2;
	return mine->fin == 2 && other->fin == 2;
}

static __always_inline void end(struct found *f, __u32 state)
{
	if (__sync_val_compare_and_swap(&f->g->state, state, GRAFT_DONE) != state)
		return;
	f->g->ended_ns = f->mine->heard_ns;
	tell(f->g, f->slot, GRAFT_EVENT_ENDED);
}

static __always_inline void track(struct found *f, const struct packet *p, __u32 state)
{
	struct graft_side *mine = f->mine;
	__u32 window = (__u32)p->window << (mine->window_left & 15);
	bool last = is_reset(f, p);

	mine->packets++;
	mine->heard_ns = bpf_ktime_get_coarse_ns();
	if (window > mine->window)
		mine->window = window;
	note(mine, p);
	if (!(p->flags & RST) && (p->flags & FIN || f->other->fin))
		last = track_fin(f, p);
	if (last && (state == GRAFT_ACTIVE || state == GRAFT_RETURNING)) {
		mine->reset = !!(p->flags & RST);
		end(f, state);
	}
}

/* Translate P and send it to the other end. */
static __always_inline int pass_on(struct __sk_buff *skb, struct found *f, const struct packet *p,
				   __u32 state)
{
	struct change c = through(f);

	if (p->ttl < 2)
		return DROP;
	/* SYN: the end has forgotten the connection; what the other one answers tells it so */
	if (!(p->flags & SYN)) {
		if (!is_inside(p, f->mine, f->other)) {
			__sync_fetch_and_add(&graft_outside, 1);
			return DROP;
		}
		track(f, p, state);
	}
	if (change_header(skb, p, &c, f->mine, f->other))
		return DROP;
	if (p->ipv6 == f->other->ipv6 ? set_addresses(skb, p, &f->other->tuple, c.diff) :
					set_family(skb, p, &f->other->tuple, c.diff))
		return DROP;
	return send_to(skb, f->other, p->l3);
}

/* --- back to the sockets --- */

/* May the session go back to its sockets with P?  The caller holds LOCKED_2. */
__noinline int look_back(struct __sk_buff *skb, struct graft_entry *g, __u32 side,
				const struct packet *p)
{
	struct graft_side *mine, *other;
	struct seen a, b;

	if (!g || !p)
		return GRAFT_LOOK_GONE;
	mine = side ? &g->side[1] : &g->side[0];
	other = side ? &g->side[0] : &g->side[1];
	if (p->flags & (FIN | SYN | RST) || !(p->flags & ACK) || mine->fin || other->fin)
		return GRAFT_LOOK_KIND;
	if (p->seq != (__u32)mine->end)
		return GRAFT_LOOK_ORDER;
	if (acked_of(mine, other) != p->seq)
		return GRAFT_LOOK_OTHER_OWED;
	if (p->ack + mine->ack_add != (__u32)other->end)
		return GRAFT_LOOK_OWED;
	if (see(skb, mine, &a) || see(skb, other, &b))
		return GRAFT_LOOK_CLOSED;
	if (a.write_seq != mine->frozen_write || a.rcv_nxt != mine->frozen_read ||
	    b.write_seq != other->frozen_write || b.rcv_nxt != other->frozen_read)
		return GRAFT_LOOK_IN_HAND;
	mine->back_read = p->seq - mine->frozen_read;
	mine->back_write = p->ack - mine->frozen_write;
	mine->back_ts = mine->tsval_sent - a.clock + 1;
	other->back_read = (__u32)other->end - other->frozen_read;
	other->back_write = (__u32)other->acked - other->frozen_write;
	other->back_ts = other->tsval_sent - b.clock + 1;
	g->shifted = 1;
	return GRAFT_LOOK_OK;
}

/* RETURNING or LOCKED_2.  Returns the state in which P finds its session; 0: drop it. */
__noinline int try_return(struct __sk_buff *skb, const struct packet *p, __u32 slot, __u32 side)
{
	struct graft_entry *g = bpf_map_lookup_elem(&grafts, &slot);
	struct graft_side *mine, *other;
	__u32 state;
	int why;

	if (!g || !p)
		return 0;
	mine = side ? &g->side[1] : &g->side[0];
	other = side ? &g->side[0] : &g->side[1];
	for (int i = 0; i < 32; i++) {
		state = READ_ONCE(g->state);
		if (state == GRAFT_RETURNING &&
		    __sync_val_compare_and_swap(&g->state, state, GRAFT_LOCKED_2) == state)
			goto locked;
		if (state != GRAFT_RETURNING && state != GRAFT_LOCKED_2)
			return state;
	}
	return 0; /* it will be sent again */
locked:
	why = look_back(skb, g, side, p);
	if (!why) {
		__sync_val_compare_and_swap(&g->state, GRAFT_LOCKED_2, GRAFT_RETURNED);
		tell(g, slot, GRAFT_EVENT_RETURNED);
		return GRAFT_RETURNED;
	}
	g->why_not = why;
	/* before it is unlocked: the next one that looks must know of it */
	if (!(p->flags & SYN) && p->ttl > 1 && is_inside(p, mine, other))
		note(mine, p);
	__sync_val_compare_and_swap(&g->state, GRAFT_LOCKED_2, GRAFT_RETURNING);
	return GRAFT_RETURNING;
}

/* Give P, on its way between the wire and a socket, the numbers of where it goes. */
static __always_inline int shift(struct __sk_buff *skb, const struct packet *p, struct change *c)
{
	if (p->flags & SYN) /* of another connection */
		return PASS;
	if (change_header(skb, p, c, NULL, NULL))
		return DROP;
	bpf_l4_csum_replace(skb, p->l4 + 16, 0, c->diff, 0);
	return PASS;
}

static __always_inline int to_socket(struct __sk_buff *skb, const struct graft_side *s,
				     const struct packet *p)
{
	struct change c = { .source = s->tuple.remote_port, .dest = s->tuple.local_port,
			    .seq_add = -s->back_read, .ack_add = -s->back_write,
			    .tsecr_add = -s->back_ts };

	return shift(skb, p, &c);
}

static __always_inline int to_wire(struct __sk_buff *skb, const struct graft_side *s,
				   const struct packet *p)
{
	struct change c = { .source = s->tuple.local_port, .dest = s->tuple.remote_port,
			    .seq_add = s->back_write, .ack_add = s->back_read,
			    .tsval_add = s->back_ts };

	return shift(skb, p, &c);
}

/* --- path MTU --- */

#define ICMP_V4 1
#define ICMP_V4_UNREACHABLE 3
#define ICMP_V4_TOO_BIG 4
#define ICMP_V6 58
#define ICMP_V6_TOO_BIG 2

/* The beginning of a packet that was too big, as ICMP quotes it.  The message ends here. */
struct quote_v4 {
	__u8 type, code;
	__u16 sum;
	__u32 mtu;
	struct iphdr ip;
	__u16 source, dest;
	__u32 seq;
};

struct quote_v6 {
	__u8 type, code;
	__u16 sum;
	__u32 mtu;
	struct ipv6hdr ip;
	__u16 source, dest;
	__u32 seq;
};

/*
 * TUPLE is that of the packet that was too big, turned round.  Find the graft that has sent it to
 * F->mine on behalf of F->other.  Its number must be of what is on the way: who guesses it can as well
 * forge the message for plain TCP.
 */
static __always_inline bool find_sender(const struct graft_tuple *tuple, bool ipv6, __u32 seq,
					struct found *f)
{
	__u32 state;

	if (!find(tuple, ipv6, f))
		return false;
	state = READ_ONCE(f->g->state) & GRAFT_STATE_MASK;
	return (state == GRAFT_ACTIVE || state == GRAFT_RETURNING) &&
	       diff(seq, (__u32)f->mine->acked) >= 0 &&
	       diff(seq, (__u32)f->other->end + f->other->seq_add) < 0;
}

/* "Fragmentation needed" concerns the end that has sent the segment: it gets it from us. */
__noinline int too_big_v4(struct __sk_buff *skb, __u32 l3)
{
	struct graft_tuple tuple = { 0 };
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct quote_v4 *q;
	struct iphdr *ip;
	struct found f;

	if (!s)
		return PASS;
	q = (void *)s->was;
	ip = (void *)s->is;
	if (bpf_skb_load_bytes(skb, l3, ip, sizeof(*ip)) || *(__u8 *)ip != 0x45 ||
	    ip->frag_off & bpf_htons(0x3fff) ||
	    bpf_skb_load_bytes(skb, l3 + sizeof(*ip), q, sizeof(*q)) ||
	    q->type != ICMP_V4_UNREACHABLE || q->code != ICMP_V4_TOO_BIG ||
	    *(__u8 *)&q->ip != 0x45 || q->ip.protocol != IPPROTO_TCP)
		return PASS;
	tuple.remote.w[2] = tuple.local.w[2] = bpf_htonl(0xffff);
	tuple.remote.w[3] = q->ip.daddr;
	tuple.local.w[3] = q->ip.saddr;
	tuple.remote_port = q->dest;
	tuple.local_port = q->source;
	if (!find_sender(&tuple, false, bpf_ntohl(q->seq), &f) || f.other->ipv6)
		return PASS;
	if (ip->ttl < 2)
		return DROP;
	q->ip.saddr = f.other->tuple.remote.w[3];
	q->ip.daddr = f.other->tuple.local.w[3];
	q->ip.check = 0;
	q->ip.check = folded(bpf_csum_diff(NULL, 0, (__be32 *)&q->ip, sizeof(q->ip), 0));
	q->source = f.other->tuple.remote_port;
	q->dest = f.other->tuple.local_port;
	q->seq = bpf_htonl(bpf_ntohl(q->seq) - f.other->seq_add);
	q->sum = 0;
	q->sum = folded(bpf_csum_diff(NULL, 0, (__be32 *)q, sizeof(*q), 0));
	ip->saddr = f.other->tuple.local.w[3];
	ip->daddr = f.other->tuple.remote.w[3];
	ip->tot_len = bpf_htons(sizeof(*ip) + sizeof(*q));
	ip->ttl--;
	ip->check = 0;
	ip->check = folded(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	if (bpf_skb_change_tail(skb, l3 + sizeof(*ip) + sizeof(*q), 0) ||
	    bpf_skb_store_bytes(skb, l3, ip, sizeof(*ip), 0) ||
	    bpf_skb_store_bytes(skb, l3 + sizeof(*ip), q, sizeof(*q), 0))
		return DROP;
	return send_to(skb, f.other, l3);
}

/* The same as "packet too big". */
__noinline int too_big_v6(struct __sk_buff *skb, __u32 l3)
{
	struct graft_tuple tuple = { 0 };
	__u32 zero = 0;
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	struct quote_v6 *q;
	struct ipv6hdr *ip;
	struct found f;
	__u32 tail[2] = { bpf_htonl(sizeof(*q)), bpf_htonl(ICMP_V6) };
	__s64 sum;

	if (!s)
		return PASS;
	q = (void *)s->was;
	ip = (void *)s->is;
	if (bpf_skb_load_bytes(skb, l3, ip, sizeof(*ip)) || *(__u8 *)ip >> 4 != 6 ||
	    bpf_skb_load_bytes(skb, l3 + sizeof(*ip), q, sizeof(*q)) ||
	    q->type != ICMP_V6_TOO_BIG || q->ip.nexthdr != IPPROTO_TCP)
		return PASS;
	__builtin_memcpy(&tuple.remote, &q->ip.daddr, sizeof(tuple.remote));
	__builtin_memcpy(&tuple.local, &q->ip.saddr, sizeof(tuple.local));
	tuple.remote_port = q->dest;
	tuple.local_port = q->source;
	if (!find_sender(&tuple, true, bpf_ntohl(q->seq), &f) || !f.other->ipv6)
		return PASS;
	if (ip->hop_limit < 2)
		return DROP;
	__builtin_memcpy(&q->ip.saddr, &f.other->tuple.remote, sizeof(q->ip.saddr));
	__builtin_memcpy(&q->ip.daddr, &f.other->tuple.local, sizeof(q->ip.daddr));
	q->source = f.other->tuple.remote_port;
	q->dest = f.other->tuple.local_port;
	q->seq = bpf_htonl(bpf_ntohl(q->seq) - f.other->seq_add);
	__builtin_memcpy(&ip->saddr, &f.other->tuple.local, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, &f.other->tuple.remote, sizeof(ip->daddr));
	ip->payload_len = bpf_htons(sizeof(*q));
	ip->hop_limit--;
	q->sum = 0;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&ip->saddr, 32, 0);
	sum = bpf_csum_diff(NULL, 0, tail, sizeof(tail), (__u32)sum);
	q->sum = folded(bpf_csum_diff(NULL, 0, (__be32 *)q, sizeof(*q), (__u32)sum));
	if (bpf_skb_change_tail(skb, l3 + sizeof(*ip) + sizeof(*q), 0) ||
	    bpf_skb_store_bytes(skb, l3, ip, sizeof(*ip), 0) ||
	    bpf_skb_store_bytes(skb, l3 + sizeof(*ip), q, sizeof(*q), 0))
		return DROP;
	return send_to(skb, f.other, l3);
}

/* A packet that is not TCP. */
static __always_inline int not_tcp(struct __sk_buff *skb, __u32 l3)
{
	bool ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u8 protocol;

	if (skb->vlan_present || (!ipv6 && skb->protocol != bpf_htons(ETH_P_IP)) ||
	    bpf_skb_load_bytes(skb, l3 + (ipv6 ? 6 : 9), &protocol, sizeof(protocol)))
		return PASS;
	if (!ipv6 && protocol == ICMP_V4)
		return too_big_v4(skb, l3);
	return ipv6 && protocol == ICMP_V6 ? too_big_v6(skb, l3) : PASS;
}

/* --- what arrives --- */

#define TELL_NS 10000000 /* between two events of one session */

/* KILLED, and the remote end is still there: a reset with the number that it expects has to follow. */
static __always_inline int heard_of_killed(struct found *f, const struct packet *p)
{
	__u64 now = bpf_ktime_get_ns();

	if (p->flags & RST || !is_inside(p, f->mine, f->other))
		return DROP;
	note(f->mine, p);
	if (now - f->mine->told_ns > TELL_NS) {
		f->mine->told_ns = now;
		tell(f->g, f->slot, GRAFT_EVENT_HEARD);
	}
	return DROP;
}

static __always_inline int arrived(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	__u32 state = READ_ONCE(f->g->state) & GRAFT_STATE_MASK;

	if (state == GRAFT_OFFERED || state == GRAFT_LOCKED)
		state = try_offer(skb, p, f->slot, f->side);
	else if (state == GRAFT_RETURNING || state == GRAFT_LOCKED_2)
		state = try_return(skb, p, f->slot, f->side);
	switch (state) {
	case 0:
		return READ_ONCE(f->g->state) ? DROP : PASS;
	case GRAFT_OFFERED:
		return f->g->shifted ? to_socket(skb, f->mine, p) : PASS;
	case GRAFT_RETURNED:
		return to_socket(skb, f->mine, p);
	case GRAFT_KILLED:
		return heard_of_killed(f, p);
	case GRAFT_CLOSED:
		if (p->flags & SYN) { /* a new connection */
			forget(f->g, f->slot);
			return PASS;
		}
		break;
	case GRAFT_DONE:
		if (p->flags & SYN)
			return PASS;
	}
	return pass_on(skb, f, p, state);
}

/* From the daemon by way of the loopback device: to the end that it is for. */
static __always_inline int send_reset(struct __sk_buff *skb, struct packet *p)
{
	struct found f;

	reverse(p);
	return find(&p->tuple, p->ipv6, &f) ? send_to(skb, f.mine, p->l3) : PASS;
}

static __always_inline int in(struct __sk_buff *skb, __u32 l2)
{
	struct packet p;
	struct found f;

	if (is_kind(skb, TO_SOCKET)) {
		skb->mark = 0;
		bpf_skb_change_type(skb, PACKET_TO_US); /* it was on its way out */
		return PASS;
	}
	/* as TCP does: promiscuous devices see others' packets, and copies of ours */
	if (skb->pkt_type != PACKET_TO_US)
		return PASS;
	if (!parse(skb, l2, &p))
		return not_tcp(skb, l2);
	if (skb->mark == MARK_RESET)
		return send_reset(skb, &p);
	return find(&p.tuple, p.ipv6, &f) ? arrived(skb, &f, &p) : PASS;
}

/* --- what leaves --- */

/* Bytes of a TCP header that is given back. */
static __always_inline __u32 kept(const struct packet *p)
{
	return p->header == 32 ? 32 : 20;
}

/*
 * Turn P, which a frozen socket has sent, into an answer to it: with FLAGS, SEQ and ACK.  The stack
 * has left the checksum to the device, so it is not looked at.
 */
__noinline int give_back(struct __sk_buff *skb, const struct packet *p, __u32 seq, __u32 ack,
				__u32 flags)
{
	__u32 len, l3;
	void *data, *end;
	struct tcphdr *t;

	if (!p)
		return DROP;
	l3 = p->l3 & L3_BITS;
	len = kept(p);
	if (bpf_skb_change_tail(skb, p->l4 + len, 0) || bpf_skb_pull_data(skb, p->l4 + len))
		return DROP;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	t = data + (p->l4 & L4_BITS);
	if ((void *)(t + 1) > end)
		return DROP;
	if (p->header == 32 && (void *)t + 32 <= end) {
		__u32 *words = (void *)t, tsval = words[6];

		if (words[5] == TIMESTAMP_WORD) {
			words[6] = words[7];
			words[7] = tsval;
		} else { /* SACK */
			words[5] = words[6] = words[7] = bpf_htonl(0x01010101); /* NOP */
		}
	}
	t->source = p->tuple.remote_port;
	t->dest = p->tuple.local_port;
	t->seq = bpf_htonl(seq);
	t->ack_seq = bpf_htonl(ack);
	((__u8 *)t)[12] = len << 2;
	((__u8 *)t)[13] = flags;
	t->urg_ptr = 0;
	if (!p->ipv6) {
		struct iphdr *ip = data + l3;
		__u16 was, is = bpf_htons(20 + len);

		if ((void *)(ip + 1) > end)
			return DROP;
		ip->saddr = p->tuple.remote.w[3];
		ip->daddr = p->tuple.local.w[3];
		was = ip->tot_len;
		ip->tot_len = is;
		bpf_l3_csum_replace(skb, l3 + 10, was, is, 2);
	} else {
		struct ipv6hdr *ip = data + l3;

		if ((void *)(ip + 1) > end)
			return DROP;
		__builtin_memcpy(&ip->saddr, &p->tuple.remote, sizeof(ip->saddr));
		__builtin_memcpy(&ip->daddr, &p->tuple.local, sizeof(ip->daddr));
		ip->payload_len = bpf_htons(len);
	}
	set_kind(skb, TO_SOCKET);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
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
 * Let P, a keepalive probe, go out with the numbers of the wire.  If the remote end is there it
 * answers, and is heard; if not, the frozen socket gives up as any other.
 */
static __always_inline int probe(struct __sk_buff *skb, struct found *f, const struct packet *p)
{
	struct graft_side *mine = f->mine, *other = f->other;
	struct change c = { .source = mine->tuple.local_port, .dest = mine->tuple.remote_port };
	__u32 ts[2];

	c.seq_add = (__u32)other->end + other->seq_add - 1 - p->seq;
	c.ack_add = (__u32)mine->end - p->ack;
	if (timestamp_of(skb, p, ts) && diff(mine->tsval_sent, ts[0]) > 0)
		c.tsval_add = mine->tsval_sent - ts[0];
	if (change_header(skb, p, &c, NULL, NULL))
		return DROP;
	bpf_l4_csum_replace(skb, p->l4 + 16, 0, c.diff, 0);
	return PASS;
}

/*
 * A packet of a frozen socket.  It may send again what the first translated packet has
 * acknowledged, probe the peer, or send FIN because the daemon died: it gets an ACK for all of that.
 * A new socket that was given the same tuple is refused.
 */
static __always_inline int of_frozen(struct __sk_buff *skb, struct found *f,
				     const struct packet *p)
{
	__u32 ack = f->mine->frozen_write;

	if (p->flags & SYN)
		return give_back(skb, p, 0, p->seq + 1, RST | ACK);
	if (p->flags & RST)
		return DROP;
	if (!p->len && !(p->flags & FIN) && diff(p->seq, ack) >= 0)
		return DROP;
	if (!p->len && !(p->flags & FIN) && p->seq == ack - 1 && !is_heard(f->mine))
		return probe(skb, f, p);
	if (diff(end_of(p), ack) > 0)
		ack = end_of(p);
	return give_back(skb, p, f->mine->frozen_read, ack, ACK);
}

static __always_inline bool is_held(const struct graft_entry *g)
{
	return g->hold && (__u32)(bpf_ktime_get_ns() / 1000000) - g->held_ms < GRAFT_HOLD_MS;
}

/*
 * Hold: the right edge of the window that our socket offers stays where it is, so the sender runs
 * dry, without loss, and the session is quiet for a moment.  That ends after GRAFT_HOLD_MS by itself:
 * nothing may happen that would let the daemon end it, and the daemon may be stopped.  The next
 * window probe is then told of the real window.
 */
static __always_inline void hold(struct __sk_buff *skb, struct graft_side *mine, struct packet *p)
{
	__u32 shift = mine->read_shift & 15, edge = p->ack + ((__u32)p->window << shift), room;
	__u16 was = bpf_htons(p->window), is;

	if (!(p->flags & ACK) || p->flags & (SYN | RST | FIN))
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
 * The state in which a packet that leaves finds its session; GRAFT_STATES: drop it.  It acknowledges,
 * and who looks just now may have read the numbers of before: so it counts.  That one may as well
 * begin a moment later; then the barrier lets it see what is acknowledged.
 */
static __always_inline __u32 state_for_leaving(struct graft_entry *g)
{
	for (int i = 0; i < 32; i++) {
		__u32 state = READ_ONCE(g->state);

		if (state == GRAFT_OFFERED)
			state = __sync_fetch_and_add(&g->state, 0);
		if ((state & GRAFT_STATE_MASK) != GRAFT_LOCKED)
			return state & GRAFT_STATE_MASK;
		if (__sync_val_compare_and_swap(&g->state, state, state + GRAFT_PASSED_ONE) ==
		    state)
			return GRAFT_LOCKED;
	}
	return GRAFT_STATES;
}

static __always_inline int leaves(struct __sk_buff *skb, struct found *f, struct packet *p)
{
	switch (state_for_leaving(f->g)) {
	case GRAFT_STATES:
		return DROP;
	case GRAFT_FREE:
		return PASS;
	case GRAFT_OFFERED:
	case GRAFT_LOCKED:
		if (is_held(f->g))
			hold(skb, f->mine, p);
		return f->g->shifted ? to_wire(skb, f->mine, p) : PASS;
	case GRAFT_CLOSED:
		if (p->flags & SYN) { /* of a new socket */
			forget(f->g, f->slot);
			return PASS;
		}
		return of_frozen(skb, f, p);
	case GRAFT_RETURNED:
		return to_wire(skb, f->mine, p);
	default:
		return of_frozen(skb, f, p);
	}
}

static __always_inline int out(struct __sk_buff *skb, __u32 l2)
{
	struct packet p;
	struct found f;

	if (is_kind(skb, SENT) || !parse(skb, l2, &p))
		return PASS;
	reverse(&p);
	return find(&p.tuple, p.ipv6, &f) ? leaves(skb, &f, &p) : PASS;
}

/* --- RST to an end, by the daemon --- */

#define RESET_TTL 64

static __always_inline void reset_ipv4(struct iphdr *ip, const struct graft_tuple *t)
{
	__builtin_memset(ip, 0, sizeof(*ip));
	*(__u8 *)ip = 0x45;
	ip->tot_len = bpf_htons(40);
	ip->ttl = RESET_TTL;
	ip->protocol = IPPROTO_TCP;
	ip->saddr = t->local.w[3];
	ip->daddr = t->remote.w[3];
}

/* The packet of the test run becomes a reset with SEQ, and goes to graft_in on the loopback device. */
__noinline int reset_at(struct __sk_buff *skb, const struct graft_side *s, __u32 seq)
{
	struct {
		struct graft_addr from, to;
		__u32 len, protocol;
	} pseudo = { .len = bpf_htonl(20), .protocol = bpf_htonl(IPPROTO_TCP) };
	struct tcphdr t = { 0 };
	__u32 l4;

	if (!s)
		return GRAFT_BAD_REQUEST;
	l4 = ETH_HLEN + (s->ipv6 ? 40 : 20);
	if (bpf_skb_change_tail(skb, l4 + 20, 0))
		return GRAFT_BAD_REQUEST;
	t.source = s->tuple.local_port;
	t.dest = s->tuple.remote_port;
	t.seq = bpf_htonl(seq);
	t.ack_seq = bpf_htonl((__u32)s->end);
	((__u8 *)&t)[12] = 5 << 4;
	((__u8 *)&t)[13] = RST | ACK;
	pseudo.from = s->tuple.local;
	pseudo.to = s->tuple.remote;
	if (!s->ipv6) {
		struct iphdr ip;

		/* ::ffff:0:0/96 is no part of the sum */
		pseudo.from.w[2] = pseudo.to.w[2] = 0;
		reset_ipv4(&ip, &s->tuple);
		ip.check = folded(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
		bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
	} else {
		struct ipv6hdr ip = { 0 };

		*(__u8 *)&ip = 0x60;
		ip.payload_len = bpf_htons(20);
		ip.nexthdr = IPPROTO_TCP;
		ip.hop_limit = RESET_TTL;
		__builtin_memcpy(&ip.saddr, &s->tuple.local, sizeof(ip.saddr));
		__builtin_memcpy(&ip.daddr, &s->tuple.remote, sizeof(ip.daddr));
		bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0);
	}
	t.check = folded(bpf_csum_diff(NULL, 0, (__be32 *)&t, sizeof(t),
				       bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo),
						     0)));
	bpf_skb_store_bytes(skb, l4, &t, sizeof(t), 0);
	skb->mark = MARK_RESET;
	return bpf_clone_redirect(skb, LOOPBACK, BPF_F_INGRESS) ? GRAFT_BAD_REQUEST : GRAFT_OK;
}

/*
 * An end takes no other reset than one with the number that it expects next.  That is between the last
 * that it has acknowledged, and the last that was sent to it: what it has got, it acknowledges late.
 */
static __always_inline int reset(struct __sk_buff *skb, const struct graft_entry *g, __u32 side)
{
	const struct graft_side *mine = side ? &g->side[1] : &g->side[0];
	const struct graft_side *other = side ? &g->side[0] : &g->side[1];
	__u32 acked = (__u32)mine->acked, sent = (__u32)other->end + other->seq_add;
	int r = reset_at(skb, mine, acked);

	return r || sent == acked ? r : reset_at(skb, mine, sent);
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
	return q.op == GRAFT_RESET ? reset(skb, g, q.side) : offer(skb, &q, g);
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
