/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An accelerator of local TCP, as of service meshes: established sockets of a cgroup go into a hash,
 * and bytes from one to another are put into its queue, past TCP.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

struct key {
	__u32 a, b;
	__u32 pa, pb;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 1024);
	__type(key, struct key);
	__type(value, __u64);
} socks SEC(".maps");

SEC("sockops")
int others_ops(struct bpf_sock_ops *s)
{
	struct key k = { s->local_ip4, s->remote_ip4, s->local_port, bpf_ntohl(s->remote_port) };

	if ((s->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB ||
	     s->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB) &&
	    s->family == 2)
		bpf_sock_hash_update(s, &socks, &k, BPF_NOEXIST);
	return 0;
}

SEC("sk_msg")
int others_msg(struct sk_msg_md *m)
{
	struct key k = { m->remote_ip4, m->local_ip4, bpf_ntohl(m->remote_port), m->local_port };

	if (m->family == 2)
		bpf_msg_redirect_hash(m, &socks, &k, BPF_F_INGRESS);
	return SK_PASS;
}

char _license[] SEC("license") = "GPL";
