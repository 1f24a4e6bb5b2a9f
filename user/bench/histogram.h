/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_HISTOGRAM_H
#define CULVERT_BENCH_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

/*
 * Latencies in nanoseconds, in buckets of fixed memory that grow with the value, as HdrHistogram
 * does it: 256 linear buckets for each power of two.  A bucket is thus at most 1/256 (0.4 %) of
 * its values wide, and values below 512 ns have a bucket each.  Counts, sum and maximum are exact;
 * only where in its bucket a value lies is forgotten.  Histograms can be added.
 *
 * Longer than HISTOGRAM_LIMIT_NS counts in the last bucket (sum and maximum remain exact).
 */
#define HISTOGRAM_SUB_BITS 8
#define HISTOGRAM_SUB (1U << HISTOGRAM_SUB_BITS)
#define HISTOGRAM_TOP_BIT 41 /* 2^42 ns: 73 minutes */
#define HISTOGRAM_LIMIT_NS ((UINT64_C(1) << (HISTOGRAM_TOP_BIT + 1)) - 1)
#define HISTOGRAM_BUCKETS ((HISTOGRAM_TOP_BIT - HISTOGRAM_SUB_BITS + 2) * HISTOGRAM_SUB)

/* Zero it before use. */
struct histogram {
	uint64_t n;
	uint64_t sum; /* ns */
	uint64_t max; /* ns */
	uint64_t counts[HISTOGRAM_BUCKETS];
};

void histogram_record(struct histogram *h, uint64_t ns);
void histogram_add(struct histogram *to, const struct histogram *from);

/* The largest value, in nanoseconds, that counts in BUCKET. */
uint64_t histogram_upper_ns(size_t bucket);

/*
 * The percentile of PER_10000 (5000: the median, 9990: 99.9 %; 1 to 10000) in nanoseconds: the
 * upper end of the first bucket at which at least that share of all values, rounded up to a whole
 * number of values, has been counted; but never more than the maximum.  0 if nothing is recorded.
 */
uint64_t histogram_percentile(const struct histogram *h, unsigned int per_10000);

/* The arithmetic mean in nanoseconds; 0 if nothing is recorded. */
double histogram_mean(const struct histogram *h);

#endif
