// SPDX-License-Identifier: BSD-2-Clause
/* The token bucket: never too much, never too little for one who always wants more, and in turn. */

#include "unit.h"
#include "config/config.h"
#include "relay/bandwidth.h"
#include "seeded.h"

#define START 1000000

TEST(test_take)
{
	uint64_t due = 0;
	struct bucket b;

	bucket_init(&b, 20, 2, START);
	assert_true(bucket_take(&b, 2, START, &due));
	assert_false(bucket_take(&b, 1, START, &due));
	assert_int_equal(due, START + 50);
	assert_false(bucket_take(&b, 1, START + 49, &due));
	assert_int_equal(due, START + 50);
	assert_true(bucket_take(&b, 1, START + 50, &due));
	/* only the burst is kept */
	assert_true(bucket_take(&b, 2, START + 500000, &due));
	assert_false(bucket_take(&b, 1, START + 500000, &due));
	/* the clock of another thread may be behind */
	assert_false(bucket_take(&b, 1, START + 499990, &due));
	bucket_give_back(&b, 1);
	assert_true(bucket_take(&b, 1, START + 500000, &due));
	/* tokens that others keep are part of the burst */
	bucket_hold(&b, 1);
	assert_true(bucket_take(&b, 1, START + 600000, &due));
	assert_false(bucket_take(&b, 1, START + 600000, &due));
	bucket_hold(&b, -1);
	assert_true(bucket_take(&b, 2, START + 700000, &due));
	bucket_init(&b, 0, 1, START);
	for (int i = 0; i < 100; i++)
		assert_true(bucket_take(&b, 1, START, &due));
	bucket_give_back(&b, 1);
}

/* Each reservation ends later than the one before; one that is given back shortens the wait. */
TEST(test_reserve)
{
	struct bucket b;

	bucket_init(&b, 1000, 40, START);
	assert_int_equal(bucket_reserve(&b, 40, START), START);
	for (uint64_t i = 1; i <= 10; i++)
		assert_int_equal(bucket_reserve(&b, 7, START), START + 7 * i);
	bucket_give_back(&b, 7);
	assert_int_equal(bucket_reserve(&b, 7, START + 30), START + 70);
	assert_int_equal(bucket_reserve(&b, 7, START + 77), START + 77);
}

/*
 * Whoever always wants more, in turns of any size and at any times, gets all that comes and no
 * more.  He is late by less than the burst lasts.
 */
TEST(test_rate)
{
	static const uint64_t rates[] = { 25, 999, 8192, 1 << 20, 123456789, BANDWIDTH_MAX };
	struct seeded r = { 3 };

	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		uint64_t rate = rates[i], burst = rate / 25, now = START, got = 0;
		struct bucket b;

		bucket_init(&b, rate, burst, now);
		while (now < START + 100000) {
			uint64_t n = 1 + seeded_below(&r, burst), due = bucket_reserve(&b, n, now);
			uint64_t come = rate * (due - START) / 1000;

			got += n;
			assert_true(got <= come + burst);
			if (due == now)
				continue;
			assert_true(got + 1 + rate / 1000 >= come);
			now = due + seeded_below(&r, 20);
		}
		/* nothing wraps around in a year */
		now += UINT64_C(365) * 86400 * 1000;
		assert_int_equal(bucket_reserve(&b, burst, now), now);
		assert_true(bucket_reserve(&b, burst, now) > now);
	}
}

UNIT_MAIN(NULL, NULL)
