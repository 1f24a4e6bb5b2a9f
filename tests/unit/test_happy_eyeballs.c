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

#define MANY 64

/* "6" and "4" in the order of the list; the port tells them apart. */
static size_t make(const char *families, struct addr *ret)
{
	size_t n = strlen(families);

	for (size_t i = 0; i < n; i++) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ret[i].ss;

		memset(&ret[i], 0, sizeof(ret[i]));
		in6->sin6_family = families[i] == '6' ? AF_INET6 : AF_INET;
		in6->sin6_port = (in_port_t)i;
	}
	return n;
}

static unsigned int number_of(const struct addr *a)
{
	return ((const struct sockaddr_in6 *)&a->ss)->sin6_port;
}

static void test_sort(void **state)
{
	static const struct {
		const char *in;
		unsigned int out[9]; /* places in `in` */
	} rows[] = {
		{ "4", { 0 } },
		{ "6", { 0 } },
		{ "64", { 0, 1 } },
		{ "46", { 0, 1 } },
		{ "66644", { 0, 3, 1, 4, 2 } },
		{ "44466", { 0, 3, 1, 4, 2 } },
		{ "66664", { 0, 4, 1, 2, 3 } },
		{ "64444", { 0, 1, 2, 3, 4 } },
		{ "4664", { 0, 1, 3, 2 } },
		{ "666444", { 0, 3, 1, 4, 2, 5 } },
		{ "444", { 0, 1, 2 } },
	};
	struct addr in[MANY], out[MANY];

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		size_t n = make(rows[i].in, in);

		happy_sort(in, out, n);
		for (size_t k = 0; k < n; k++)
			if (number_of(&out[k]) != rows[i].out[k])
				fail_msg("%s: place %zu has number %u", rows[i].in, k,
					 number_of(&out[k]));
	}
	happy_sort(in, out, 0);
}

/*
 * Whatever comes: each once, the order within a family kept, and no family twice while both wait.
 */
static void test_sort_random(void **state)
{
	struct addr in[MANY], out[MANY];
	struct seeded random = { 1 };
	char families[MANY + 1];

	(void)state;
	for (int round = 0; round < 2000; round++) {
		size_t n = 1 + seeded_below(&random, MANY), left[2] = { 0, 0 };
		unsigned int last[2] = { 0, 0 };
		bool seen[2] = { false, false };

		for (size_t i = 0; i < n; i++)
			left[(families[i] = seeded_below(&random, 2) ? '6' : '4') == '6']++;
		families[n] = '\0';
		make(families, in);
		happy_sort(in, out, n);
		assert_int_equal(number_of(&out[0]), 0);
		for (size_t i = 0; i < n; i++) {
			bool six = out[i].ss.ss_family == AF_INET6;

			assert_true(!seen[six] || number_of(&out[i]) > last[six]);
			assert_true(left[six] > 0);
			if (i && left[!six])
				assert_int_not_equal(out[i].ss.ss_family, out[i - 1].ss.ss_family);
			last[six] = number_of(&out[i]);
			seen[six] = true;
			left[six]--;
		}
		assert_int_equal(left[0] + left[1], 0);
	}
}

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
		cmocka_unit_test(test_sort),
		cmocka_unit_test(test_sort_random),
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
