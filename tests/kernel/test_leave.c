/* SPDX-License-Identifier: BSD-2-Clause */
/* Traps of taking a socket out of a verdict map: T10, T11, T16 (see test_storm.c too); F1. */
#include <fcntl.h>

#include "kt.h"

/* T10, tcp_splice_read: passed data is not in the receive queue, so splice finds nothing. */
static void t10_splice_does_not_see_passed_data(void **state)
{
	struct kt_session *s = kt_open(0);
	int pipefd[2];
	ssize_t n;

	(void)state;
	assert_int_equal(pipe2(pipefd, O_NONBLOCK | O_CLOEXEC), 0);
	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 100));
	assert_true(KT_WAIT(kt_poll(s->a, POLLIN) & POLLIN));
	n = splice(s->a, NULL, pipefd[1], NULL, 4096, SPLICE_F_NONBLOCK);
	print_message("T10: %s\n", n == 100 ? "fixed" : "present: EPOLLIN, but nothing to splice");
	assert_true(n == 100 || (n < 0 && errno == EAGAIN));
	if (n < 0) /* the remedy */
		assert_int_equal(kt_expect(s->a, 0, 100), 0);

	/* Out of rx, and with everything passed read, splice works again. */
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(kt_send(s->client, 100, 100), 0);
	assert_true(KT_WAIT(splice(s->a, NULL, pipefd[1], NULL, 4096, SPLICE_F_NONBLOCK) == 100));
	close(pipefd[0]);
	close(pipefd[1]);
}

/*
 * T11, tcp_bpf_recvmsg: passed data that is read after leaving rx does not move copied_seq.  From
 * then on the socket is readable for ever.  No further data is sent here: the kernel would stall
 * and warn in its log ("TCP recvmsg seq # bug").
 */
static void t11_passed_data_read_after_leaving(void **state)
{
	struct kt_session *s = kt_open(0);
	short revents;
	int inq;

	(void)state;
	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 100));
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
	revents = kt_poll(s->a, POLLIN);
	inq = kt_true_inq(s);
	print_message("T11: %s: %d bytes to read that are not there%s\n",
		      inq ? "present" : "fixed", inq, revents & POLLIN ? ", EPOLLIN" : "");
	assert_true(inq == 100 || inq == 0);
	assert_int_equal(!!(revents & POLLIN), inq == 100);
}

/* T11, the remedy: switch passing off, read what was passed, then leave. */
static void t11_leave_when_all_passed_is_read(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 100));
	kt_conf(s->slot_a)->mode = KT_REDIRECT;
	assert_int_equal(kt_expect(s->a, 0, 100), 0);
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_false(kt_poll(s->a, POLLIN) & POLLIN);
	assert_int_equal(kt_send(s->client, 100, 1 * MIB), 0);
	assert_int_equal(kt_expect(s->a, 100, 1 * MIB), 0);
	assert_int_equal(kt_true_inq(s), 0);
}

/* tcp_rmem_pressure: others on this machine can cause it, and the fence is void while it lasts. */
static void need_no_pressure(void)
{
	if (KT_WAIT(!kt_pressure()))
		return;
	print_message("skipped: TCP is short of memory on this machine\n");
	skip();
}

/* T16, tcp_data_ready: behind the fence no verdict runs; what comes meanwhile waits for recv. */
static void t16_fence_keeps_the_verdict_away(void **state)
{
	struct kt_session *s = kt_open(0);
	uint64_t runs;
	int lock;

	(void)state;
	need_no_pressure();
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_int_equal(kt_expect(s->server, 0, 1000), 0);
	runs = kt_stat(s->slot_a)->runs;
	lock = kt_fence(s->a);
	assert_true(lock >= 0);
	assert_int_equal(kt_send(s->client, 1000, 1000), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == 2000));
	assert_true(KT_HOLDS(kt_stat(s->slot_a)->runs == runs, 30));
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(kt_unfence(s->a, lock), 0);
	assert_true(kt_poll(s->a, POLLIN) & POLLIN);
	assert_int_equal(kt_expect(s->a, 1000, 1000), 0);
	assert_int_equal(kt_stat(s->slot_a)->runs, runs);
	assert_int_equal(kt_true_inq(s), 0);
}

/* T16: unfencing without leaving hands what waited to the verdict at once. */
static void t16_unfence_runs_the_verdict(void **state)
{
	struct kt_session *s = kt_open(0);
	int lock;

	(void)state;
	kt_start(s, KT_REDIRECT);
	lock = kt_fence(s->a);
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == 1000));
	assert_int_equal(kt_unfence(s->a, lock), 0);
	assert_int_equal(kt_stat(s->slot_a)->bytes, 1000);
	assert_int_equal(kt_expect(s->server, 0, 1000), 0);
}

/* T16, tcp_data_ready with SOCK_DONE: a FIN gets past the fence, as documented. */
static void t16_fence_is_open_for_fin(void **state)
{
	struct kt_session *s = kt_open(0);
	uint64_t redirected;
	int lock;

	(void)state;
	need_no_pressure();
	kt_start(s, KT_REDIRECT);
	lock = kt_fence(s->a);
	assert_true(lock >= 0);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == 100));
	assert_int_equal(kt_stat(s->slot_a)->runs, 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	redirected = kt_stat(s->slot_a)->bytes;
	print_message("T16: fence: a FIN %s the verdict over all that waits\n",
		      redirected ? "runs" : "does not run");
	assert_true(redirected == 0 || redirected == 100);
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(kt_unfence(s->a, lock), 0);
	assert_int_equal(kt_expect(redirected ? s->server : s->a, 0, 100), 0);
}

/* T16, tcp_filter: the stronger fence, against a FIN as well; what it refused comes again. */
static void t16_filter_keeps_everything_out(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_int_equal(kt_expect(s->server, 0, 1000), 0);
	assert_int_equal(kt_filter(s->a, true), 0);
	assert_int_equal(kt_send(s->client, 1000, 1000), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_HOLDS(kt_info(s->a).tcpi_bytes_received == 1000, 30));
	assert_int_equal(kt_stat(s->slot_a)->runs, kt_stat(s->slot_a)->packets);
	assert_int_equal(kt_send(s->a, 0, 100), 0); /* acknowledgements do get in */
	assert_int_equal(kt_expect(s->client, 0, 100), 0);
	assert_true(KT_WAIT(kt_outq(s->a) == 0));
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(kt_filter(s->a, false), 0);
	assert_int_equal(kt_expect(s->a, 1000, 1000), 0);
	assert_int_equal(kt_expect_eof(s->a), 0);
	assert_int_equal(kt_stat(s->slot_a)->bytes, 1000);
}

/*
 * F1, tcp_set_rcvlowat: without SO_BUF_LOCK, the fence would enlarge SO_RCVBUF for good; with it,
 * neither the size nor the lock bits are changed.
 */
static void f1_fence_leaves_rcvbuf_alone(void **state)
{
	struct kt_session *s = kt_open(0);
	int size = kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF), huge = INT32_MAX, one = 1, lock;

	(void)state;
	assert_int_equal(kt_sockopt(s->a, SOL_SOCKET, SO_BUF_LOCK), 0);
	lock = kt_fence(s->a);
	assert_int_equal(lock, 0);
	print_message("F1: SO_RCVBUF %d: lowat INT_MAX becomes %d with the lock", size,
		      kt_sockopt(s->a, SOL_SOCKET, SO_RCVLOWAT));
	assert_int_equal(kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF), size);
	assert_int_equal(kt_unfence(s->a, lock), 0);
	assert_int_equal(kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF), size);
	assert_int_equal(kt_sockopt(s->a, SOL_SOCKET, SO_RCVLOWAT), 1);
	assert_int_equal(kt_sockopt(s->a, SOL_SOCKET, SO_BUF_LOCK), 0);

	assert_int_equal(setsockopt(s->a, SOL_SOCKET, SO_RCVLOWAT, &huge, sizeof(huge)), 0);
	print_message(", %d without; SO_RCVBUF is then %d\n",
		      kt_sockopt(s->a, SOL_SOCKET, SO_RCVLOWAT),
		      kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF));
	assert_true(kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF) > size);
	assert_int_equal(setsockopt(s->a, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one)), 0);
	assert_true(kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF) > size);

	/* A lock that was there stays: the fence restores what it found. */
	setsockopt(s->b, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	lock = kt_fence(s->b);
	assert_int_equal(lock, SOCK_SNDBUF_LOCK);
	assert_int_equal(kt_unfence(s->b, lock), 0);
	assert_int_equal(kt_sockopt(s->b, SOL_SOCKET, SO_BUF_LOCK), SOCK_SNDBUF_LOCK);
}

/* F1: while fenced, data below half of SO_RCVBUF does not run the verdict; more than that does. */
static void f1_fence_holds_half_a_buffer(void **state)
{
	struct kt_session *s = kt_open(0);
	int lock, lowat;

	(void)state;
	need_no_pressure();
	kt_start(s, KT_REDIRECT);
	lock = kt_fence(s->a);
	lowat = kt_sockopt(s->a, SOL_SOCKET, SO_RCVLOWAT);
	assert_int_equal(lowat, kt_sockopt(s->a, SOL_SOCKET, SO_RCVBUF) / 2);
	for (int i = 0; i < 20; i++)
		assert_int_equal(kt_send(s->client, (uint64_t)i * 100, 100), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == 2000));
	assert_int_equal(kt_stat(s->slot_a)->runs, 0);
	assert_int_equal(kt_unfence(s->a, lock), 0);
	assert_int_equal(kt_expect(s->server, 0, 2000), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(t10_splice_does_not_see_passed_data),
		kt_test(t11_passed_data_read_after_leaving),
		kt_test(t11_leave_when_all_passed_is_read),
		kt_test(t16_fence_keeps_the_verdict_away),
		kt_test(t16_unfence_runs_the_verdict),
		kt_test(t16_fence_is_open_for_fin),
		kt_test(t16_filter_keeps_everything_out),
		kt_test(f1_fence_leaves_rcvbuf_alone),
		kt_test(f1_fence_holds_half_a_buffer),
	};

	return kt_main(tests);
}
