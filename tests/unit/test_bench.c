// SPDX-License-Identifier: BSD-2-Clause
/* culvert-bench: latencies. */
#include <stdlib.h>

#include "unit.h"
#include "bench/report.h"
#include "seeded.h"

TEST(test_zero_and_beyond)
{
	static struct histogram h;

	histogram_record(&h, 0);
	histogram_record(&h, HISTOGRAM_LIMIT_NS + 1);
	histogram_record(&h, UINT64_C(1) << 60);
	assert_int_equal(h.counts[0], 1);
	assert_int_equal(h.counts[HISTOGRAM_BUCKETS - 1], 2);
	assert_int_equal(h.n, 3);
	assert_int_equal(histogram_percentile(&h, 3333), 0);
	assert_int_equal(histogram_percentile(&h, 10000), UINT64_C(1) << 60);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Against the sorted values themselves: never below, and at most 1/256 above. */
TEST(test_against_sorted)
{
	static uint64_t values[20000];
	static const unsigned int percentiles[] = { 1, 100, 2500, 5000, 9000, 9900, 9990, 10000 };
	const size_t n = sizeof(values) / sizeof(values[0]);
	struct seeded random = { 7 };
	static struct histogram h, parts[3];

	for (size_t i = 0; i < n; i++) {
		values[i] = seeded_size(&random, 40);
		histogram_record(&parts[i % 3], values[i]);
	}
	for (size_t i = 0; i < 3; i++)
		histogram_add(&h, &parts[i]);
	qsort(values, n, sizeof(values[0]), compare);
	assert_int_equal(h.n, n);
	assert_int_equal(h.max, values[n - 1]);
	for (size_t i = 0; i < sizeof(percentiles) / sizeof(percentiles[0]); i++) {
		size_t rank = (n * percentiles[i] + 9999) / 10000;
		uint64_t exact = values[rank - 1], told = histogram_percentile(&h, percentiles[i]);

		assert_true(told >= exact);
		assert_true(told - exact <= exact / HISTOGRAM_SUB);
	}
}

UNIT_MAIN(NULL, NULL)
