/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types the BPF programs read, kept by hand.
 *
 * CO-RE relocates every access against the running kernel's BTF, so a type needs only the fields
 * that are used, and neither their offsets nor their neighbours matter.  A field that is missing in
 * the running kernel makes the load fail with its name, which `culvert probe` reports.
 *
 * To add a type: look it up with
 *     bpftool btf dump file /sys/kernel/btf/vmlinux format c
 * and copy the names (not the layout) of the fields that are needed.  Everything that is UAPI
 * (struct __sk_buff, map types, return codes) comes from <linux/bpf.h>.
 */
#ifndef CULVERT_VMLINUX_H
#define CULVERT_VMLINUX_H

#include <linux/in6.h>
#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* include/net/netns/ */
struct netns_ipv4 {
	struct {
		int counter;
	} rt_genid; /* moves when a cached route may be wrong */
	__u8 sysctl_tcp_syncookies;
};

struct netns_ipv6 {
	struct {
		int counter;
	} fib6_sernum;
};

struct netns_xfrm {
	unsigned int policy_count[6]; /* by direction */
	__u8 policy_default[3];
};

/* include/linux/netfilter.h */
struct nf_hook_ops {
	void *priv;
	int priority;
};

struct nf_hook_entry {
	void *hook;
	void *priv;
};

/* Behind HOOKS are as many pointers to struct nf_hook_ops. */
struct nf_hook_entries {
	__u16 num_hook_entries;
	struct nf_hook_entry hooks[];
};

/* include/net/netns/netfilter.h: by enum nf_inet_hooks */

struct netns_nf {
	struct nf_hook_entries *hooks_ipv4[5];
	struct nf_hook_entries *hooks_ipv6[5]; /* CONFIG_IPV6 */
};

struct net {
	struct netns_nf nf; /* CONFIG_NETFILTER */
	struct netns_ipv4 ipv4;
	struct netns_ipv6 ipv6; /* CONFIG_IPV6 */
	struct netns_xfrm xfrm; /* CONFIG_XFRM */
};

struct nsproxy {
	struct net *net_ns;
};

struct task_struct {
	struct nsproxy *nsproxy;
};

/* include/linux/ipv6.h, include/net/if_inet6.h */
struct ipv6_devconf {
	int mtu6;
};

struct inet6_dev {
	struct ipv6_devconf cnf;
};

/* include/linux/netdevice.h */
struct net_device {
	int ifindex;
	unsigned int mtu;
	struct inet6_dev *ip6_ptr;
	struct nf_hook_entries *nf_hooks_ingress; /* CONFIG_NETFILTER_INGRESS */
	struct nf_hook_entries *nf_hooks_egress;  /* CONFIG_NETFILTER_EGRESS */
};

/* include/net/dst.h */
struct xfrm_state;
struct lwtunnel_state;
struct dst_entry {
	struct net_device *dev;
	unsigned long _metrics;
	struct xfrm_state *xfrm; /* CONFIG_XFRM */
	struct lwtunnel_state *lwtstate;
	short obsolete; /* DST_OBSOLETE_DEAD is 2 */
};

/* include/net/route.h, include/net/ip6_fib.h */
struct rtable {
	struct dst_entry dst;
	__u8 rt_gw_family;
	__u32 rt_gw4;
	struct in6_addr rt_gw6;
};

struct rt6_info {
	struct dst_entry dst;
	struct in6_addr rt6i_gateway;
	__u32 rt6i_flags;
};

/* include/net/sock.h */
struct possible_net {
	struct net *net;
};

struct sock_common {
	volatile unsigned char skc_state;
	struct possible_net skc_net;
};

struct sock {
	struct sock_common __sk_common;
	__u32 sk_mark;
	struct dst_entry *sk_dst_cache;
	__u32 sk_max_ack_backlog;
	int sk_rx_dst_ifindex; /* by which the last packet came */
	void *sk_user_data;    /* of TCP: a sockmap's */
};

/* include/net/inet_sock.h, include/net/inet_connection_sock.h */
struct inet_sock {
	struct sock sk;
};

/* include/net/request_sock.h */
struct request_sock_queue {
	struct {
		int counter;
	} qlen; /* connections that are being made */
};

struct tcp_ulp_ops;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct request_sock_queue icsk_accept_queue;
	__u8 icsk_retransmits;
	struct {
		int search_low;     /* the MTU that is known to get through */
		__u32 enabled : 1;
	} icsk_mtup;
	__u32 icsk_pmtu_cookie; /* MTU of the path, as far as it is known */
	const struct tcp_ulp_ops *icsk_ulp_ops;
};

/* include/linux/rbtree_types.h */
struct rb_node;
struct rb_root {
	struct rb_node *rb_node;
};

/* include/linux/tcp.h */
struct tcp_options_received {
	__u32 ts_recent;   /* the last TSval that is to be echoed */
	__u16 tstamp_ok : 1,
	      sack_ok : 3,
	      snd_wscale : 4,
	      rcv_wscale : 4;
	__u16 mss_clamp;   /* largest segment that the peer takes */
};

/* include/linux/win_minmax.h */
struct minmax_sample {
	__u32 v;
};

struct minmax {
	struct minmax_sample s[3];
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u32 rcv_wnd;        /* window that was offered when an ACK was sent last */
	struct minmax rtt_min; /* smallest round trips, in microseconds; ~0: none was seen */
	__u32 write_seq;  /* tail + 1 of the data held in the send buffer */
	__u32 copied_seq; /* head of the data that was not read yet */
	__u32 rcv_nxt;    /* what is expected next */
	__u32 rcv_wup;    /* rcv_nxt when an ACK was sent last */
	__u32 snd_una;    /* first byte that is not acknowledged */
	__u32 snd_nxt;    /* next that is sent */
	__u64 bytes_received;
	__u32 snd_wnd;    /* window that the peer offers */
	__u32 max_window; /* largest window that the peer has offered */
	__u32 tsoffset;
	__u64 tcp_wstamp_ns; /* departure time of the last packet */
	__u16 advmss;     /* largest segment that we have asked for */
	struct tcp_options_received rx_opt;
	struct rb_root out_of_order_queue;
	__u8 ecn_flags;
	_Bool is_mptcp;   /* CONFIG_MPTCP */
	__u8 tcp_usec_ts : 1; /* since Linux 6.7: timestamps in microseconds */
};

/* include/net/tcp.h: lies in sk_buff.cb while TCP has the skb */
struct tcp_skb_cb {
	__u32 seq; /* of the first byte */
};

/* include/linux/skbuff.h */
struct sk_buff {
	struct net_device *dev;
	unsigned long _skb_refdst; /* a pointer to the route, and a bit */
	unsigned long _nfct;       /* CONFIG_NF_CONNTRACK: what conntrack has found */
	char cb[48];
	unsigned int truesize; /* memory that the skb occupies */
	__u8 ip_summed : 2;    /* who has verified the checksum: CHECKSUM_NONE is 0 */
};

#pragma clang attribute pop

#endif
