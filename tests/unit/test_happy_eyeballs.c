// SPDX-License-Identifier: BSD-2-Clause
/* The clock of these tests is a number. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "relay/happy_eyeballs.h"
#include "seeded.h"

static void expect_next(const struct happy *h, uint64_t now, unsigned int address)
{
	unsigned int is = 999;

	assert_true(happy_next(h, now, &is));
	assert_int_equal(is, address);
}

static void expect_none(const struct happy *h, uint64_t now)
{
	unsigned int address;

	assert_false(happy_next(h, now, &address));
}

static void test_one_address(void **state)
{
	struct happy h;

	(void)state;
	happy_open(&h, 1, 0);
	expect_next(&h, 1000, 0);
	happy_begin(&h, 1000);
	expect_none(&h, 99999);
	assert_true(happy_due(&h) == UINT64_MAX);
	assert_false(happy_is_over(&h));
	happy_failed(&h);
	assert_true(happy_is_over(&h));
	expect_none(&h, 99999);
}

static void test_delay(void **state)
{
	struct happy h;

	(void)state;
	happy_open(&h, 3, 0);
	expect_next(&h, 1000, 0);
	happy_begin(&h, 1000);
	assert_int_equal(happy_due(&h), 1000 + HAPPY_DELAY_MS);
	expect_none(&h, 1000 + HAPPY_DELAY_MS - 1);
	expect_next(&h, 1000 + HAPPY_DELAY_MS, 1);
	/* the loop came late: the delay is from when it began */
	happy_begin(&h, 1300);
	assert_int_equal(happy_due(&h), 1300 + HAPPY_DELAY_MS);
	/* whichever fails, the next begins at once */
	happy_failed(&h);
	expect_next(&h, 1301, 2);
	happy_begin(&h, 1301);
	assert_true(happy_due(&h) == UINT64_MAX);
	happy_failed(&h);
	assert_false(happy_is_over(&h));
	happy_failed(&h);
	assert_true(happy_is_over(&h));
}

static void test_first(void **state)
{
	static const unsigned int expected[] = { 2, 0, 1, 3 };
	struct happy h;

	(void)state;
	happy_open(&h, 4, 2);
	for (size_t i = 0; i < 4; i++) {
		expect_next(&h, i, expected[i]);
		happy_begin(&h, i);
		happy_failed(&h);
	}
	assert_true(happy_is_over(&h));
	happy_open(&h, 4, 4); /* of another list, say */
	expect_next(&h, 0, 0);
}

static void test_at_once(void **state)
{
	struct happy h;
	uint64_t now = 0;

	(void)state;
	happy_open(&h, HAPPY_AT_ONCE + 2, 0);
	for (unsigned int i = 0; i < HAPPY_AT_ONCE; i++, now += HAPPY_DELAY_MS) {
		expect_next(&h, now, i);
		happy_begin(&h, now);
	}
	expect_none(&h, now + 100000);
	assert_true(happy_due(&h) == UINT64_MAX);
	happy_failed(&h);
	expect_next(&h, now, HAPPY_AT_ONCE);
	happy_begin(&h, now);
	expect_none(&h, now + 100000);
}

static void test_put_back(void **state)
{
	struct happy h;

	(void)state;
	happy_open(&h, 3, 0);
	happy_begin(&h, 0);
	happy_begin(&h, 250);
	happy_put_back(&h, 270);
	expect_none(&h, 269);
	expect_next(&h, 270, 1);
	happy_begin(&h, 270);
	happy_put_back(&h, UINT64_MAX);
	expect_none(&h, 100000);
	assert_true(happy_due(&h) == UINT64_MAX);
	happy_failed(&h);
	expect_next(&h, 5000, 1);
	happy_begin(&h, 5000);
	happy_failed(&h);
	expect_next(&h, 5001, 2);
}

static void test_won(void **state)
{
	struct happy h;

	(void)state;
	happy_open(&h, 3, 0);
	happy_begin(&h, 0);
	happy_begin(&h, 250);
	happy_won(&h);
	expect_none(&h, 100000);
	assert_true(happy_due(&h) == UINT64_MAX);
	happy_failed(&h);
	expect_next(&h, 300, 2);
	happy_begin(&h, 300);
	happy_failed(&h);
	assert_true(happy_is_over(&h));
}

/* Any course of events: every address is tried once, within the bounds of the delay. */
static void test_random(void **state)
{
	struct seeded random = { 2 };

	(void)state;
	for (int round = 0; round < 2000; round++) {
		size_t n = 1 + seeded_below(&random, 30), begun = 0, running = 0;
		uint64_t now = 1000, last = 0;
		bool tried[30] = { false }, failed = true;
		unsigned int address;
		struct happy h;

		happy_open(&h, n, seeded_below(&random, n));
		while (!happy_is_over(&h)) {
			assert_true(running <= HAPPY_AT_ONCE);
			if (happy_next(&h, now, &address)) {
				assert_true(failed || now >= last + HAPPY_DELAY_MS);
				assert_false(tried[address]);
				happy_begin(&h, now);
				failed = false;
				if (running && seeded_below(&random, 8) == 0) {
					happy_put_back(&h, UINT64_MAX);
					expect_none(&h, now + 100000);
				} else {
					tried[address] = true;
					last = now;
					begun++, running++;
				}
			} else if (running && seeded_below(&random, 3) == 0) {
				happy_failed(&h);
				running--;
				failed = true;
			} else {
				now += seeded_below(&random, 300);
			}
		}
		assert_int_equal(begun, n);
		assert_int_equal(running, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_address),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_first),
		cmocka_unit_test(test_at_once),
		cmocka_unit_test(test_put_back),
		cmocka_unit_test(test_won),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
