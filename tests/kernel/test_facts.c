/* SPDX-License-Identifier: BSD-2-Clause */
/* What the design relies on, beside the behaviours of `culvert probe` (user/probe). */
#include "kt.h"

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
KT_TEST(f2_peek_with_passed_data_is_efault)
{
	struct kt_session *s = kt_open(0);

	kt_start(s, KT_PASS);
	assert_int_equal(kt_send(s->client, 0, 1000), 0);
	assert_true(KT_WAIT(kt_stat(s->slot_a)->passed == 1000));
	assert_true(unread(s->a) < 0);
	assert_int_equal(kt_del(kt_bpf->maps.rx, s->slot_a), 0);
	assert_int_equal(unread(s->a), -EFAULT);
	assert_int_equal(kt_expect(s->a, 0, 1000), 0);
}

#define TOTAL (8 * MIB)

/*
 * F5: how much of what was written TCP has accepted, under a queueing discipline that drops packets
 * on the sending host.
 *
 * tcpi_bytes_sent - tcpi_bytes_retrans + tcpi_notsent_bytes would count too much there:
 * __tcp_transmit_skb() adds to bytes_sent before the packet is handed down.  After NET_XMIT_DROP
 * tcp_write_xmit() neither advances snd_nxt nor calls the next attempt a retransmission.  So the
 * same bytes are counted twice, and FIN would overtake data.  tcp_accepted() is exact.
 */
KT_TEST(f5_accepted_is_exact_when_the_qdisc_drops)
{
	struct kt_session *s = kt_open(0);
	uint64_t sent = 0, got = 0;
	int64_t over = 0;

	if (system("ip link set lo mtu 1500 && "
		   "tc qdisc add dev lo root tbf rate 100mbit burst 80k limit 90k 2>/dev/null")) {
		print_message("skipped: tc or the tbf qdisc is missing\n");
		skip();
	}
	while (got < TOTAL) {
		ssize_t n = rig_send(s->b, sent, TOTAL - sent);
		int64_t diff;

		assert_true(n >= 0);
		sent += (uint64_t)n;
		diff = kt_accepted_b(s) - (int64_t)sent;
		over = diff > over ? diff : over;
		n = rig_receive(s->server, got, MIB);
		assert_true(n >= 0);
		got += (uint64_t)n;
	}
	(void)!system("tc qdisc del dev lo root");
	print_message("%llu of %d bytes were sent more than once\n",
		      (unsigned long long)kt_info(s->b).tcpi_bytes_sent - TOTAL, TOTAL);
	assert_int_equal(over, 0);
	/* settled: nothing is in flight any more */
	assert_true(KT_WAIT(kt_queued(s->b, SIOCOUTQ) == 0));
	assert_int_equal(kt_accepted_b(s), TOTAL);
}

/* F6, tcp_reset_check: behind FIN, a reset with the number of that is taken. */
KT_TEST(f6_reset_with_the_number_of_fin)
{
	struct kt_session *s = kt_open(0);

	kt_carry(s->client, s->a, 0, 1);
	assert_int_equal(kt_inject_reset(s->client), 0); /* that of the byte is not */
	kt_carry(s->client, s->a, 1, 1);
	assert_int_equal(shutdown(s->client, SHUT_WR), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_state == BPF_TCP_CLOSE_WAIT));
	assert_int_equal(kt_inject_reset(s->client), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_state == BPF_TCP_CLOSE));
}

/*
 * F7, tcp_validate_incoming: a keepalive probe is answered though its timestamp is ahead, and nobody
 * remembers that, for it is not in the window.  (Linux 6.18 does not answer one that is behind.)
 */
KT_TEST(f7_probe_with_a_clock_ahead)
{
	struct kt_session *s = kt_open(0);
	uint32_t sent;

	kt_carry(s->client, s->a, 0, 1000);
	sent = kt_info(s->a).tcpi_segs_out;
	assert_int_equal(kt_inject_probe(s->client, 1000000), 0);
	assert_true(KT_WAIT(kt_info(s->a).tcpi_segs_out > sent));
	kt_carry(s->client, s->a, 1000, 1000);
}

KT_MAIN(kt_load, kt_unload)
