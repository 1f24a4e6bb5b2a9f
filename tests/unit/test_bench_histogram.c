// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "bench/histogram.h"
#include "bench/tally.h"
#include "seeded.h"

static struct histogram *fresh(void)
{
	struct histogram *h = calloc(1, sizeof(*h));

	assert_non_null(h);
	return h;
}

static void test_empty(void **state)
{
	struct histogram *h = fresh();

	(void)state;
	assert_int_equal(histogram_percentile(h, 5000), 0);
	assert_int_equal(histogram_percentile(h, 10000), 0);
	assert_true(histogram_mean(h) == 0);
	free(h);
}

/* The buckets cover everything up to the limit, in order, without a gap. */
static void test_buckets(void **state)
{
	(void)state;
	assert_int_equal(histogram_upper_ns(0), 0);
	for (size_t i = 1; i < HISTOGRAM_BUCKETS; i++) {
		uint64_t lower = histogram_upper_ns(i - 1) + 1, upper = histogram_upper_ns(i);
		struct histogram *h;

		assert_true(upper >= lower);
		assert_true((upper - lower + 1) * HISTOGRAM_SUB <= lower || upper == lower);
		if (i % 97 && i < HISTOGRAM_BUCKETS - 300)
			continue;
		h = fresh();
		histogram_record(h, lower);
		histogram_record(h, upper);
		assert_int_equal(h->counts[i], 2);
		free(h);
	}
	assert_int_equal(histogram_upper_ns(HISTOGRAM_BUCKETS - 1), HISTOGRAM_LIMIT_NS);
	assert_true(HISTOGRAM_LIMIT_NS > UINT64_C(3600000000000)); /* an hour */
}

/* Below 512 ns each value has its bucket: so percentiles are exact, and so is their definition. */
static void test_percentiles_exact(void **state)
{
	struct histogram *h = fresh();

	(void)state;
	for (uint64_t i = 100; i >= 1; i--)
		histogram_record(h, i);
	assert_int_equal(histogram_percentile(h, 1), 1);
	assert_int_equal(histogram_percentile(h, 100), 1);
	assert_int_equal(histogram_percentile(h, 101), 2);
	assert_int_equal(histogram_percentile(h, 5000), 50);
	assert_int_equal(histogram_percentile(h, 5001), 51);
	assert_int_equal(histogram_percentile(h, 9900), 99);
	assert_int_equal(histogram_percentile(h, 9990), 100);
	assert_int_equal(histogram_percentile(h, 10000), 100);
	assert_true(histogram_mean(h) == 50.5);
	assert_int_equal(h->max, 100);
	free(h);
}

static void test_one_value(void **state)
{
	struct histogram *h = fresh();

	(void)state;
	histogram_record(h, 1234567); /* in the midst of its bucket: not above the maximum */
	assert_int_equal(histogram_percentile(h, 1), 1234567);
	assert_int_equal(histogram_percentile(h, 10000), 1234567);
	free(h);
}

static void test_zero_and_beyond(void **state)
{
	struct histogram *h = fresh();

	(void)state;
	histogram_record(h, 0);
	histogram_record(h, HISTOGRAM_LIMIT_NS + 1);
	histogram_record(h, UINT64_C(1) << 60);
	assert_int_equal(h->counts[0], 1);
	assert_int_equal(h->counts[HISTOGRAM_BUCKETS - 1], 2);
	assert_int_equal(h->n, 3);
	assert_int_equal(histogram_percentile(h, 3333), 0);
	assert_int_equal(histogram_percentile(h, 10000), UINT64_C(1) << 60);
	free(h);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Against the sorted values themselves: never below, and at most 1/256 above. */
static void test_against_sorted(void **state)
{
	static uint64_t values[20000];
	static const unsigned int percentiles[] = { 1, 100, 2500, 5000, 9000, 9900, 9990, 10000 };
	const size_t n = sizeof(values) / sizeof(values[0]);
	struct seeded random = { 7 };
	struct histogram *h = fresh(), *parts[3] = { fresh(), fresh(), fresh() };

	(void)state;
	for (size_t i = 0; i < n; i++) {
		values[i] = seeded_size(&random, 40);
		histogram_record(parts[i % 3], values[i]);
	}
	for (size_t i = 0; i < 3; i++) {
		histogram_add(h, parts[i]);
		free(parts[i]);
	}
	qsort(values, n, sizeof(values[0]), compare);
	assert_int_equal(h->n, n);
	assert_int_equal(h->max, values[n - 1]);
	for (size_t i = 0; i < sizeof(percentiles) / sizeof(percentiles[0]); i++) {
		size_t rank = (n * percentiles[i] + 9999) / 10000;
		uint64_t exact = values[rank - 1], told = histogram_percentile(h, percentiles[i]);

		assert_true(told >= exact);
		assert_true(told - exact <= exact / HISTOGRAM_SUB);
	}
	free(h);
}

/* More values than fit into 32 bits, without recording them one by one. */
static void test_many(void **state)
{
	struct histogram *h = fresh();

	(void)state;
	histogram_record(h, 10);
	histogram_record(h, 20);
	for (int i = 0; i < 60; i++)
		h->counts[10] *= 2, h->counts[20] *= 2;
	h->n = h->counts[10] + h->counts[20];
	assert_int_equal(histogram_percentile(h, 5000), 10);
	assert_int_equal(histogram_percentile(h, 5001), 20);
	free(h);
}

static void test_tally_add(void **state)
{
	struct tally *sum = malloc(sizeof(*sum)), *one = malloc(sizeof(*one));

	(void)state;
	tally_open(sum);
	tally_open(one);
	one->requests = 3;
	one->bytes_up = 30;
	one->wrong = 1;
	one->errors[CAUSE_SHORT] = 2;
	one->connect_errno[111] = 4;
	one->measured_ns = 100;
	one->cpu_ns = 7;
	histogram_record(&one->latency, 50);
	tally_share(one, 10);
	tally_share(one, 20);
	tally_add(sum, one);
	assert_int_equal(sum->least, 10);
	one->least = 5;
	one->measured_ns = 99;
	tally_add(sum, one);
	assert_int_equal(sum->requests, 6);
	assert_int_equal(sum->bytes_up, 60);
	assert_int_equal(sum->wrong, 2);
	assert_int_equal(sum->errors[CAUSE_SHORT], 4);
	assert_int_equal(sum->connect_errno[111], 8);
	assert_int_equal(sum->measured_ns, 100); /* they ran at the same time */
	assert_int_equal(sum->cpu_ns, 14);
	assert_int_equal(sum->least, 5);
	assert_int_equal(sum->most, 20);
	assert_int_equal(sum->latency.n, 2);
	free(sum);
	free(one);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_empty),
		cmocka_unit_test(test_buckets),
		cmocka_unit_test(test_percentiles_exact),
		cmocka_unit_test(test_one_value),
		cmocka_unit_test(test_zero_and_beyond),
		cmocka_unit_test(test_against_sorted),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_tally_add),
	};

	return cmocka_run_group_tests_name("bench: histogram", tests, NULL, NULL);
}
