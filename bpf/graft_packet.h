/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of graft.bpf.c; a packet, and the session that it belongs to. */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "graft_contract.h"
#include "udp_contract.h"
#include "vmlinux.h"

#define UINT32_MAX 0xffffffffU

#define PASS TC_ACT_UNSPEC /* to the next program, or to the stack: TCX_NEXT is the same */
#define DROP TC_ACT_SHOT

#define AF_INET 2
#define AF_INET6 10
#define PACKET_TO_US 0 /* PACKET_HOST */
#define LOOPBACK 1     /* ifindex in each network namespace */
#define OWN_TTL 64     /* of packets that are made here */

#define FIN 0x01
#define SYN 0x02
#define RST 0x04
#define ACK 0x10
#define ECE 0x40
#define CWR 0x80

#define ECN_CE 3 /* of the traffic class */

#define TCP_HEADER_MAX 60
#define OPTIONS_MAX (TCP_HEADER_MAX - 20)
/* The options of nearly each segment begin so: NOP, NOP, and the header of a timestamp option. */
#define TIMESTAMP_WORD bpf_htonl(0x0101080a)
#define OPTION_NOP 1
#define OPTION_MSS 2
#define OPTION_SCALE 3
#define OPTION_SACK_PERMITTED 4
#define OPTION_SACK 5
#define OPTION_TIMESTAMP 8

/*
 * Marks in skb->cb.  SENT: we have sent the packet.  TO_SOCKET: it goes back to its socket.
 * TO_NOBODY: it must not leave.  REMADE: it is a SYN for the listener.  Marks are not erased: the
 * hook may also have programs of another daemon, which must see the mark.
 */
#define OURS 0x67726166
#define SENT 0x74656421
#define TO_SOCKET 0x74656422
#define TO_NOBODY 0x74656423
#define REMADE 0x74656424

/* Linux 6.16; older kernels refuse it with EINVAL. */
#define CSUM_IPV6 (1ULL << 7)

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/* map sizes are placeholders: the daemon sets them before it loads */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct graft_entry);
} grafts SEC(".maps");

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
	__type(value, struct graft_bucket);
} tuples SEC(".maps");

/* Set before the programs are loaded; a power of 2.  One more bucket follows, with the seed. */
const volatile __u32 graft_n_buckets = 1;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct graft_tuple);
	__type(value, struct graft_handshake);
} handshakes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u32);
} interfaces SEC(".maps");

/* By the daemon: addresses of this machine to which clients of STANDBY sessions have connected. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct graft_addr);
	__type(value, __u32);
} addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct graft_shape);
} shapes SEC(".maps");

/* By stock of a listening socket: see graft_shape. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct graft_stock);
} stocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct graft_proof_key);
	__type(value, struct graft_proof);
} proofs SEC(".maps");

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

/* The state of a socket. */
struct seen {
	__u64 received; /* bytes of payload since the connection began */
	__u32 rcv_nxt, copied, rcv_wup, snd_una, snd_nxt, write_seq, snd_wnd, max_window, clock,
		ts_recent;
	__u32 mss, advmss;
	__u32 rtt_us; /* the smallest seen; 0: none was */
	__u32 from;   /* the interface by which the last packet came */
	__u32 room;   /* left in the window that the socket has offered */
	__u8 established, unordered, timestamps, sack, ecn, snd_shift, rcv_shift;
	__u8 hindrance; /* enum graft_refusal */
	__u8 foreign;   /* another program may take bytes of the socket, or put some in */
};

/*
 * Headers before and after a change, the states of both sockets, and the walk over the options of
 * TCP.  If the walk were on the stack, the verifier would follow its values through each step.
 * `is` has 128 bytes only for the verifier, which cannot see that no option ends behind byte 64.
 */
struct scratch {
	__u8 was[64] __attribute__((aligned(8))), is[128] __attribute__((aligned(8)));
	__u32 at, header;
	struct seen seen[2];
	struct graft_shape shape;
	struct graft_proof_key key;
	struct graft_proof proof;
	__u64 no_change[8]; /* zeroes: a struct change that changes nothing */
	struct graft_syn syn;
	__u32 syn_odd; /* 1: an option that is not known */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} scratch SEC(".maps");

static __always_inline struct scratch *my_scratch(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

__u64 graft_woken_ns[GRAFT_WORKERS]; /* CLOCK_MONOTONIC */
__u64 graft_events_lost;             /* the ring was full: the daemon looks at the states */
__u64 graft_outside;                 /* packets dropped because they are not in the window */
/*
 * By the daemon.  graft_ways: the number of events that may have changed ways.  graft_ways_least:
 * graft_ways at the last change of IPsec policies; older ways are not used.
 */
__u32 graft_ways, graft_ways_least;
/* By GRAFT_ROUTES: a number that changes with routes, and one that changes with IPsec policies. */
__u32 graft_routes, graft_policies;
/* By GRAFT_STRAYS: an interface without program by which a frozen socket gets packets. */
__u32 graft_stray;
/*
 * 1: conntrack has seen packets before a bridge's program, so programs are needed at the ports.
 * The daemon sets it, too, if an earlier daemon has found that out.
 */
__u32 graft_bridged;
/*
 * The daemon sets GRAFT_PORT_* by port while an import is not in sync, and for a while after the start.
 * Then an unknown connection may be another relay's.
 */
__u8 graft_unsynced[GRAFT_PORTS];

/* Sessions in SYN_SENT and ANSWERED: atomic.  By the daemon: the most of them. */
__s64 graft_half, graft_half_most;
__u64 graft_proven_from;         /* by the daemon: older proofs do not count */
__u32 graft_syn_workers;         /* by the daemon: they share the sessions from the SYN on */
__u8 graft_awake[GRAFT_WORKERS]; /* by the daemon: 1: the worker looks for new ones */
__u32 graft_hooks; /* places where netfilter sees TCP; by the daemon 1 until they are counted */
__u64 graft_past[GRAFT_PASTS];

static __s32 diff(__u32 a, __u32 b)
{
	return (__s32)(a - b);
}

/* Let *AT grow until its low half is TO, if TO is ahead.  Other CPUs may do the same meanwhile. */
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

static __always_inline bool is_kind(const struct __sk_buff *skb, __u32 kind)
{
	return skb->cb[3] == OURS && skb->cb[4] == kind;
}

static __always_inline void set_kind(struct __sk_buff *skb, __u32 kind)
{
	skb->cb[3] = OURS;
	skb->cb[4] = kind;
}

static void tell(const struct graft_entry *g, __u32 slot)
{
	struct graft_event ev = { .slot = slot, .id = g->head.id };
	__u32 worker = g->head.worker;
	__u64 *woken = &graft_woken_ns[worker & (GRAFT_WORKERS - 1)], now = bpf_ktime_get_ns();
	bool quiet = now - READ_ONCE(*woken) < GRAFT_QUIET_MS * 1000000ULL;
	void *ring = bpf_map_lookup_elem(&graft_rings, &worker);

	if (worker == GRAFT_NOBODY) /* the daemon that adopts the session reads the state */
		return;
	if (!quiet)
		*woken = now;
	if (!ring || bpf_ringbuf_output(ring, &ev, sizeof(ev),
					quiet ? BPF_RB_NO_WAKEUP : BPF_RB_FORCE_WAKEUP))
		__sync_fetch_and_add(&graft_events_lost, 1);
}

/* --- a packet --- */

/* Masks of the two offsets below: the verifier forgets bounds of a number that goes to memory. */
#define L3_BITS 15
#define L4_BITS 127

struct packet {
	struct graft_tuple tuple; /* of a packet that arrives; see reverse() */
	__u32 l3, l4;             /* offsets of the headers */
	__u32 seq, ack;
	__u32 len; /* of payload */
	__u16 window;
	__u8 header; /* bytes of the TCP header; that of UDP has fewer, see is_udp() */
	__u8 flags;  /* of UDP: NO_SUM */
	__u8 ipv6;
	__u8 ttl;
	__u8 odd;       /* enum graft_refusal: why it cannot be translated; or 0 */
	__u8 df : 1,    /* no router may cut it */
		ce : 1; /* congestion was experienced (RFC 3168) */
};

#define NO_SUM 1 /* without a checksum */

static __always_inline bool is_udp(const struct packet *p)
{
	return p->header == sizeof(struct udphdr);
}

static __always_inline __u32 sum_at(const struct packet *p)
{
	return p->l4 + (is_udp(p) ? 6 : 16);
}

/* UDP: a missing checksum (0) stays missing, and no sum becomes 0. */
static __always_inline __u64 sum_flags(const struct packet *p)
{
	return is_udp(p) ? BPF_F_MARK_MANGLED_0 : 0;
}

static __always_inline bool is_ipv6(const struct graft_leg *l)
{
	return graft_addr_is_ipv6(&l->tuple.remote);
}

static __u32 end_of(const struct packet *p)
{
	return p->seq + p->len + (p->flags & FIN);
}

/* No options of IPv4, no extension headers. */
static __always_inline bool is_plain(const struct packet *p)
{
	return p->l4 - p->l3 == (p->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr));
}

#define JUMBO bpf_htons(0xc204) /* kind and length of the option */

static __always_inline bool is_ours(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/*
 * Skip up to two extension headers of IPv6, of three kinds.  False: other headers, or a fragment
 * that is not the first, and so has no TCP header.  A jumbo header alone is that of BIG TCP, and
 * not odd.
 */
static __always_inline bool skip_extensions(struct packet *p, __u8 *protocol, void *data, void *end)
{
	__u8 next = *protocol;

	for (int i = 0; i < 2 && !is_ours(next); i++) {
		__u8 *h = data + (p->l4 & L4_BITS);

		if ((void *)(h + 8) > end || h[1] > 3)
			return false;
		if (next == IPPROTO_FRAGMENT && !(*(__u16 *)(h + 2) & bpf_htons(0xfff8)))
			p->odd = GRAFT_FRAGMENTS;
		else if (next != IPPROTO_HOPOPTS && next != IPPROTO_DSTOPTS)
			return false;
		else if (h[1] || *(__u16 *)(h + 2) != JUMBO)
			p->odd = p->odd ?: GRAFT_HEADERS;
		p->l4 += 8 + (next == IPPROTO_FRAGMENT ? 0 : h[1] * 8);
		next = h[0];
	}
	*protocol = next;
	return is_ours(next);
}

static __always_inline bool parse_addresses(struct packet *p, void *data, void *end,
					    __u32 *ret_total, __u8 *ret_protocol)
{
	void *at = data + (p->l3 & L3_BITS);

	if (!p->ipv6) {
		struct iphdr *ip = at;
		__u8 first;

		if ((void *)(ip + 1) > end)
			return false;
		first = *(__u8 *)ip;
		*ret_protocol = ip->protocol;
		if (first >> 4 != 4 || (first & 15) < 5 || !is_ours(ip->protocol) ||
		    ip->frag_off & bpf_htons(0x1fff))
			return false;
		p->odd = ip->frag_off & bpf_htons(0x2000) ? GRAFT_FRAGMENTS :
			 first != 0x45                    ? GRAFT_HEADERS :
							    0;
		p->df = !!(ip->frag_off & bpf_htons(0x4000));
		p->l4 = p->l3 + (first & 15) * 4;
		p->tuple.remote.w[2] = p->tuple.local.w[2] = bpf_htonl(0xffff);
		p->tuple.remote.w[3] = ip->saddr;
		p->tuple.local.w[3] = ip->daddr;
		p->ttl = ip->ttl;
		p->ce = (ip->tos & ECN_CE) == ECN_CE;
		*ret_total = bpf_ntohs(ip->tot_len);
	} else {
		struct ipv6hdr *ip = at;

		if ((void *)(ip + 1) > end || *(__u8 *)ip >> 4 != 6)
			return false;
		p->l4 = p->l3 + sizeof(*ip);
		p->df = 1;
		*ret_protocol = ip->nexthdr;
		if (!is_ours(ip->nexthdr) && !skip_extensions(p, ret_protocol, data, end))
			return false;
		__builtin_memcpy(&p->tuple.remote, &ip->saddr, sizeof(p->tuple.remote));
		__builtin_memcpy(&p->tuple.local, &ip->daddr, sizeof(p->tuple.local));
		p->ttl = ip->hop_limit;
		p->ce = (ip->flow_lbl[0] >> 4 & ECN_CE) == ECN_CE;
		*ret_total = sizeof(*ip) + bpf_ntohs(ip->payload_len);
	}
	return true;
}

/* A tag with VID 0 is a priority: the packet is for the device by which it came. */
static __always_inline bool is_for_a_vlan(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & 0xfff;
}

static __always_inline bool parse_udp(struct packet *p, const struct udphdr *u)
{
	p->flags = u->check ? 0 : NO_SUM;
	if (!is_plain(p) || bpf_ntohs(u->len) != p->len + sizeof(*u))
		p->odd = p->odd ?: GRAFT_HEADERS;
	return true;
}

static __always_inline bool parse_tcp(struct packet *p, const struct tcphdr *t)
{
	p->seq = bpf_ntohl(t->seq);
	p->ack = bpf_ntohl(t->ack_seq);
	p->window = bpf_ntohs(t->window);
	p->flags = ((__u8 *)t)[13];
	p->header = (((__u8 *)t)[12] >> 4) * 4;
	if (p->header < sizeof(*t) || p->len < p->header - sizeof(*t))
		return false;
	p->len -= p->header - sizeof(*t);
	return true;
}

/*
 * False: P cannot be of a graft, or the stack would not take it.  A packet with an accelerated VLAN
 * tag is for another device, whose program will see the packet again.  GSO packets above 64 KiB
 * (BIG TCP) have no valid total length.
 */
static __always_inline bool parse(struct __sk_buff *skb, __u32 l2, struct packet *p)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct tcphdr *t;
	__u32 total, least;
	__u8 protocol;

	if (is_for_a_vlan(skb))
		return false;
	__builtin_memset(p, 0, sizeof(*p));
	p->l3 = l2;
	p->ipv6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	if (!p->ipv6 && skb->protocol != bpf_htons(ETH_P_IP))
		return false;
	least = l2 + (p->ipv6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + sizeof(*t);
	if (data + least > end) {
		if (skb->len >= least && bpf_skb_pull_data(skb, least))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
	}
	if (!parse_addresses(p, data, end, &total, &protocol))
		return false;
	least = protocol == IPPROTO_UDP ? sizeof(struct udphdr) : sizeof(*t);
	t = data + (p->l4 & L4_BITS);
	if ((void *)t + least > end) { /* more headers: seldom */
		if (bpf_skb_pull_data(skb, p->l4 + least))
			return false;
		data = (void *)(long)skb->data;
		end = (void *)(long)skb->data_end;
		t = data + (p->l4 & L4_BITS);
	}
	if ((void *)t + sizeof(struct udphdr) > end)
		return false;
	p->tuple.remote_port = t->source;
	p->tuple.local_port = t->dest;
	if (skb->len - l2 > 65535)
		total = skb->len - l2;
	if (total < p->l4 - l2 + least || total > skb->len - l2)
		return false;
	p->header = least;
	p->len = total - (p->l4 - l2) - least;
	if (protocol == IPPROTO_UDP)
		return parse_udp(p, (struct udphdr *)t);
	return (void *)(t + 1) <= end && parse_tcp(p, t);
}

/* --- checksums --- */

#define CHECKSUM_UNNECESSARY 1 /* the device has verified the sum */
#define CHECKSUM_PARTIAL 3     /* the packet is of this machine, or GRO has verified the sum */
#define SUM_BLOCK sizeof(((struct scratch *)0)->is)

static __always_inline __u16 folded(__s64 sum)
{
	__u32 s = (__u32)sum;

	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return (__u16)~s;
}

/*
 * Is the checksum of P right?  It is that of TCP, or of the IP header if P is an odd IPv4 packet.
 * tc runs before the stack verifies checksums.
 */
__noinline int is_sound(struct __sk_buff *skb, const struct packet *p)
{
	__u8 summed = BPF_CORE_READ_BITFIELD_PROBED((struct sk_buff *)skb, ip_summed);
	__u32 at, left, n, sum = 0;
	struct scratch *s = my_scratch();

	if (!p || !s)
		return 0;
	at = p->l4;
	left = p->header + p->len;
	if (p->odd && !p->ipv6) {
		left = at - p->l3;
		at = p->l3;
	} else if (p->odd || summed == CHECKSUM_UNNECESSARY || summed == CHECKSUM_PARTIAL) {
		return 1; /* IPv6 has no header sum; no single wrong bit makes a plain packet odd */
	} else {          /* 0xffff adds 0: ::ffff:a.b.c.d sums up as a.b.c.d */
		sum = bpf_csum_diff(NULL, 0, (__be32 *)&p->tuple, 2 * sizeof(struct graft_addr),
				    bpf_htons(left) + bpf_htons(IPPROTO_TCP));
	}
	/* the last block comes first: it may be short, and is padded; all others are full */
	n = ((left - 1) & (SUM_BLOCK - 1)) + 1;
	__builtin_memset(s->is, 0, SUM_BLOCK);
	for (int i = 0; left && i < 65536 / (int)SUM_BLOCK; i++) {
		left -= n;
		if (bpf_skb_load_bytes(skb, at + left, s->is, n))
			return 0;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)s->is, SUM_BLOCK, sum);
		n = SUM_BLOCK;
	}
	return !left && !folded(sum);
}

/* Turn the tuple of a leaving packet round, as if the packet had arrived from its destination. */
static __always_inline void reverse(struct packet *p)
{
	struct graft_addr a = p->tuple.remote;
	__u16 port = p->tuple.remote_port;

	p->tuple.remote = p->tuple.local;
	p->tuple.local = a;
	p->tuple.remote_port = p->tuple.local_port;
	p->tuple.local_port = port;
}

static __always_inline bool same_addr(const struct graft_addr *a, const struct graft_addr *b)
{
	return !((a->w[0] ^ b->w[0]) | (a->w[1] ^ b->w[1]) | (a->w[2] ^ b->w[2]) |
		 (a->w[3] ^ b->w[3]));
}

static __always_inline bool same_tuple(const struct graft_tuple *a, const struct graft_tuple *b)
{
	return same_addr(&a->remote, &b->remote) && same_addr(&a->local, &b->local) &&
	       a->remote_port == b->remote_port && a->local_port == b->local_port;
}

struct found {
	struct graft_entry *g;
	struct graft_side *mine, *other; /* of the packet's side */
	__u32 slot;
	__u32 side;
};

/*
 * Is this relay the owner of a STANDBY session?  The local addresses of both legs move to a relay
 * one after the other.  One of the two is enough: that of the packet's leg, MINE, or that of leg
 * CLIENT.  On the server's leg of a transparent session CLIENT decides: MINE's local address is the
 * client's.
 */
static __always_inline bool is_here(const struct graft_tuple *mine,
				    const struct graft_tuple *client)
{
	return bpf_map_lookup_elem(&addresses, &mine->local) ||
	       bpf_map_lookup_elem(&addresses, &client->local);
}

/* The session of SLOT, as a packet of SIDE finds it.  False: there is none. */
static __always_inline bool find_slot(__u32 slot, __u32 side, struct found *f)
{
	f->slot = slot;
	f->side = side & 1;
	f->g = bpf_map_lookup_elem(&grafts, &f->slot);
	if (!f->g)
		return false;
	f->mine = f->side ? &f->g->side[1] : &f->g->side[0];
	f->other = f->side ? &f->g->side[0] : &f->g->side[1];
	return true;
}

/* May a packet find the session of G?  If not, another session may have its tuples. */
static __always_inline bool is_found(const struct graft_entry *g)
{
	__u32 state = READ_ONCE(g->head.state);

	return state != GRAFT_FREE && state != GRAFT_PREPARED && state != GRAFT_GAVE_UP &&
	       READ_ONCE(g->over) != GRAFT_ANEW;
}

/*
 * The place of T, a tuple of TCP or UDP; 0: none.  The daemon publishes a place with release, and
 * each load here depends on the one before.  See graft_index.c about slots that change meanwhile.
 */
__noinline int find_place(const struct graft_tuple *t, __u32 udp)
{
	__u32 key = graft_n_buckets;
	struct graft_bucket *b = bpf_map_lookup_elem(&tuples, &key);

	if (!t || !b)
		return 0;
	key = graft_hash(t, b->place[0]) & (graft_n_buckets - 1);
	b = bpf_map_lookup_elem(&tuples, &key);
	for (int i = 0; b && i < GRAFT_PLACES; i++) {
		__u32 place = READ_ONCE(b->place[i]), slot = place >> GRAFT_PLACE_SLOT;
		bool is = (place & GRAFT_PLACE_KIND) == graft_place(udp, 0, 0);
		bool one = place & GRAFT_PLACE_SIDE;
		struct graft_entry *g = is && !udp ? bpf_map_lookup_elem(&grafts, &slot) : NULL;
		struct udp_flow *u = is && udp ? bpf_map_lookup_elem(&udp_flows, &slot) : NULL;

		if ((g && same_tuple(one ? &g->side[1].tuple : &g->side[0].tuple, t) &&
		     is_found(g)) ||
		    (u && same_tuple(one ? &u->leg[1].tuple : &u->leg[0].tuple, t)))
			return place;
	}
	return 0;
}

/*
 * False: T belongs to no session of TCP.  An IPv6 header with IPv4-mapped addresses is not of an
 * IPv4 session.
 */
static __always_inline bool find(const struct graft_tuple *t, bool ipv6, struct found *f)
{
	__u32 place = find_place(t, false);

	return place && find_slot(place >> GRAFT_PLACE_SLOT, !!(place & GRAFT_PLACE_SIDE), f) &&
	       f->mine->ipv6 == ipv6;
}
