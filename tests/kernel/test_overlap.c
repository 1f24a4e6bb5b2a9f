/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * T17, tcp_data_queue ("partial packet") and tcp_read_skb: a retransmission may begin with bytes
 * that have arrived before and end with new ones, for instance when the sender merges two small
 * segments of which the first was received but its acknowledgement lost.  TCP queues such an skb as
 * it is; recv skips the old part by its sequence number.  A verdict is given all of it, so that
 * redirect repeats the old bytes to the target, and copied_seq runs ahead.
 */
#include "kt.h"

#define SENT 100
#define AGAIN 40 /* of SENT */
#define FRESH 10

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

/* The trap: redirect repeats the overlap. */
static void t17_redirect_repeats_the_overlap(void **state)
{
	struct kt_session *s = kt_open(0);
	uint64_t extra;

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_int_equal(kt_expect(s->server, 0, SENT), 0);
	assert_int_equal(kt_inject(s->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_bytes_received == SENT + FRESH));
	extra = kt_stat(s->slot_a)->bytes - SENT - FRESH;
	print_message("T17: %s: %llu bytes redirected twice\n", extra ? "present" : "fixed",
		      (unsigned long long)extra);
	assert_true(extra == 0 || extra == AGAIN);
	assert_int_equal(kt_expect(s->server, SENT - extra, FRESH + extra), 0);
	assert_int_equal(kt_true_inq(s), -(int)extra); /* which the audit of a removal finds */
}

/* The remedy: the program compares TCP_SKB_CB(skb)->seq with copied_seq and cuts off the rest. */
static void t17_trimmed_redirect_is_right(void **state)
{
	struct kt_session *s = kt_open(0);

	(void)state;
	kt_conf(s->slot_a)->flags = KT_F_TRIM;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_int_equal(kt_expect(s->server, 0, SENT), 0);
	assert_int_equal(kt_inject(s->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_int_equal(kt_expect(s->server, SENT, FRESH), 0);
	assert_true(kt_quiet(s->server));
	assert_int_equal(kt_stat(s->slot_a)->bytes, SENT + FRESH);
	assert_int_equal(kt_stat(s->slot_a)->untrimmed, 0);
	assert_int_equal(kt_true_inq(s), 0);
}

/* Passed data, some of it unread while more comes: the same trap, and the same remedy. */
static void t17_trimmed_pass_is_right(void **state)
{
	struct kt_session *bare = kt_open(0), *s = kt_open(0);

	(void)state;
	kt_start(bare, KT_PASS);
	assert_int_equal(kt_send(bare->client, 0, SENT), 0);
	assert_int_equal(kt_expect(bare->a, 0, SENT), 0);
	assert_int_equal(kt_inject(bare->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_true(KT_WAIT(kt_stat(bare->slot_a)->passed > SENT));
	print_message("T17: pass: %llu of %d bytes passed\n",
		      (unsigned long long)kt_stat(bare->slot_a)->passed, SENT + FRESH);

	kt_conf(s->slot_a)->flags = KT_F_TRIM;
	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == SENT));
	assert_int_equal(kt_inject(s->client, SENT - AGAIN, AGAIN + FRESH, AGAIN), 0);
	assert_int_equal(kt_expect(s->a, 0, SENT + FRESH), 0);
	assert_int_equal(kt_stat(s->slot_a)->passed, SENT + FRESH);
	assert_int_equal(kt_stat(s->slot_a)->untrimmed, 0);
	assert_int_equal(kt_true_inq(s), 0);
}

/* The same cut is a remedy of T3, for whole pages as well. */
static void t3_trimmed_redirect_is_right(void **state)
{
	const size_t size = 48 * KIB, part = 20001;
	struct kt_session *s = kt_open(0);

	(void)state;
	assert_int_equal(kt_send(s->client, 0, size), 0);
	assert_true(KT_WAIT(kt_inq(s->a) == (int)size));
	assert_int_equal(kt_expect(s->a, 0, part), 0);
	kt_conf(s->slot_a)->flags = KT_F_TRIM;
	kt_start(s, KT_REDIRECT);
	kt_kick(s->a);
	assert_int_equal(kt_stat(s->slot_a)->bytes, size - part);
	assert_int_equal(kt_expect(s->server, part, size - part), 0);
	assert_int_equal(kt_stat(s->slot_a)->untrimmed, 0);
	assert_int_equal(kt_true_inq(s), 0);
}

/*
 * Nothing but two lost packets is needed: the acknowledgement of a first small segment, and a
 * second small segment.  The sender's time-out then merges the two.
 */
static uint64_t redirected_after_two_losses(unsigned int flags)
{
	struct kt_session *s = kt_open(0);
	struct kt_dropper d;
	uint64_t redirected;
	int64_t until;
	int one = 1;

	assert_int_equal(setsockopt(s->client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
	kt_conf(s->slot_a)->flags = flags;
	kt_start(s, KT_REDIRECT);
	kt_dropper_start(&d, false);
	d.cfg->all[0] = kt_port(s->client); /* acknowledgements */
	assert_int_equal(kt_send(s->client, 0, SENT), 0);
	assert_int_equal(kt_expect(s->server, 0, SENT), 0);
	d.cfg->all[1] = kt_port(s->a);
	assert_int_equal(kt_send(s->client, SENT, FRESH), 0);
	/* A probe of the last segment alone comes first; it has to be lost as well. */
	until = kt_now_ms() + 100;
	assert_true(KT_WAIT(kt_info(s->client).tcpi_backoff > 0 || kt_now_ms() > until));
	d.cfg->all[0] = d.cfg->all[1] = 0;
	assert_true(KT_WAIT(kt_outq(s->client) == 0));
	kt_dropper_stop(&d);
	redirected = kt_stat(s->slot_a)->bytes;
	assert_int_equal(kt_info(s->a).tcpi_bytes_received, SENT + FRESH);
	if (redirected == SENT + FRESH)
		assert_int_equal(kt_expect(s->server, SENT, FRESH), 0);
	else if (redirected == 2 * SENT + FRESH)
		assert_int_equal(kt_expect(s->server, 0, SENT + FRESH), 0);
	return redirected;
}

static void t17_two_lost_packets_are_enough(void **state)
{
	uint64_t redirected = redirected_after_two_losses(0);

	(void)state;
	print_message("T17: two lost packets: %llu bytes sent, %llu redirected\n",
		      (unsigned long long)(SENT + FRESH), (unsigned long long)redirected);
	assert_int_equal(redirected_after_two_losses(KT_F_TRIM), SENT + FRESH);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(t17_recv_skips_the_overlap),
		kt_test(t17_redirect_repeats_the_overlap),
		kt_test(t17_trimmed_redirect_is_right),
		kt_test(t17_trimmed_pass_is_right),
		kt_test(t3_trimmed_redirect_is_right),
		kt_test(t17_two_lost_packets_are_enough),
	};

	return kt_main(tests);
}
