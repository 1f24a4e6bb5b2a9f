/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "relay/bandwidth.h"

#define START 1000000

static void test_none(void **state)
{
	struct bandwidth b;

	(void)state;
	bandwidth_init(&b, 0, START);
	assert_int_equal(b.turn, 0);
}

static void test_turns(void **state)
{
	static const uint64_t rates[] = {
		1, 79, 80, 100, 1023, 1024, 5000, 1 << 20, 10 << 20, 1 << 30, BUCKET_RATE_MAX,
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		struct bandwidth b;

		bandwidth_init(&b, rates[i], START);
		assert_true(b.turn > 0 && b.turn <= rates[i]); /* a second at most */
		assert_true(b.turn <= 512 * 1024);
		for (unsigned int way = 0; way < 2; way++) {
			const struct lane *l = &b.ways[way];

			assert_int_equal(l->average.rate, rates[i]);
			assert_true(l->burst >= 2 * (uint64_t)b.turn);
			assert_true(l->average.burst >= l->burst);
			assert_true(l->peak.burst >= l->burst);
			assert_true(l->second.most >= rates[i] + l->burst);
			assert_true(l->second.most <= WINDOW_MOST_MAX);
			if (rates[i] >= 80)
				assert_true(l->second.most <= rates[i] / 20 * 21 + 20);
		}
	}
}

static void test_ask(void **state)
{
	(void)state;
	for (unsigned int turn = 1; turn < 1 << 19; turn = turn * 5 / 3 + 1) {
		uint32_t ask = bandwidth_ask(turn, 0), n = 0;

		assert_true(ask >= 1 && ask <= 1024 && ask <= turn);
		for (; ask < turn; n++) {
			uint32_t next = bandwidth_ask(turn, ask);

			assert_true(next > ask && next <= turn);
			assert_true(bandwidth_ask(turn, ask / 3) <= next);
			ask = next;
		}
		assert_true(n <= 10);
		assert_int_equal(bandwidth_ask(turn, turn), turn);
	}
}

/* The order is that of joining; who gives back makes the next one sooner. */
static void test_queue(void **state)
{
	struct bandwidth b;
	struct lane *l = &b.ways[0];
	struct place p[16], other;
	uint64_t due;

	(void)state;
	bandwidth_init(&b, 1000000, START); /* 40,000 are there */
	for (unsigned int i = 0; i < 7; i++)
		assert_int_equal(lane_join(l, 5000, START, &p[i]), START);
	assert_int_equal(lane_join(l, 10000, START, &other), START + 5);
	lane_leave(l, &other, 10000, START);
	for (unsigned int i = 0; i < 7; i++)
		assert_true(lane_take(l, &p[i], 5000, START, &due));
	assert_int_equal(lane_join(l, 5000, START, &other), START);
	assert_true(lane_take(l, &other, 5000, START, &due));
	for (unsigned int i = 0; i < 4; i++)
		assert_int_equal(lane_join(l, 5000, START, &p[i]), START + 5 * (i + 1));
	assert_true(lane_take(l, &p[0], 5000, START + 5, &due));
	lane_end(l, &p[0], 5000); /* the others' time was told already */
	assert_int_equal(lane_join(l, 5000, START + 5, &other), START + 20);
	for (unsigned int i = 1; i < 4; i++)
		assert_true(lane_take(l, &p[i], 5000, START + 5 * (i + 1), &due));
	assert_true(lane_take(l, &other, 5000, START + 20, &due));
}

/* Who is late goes to the end of the queue if others, as late, have used what may be had at once. */
static void test_all_late(void **state)
{
	uint64_t due, now = START + 1000;
	struct bandwidth b;
	struct lane *l = &b.ways[0];
	struct place p[16];

	(void)state;
	bandwidth_init(&b, 1000000, START);
	for (unsigned int i = 0; i < 16; i++)
		lane_join(l, 10000, START, &p[i]);
	for (unsigned int i = 0; i < 10; i++)
		assert_true(lane_take(l, &p[i], 10000, now, &due));
	for (unsigned int i = 0; i < 6; i++) {
		assert_false(lane_take(l, &p[i + 10], 10000, now, &due));
		/* at 1.05 MB a second, as long as there is something to make up for */
		assert_int_equal(due, now + (10000 * (i + 1) + 1049) / 1050);
	}
	for (unsigned int i = 0; i < 6; i++)
		assert_true(lane_take(l, &p[i + 10], 10000, now + (10000 * (i + 1) + 1049) / 1050,
				      &due));
}

/* Who has made up for much at once waits when the second is full, and keeps his place. */
static void test_full_second(void **state)
{
	uint64_t due, now = START + 1000;
	struct bandwidth b;
	struct lane *l = &b.ways[0];
	struct place p, other;

	(void)state;
	bandwidth_init(&b, 1000000, START);
	lane_join(l, 10000, START, &p);
	assert_true(lane_take(l, &p, 10000, now, &due));
	for (unsigned int i = 1; i < 105; i++) {
		due = lane_join(l, 10000, now, &p);
		assert_true(due < START + 2000);
		now = due > now ? due : now;
		assert_true(lane_take(l, &p, 10000, now, &due));
	}
	/* of what was there at START + 1000, ten were had at once */
	due = lane_join(l, 10000, now, &p);
	lane_join(l, 10000, now, &other);
	now = due > now ? due : now;
	assert_false(lane_take(l, &p, 10000, now, &due));
	assert_in_range(due, START + 2000, START + 2000 + WINDOW_SLOT_MS);
	assert_true(lane_take(l, &p, 10000, due, &due));
	lane_end(l, &p, 10000);
	assert_true(lane_take(l, &other, 10000, START + 2000 + WINDOW_SLOT_MS, &due));
}

/* Who is before one may be of a thread that sleeps. */
static void test_not_waited_for(void **state)
{
	struct bandwidth b;
	struct lane *l = &b.ways[0];
	struct place p[16], other;
	uint64_t due;

	(void)state;
	bandwidth_init(&b, 1000000, START);
	for (unsigned int i = 0; i < 16; i++)
		lane_join(l, 5000, START, &p[i]);
	due = lane_join(l, 5000, START, &other);
	for (unsigned int i = 0; i < 100; i++) {
		assert_in_range(due, START + 45 + 4 * i, START + 45 + 5 * i);
		assert_true(lane_take(l, &other, 5000, due, &due));
		due = lane_join(l, 5000, due, &other);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_none),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_ask),
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_all_late),
		cmocka_unit_test(test_full_second),
		cmocka_unit_test(test_not_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
