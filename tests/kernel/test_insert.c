/* SPDX-License-Identifier: BSD-2-Clause */
/* Traps of putting a socket under a verdict: T2, T3, T4, T7, T12, T15. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "kt.h"

/*
 * T2, sk_psock_start_verdict / tcp_bpf_recvmsg_parser: what is queued at the insertion waits for
 * the next segment; peeking at the socket makes the verdict run at once.
 */
static void t2_early_data_waits_for_a_kick(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_inq(s->a) == 100));
	kt_start(s, KT_REDIRECT);
	if (KT_HOLDS(kt_stat(s->slot_a)->runs == 0, 50))
		print_message("T2: present: early data stays where it is\n");
	else
		print_message("T2: fixed: the insertion runs the verdict\n");

	kt_kick(s->a);
	assert_int_equal(kt_stat(s->slot_a)->bytes, 100);
	assert_int_equal(kt_expect(s->server, 0, 100), 0);
	assert_int_equal(kt_send(s->client, 100, 50), 0);
	assert_int_equal(kt_expect(s->server, 100, 50), 0);
}

/*
 * T2, tcp_bpf_recvmsg_parser: a plain recv kicks as well, but then sets copied_seq back to where it
 * was before the verdict ran.  Only a peek is a kick.
 */
static void t2_plain_recv_is_no_kick(void **state)
{
	struct kt_session *s = kt_open(0);
	char byte;
	int inq;

	(void)state;
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_inq(s->a) == 100));
	kt_start(s, KT_REDIRECT);
	assert_true(recv(s->a, &byte, 1, MSG_DONTWAIT) < 0);
	assert_int_equal(kt_expect(s->server, 0, 100), 0);
	inq = kt_true_inq(s);
	print_message("T2: plain recv: %s: copied_seq is %d behind\n", inq ? "present" : "fixed",
		      inq);
	assert_true(inq == 0 || inq == 100);
}

/* T2: without the kick, the next segment brings the early data along, in order. */
static void t2_next_segment_brings_early_data(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_inq(s->a) == 100));
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 100, 1), 0);
	assert_int_equal(kt_expect(s->server, 0, 101), 0);
}

/* T3, tcp_read_skb: a partly read skb is given to the verdict from its first byte. */
static void t3_partly_read_skb_is_sent_whole(void **state)
{
	struct kt_session *s = kt_open(0);
	uint64_t redirected;

	(void)state;
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(kt_expect(s->a, 0, 30), 0);
	kt_start(s, KT_REDIRECT);
	kt_kick(s->a);
	redirected = kt_stat(s->slot_a)->bytes;
	print_message("T3: %s: 30 of 100 bytes read, then %llu redirected\n",
		      redirected == 70 ? "fixed" : "present", (unsigned long long)redirected);
	assert_true(redirected == 100 || redirected == 70);
	assert_int_equal(kt_expect(s->server, 100 - redirected, redirected), 0);
	/* copied_seq has run ahead of rcv_nxt by what was read */
	assert_int_equal(kt_true_inq(s), redirected == 100 ? -30 : 0);
}

/* T3, the remedy: read until EAGAIN, insert, and every byte is seen once. */
static void t3_insert_after_eagain(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(kt_expect(s->a, 0, 30), 0);
	assert_int_equal(kt_expect(s->a, 30, 70), 0);
	assert_true(kt_quiet(s->a));
	kt_start(s, KT_REDIRECT);
	kt_kick(s->a);
	assert_int_equal(kt_send(s->client, 100, 100), 0);
	assert_int_equal(kt_expect(s->server, 100, 100), 0);
	assert_int_equal(kt_true_inq(s), 0);
}

/* T4, sock_map_sk_state_allowed: after the peer's FIN, insertion is refused; recv still works. */
static void t4_insert_after_peers_fin(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_name(s->slot_a, s->a), 0);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_a, s->a), -EOPNOTSUPP);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), -EOPNOTSUPP);
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
	assert_int_equal(kt_expect_eof(s->a), 0);
}

/* T4: after our own FIN as well. */
static void t4_insert_after_own_fin(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(shutdown(s->a, SHUT_WR), 0);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), -EOPNOTSUPP);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
}

/* T4: a socket that is a target already stays one after its peer's FIN; rx is refused. */
static void t4_target_survives_peers_fin(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(shutdown(s->server, SHUT_WR), 0);
	assert_int_equal(kt_expect_eof(s->b), 0);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_b, s->b), -EOPNOTSUPP);
	assert_int_equal(kt_send(s->client, 0, 100 * KIB), 0);
	assert_int_equal(kt_expect(s->server, 0, 100 * KIB), 0);
}

struct waiter {
	int epfd, stopfd;
	_Atomic bool ready;
	long wakeups;
};

static void *wait_and_count(void *arg)
{
	struct waiter *w = arg;
	struct rusage before, after;
	struct epoll_event ev = { 0 };

	getrusage(RUSAGE_THREAD, &before);
	w->ready = true;
	do {
		if (epoll_wait(w->epfd, &ev, 1, KT_DEADLINE_MS) <= 0)
			break;
	} while (ev.data.fd != w->stopfd);
	getrusage(RUSAGE_THREAD, &after);
	w->wakeups = after.ru_nvcsw - before.ru_nvcsw;
	return NULL;
}

/* How often a thread in epoll_wait is woken while 100 segments pass through the kernel. */
static long wakeups_of_100_segments(uint32_t events)
{
	struct kt_session *s = kt_open(0);
	struct waiter w = { .epfd = epoll_create1(EPOLL_CLOEXEC), .stopfd = eventfd(0, 0) };
	struct epoll_event ev = { .events = events, .data.fd = s->a };
	struct epoll_event stop = { .events = EPOLLIN, .data.fd = w.stopfd };
	pthread_t thread;
	int bad = 0;

	kt_start(s, KT_REDIRECT);
	assert_int_equal(epoll_ctl(w.epfd, EPOLL_CTL_ADD, s->a, &ev), 0);
	assert_int_equal(epoll_ctl(w.epfd, EPOLL_CTL_ADD, w.stopfd, &stop), 0);
	assert_int_equal(pthread_create(&thread, NULL, wait_and_count, &w), 0);
	bad = !KT_WAIT(w.ready);
	for (uint64_t i = 0; i < 100 && !bad; i++)
		bad = kt_send(s->client, i, 1) ?: kt_expect(s->server, i, 1);
	eventfd_write(w.stopfd, 1);
	pthread_join(thread, NULL);
	close(w.epfd);
	close(w.stopfd);
	assert_int_equal(bad, 0);
	return w.wakeups;
}

/*
 * T7, sk_psock_verdict_data_ready: each redirected segment wakes a thread that waits for EPOLLIN,
 * for nothing; EPOLLRDHUP|EPOLLET is left alone.
 */
static void t7_epollin_wakes_for_every_segment(void **state)
{
	long in = wakeups_of_100_segments(EPOLLIN);
	long rdhup = wakeups_of_100_segments(EPOLLRDHUP | EPOLLET);

	(void)state;
	print_message("T7: %s: 100 segments wake EPOLLIN %ld times, EPOLLRDHUP|EPOLLET %ld times\n",
		      in > 50 ? "present" : "not seen", in, rdhup);
	assert_in_range(rdhup, 0, 10);
}

/* Opens a listener on a port (0: any), accepts one client, has it end in TIME_WAIT on our side. */
static uint16_t leave_time_wait(bool repair)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int one = 1, off = 0, lfd, conn, acc;

	lfd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(lfd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	assert_int_equal(bind(lfd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(lfd, 1), 0);
	assert_int_equal(getsockname(lfd, (struct sockaddr *)&addr, &len), 0);
	conn = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(connect(conn, (struct sockaddr *)&addr, sizeof(addr)), 0);
	acc = accept(lfd, NULL, NULL);
	assert_true(acc >= 0);
	if (repair) {
		assert_int_equal(setsockopt(acc, IPPROTO_TCP, TCP_REPAIR, &one, sizeof(one)), 0);
		assert_int_equal(setsockopt(acc, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off)), 0);
	}
	close(acc);
	assert_int_equal(kt_expect_eof(conn), 0);
	close(conn);
	close(lfd);
	return ntohs(addr.sin_port);
}

static int bind_again(uint16_t port)
{
	struct sockaddr_in addr = { .sin_family = AF_INET, .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int one = 1, fd, r;

	fd = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	r = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	if (!r && listen(fd, 1) < 0)
		r = -errno;
	close(fd);
	return r;
}

/*
 * T12, tcp_repair_set: leaving TCP_REPAIR sets SK_NO_REUSE, and the connection's TIME_WAIT then
 * keeps the port.  The remedy, reading tcp_sock from the program, is pinned in test_facts.c.
 */
static void t12_repair_blocks_the_port(void **state)
{
	uint16_t port = leave_time_wait(true);
	int r = bind_again(port);

	(void)state;
	print_message("T12: %s\n", r ? "present: the port is blocked" : "fixed: the port is free");
	assert_true(r == -EADDRINUSE || r == 0);
	assert_int_equal(bind_again(leave_time_wait(false)), 0);
}

/* T15, sock_map_sk_is_suitable: an MPTCP socket is refused, whatever became of the connection. */
static void t15_mptcp_is_refused(void **state)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int lfd, conn, acc;

	(void)state;
	lfd = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
	conn = socket(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
	if (lfd < 0 || conn < 0) {
		print_message("T15: skipped: no MPTCP in this kernel: %s\n", strerror(errno));
		kt_close(&lfd);
		skip();
	}
	assert_int_equal(bind(lfd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(lfd, 1), 0);
	assert_int_equal(getsockname(lfd, (struct sockaddr *)&addr, &len), 0);
	assert_int_equal(connect(conn, (struct sockaddr *)&addr, sizeof(addr)), 0);
	acc = accept(lfd, NULL, NULL);
	assert_true(acc >= 0);
	assert_true(kt_add(kt_bpf->maps.other, 0, conn) < 0);
	assert_true(kt_add(kt_bpf->maps.other, 1, acc) < 0);
	assert_int_equal(kt_send(conn, 0, 100), 0); /* and is none the worse for it */
	assert_int_equal(kt_expect(acc, 0, 100), 0);
	close(acc);
	close(conn);
	close(lfd);
}

/* T15, sk_psock_init: a socket with a ULP (kTLS) is refused. */
static void t15_ulp_is_refused(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	if (setsockopt(s->a, IPPROTO_TCP, TCP_ULP, "tls", 3) < 0) {
		print_message("T15: skipped: no kTLS in this kernel: %s\n", strerror(errno));
		skip();
	}
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_a, s->a), -EINVAL);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), -EINVAL);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
}

/* T15, sock_map_link: a socket under one verdict does not get a second one. */
static void t15_second_owner_is_refused(void **state)
{
	struct kt_session *s = kt_open(0);
	struct traps *mine = kt_bpf;

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_add(mine->maps.rx, s->slot_b, s->a), -EBUSY);
	assert_int_equal(kt_add(mine->maps.rx, s->slot_a, s->a), -EBUSY);
	assert_int_equal(kt_add(mine->maps.other, 0, s->a), 0); /* without a program: no harm */
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(kt_expect(s->server, 0, 100), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(t2_early_data_waits_for_a_kick),
		kt_test(t2_plain_recv_is_no_kick),
		kt_test(t2_next_segment_brings_early_data),
		kt_test(t3_partly_read_skb_is_sent_whole),
		kt_test(t3_insert_after_eagain),
		kt_test(t4_insert_after_peers_fin),
		kt_test(t4_insert_after_own_fin),
		kt_test(t4_target_survives_peers_fin),
		kt_test(t7_epollin_wakes_for_every_segment),
		kt_test(t12_repair_blocks_the_port),
		kt_test(t15_mptcp_is_refused),
		kt_test(t15_ulp_is_refused),
		kt_test(t15_second_owner_is_refused),
	};

	return kt_main(tests);
}
