/* SPDX-License-Identifier: BSD-2-Clause */
/* What the network does to a connection: lost and repeated segments. */
#include <arpa/inet.h>
#include <linux/filter.h>
#include <net/if.h>

#include <bpf/libbpf.h>

#include "kt.h"

#define INJECT_MAX 2048

static struct bpf_tc_hook lo_hook(enum bpf_tc_attach_point where)
{
	return (struct bpf_tc_hook){ .sz = sizeof(struct bpf_tc_hook), .attach_point = where,
				     .ifindex = (int)if_nametoindex("lo") };
}

void kt_dropper_start(struct kt_dropper *d, bool on_the_way_out)
{
	struct bpf_tc_hook hook = lo_hook(on_the_way_out ? BPF_TC_EGRESS : BPF_TC_INGRESS);
	LIBBPF_OPTS(bpf_tc_opts, opts);
	int r;

	d->bpf = traps__open();
	assert_non_null(d->bpf);
	bpf_program__set_autoload(d->bpf->progs.kt_verdict, false);
	bpf_program__set_autoload(d->bpf->progs.kt_drop, true);
	assert_int_equal(traps__load(d->bpf), 0);
	d->cfg = &d->bpf->bss->drop_cfg;
	r = bpf_tc_hook_create(&hook);
	if (r == -ENOENT || r == -EOPNOTSUPP) { /* sch_ingress, cls_bpf */
		traps__destroy(d->bpf);
		printf("a lost packet: skipped: no BPF program at lo: %s\n", strerror(-r));
		skip();
		return;
	}
	assert_int_equal(r, 0);
	opts.prog_fd = bpf_program__fd(d->bpf->progs.kt_drop);
	assert_int_equal(bpf_tc_attach(&hook, &opts), 0);
}

void kt_dropper_stop(struct kt_dropper *d)
{
	struct bpf_tc_hook hook = lo_hook(BPF_TC_INGRESS | BPF_TC_EGRESS); /* the whole qdisc */

	assert_int_equal(bpf_tc_hook_destroy(&hook), 0);
	traps__destroy(d->bpf);
}

uint16_t kt_port(int fd)
{
	struct sockaddr_in addr = { 0 };
	socklen_t len = sizeof(addr);

	assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &len), 0);
	return ntohs(addr.sin_port);
}

/* The filter sees a segment from its TCP header on.  What it refuses, the peer sends again. */
int kt_filter(int fd, bool on)
{
	static struct sock_filter insns[] = {
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 13), /* flags */
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 7, 0), /* FIN */
		BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 12), /* length of the header in words */
		BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 4),
		BPF_STMT(BPF_ALU | BPF_LSH | BPF_K, 2),
		BPF_STMT(BPF_MISC | BPF_TAX, 0),
		BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_X, 0, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog prog = { .len = sizeof(insns) / sizeof(insns[0]), .filter = insns };
	int off = 0;

	if (on ? setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)) :
		 setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof(off)))
		return -errno;
	return 0;
}

/* The next sequence number that fd would send or expects (T12: not for production). */
static uint32_t queue_seq(int fd, int queue)
{
	int on = 1, off = TCP_REPAIR_OFF_NO_WP;
	uint32_t seq = 0;
	socklen_t len = sizeof(seq);

	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof(queue)), 0);
	assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, &len), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)), 0);
	return seq;
}

static uint32_t sum16(const void *data, size_t len, uint32_t sum)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
	return sum;
}

static uint16_t tcp_checksum(uint32_t saddr, uint32_t daddr, const void *segment, size_t len)
{
	uint32_t sum = IPPROTO_TCP + (uint32_t)len;

	sum = sum16(&saddr, sizeof(saddr), sum);
	sum = sum16(&daddr, sizeof(daddr), sum);
	sum = sum16(segment, len, sum);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return htons((uint16_t)~sum);
}

int kt_inject(int fd, uint64_t off, size_t len, size_t again)
{
	struct {
		struct tcphdr th;
		unsigned char data[INJECT_MAX];
	} seg = { 0 };
	struct sockaddr_in from = { 0 }, to = { 0 };
	socklen_t flen = sizeof(from), tlen = sizeof(to);
	size_t total = sizeof(seg.th) + len;
	int raw, r = 0;

	assert_true(len <= sizeof(seg.data));
	if (getsockname(fd, (struct sockaddr *)&from, &flen) < 0 ||
	    getpeername(fd, (struct sockaddr *)&to, &tlen) < 0)
		return -errno;
	seg.th.source = from.sin_port;
	seg.th.dest = to.sin_port;
	seg.th.seq = htonl(queue_seq(fd, TCP_SEND_QUEUE) - (uint32_t)again);
	seg.th.ack_seq = htonl(queue_seq(fd, TCP_RECV_QUEUE));
	seg.th.doff = sizeof(seg.th) / 4;
	seg.th.ack = 1;
	seg.th.psh = 1;
	seg.th.window = htons(UINT16_MAX);
	kt_fill(seg.data, len, off);
	seg.th.check = tcp_checksum(from.sin_addr.s_addr, to.sin_addr.s_addr, &seg, total);

	raw = socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
	if (raw < 0)
		return -errno;
	to.sin_port = 0;
	if (sendto(raw, &seg, total, 0, (struct sockaddr *)&to, sizeof(to)) < 0)
		r = -errno;
	close(raw);
	return r;
}
