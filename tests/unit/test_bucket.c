/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/bucket.h"
#include "seeded.h"

#define START 123456789

static void test_take(void **state)
{
	struct bucket b;
	uint64_t due;

	(void)state;
	bucket_init(&b, 10, 3, START);
	for (int i = 0; i < 3; i++)
		assert_true(bucket_take(&b, 1, START, &due));
	assert_false(bucket_take(&b, 1, START, &due));
	assert_int_equal(due, START + 100);
	assert_false(bucket_take(&b, 1, START + 99, &due));
	assert_int_equal(due, START + 100);
	assert_true(bucket_take(&b, 1, START + 100, &due));
	assert_false(bucket_take(&b, 1, START + 100, &due));
	bucket_give_back(&b, 1);
	assert_true(bucket_take(&b, 1, START + 100, &due));
	/* what nobody takes is lost, but for the burst */
	for (int i = 0; i < 3; i++)
		assert_true(bucket_take(&b, 1, START + 86400000, &due));
	assert_false(bucket_take(&b, 1, START + 86400000, &due));
	/* a clock that is behind */
	assert_false(bucket_take(&b, 1, START + 86399000, &due));
	assert_false(bucket_take(&b, 1, START - 1000, &due));
}

static void test_take_several(void **state)
{
	struct bucket b;
	uint64_t due;

	(void)state;
	bucket_init(&b, 1000, 50, START);
	assert_true(bucket_take(&b, 30, START, &due));
	assert_false(bucket_take(&b, 30, START, &due));
	assert_int_equal(due, START + 10);
	assert_true(bucket_take(&b, 20, START, &due)); /* it was not for nothing that it waits */
	assert_false(bucket_take(&b, 30, START + 10, &due));
	assert_int_equal(due, START + 30);
}

static void test_promise(void **state)
{
	struct bucket b;
	uint64_t due, place;

	(void)state;
	bucket_init(&b, 1000, 100, START);
	assert_false(bucket_owes(&b, START));
	assert_int_equal(bucket_promise(&b, 60, START, &place), START);
	assert_int_equal(bucket_promise(&b, 60, START, &place), START + 20);
	assert_int_equal(bucket_promise(&b, 60, START, &place), START + 80);
	assert_true(bucket_owes(&b, START + 79));
	assert_false(bucket_owes(&b, START + 80));
	bucket_release(&b, 50); /* whoever comes next is sooner */
	assert_int_equal(bucket_promise(&b, 60, START, &place), START + 90);
	/* they do so when they may */
	assert_true(bucket_take(&b, 60, START, &due));
	assert_true(bucket_take(&b, 60, START + 20, &due));
	assert_true(bucket_take(&b, 60, START + 80, &due));
	assert_true(bucket_take(&b, 10, START + 90, &due));
	assert_int_equal(bucket_promise(&b, 10, START + 100, &place), START + 100);
	/* a promise does not last, and what is over the burst is lost */
	assert_int_equal(bucket_promise(&b, 5000, START + 100, &place), START + 5100);
	bucket_release(&b, 5000);
	assert_int_equal(bucket_promise(&b, 150, START + 9000, &place), START + 9050);
	/* the last part of a millisecond counts as a whole one */
	bucket_init(&b, 3000, 0, START);
	assert_int_equal(bucket_promise(&b, 1, START, &place), START + 1);
	assert_int_equal(bucket_promise(&b, 3, START, &place), START + 2);
}

/* Who does not want any more what he was promised; but what is gone was not moved for others. */
static void test_break(void **state)
{
	uint64_t places[3], place, due;
	struct bucket b;

	(void)state;
	bucket_init(&b, 1000, 100, START);
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(bucket_promise(&b, 100, START, &places[i]), START + 100 * i);
	bucket_break(&b, places[1], 100, START);
	assert_int_equal(bucket_promise(&b, 100, START, &places[1]), START + 200);
	/* all are late, and the first has the burst */
	assert_true(bucket_take(&b, 100, START + 1000, &due));
	bucket_break(&b, places[1], 100, START + 1000);
	assert_int_equal(bucket_promise(&b, 100, START + 1000, &place), START + 1100);
	bucket_break(&b, places[2], 100, START + 1000);
	assert_int_equal(bucket_promise(&b, 100, START + 1000, &place), START + 1200);
}

static void test_keep(void **state)
{
	struct bucket b;
	uint64_t due, place;

	(void)state;
	bucket_init(&b, 1000, 100, START);
	bucket_keep(&b, 30, START);
	assert_false(bucket_take(&b, 100, START, &due));
	assert_int_equal(due, START + 70);
	assert_int_equal(bucket_promise(&b, 31, START, &place), START + 1);
	assert_true(bucket_take(&b, 30, START, &due));
	bucket_keep(&b, 30, START); /* there is nothing */
	assert_false(bucket_take(&b, 1, START, &due));
	assert_int_equal(due, START + 1);
	bucket_keep(&b, 100, START + 100);
	assert_true(bucket_take(&b, 100, START + 100, &due));
}

/* Whoever waits until they are due gets them, on any clock, and nothing is lost to rounding. */
static void test_exact(void **state)
{
	static const uint64_t rates[] = { 1, 7, 999, 1000, 1 << 20, 123456789, BUCKET_RATE_MAX };

	(void)state;
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		uint64_t rate = rates[i], now = START, used = 0;
		uint64_t n = rate / 200 ? rate / 200 : 1, burst = 2 * n;
		struct seeded r = { i };
		struct bucket b;

		bucket_init(&b, rate, burst, START);
		for (unsigned int round = 0; round < 3000; round++) {
			uint64_t at;
			uint64_t due = bucket_promise(&b, n, now, &at), most = burst;

			assert_true(due >= now);
			if (due > now)
				assert_false(bucket_take(&b, n, due - 1, &at));
			if (due > now)
				assert_int_equal(at, due);
			assert_true(bucket_take(&b, n, due, &at));
			now = due;
			used += n;
			/* never more than rate * time + burst */
			most += rate / 1000 * (now - START) + rate % 1000 * (now - START) / 1000;
			assert_true(used <= most);
			/* never less, but for a millisecond and one take */
			assert_true(used + rate / 1000 + 1 + n + burst >= most);
			if (seeded_below(&r, 4))
				continue;
			n = 1 + seeded_below(&r, (burst + 1) / 2);
		}
	}
}

/* Of any rate, even when the daemon has run for years. */
static void test_late(void **state)
{
	struct bucket b;
	uint64_t year = UINT64_C(365) * 86400 * 1000, due;

	(void)state;
	bucket_init(&b, BUCKET_RATE_MAX, BUCKET_RATE_MAX / 20, START);
	assert_true(bucket_take(&b, 1, START + year, &due));
	assert_true(bucket_take(&b, BUCKET_RATE_MAX / 20 - 1, START + year, &due));
	assert_false(bucket_take(&b, 1000, START + year, &due));
	/* the numbers have wrapped */
	for (int i = 2; i < 12; i++) {
		uint64_t now = START + (uint64_t)i * year;

		assert_true(bucket_take(&b, BUCKET_RATE_MAX / 20, now, &due));
		assert_false(bucket_take(&b, BUCKET_RATE_MAX / 20, now, &due));
		assert_int_equal(due, now + 50);
	}
}

#define THREADS 4
#define TAKES 200000

static struct bucket shared_bucket;
static _Atomic uint64_t all_taken;

static void *taker(void *arg)
{
	uint64_t due, n = 0;

	for (uint64_t i = 0; i < TAKES; i++) {
		uint64_t now = START + i / 100;

		if (!bucket_take(&shared_bucket, 3, now, &due))
			continue;
		if (i % 5 == (uintptr_t)arg)
			bucket_give_back(&shared_bucket, 1);
		n += i % 5 == (uintptr_t)arg ? 2 : 3;
		if (i % 1000 == (uintptr_t)arg)
			bucket_keep(&shared_bucket, 400, now);
	}
	atomic_fetch_add(&all_taken, n);
	return NULL;
}

static void test_shared(void **state)
{
	uint64_t seconds = TAKES / 100 / 1000, rate = 50000, burst = 500;
	pthread_t threads[THREADS];

	(void)state;
	bucket_init(&shared_bucket, rate, burst, START);
	for (uintptr_t i = 0; i < THREADS; i++)
		// NOLINTNEXTLINE(performance-no-int-to-ptr): a thread's number
		assert_int_equal(pthread_create(&threads[i], NULL, taker, (void *)i), 0);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_true(all_taken <= rate * seconds + burst);
	/* their clocks are not the same, so some are lost; but the burst at least is had */
	assert_true(all_taken >= burst);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take),
		cmocka_unit_test(test_take_several),
		cmocka_unit_test(test_promise),
		cmocka_unit_test(test_break),
		cmocka_unit_test(test_keep),
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_shared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
