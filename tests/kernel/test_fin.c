/* SPDX-License-Identifier: BSD-2-Clause */
/* Traps of the end of a stream: T5, T6, T8. */
#include "kt.h"

/* Fills A's backlog: the server sends, B redirects to A, the client reads nothing. */
static void stall_a(struct kt_session *s, size_t bytes)
{
	kt_conf(s->slot_b)->mode = KT_REDIRECT;
	assert_int_equal(kt_add(kt_bpf->maps.rx, s->slot_b, s->b), 0);
	assert_int_equal(kt_send(s->server, 0, bytes), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_b)->bytes == bytes));
	assert_in_range(kt_accepted(s->a), 0, bytes - 1);
}

/* T5, sk_psock_backlog: a redirected FIN is "0 bytes sent", which is EPIPE for the target. */
static void t5_redirected_fin_breaks_the_target(void **state)
{
	struct kt_session *s = kt_open(0);
	bool broken;

	(void)state;
	kt_start(s, KT_REDIRECT);
	kt_conf(s->slot_a)->flags = KT_F_EMPTY_TOO;
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(kt_expect(s->server, 0, 100), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->empty == 1));
	broken = !KT_HOLDS(!(kt_poll(s->b, 0) & POLLERR), 100);
	print_message("T5: redirect: %s\n", broken ? "present: EPOLLERR on the target" : "fixed");
	if (broken)
		assert_int_equal(kt_so_error(s->b), EPIPE);
}

/*
 * T5: a FIN that is passed behind a backlog breaks the other direction: what is redirected to the
 * half-closed socket from then on is dropped, although TCP has acknowledged it.
 */
static void t5_passed_fin_truncates_the_answer(void **state)
{
	struct kt_session *s = kt_open(KT_SMALL_A);
	const size_t half = 512 * KIB;

	(void)state;
	kt_start(s, KT_PASS);
	kt_conf(s->slot_a)->flags = KT_F_EMPTY_TOO;
	stall_a(s, half);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->empty == 1));
	assert_int_equal(kt_expect(s->client, 0, half), 0);
	if (KT_HOLDS(!(kt_poll(s->a, 0) & POLLERR), 100)) {
		print_message("T5: pass: fixed\n");
		assert_int_equal(kt_send(s->server, half, 1000), 0);
		assert_int_equal(kt_expect(s->client, half, 1000), 0);
		return;
	}
	print_message("T5: pass: present: EPOLLERR, and the answer is truncated\n");
	assert_int_equal(kt_so_error(s->a), EPIPE);
	assert_int_equal(kt_send(s->server, half, 1000), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_b)->bytes == half + 1000));
	assert_true(KT_WAIT(kt_outq(s->server) == 0)); /* acknowledged */
	assert_true(KT_HOLDS(kt_pull(s->client, half, 1000) == 0, 100));
	assert_true(kt_sk_drops(s->b) > 0);
}

/* T5, the remedy: drop empty skbs. Nothing breaks, and the FIN is still seen on A. */
static void t5_dropped_fin_is_harmless(void **state)
{
	struct kt_session *s = kt_open(KT_SMALL_A);
	const size_t half = 512 * KIB;

	(void)state;
	kt_start(s, KT_REDIRECT);
	stall_a(s, half);
	assert_int_equal(kt_send(s->client, 0, 100), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->empty == 1));
	assert_true(kt_poll(s->a, POLLRDHUP) & POLLRDHUP);
	assert_int_equal(kt_expect(s->server, 0, 100), 0);
	assert_int_equal(kt_expect(s->client, 0, half), 0);
	assert_int_equal(kt_send(s->server, half, half), 0);
	assert_int_equal(kt_expect(s->client, half, half), 0);
	assert_false(kt_poll(s->a, 0) & (POLLERR | POLLHUP));
	assert_false(kt_poll(s->b, 0) & (POLLERR | POLLHUP));
	assert_int_equal(kt_expect_eof(s->a), 0);
}

/* T6: no FIN goes to the target; RDHUP comes early; shutting down then loses the backlog. */
static void t6_early_shutdown_loses_the_backlog(void **state)
{
	struct kt_session *s = kt_open(KT_SMALL_B);
	const size_t total = 1 * MIB;
	uint64_t got = 0;
	ssize_t n = 0;

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, total), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	kt_kick(s->a);
	assert_int_equal(kt_stat(s->slot_a)->bytes, total);
	assert_true(KT_WAIT(kt_accepted(s->b) > 0));
	assert_in_range(kt_accepted(s->b), 1, total - 1);

	assert_int_equal(shutdown(s->b, SHUT_WR), 0);
	assert_true(KT_WAIT((n = kt_pull(s->server, got, total)) < 0 ||
			    (got += (uint64_t)n) == total));
	assert_int_equal(n, -ENODATA); /* a clean end of file, which makes it worse */
	print_message("T6: present: %llu of %zu bytes arrive\n", (unsigned long long)got, total);
	assert_in_range(got, 0, total - 1);
	assert_true(KT_WAIT(kt_poll(s->b, 0) & POLLERR));
	assert_int_equal(kt_so_error(s->b), EPIPE);
}

static void drained_fin(unsigned int flags)
{
	struct kt_session *s = kt_open(flags);
	const size_t total = 1 * MIB;
	uint64_t got = 0;
	ssize_t n = 0;

	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, total), 0);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_poll(s->a, POLLRDHUP) & POLLRDHUP));
	kt_kick(s->a);
	assert_int_equal(kt_stat(s->slot_a)->bytes, total);
	assert_true(KT_WAIT((n = kt_pull(s->server, got, total - got)) < 0 ||
			    (got += (uint64_t)n, kt_accepted(s->b) == (int64_t)total)));
	assert_true(n >= 0);
	assert_int_equal(kt_expect(s->server, got, total - got), 0);
	assert_true(KT_HOLDS(kt_quiet(s->server), 30)); /* redirect forwards no FIN by itself */
	assert_int_equal(shutdown(s->b, SHUT_WR), 0);
	assert_int_equal(kt_expect_eof(s->server), 0);
	assert_int_equal(kt_so_error(s->b), 0);
}

/* T6, the remedy: shut down once B's TCP has accepted every redirected byte. */
static void t6_drained_fin_loses_nothing(void **state)
{
	(void)state;
	drained_fin(KT_SMALL_B);
	drained_fin(0);
	drained_fin(KT_SMALL_B | KT_IPV6);
}

/*
 * T8, tcp_bpf_recvmsg_parser: passed bytes that queue behind redirected ones are not seen by recv,
 * which says "end of file" once the FIN is there.  Only passed == read says so truly.
 */
static void t8_eof_before_the_last_bytes(void **state)
{
	struct kt_session *s = kt_open(KT_SMALL_A);
	const size_t stalled = 512 * KIB;
	char byte;
	ssize_t n;

	(void)state;
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(t5_redirected_fin_breaks_the_target),
		kt_test(t5_passed_fin_truncates_the_answer),
		kt_test(t5_dropped_fin_is_harmless),
		kt_test(t6_early_shutdown_loses_the_backlog),
		kt_test(t6_drained_fin_loses_nothing),
		kt_test(t8_eof_before_the_last_bytes),
	};

	return kt_main(tests);
}
