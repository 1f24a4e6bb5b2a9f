/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "base/window.h"
#include "seeded.h"

#define START UINT64_C(1000000) /* the first millisecond of a slot */
#define MOST 1000

static void test_take(void **state)
{
	struct window w;

	(void)state;
	window_init(&w, MOST, START);
	assert_int_equal(window_due(&w, MOST, START), START);
	assert_true(window_take(&w, 600, START));
	assert_false(window_take(&w, 401, START));
	assert_true(window_take(&w, 400, START + 500));
	assert_false(window_take(&w, 1, START + 1000));
	/* the slot of the first ones is over */
	assert_int_equal(window_due(&w, 1, START + 500), START + 1000 + WINDOW_SLOT_MS);
	assert_int_equal(window_due(&w, 600, START + 500), START + 1000 + WINDOW_SLOT_MS);
	assert_int_equal(window_due(&w, 601, START + 500), START + 1500 + WINDOW_SLOT_MS);
	assert_false(window_take(&w, 1, START + 1000 + WINDOW_SLOT_MS - 1));
	assert_true(window_take(&w, 600, START + 1000 + WINDOW_SLOT_MS));
	assert_false(window_take(&w, 1, START + 1000 + WINDOW_SLOT_MS));
	/* never is not promised, but a second */
	assert_in_range(window_due(&w, MOST + 1, START + 5000), START + 6000,
			START + 6000 + WINDOW_SLOT_MS);
	assert_int_equal(window_due(&w, MOST, START + 5000), START + 5000);
	assert_true(window_take(&w, MOST, START + 5000));
}

/* What was taken when the known bits of a number were the same, or nearly, is as old as it is. */
static void test_silence(void **state)
{
	const uint64_t again = (UINT64_C(1) << 24) * WINDOW_SLOT_MS;

	(void)state;
	for (uint64_t ahead = 0; ahead < 12000; ahead += WINDOW_SLOT_MS) {
		struct window w;

		window_init(&w, MOST, START);
		for (uint64_t ms = 0; ms <= 1000; ms += WINDOW_SLOT_MS)
			window_take(&w, MOST / 41, START + ms);
		assert_int_equal(window_due(&w, MOST, START + again - ahead),
				 START + again - ahead);
		assert_true(window_take(&w, MOST, START + again - ahead));
		assert_false(window_take(&w, 1, START + again - ahead));
	}
}

static void test_give_back(void **state)
{
	struct window w;

	(void)state;
	window_init(&w, MOST, START);
	assert_true(window_take(&w, 600, START));
	assert_true(window_take(&w, 400, START + 500));
	window_give_back(&w, 100, START);
	assert_false(window_take(&w, 101, START + 500));
	assert_true(window_take(&w, 100, START + 500));
	assert_true(window_take(&w, 500, START + 1000 + WINDOW_SLOT_MS));
	/* when the place is another slot's, there is nothing to give back any more */
	window_give_back(&w, 500, START);
	assert_false(window_take(&w, 1, START + 1000 + WINDOW_SLOT_MS));
}

/* A clock that is behind another thread's: rather nothing than too much. */
static void test_behind(void **state)
{
	struct window w;

	(void)state;
	window_init(&w, MOST, START);
	assert_true(window_take(&w, 600, START + 2000));
	assert_false(window_take(&w, 401, START + 2000 - WINDOW_SLOT_MS));
	assert_true(window_take(&w, 100, START + 2000 - WINDOW_SLOT_MS));
	assert_false(window_take(&w, 301, START + 2000));
	/* its slot is over, and another one has its place */
	assert_false(window_take(&w, 1, START + 2000 - WINDOW_SLOTS * WINDOW_SLOT_MS));
	assert_true(window_take(&w, 300, START + 2000));
}

/* At any time, and after years; the number of a slot wraps around within days. */
static void test_long_ago(void **state)
{
	uint64_t day = UINT64_C(86400) * 1000, wrap = (UINT64_C(1) << 24) * WINDOW_SLOT_MS;
	const uint64_t starts[] = { 0, 1, day, wrap - 1000, wrap - 1, wrap, 400 * day };

	(void)state;
	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		struct window w;
		uint64_t now = starts[i];

		window_init(&w, MOST, now);
		for (unsigned int k = 0; k < 200; k++, now += k % 7 ? 333 : 2 * day) {
			now = window_due(&w, 400, now);
			assert_true(window_take(&w, 400, now));
		}
	}
}

#define MS_MAX 60000

/* What is taken, by millisecond, when everybody wants all he can get, at times. */
static void test_any_second(void **state)
{
	static uint64_t taken[MS_MAX + 1];
	struct seeded r = { 7 };

	(void)state;
	for (unsigned int round = 0; round < 20; round++) {
		uint64_t most = 10 + seeded_below(&r, WINDOW_MOST_MAX), all = 0;
		struct window w;

		memset(taken, 0, sizeof(taken));
		window_init(&w, most, START + round);
		for (uint64_t ms = 0; ms < MS_MAX; ms++) {
			uint64_t n = 1 + seeded_below(&r, most / (1 + seeded_below(&r, 200)));

			taken[ms + 1] = taken[ms];
			if (seeded_below(&r, 50) > 40 || !window_take(&w, n, START + round + ms))
				continue;
			if (!seeded_below(&r, 3)) {
				uint64_t less = seeded_below(&r, n + 1);

				window_give_back(&w, less, START + round + ms);
				n -= less;
			}
			taken[ms + 1] += n;
			all += n;
		}
		for (size_t ms = 0; ms + 1000 <= MS_MAX; ms++)
			assert_true(taken[ms + 1000] - taken[ms] <= most);
		/* and not much less, with the last ones that do not fit */
		assert_true(all >= most / 2 * (MS_MAX / 1000 - 1));
	}
}

#define THREADS 4
#define TAKES 100000

static struct window shared_window;
static pthread_barrier_t slot_ends;
static _Atomic uint64_t by_ms[TAKES / 20 + 1];

static void *taker(void *arg)
{
	for (uint64_t i = 0; i < TAKES; i++) {
		uint64_t ms = i / 20;

		if (!(i % (20 * WINDOW_SLOT_MS)))
			pthread_barrier_wait(&slot_ends);
		if (!window_take(&shared_window, 3, START + ms))
			continue;
		if (i % 5 == (uintptr_t)arg)
			window_give_back(&shared_window, 1, START + ms);
		atomic_fetch_add(&by_ms[ms], i % 5 == (uintptr_t)arg ? 2 : 3);
	}
	return NULL;
}

/*
 * A second is never over what it may be.  The threads' clocks are a slot apart at most: who is a
 * whole second behind finds slots that are used again, which would be seen by chance here.
 */
static void test_shared(void **state)
{
	pthread_t threads[THREADS];
	uint64_t second = 0;

	(void)state;
	window_init(&shared_window, MOST, START);
	assert_int_equal(pthread_barrier_init(&slot_ends, NULL, THREADS), 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		// NOLINTNEXTLINE(performance-no-int-to-ptr): a thread's number
		assert_int_equal(pthread_create(&threads[i], NULL, taker, (void *)i), 0);
	for (size_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&slot_ends);
	for (uint64_t ms = 0; ms < TAKES / 20; ms++) {
		second += by_ms[ms];
		if (ms >= 1000)
			second -= by_ms[ms - 1000];
		assert_true(second <= MOST);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take),       cmocka_unit_test(test_give_back),
		cmocka_unit_test(test_behind),     cmocka_unit_test(test_long_ago),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_any_second), cmocka_unit_test(test_shared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
