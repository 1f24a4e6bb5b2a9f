/* SPDX-License-Identifier: BSD-2-Clause */
/* What the design relies on: section 2 and 3 of DATAPATH.md, T6's formula, F2 to F4, F6, F7. */
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "kt.h"

#define NOBODY 65534

/* A socket as another family: the same path with IPv6. */
static void redirect_works_with_ipv6(void **state)
{
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct kt_session *s;

	(void)state;
	if (fd < 0) {
		print_message("skipped: no IPv6 in this kernel: %s\n", strerror(errno));
		skip();
	}
	close(fd);
	s = kt_open(KT_IPV6);
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, 1 * MIB), 0);
	assert_int_equal(kt_expect(s->server, 0, 1 * MIB), 0);
}

/*
 * Section 2, bpf_skc_to_tcp_sock: the program sees the target's write_seq.  TCP_REPAIR, on a socket
 * that is thrown away afterwards (T12), says whether it is the true one.
 */
static void program_reads_the_targets_write_seq(void **state)
{
	struct kt_session *s = kt_open(0);
	int one = 1, queue = TCP_SEND_QUEUE;
	uint32_t first, seq = 0;
	socklen_t len = sizeof(seq);

	(void)state;
	kt_start(s, KT_REDIRECT);
	kt_conf(s->slot_a)->flags = KT_F_WATCH;
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_int_equal(kt_expect(s->server, 0, 1000), 0);
	first = kt_stat(s->slot_a)->target_seq;
	assert_int_equal(kt_send(s->b, 1000, 500), 0); /* user space writes count as well */
	assert_int_equal(kt_expect(s->server, 1000, 500), 0);
	assert_int_equal(kt_send(s->client, 1500, 1), 0);
	assert_int_equal(kt_expect(s->server, 1500, 1), 0);
	assert_true(kt_stat(s->slot_a)->packets > 1);
	assert_int_equal(setsockopt(s->b, IPPROTO_TCP, TCP_REPAIR, &one, sizeof(one)), 0);
	assert_int_equal(setsockopt(s->b, IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue, sizeof(queue)), 0);
	assert_int_equal(getsockopt(s->b, IPPROTO_TCP, TCP_QUEUE_SEQ, &seq, &len), 0);
	assert_int_equal(kt_stat(s->slot_a)->target_seq, seq - 1);
	if (kt_stat(s->slot_a)->packets == 2)
		assert_int_equal(first, seq - 1501);
}

/* As a sandboxed daemon: another user, no capability in any set, no way back. */
static int drop_everything(void)
{
	struct __user_cap_header_struct hdr = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct data[2] = { 0 };

	for (int cap = 0; cap <= CAP_LAST_CAP; cap++)
		prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setgroups(0, NULL) < 0 ||
	    setresgid(NOBODY, NOBODY, NOBODY) < 0 || setresuid(NOBODY, NOBODY, NOBODY) < 0 ||
	    syscall(SYS_capset, &hdr, data) < 0)
		return -errno;
	return geteuid() == NOBODY ? 0 : -EPERM;
}

static int count_event(void *ctx, void *data, size_t size)
{
	const struct kt_event *ev = data;

	*(int *)ctx += size >= sizeof(*ev) && ev->kind == KT_EV_PASSED;
	return 0;
}

/* Everything that the daemon does to its maps and sockets; the number of the step that failed. */
static int work_without_privilege(struct kt_session *s, struct ring_buffer *rb,
				  const int *events)
{
	int lock;

	if (drop_everything())
		return 1;
	if (bpf_map_create(BPF_MAP_TYPE_SOCKMAP, NULL, 4, 8, 1, NULL) >= 0)
		return 2; /* not as powerless as it should be */
	if (kt_name(s->slot_a, s->a) || kt_name(s->slot_b, s->b))
		return 3;
	if (kt_add(kt_bpf->maps.tx, s->slot_a, s->a) || kt_add(kt_bpf->maps.tx, s->slot_b, s->b))
		return 4;
	kt_conf(s->slot_a)->mode = KT_REDIRECT;
	if (kt_add(kt_bpf->maps.rx, s->slot_a, s->a))
		return 5;
	kt_kick(s->a);
	if (kt_send(s->client, 0, 1000) || kt_expect(s->server, 0, 1000))
		return 6;
	if (kt_stat(s->slot_a)->bytes != 1000)
		return 7;
	kt_conf(s->slot_a)->mode = KT_PASS;
	if (kt_send(s->client, 0, 1000) || kt_expect(s->a, 0, 1000))
		return 8;
	if (ring_buffer__consume(rb) < 0 || *events < 1)
		return 9;
	lock = kt_fence(s->a);
	if (lock < 0 || kt_del(kt_bpf->maps.rx, s->slot_a) || kt_unfence(s->a, lock))
		return 10;
	if (kt_send(s->client, 0, 1000) || kt_expect(s->a, 0, 1000))
		return 11;
	if (kt_del(kt_bpf->maps.tx, s->slot_a) || kt_del(kt_bpf->maps.tx, s->slot_b))
		return 12;
	return 0;
}

/* Section 2: after loading, the daemon needs no privilege for any step of its work. */
static void maps_work_without_privilege(void **state)
{
	struct kt_session *s = kt_open(0);
	struct ring_buffer *rb;
	int events = 0, status = -1;
	pid_t pid;

	(void)state;
	rb = ring_buffer__new(bpf_map__fd(kt_bpf->maps.events), count_event, &events, NULL);
	assert_non_null(rb);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		alarm(60);
		_exit(work_without_privilege(s, rb, &events));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	ring_buffer__free(rb);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* T6: both ways of counting start on_the_way_out they should. */
static void t6_formula_starts_at_zero(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_accepted(s->a), 0);
	assert_int_equal(kt_accepted(s->b), 0);
	assert_int_equal(kt_info(s->a).tcpi_bytes_received, 0);
	assert_int_equal(kt_info(s->b).tcpi_bytes_received, 0);
	print_message("T6: acked + SIOCOUTQ starts at %lld (accepted), %lld (connected: its SYN)\n",
		      (long long)kt_sent_seq(s->a), (long long)s->base_b);
	assert_int_equal(kt_sent_seq(s->a), 0);
	assert_int_equal(s->base_b, 1);
}

struct counts {
	bool exact, never_more; /* the formula, at every look */
	bool seq_never_more;	/* acked + SIOCOUTQ, at every look */
	int64_t off, seq_off;	/* at the end, from the truth */
	uint64_t retrans;
	uint32_t dropped;
};

/* 4 MiB from B to the server while some segments are lost; how well B's bytes can be counted. */
static struct counts count_with_losses(bool on_the_way_out)
{
	struct kt_session *s = kt_open(0);
	struct counts c = { .exact = true, .never_more = true, .seq_never_more = true };
	const uint64_t total = 4 * MIB, most = 200 * KIB;
	uint64_t sent = 0, got = 0;
	struct kt_dropper d;

	kt_dropper_start(&d, on_the_way_out);
	d.cfg->every = 7;
	d.cfg->most = 8;
	d.cfg->port = kt_port(s->server);
	assert_true(KT_WAIT(({
		ssize_t n = kt_push(s->b, sent, total - sent < most ? total - sent : most);
		ssize_t m = kt_pull(s->server, got, total);
		int64_t counted;

		assert_true(n >= 0 && m >= 0);
		sent += (uint64_t)n;
		got += (uint64_t)m;
		counted = kt_accepted(s->b);
		c.exact = c.exact && counted == (int64_t)sent;
		c.never_more = c.never_more && counted <= (int64_t)sent;
		if (kt_sent_seq(s->b) - s->base_b > (int64_t)sent)
			c.seq_never_more = false;
		got == total;
	})));
	c.off = kt_accepted(s->b) - (int64_t)total;
	c.seq_off = kt_sent_seq(s->b) - s->base_b - (int64_t)total;
	c.retrans = kt_info(s->b).tcpi_bytes_retrans;
	c.dropped = d.cfg->dropped;
	kt_dropper_stop(&d);
	print_message("T6: %u segments lost, %llu bytes retransmitted: formula off by %lld, "
		      "acked + SIOCOUTQ by %lld\n", c.dropped, (unsigned long long)c.retrans,
		      (long long)c.off, (long long)c.seq_off);
	return c;
}

/* T6: the formula is exact at every moment while the network loses packets. */
static void t6_formula_is_exact_with_retransmits(void **state)
{
	struct counts c = count_with_losses(false);

	(void)state;
	assert_true(c.dropped > 0);
	assert_true(c.retrans > 0);
	assert_true(c.exact);
	assert_int_equal(c.off, 0);
	assert_true(c.seq_never_more);
	assert_int_equal(c.seq_off, 0);
}

/*
 * T6, __tcp_transmit_skb: bytes_sent is counted before the packet is handed to the device.  When
 * that fails (full qdisc, tc or netfilter on the way out), the same bytes are counted again and not
 * as retransmitted: the formula says too much, that is "drained" too early.  acked + SIOCOUTQ
 * depends on sequence numbers only.
 */
static void t6_formula_and_local_drops(void **state)
{
	struct counts c = count_with_losses(true);

	(void)state;
	print_message("T6: local drops: the formula %s\n",
		      c.never_more ? "holds" : "says more than was written");
	assert_true(c.dropped > 0);
	assert_true(c.seq_never_more);
	assert_int_equal(c.seq_off, 0);
}

/* What is in the receive queue, without consuming or copying it; -errno. */
static ssize_t unread(int fd)
{
	/* cppcheck-suppress nullPointer ; MSG_TRUNC: nothing is copied */
	ssize_t n = recv(fd, NULL, INT32_MAX, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);

	return n < 0 ? -errno : n;
}

/*
 * F2, tcp_recvmsg: PEEK|TRUNC counts what is unread in a socket that is only in tx; SIOCINQ may say
 * 0 there (tcp_bpf_ioctl looks only at passed data; newer kernels add the receive queue).
 */
static void f2_unread_bytes_can_be_counted(void **state)
{
	struct kt_session *s = kt_open(0);
	int size = 4 * MIB, one = 1;
	const uint64_t total = 1000 * 1049;

	(void)state;
	assert_int_equal(setsockopt(s->a, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)), 0);
	setsockopt(s->client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	kt_targets(s);
	assert_int_equal(unread(s->a), -EAGAIN);
	for (uint64_t off = 0; off < total; off += 1049)
		assert_int_equal(kt_send(s->client, off, 1049), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == total));
	assert_int_equal(unread(s->a), total);
	assert_int_equal(unread(s->a), total);
	print_message("F2: %llu unread, SIOCINQ in tx says %d\n", (unsigned long long)total,
		      kt_inq(s->a));
	assert_true(kt_inq(s->a) == 0 || kt_inq(s->a) == (int)total);
	assert_int_equal(kt_expect(s->a, 0, 1000), 0);
	assert_int_equal(unread(s->a), total - 1000);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	assert_int_equal(unread(s->a), total - 1000); /* the FIN is not counted */
	assert_int_equal(kt_expect(s->a, 1000, total - 1000), 0);
	assert_int_equal(unread(s->a), 0); /* end of file */
}

/*
 * F2, __sk_msg_recvmsg: for passed data MSG_TRUNC means nothing: the data is copied, whatever the
 * buffer is.  A pointer to one byte with a length of INT_MAX would be overrun; NULL is EFAULT.
 */
static void f2_peek_with_passed_data_is_efault(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 1000));
	assert_true(unread(s->a) < 0);
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(unread(s->a), -EFAULT);
	assert_int_equal(kt_expect(s->a, 0, 1000), 0);
}

/* F3, tcp_rcv_nxt_update: the FIN is one of tcpi_bytes_received; the state says whether it came. */
static void f3_fin_counts_as_received(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_int_equal(kt_expect(s->server, 0, 1000), 0);
	assert_int_equal(kt_info(s->a).tcpi_bytes_received, 1000);
	assert_int_equal(kt_info(s->a).tcpi_state, BPF_TCP_ESTABLISHED);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_state == BPF_TCP_CLOSE_WAIT));
	assert_int_equal(kt_info(s->a).tcpi_bytes_received, 1001);
	assert_int_equal(kt_stat(s->slot_a)->bytes, 1000);
}

/* 50 bytes, the last of them urgent, and 50 more. */
static void send_with_urgent(int fd)
{
	unsigned char buf[100];

	kt_fill(buf, sizeof(buf), 0);
	assert_int_equal(send(fd, buf, 50, MSG_OOB | MSG_DONTWAIT), 50);
	assert_int_equal(send(fd, buf + 50, 50, MSG_DONTWAIT), 50);
}

/* F4, tcp_urg: with SO_OOBINLINE an urgent byte is a byte like any other, read or redirected. */
static void f4_urgent_data_stays_in_the_stream(void **state)
{
	struct kt_session *copy = kt_open(0), *redirect = kt_open(0), *bare = kt_open(0);
	int one = 1;

	(void)state;
	setsockopt(copy->a, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
	setsockopt(redirect->a, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one));
	send_with_urgent(copy->client);
	assert_true(KT_WAIT(kt_info(copy->a).tcpi_bytes_received == 100));
	print_message("F4: with an urgent byte at 49 of 100, PEEK|TRUNC counts %zd, SIOCINQ %d\n",
		      unread(copy->a), kt_inq(copy->a));
	assert_int_equal(kt_expect(copy->a, 0, 100), 0);

	kt_start(redirect, KT_REDIRECT);
	send_with_urgent(redirect->client);
	assert_int_equal(kt_expect(redirect->server, 0, 100), 0);

	kt_start(bare, KT_REDIRECT); /* and redirect does so without the option as well */
	send_with_urgent(bare->client);
	assert_int_equal(kt_expect(bare->server, 0, 100), 0);
}

/* F6: SO_RCVTIMEO as a tag that the program reads from its own socket, in jiffies. */
static void f6_program_reads_a_tag_of_the_socket(void **state)
{
	struct kt_session *s = kt_open(0);
	struct traps *bpf = traps__open();
	struct timeval tv = { .tv_sec = 1 };
	uint64_t hz, sent = 0;

	(void)state;
	assert_non_null(bpf);
	if (!bpf) /* for the analyzer, which does not know that cmocka does not return */
		return;
	bpf_program__set_autoload(bpf->progs.kt_verdict, false);
	bpf_program__set_autoload(bpf->progs.kt_tag, true);
	assert_int_equal(traps__load(bpf), 0);
	assert_int_equal(bpf_prog_attach(bpf_program__fd(bpf->progs.kt_tag),
					 bpf_map__fd(bpf->maps.rx), BPF_SK_SKB_VERDICT, 0), 0);
	assert_int_equal(kt_add(bpf->maps.rx, 0, s->a), 0);
	hz = 0;
	for (unsigned int i = 0; i < 3; i++) {
		tv.tv_sec = i ? 1000 * i + 7 : 1;
		assert_int_equal(setsockopt(s->a, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)), 0);
		assert_int_equal(kt_send(s->client, sent, 10), 0);
		assert_int_equal(kt_expect(s->a, sent, 10), 0);
		sent += 10;
		hz = i ? hz : bpf->bss->tag_seen;
		assert_int_equal(bpf->bss->tag_seen, hz * (uint64_t)tv.tv_sec);
	}
	print_message("F6: works, HZ is %llu\n", (unsigned long long)hz);
	assert_in_range(hz, 100, 1000);
	assert_true(kt_quiet(s->a)); /* the socket does not block all the same */
	assert_int_equal(bpf->bss->tag_runs, 3);
	kt_close(&s->a);
	traps__destroy(bpf);
}

/* A listener on loopback, and a socket that has connected to it, with or without the option. */
static int connect_deferring(bool defer, int *ret_listener)
{
	struct sockaddr_in any = { .sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(any);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), seconds = 1;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(listener, (struct sockaddr *)&any, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&any, &len), 0);
	if (defer)
		assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds,
					    sizeof(seconds)), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&any, len), 0);
	*ret_listener = listener;
	return fd;
}

/* How many of TRIES connections were there to be accepted before anything was sent. */
static int accepted_at_once(bool defer, int tries)
{
	int n = 0;

	for (int i = 0; i < tries; i++) {
		int listener, fd = connect_deferring(defer, &listener);
		int accepted = accept(listener, NULL, NULL);

		n += accepted >= 0;
		if (accepted < 0) {
			assert_int_equal(errno, EAGAIN);
			assert_int_equal(send(fd, "x", 1, 0), 1);
			assert_true(KT_WAIT((accepted = accept(listener, NULL, NULL)) >= 0));
		}
		close(accepted);
		close(fd);
		close(listener);
	}
	return n;
}

/*
 * F7, tcp_rcv_synsent_state_process: TCP_DEFER_ACCEPT on a connecting socket lets the ACK of the
 * handshake travel with the first bytes.  It is held back for 200 ms at most, which a busy machine
 * may take from us now and then.
 */
static void f7_handshake_ack_travels_with_data(void **state)
{
	int held_back = 0;

	(void)state;
	assert_int_equal(accepted_at_once(false, 20), 20);
	held_back = 20 - accepted_at_once(true, 20);
	print_message("F7: %d of 20 ACKs travelled with the first byte\n", held_back);
	assert_true(held_back > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(redirect_works_with_ipv6),
		kt_test(program_reads_the_targets_write_seq),
		kt_test(maps_work_without_privilege),
		kt_test(t6_formula_starts_at_zero),
		kt_test(t6_formula_is_exact_with_retransmits),
		kt_test(t6_formula_and_local_drops),
		kt_test(f2_unread_bytes_can_be_counted),
		kt_test(f2_peek_with_passed_data_is_efault),
		kt_test(f3_fin_counts_as_received),
		kt_test(f4_urgent_data_stays_in_the_stream),
		kt_test(f6_program_reads_a_tag_of_the_socket),
		kt_test(f7_handshake_ack_travels_with_data),
	};

	return kt_main(tests);
}
