/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How much of what was written has TCP accepted?  Two formulas, under a queueing discipline that
 * drops packets on the sending host:
 *
 *   tcpi_bytes_sent - tcpi_bytes_retrans + tcpi_notsent_bytes
 *       counts too much: __tcp_transmit_skb() adds to bytes_sent before the packet is handed down,
 *       and after NET_XMIT_DROP tcp_write_xmit() neither advances snd_nxt nor calls the next
 *       attempt a retransmission, so the same bytes are counted twice.  FIN would overtake data.
 *   tcpi_bytes_acked (- 1 for the SYN of the connecting end) + SIOCOUTQ
 *       is exact, which is what carrier_sockmap.c relies on.
 */
#include <fcntl.h>

#include "kt.h"

#define TOTAL (8 * MIB)

static int run(const char *command)
{
	int r = system(command); /* constant strings only */

	return r;
}

static void accepted_is_exact_when_the_qdisc_drops(void **state)
{
	int64_t over_sent = 0, over_acked = 0;
	uint64_t sent = 0, got = 0;
	int conn, acc;

	(void)state;
	if (run("ip link set lo mtu 1500 && "
		"tc qdisc add dev lo root tbf rate 100mbit burst 80k limit 90k 2>/dev/null")) {
		print_message("skipped: tc or the tbf qdisc is missing\n");
		skip();
	}
	assert_int_equal(kt_pair(AF_INET, false, &conn, &acc), 0);
	while (got < TOTAL) {
		ssize_t n = sent < TOTAL ? kt_push(conn, sent, TOTAL - sent) : 0;
		int64_t diff;

		assert_true(n >= 0);
		sent += (uint64_t)n;
		diff = kt_accepted(conn) - (int64_t)sent;
		if (diff > over_sent)
			over_sent = diff;
		diff = kt_sent_seq(conn) - 1 - (int64_t)sent;
		if (diff > over_acked)
			over_acked = diff;
		n = kt_pull(acc, got, MIB);
		assert_true(n >= 0);
		got += (uint64_t)n;
	}
	run("tc qdisc del dev lo root");
	print_message("bytes_sent formula: up to %lld too many; acked formula: %lld\n",
		      (long long)over_sent, (long long)over_acked);
	assert_int_equal(over_acked, 0);
	/* settled: nothing is in flight any more, so both are at rest */
	assert_true(KT_WAIT(kt_outq(conn) == 0));
	assert_int_equal(kt_sent_seq(conn) - 1, TOTAL);
	close(conn);
	close(acc);
}

/* The accepting end has no SYN in tcpi_bytes_acked, the connecting end has. */
static void syn_counts_on_the_connecting_end_only(void **state)
{
	int conn, acc;

	(void)state;
	assert_int_equal(kt_pair(AF_INET, false, &conn, &acc), 0);
	assert_int_equal(kt_sent_seq(conn), 1);
	assert_int_equal(kt_sent_seq(acc), 0);
	assert_int_equal(kt_send(acc, 0, 1000), 0);
	assert_int_equal(kt_send(conn, 0, 500), 0);
	assert_int_equal(kt_sent_seq(acc), 1000);
	assert_int_equal(kt_sent_seq(conn), 501);
	assert_int_equal(kt_expect(conn, 0, 1000), 0);
	assert_int_equal(kt_expect(acc, 0, 500), 0);
	assert_true(KT_WAIT(kt_outq(acc) == 0 && kt_outq(conn) == 0));
	assert_int_equal(kt_sent_seq(acc), 1000);
	assert_int_equal(kt_sent_seq(conn), 501);
	close(conn);
	close(acc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(syn_counts_on_the_connecting_end_only),
		kt_test(accepted_is_exact_when_the_qdisc_drops),
	};

	return kt_main(tests);
}
