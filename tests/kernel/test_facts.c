/* SPDX-License-Identifier: BSD-2-Clause */
/* What the design relies on, beside the behaviours of `culvert probe`. */
#include <arpa/inet.h>

#include "kt.h"

#define SENT 100
#define AGAIN 40 /* of SENT */
#define FRESH 10

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

/* What is in the receive queue, without consuming or copying it; -errno. */
static ssize_t unread(int fd)
{
	uint64_t n = 0;
	int r = tcp_unread(fd, &n);

	return r ?: (ssize_t)n;
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
	assert_int_equal(send(fd, rig_pattern(0), 50, MSG_OOB | MSG_DONTWAIT), 50);
	assert_int_equal(kt_send(fd, 50, 50), 0);
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

/* recv sees every byte once. */
static void t17_recv_skips_the_overlap(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_int_equal(kt_expect(s->a, 0, SENT), 0);
	assert_int_equal(kt_inject(s->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_int_equal(kt_expect(s->a, SENT, FRESH), 0);
	assert_true(kt_quiet(s->a));
	assert_int_equal(kt_info(s->a).tcpi_bytes_received, SENT + FRESH);
	assert_int_equal(kt_true_inq(s), 0);
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
		kt_test(f2_peek_with_passed_data_is_efault),
		kt_test(f3_fin_counts_as_received),
		kt_test(f4_urgent_data_stays_in_the_stream),
		kt_test(t17_recv_skips_the_overlap),
		kt_test(f7_handshake_ack_travels_with_data),
	};

	return kt_main(tests);
}
