/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The books: how much of what was written TCP has accepted, under a queueing discipline that drops
 * packets on the sending host, and what a redirected byte costs the kernel.
 *
 * tcpi_bytes_sent - tcpi_bytes_retrans + tcpi_notsent_bytes would count too much there:
 * __tcp_transmit_skb() adds to bytes_sent before the packet is handed down, and after NET_XMIT_DROP
 * tcp_write_xmit() neither advances snd_nxt nor calls the next attempt a retransmission, so the same
 * bytes are counted twice, and FIN would overtake data.  tcp_accepted() is exact.
 */
#include "kt.h"

#define TOTAL (8 * MIB)

static int run(const char *command)
{
	int r = system(command); /* constant strings only */

	return r;
}

static void accepted_is_exact_when_the_qdisc_drops(void **state)
{
	struct kt_session *s = kt_open(0);
	uint64_t sent = 0, got = 0;
	int64_t over = 0;

	(void)state;
	if (run("ip link set lo mtu 1500 && "
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
	run("tc qdisc del dev lo root");
	print_message("%llu of %d bytes were sent more than once\n",
		      (unsigned long long)kt_info(s->b).tcpi_bytes_sent - TOTAL, TOTAL);
	assert_int_equal(over, 0);
	/* settled: nothing is in flight any more */
	assert_true(KT_WAIT(kt_outq(s->b) == 0));
	assert_int_equal(kt_accepted_b(s), TOTAL);
}

static int64_t meminfo_kib(const char *name)
{
	char line[128];
	int64_t kib = -1;
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return -1;
	while (kib < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, name, strlen(name)))
			kib = strtoll(line + strlen(name), NULL, 10);
	fclose(f);
	return kib;
}

/* F7: what one redirected byte in an skb of its own costs the kernel. */
static void f7_memory_of_a_small_skb(void **state)
{
	struct kt_session *s = kt_open(KT_SMALL_B);
	volatile struct kt_stat *st = kt_stat(s->slot_a);
	int64_t slab, available, skbs, truesize;
	int one = 1, n = 40000;

	(void)state;
	kt_start(s, KT_REDIRECT);
	assert_int_equal(setsockopt(s->client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), 0);
	assert_int_equal(kt_send(s->client, 0, 64 * KIB), 0); /* the target is full from here on */
	assert_true(KT_WAIT(st->bytes == 64 * KIB));
	kt_conf(s->slot_a)->flags = KT_F_TRUESIZE;
	slab = meminfo_kib("Slab:");
	available = meminfo_kib("MemAvailable:");
	skbs = -(int64_t)st->packets;
	for (int i = 0; i < n; i++)
		assert_int_equal(kt_send(s->client, 64 * KIB + (uint64_t)i, 1), 0);
	assert_true(KT_WAIT(st->bytes == 64 * KIB + (uint64_t)n));
	skbs += (int64_t)st->packets;
	truesize = (int64_t)st->truesize / skbs;
	slab = (meminfo_kib("Slab:") - slab) * KIB / skbs;
	available = (available - meminfo_kib("MemAvailable:")) * KIB / skbs;
	print_message("F7: %lld one-byte skbs cost %lld bytes each of slab, %lld of MemAvailable; "
		      "truesize %lld\n", (long long)skbs, (long long)slab, (long long)available,
		      (long long)truesize);
	assert_in_range(kt_accepted_b(s), 0, 64 * KIB);
	assert_true(skbs > n / 2);
	assert_true(slab < 4 * KIB);
	assert_in_range(truesize, 256, 4 * KIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		kt_test(accepted_is_exact_when_the_qdisc_drops),
		kt_test(f7_memory_of_a_small_skb),
	};

	return kt_main(tests);
}
