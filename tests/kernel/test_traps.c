/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Traps: what the kernel does to whoever uses a sockmap in the obvious way.  Each test shows that
 * its trap is there ("present"), or tells that a kernel has it no more ("fixed").  That culvert's
 * way around it works is shown by the behaviours of `culvert probe` and by test_program.c.
 *
 *   T1   redirected bytes have no bound
 *   T2   bytes older than the insertion wait for a segment; a kick, a peek, runs the verdict
 *   T3   a half-read skb is redirected whole
 *   T4   a socket with a FIN cannot be inserted
 *   T5   a redirected FIN breaks the target
 *   T6   shutdown(2) overtakes the backlog
 *   T7   EPOLLIN wakes for each segment, EPOLLRDHUP does not
 *   T8   EOF may precede passed bytes
 *   T9   leaving the last map destroys the backlog: hence the map tx
 *   T10  splice(2) does not see passed bytes,
 *   T11  which cannot be told apart later
 *   T12  TCP_REPAIR blocks the port (no test)
 *   T13  a full target costs a tick (no test)
 *   T14  a reset target loses the backlog silently
 *   T15  sockets of MPTCP, kTLS and other sockmaps are refused
 *   T16  a removal races with the receive path (test_storm)
 *   T17  an skb may begin with old bytes after a retransmission: trim() cuts them off
 *   T18  passed bytes behind the backlog of the reverse flow are charged to nobody: the gate
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include "kt.h"

/* --- entering --- */

/*
 * T2, sk_psock_start_verdict / tcp_bpf_recvmsg_parser: what is queued at the insertion waits for
 * the next segment; peeking at the socket makes the verdict run at once.
 */
KT_TEST(t2_early_data_waits_for_a_kick)
{
	struct kt_session *s = kt_open(0);

	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_queued(s->a, SIOCINQ) == 100));
	kt_start(s, KT_REDIRECT);
	if (KT_HOLDS(kt_stat(s->slot_a)->runs == 0, 50))
		print_message("T2: present: early data stays where it is\n");
	else
		print_message("T2: fixed: the insertion runs the verdict\n");

	kt_kick(s->a);
	assert_int_equal(kt_stat(s->slot_a)->bytes, 100);
	assert_int_equal(kt_expect(s->server, 0, 100), 0);
	kt_carry(s->client, s->server, 100, 50);
}

/* T4: after the peer's FIN, and after our own, a socket is refused, without harm. */
KT_TEST(t4_insert_after_fin)
{
	for (int own = 0; own < 2; own++) {
		struct kt_session *s = kt_open(0);

		assert_int_equal(kt_send(s->client, 0, 100), 0);
		assert_int_equal(shutdown(own ? s->a : s->client, SHUT_WR), 0);
		assert_true(KT_WAIT(own || kt_poll(s->a, POLLRDHUP)));
		assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_a, s->a), -EOPNOTSUPP);
		assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), -EOPNOTSUPP);
		assert_int_equal(kt_expect(s->a, 0, 100), 0);
		assert_int_equal(kt_expect_eof(own ? s->client : s->a), 0);
	}
}

/* T15, sock_map_sk_is_suitable: an MPTCP socket is refused, whatever became of the connection. */
KT_TEST(t15_mptcp_is_refused)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int lfd, conn, acc;

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
KT_TEST(t15_ulp_is_refused)
{
	struct kt_session *s = kt_open(0);

	if (setsockopt(s->a, IPPROTO_TCP, TCP_ULP, "tls", 3) < 0) {
		print_message("T15: skipped: no kTLS in this kernel: %s\n", strerror(errno));
		skip();
	}
	assert_int_equal(kt_add(kt_bpf->maps.tx, s->slot_a, s->a), -EINVAL);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), -EINVAL);
	kt_carry(s->client, s->a, 0, 100);
}

/* T15, sock_map_link: a socket under one verdict does not get a second one. */
KT_TEST(t15_second_owner_is_refused)
{
	struct kt_session *s = kt_open(0);

	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_b, s->a), -EBUSY);
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_a, s->a), -EBUSY);
	assert_int_equal(kt_add(kt_bpf->maps.other, 0, s->a), 0); /* without a program: no harm */
	kt_carry(s->client, s->server, 0, 100);
}

/* --- the backlog of the target --- */

/*
 * T1, tcp_eat_skb / sk_psock_skb_redirect: a receiver that never reads does not stop the sender;
 * everything is acknowledged, sits in the backlog, and is charged to nobody.
 */
KT_TEST(t1_redirect_has_no_bound)
{
	struct kt_session *s = kt_open(KT_SMALL_B);
	const size_t total = 16 * MIB;
	int wide = 4 * MIB;
	bool unbounded;

	kt_start(s, KT_REDIRECT);
	unbounded = kt_send(s->client, 0, total) == 0;
	print_message("T1: %s: sent %llu bytes, target accepted %lld, charged %llu\n",
		      unbounded ? "present" : "fixed",
		      (unsigned long long)kt_stat(s->slot_a)->bytes, (long long)kt_accepted_b(s),
		      (unsigned long long)kt_charged(s->a) + kt_charged(s->b));
	if (!unbounded)
		return;
	assert_true(KT_WAIT(kt_queued(s->client, SIOCOUTQ) == 0));
	assert_int_equal(kt_stat(s->slot_a)->bytes, total);
	assert_in_range(kt_accepted_b(s), 0, 1 * MIB);
	assert_in_range(kt_charged(s->a) + kt_charged(s->b), 0, 1 * MIB);
	/* Only to be done sooner: T13. */
	assert_int_equal(setsockopt(s->b, SOL_SOCKET, SO_SNDBUF, &wide, sizeof(wide)), 0);
	assert_int_equal(setsockopt(s->server, SOL_SOCKET, SO_RCVBUF, &wide, sizeof(wide)), 0);
	assert_int_equal(kt_expect(s->server, 0, total), 0);
}

/* Fills A's backlog: the server sends, B redirects to A, the client reads nothing. */
static void stall_a(struct kt_session *s, size_t bytes)
{
	kt_conf(s->slot_b)->mode = KT_REDIRECT;
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_b, s->b), 0);
	assert_int_equal(kt_send(s->server, 0, bytes), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_b)->bytes == bytes));
	assert_in_range(kt_accepted_a(s), 0, bytes - 1);
}

static struct kt_session *open_stalled_a(size_t bytes)
{
	struct kt_session *s = kt_open(KT_SMALL_A);

	kt_start(s, KT_REDIRECT);
	stall_a(s, bytes);
	return s;
}

/*
 * T18, sk_psock_verdict_apply: where a backlog of the opposite direction waits, a passed skb is
 * queued behind it instead of in the receive queue: charged to nobody, with the window open, and
 * not to be read.  So to pass bounds nothing there, and the program closes the gate instead.
 *
 * The backlog is not drained here: sk_psock_backlog would then charge what was passed to the socket
 * without holding its lock (sk_psock_skb_ingress, skb_set_owner_r), beside acknowledgements and
 * recv, which change the same plain int, sk_forward_alloc.  With that, inet_sock_destruct warned of
 * what was left of it in each of seven guests (6.1.192 and 6.12.117, a busy host) within 1 to 13
 * repetitions; without it, not once in 360.
 */
KT_TEST(t18_passed_behind_a_backlog_has_no_bound)
{
	struct kt_session *s = open_stalled_a(1 * MIB);
	const size_t total = 16 * MIB;
	bool unbounded;

	kt_conf(s->slot_a)->mode = KT_PASS;
	unbounded = kt_send(s->client, 0, total) == 0;
	print_message("T18: %s: passed %llu bytes, charged %llu, readable: %s\n",
		      unbounded ? "present" : "fixed",
		      (unsigned long long)kt_stat(s->slot_a)->passed,
		      (unsigned long long)kt_charged(s->a), kt_quiet(s->a) ? "no" : "yes");
	if (!unbounded)
		return;
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == total));
	assert_in_range(kt_charged(s->a), 0, 1 * MIB);
	assert_true(kt_quiet(s->a));
}

/*
 * T9, sk_psock_drop: leaving the last map destroys the backlog of the opposite direction.  (Leaving
 * rx alone does not: the behaviour "leave".)
 */
KT_TEST(t9_leaving_the_last_map_loses_the_backlog)
{
	const size_t total = 1 * MIB;
	struct kt_session *s = open_stalled_a(total);
	size_t got = 0;
	ssize_t n = 0;

	assert_int_equal(kt_del(kt_bpf->maps.tx, s->slot_a), 0);
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	do {
		assert_true(KT_HOLDS((n = rig_receive(s->client, got, total - got)) == 0, 100) ||
			    n > 0);
		got += (size_t)n;
	} while (n > 0 && got < total);
	print_message("T9: %s: %zu of %zu bytes arrive\n", got < total ? "present" : "fixed", got,
		      total);
}

/*
 * T14, sk_psock_backlog: a target that was reset gets sk_err; the backlog is gone, and what the
 * client sends afterwards is acknowledged and dropped.
 */
KT_TEST(t14_reset_target_loses_silently)
{
	struct kt_session *s = kt_open(KT_SMALL_B);
	struct linger now = { .l_onoff = 1 };

	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, 1 * MIB), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->bytes == 1 * MIB));
	assert_int_equal(setsockopt(s->server, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
	kt_close(&s->server);
	/* The remedy: this means that bytes are gone. */
	assert_true(KT_WAIT(kt_poll(s->b, 0) & POLLERR));
	assert_int_equal(kt_send(s->client, 1 * MIB, 100), 0);
	assert_true(KT_WAIT(kt_queued(s->client, SIOCOUTQ) == 0));
	assert_true(KT_WAIT(kt_sockopt(s->b, SOL_SOCKET, SO_ERROR) != 0));
}

/* --- ends of streams --- */

/* T5, sk_psock_backlog: a redirected FIN is "0 bytes sent", which is EPIPE for the target. */
KT_TEST(t5_redirected_fin_breaks_the_target)
{
	struct kt_session *s = kt_open(0);
	bool broken;

	kt_start(s, KT_REDIRECT);
	kt_conf(s->slot_a)->flags = KT_F_EMPTY_TOO;
	kt_carry(s->client, s->server, 0, 100);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->empty == 1));
	broken = !KT_HOLDS(!(kt_poll(s->b, 0) & POLLERR), 100);
	print_message("T5: redirect: %s\n", broken ? "present: EPOLLERR on the target" : "fixed");
	if (broken)
		assert_int_equal(kt_sockopt(s->b, SOL_SOCKET, SO_ERROR), EPIPE);
}

/* T6: no FIN goes to the target; RDHUP comes early; shutting down then loses the backlog. */
KT_TEST(t6_early_shutdown_loses_the_backlog)
{
	struct kt_session *s = kt_open(KT_SMALL_B);
	const size_t total = 1 * MIB;
	uint64_t got = 0;
	ssize_t n = 0;

	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, total), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	kt_kick(s->a);
	assert_int_equal(kt_stat(s->slot_a)->bytes, total);
	assert_true(KT_WAIT(kt_accepted_b(s) > 0));
	assert_in_range(kt_accepted_b(s), 1, total - 1);

	assert_int_equal(shutdown(s->b, SHUT_WR), 0);
	assert_true(KT_WAIT((n = rig_receive(s->server, got, total)) < 0 ||
			    (got += (uint64_t)n) == total));
	assert_int_equal(n, -ENODATA); /* a clean end of file, which makes it worse */
	print_message("T6: present: %llu of %zu bytes arrive\n", (unsigned long long)got, total);
	assert_in_range(got, 0, total - 1);
	assert_true(KT_WAIT(kt_poll(s->b, 0) & POLLERR));
	assert_int_equal(kt_sockopt(s->b, SOL_SOCKET, SO_ERROR), EPIPE);
}

#define MESSAGES 32
/* Switches of a waiting thread that no message wakes: start, end, and some for paging. */
#define WAKE_UPS_MAX (MESSAGES / 4)

struct waiter {
	int fd;
	short events;
	long switches;
};

static void *wait_for_fin(void *arg)
{
	struct waiter *w = arg;
	struct pollfd p = { .fd = w->fd, .events = POLLRDHUP };
	struct rusage before, after;

	getrusage(RUSAGE_THREAD, &before);
	poll(&p, 1, (int)KT_DEADLINE_MS);
	getrusage(RUSAGE_THREAD, &after);
	w->events = p.revents;
	w->switches = after.ru_nvcsw - before.ru_nvcsw;
	return NULL;
}

/* T7: redirected data does not wake a thread that waits for EPOLLRDHUP; FIN does. */
KT_TEST(t7_messages_wake_nobody)
{
	struct kt_session *s = kt_open(0);
	struct waiter w = { .fd = s->a };
	pthread_t thread;

	kt_start(s, KT_REDIRECT);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_fin, &w), 0);
	for (uint64_t i = 0; i < MESSAGES; i++) {
		kt_carry(s->client, s->server, i, 1);
		usleep(1000); /* time to be woken, once for each message */
	}
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	print_message("T7: %ld wake-ups by %d messages and FIN\n", w.switches, MESSAGES);
	assert_true(w.events & POLLRDHUP);
	assert_in_range(w.switches, 0, WAKE_UPS_MAX);
}

/*
 * T8, tcp_bpf_recvmsg_parser: passed bytes that queue behind redirected ones are not seen by recv,
 * which says "end of file" once the FIN is there.  Only passed == read says so truly.
 */
KT_TEST(t8_eof_before_the_last_bytes)
{
	struct kt_session *s = kt_open(KT_SMALL_A);
	const size_t stalled = 512 * KIB;
	char byte;
	ssize_t n;

	kt_start(s, KT_PASS);
	stall_a(s, stalled);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 100));
	n = recv(s->a, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	print_message("T8: %s\n", n == 0 ? "present: end of file with 100 bytes to come" :
					   "fixed: no end of file yet");
	assert_true(n == 0 || (n < 0 && errno == EAGAIN) || n == 1);

	assert_int_equal(kt_expect(s->client, 0, stalled), 0); /* A's backlog moves on */
	assert_true(KT_WAIT(recv(s->a, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1));
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
	assert_int_equal(kt_expect_eof(s->a), 0); /* passed == read: this one is true */
}

/* --- leaving --- */

/*
 * T10, tcp_splice_read: passed data is not in the receive queue, so splice finds nothing.
 *
 * T11, tcp_bpf_recvmsg: passed data that is read after leaving rx does not move copied_seq.  From
 * then on the socket is readable for ever.  No further data is sent here: the kernel would stall
 * and warn in its log ("TCP recvmsg seq # bug").
 */
KT_TEST(t10_t11_passed_data_is_apart)
{
	struct kt_session *s = kt_open(0);
	int pipefd[2], inq;
	short revents;
	ssize_t n;

	assert_int_equal(pipe2(pipefd, O_NONBLOCK | O_CLOEXEC), 0);
	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 100));
	assert_true(KT_WAIT(kt_poll(s->a, POLLIN) & POLLIN));
	n = splice(s->a, NULL, pipefd[1], NULL, 4096, SPLICE_F_NONBLOCK);
	assert_true(n == 100 || (n < 0 && errno == EAGAIN));
	print_message("T10: %s\n", n == 100 ? "fixed" : "present: EPOLLIN, but nothing to splice");
	close(pipefd[0]);
	close(pipefd[1]);
	if (n == 100)
		return;
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
	revents = kt_poll(s->a, POLLIN);
	assert_int_equal(kt_del(kt_bpf->maps.tx, s->slot_a),
			 0); /* in a map, SIOCINQ may not tell */
	inq = kt_queued(s->a, SIOCINQ);
	print_message("T11: %s: %d bytes to read that are not there%s\n", inq ? "present" : "fixed",
		      inq, revents & POLLIN ? ", EPOLLIN" : "");
	assert_true(inq == 100 || inq == 0);
	assert_int_equal(!!(revents & POLLIN), inq == 100);
}

KT_MAIN(kt_load, kt_unload)
