// SPDX-License-Identifier: BSD-2-Clause
#include "histogram.h"

/*
 * A value keeps its first 9 bits.  Below 512 it is its bucket's number; above, a value whose
 * highest bit is 8 + SHIFT goes to SHIFT * 256 + (value >> SHIFT), where the second term is 256 to
 * 511: so the numbers go on without a gap from one power of two to the next.
 */
static size_t bucket_of(uint64_t ns)
{
	unsigned int shift;

	if (ns > HISTOGRAM_LIMIT_NS)
		ns = HISTOGRAM_LIMIT_NS;
	if (ns < 2 * HISTOGRAM_SUB)
		return ns;
	shift = 63 - (unsigned int)__builtin_clzll(ns) - HISTOGRAM_SUB_BITS;
	return shift * HISTOGRAM_SUB + (ns >> shift);
}

uint64_t histogram_upper_ns(size_t bucket)
{
	unsigned int shift;

	if (bucket < 2 * HISTOGRAM_SUB)
		return bucket;
	shift = (unsigned int)(bucket / HISTOGRAM_SUB) - 1;
	return ((uint64_t)(bucket - shift * HISTOGRAM_SUB + 1) << shift) - 1;
}

void histogram_record(struct histogram *h, uint64_t ns)
{
	h->counts[bucket_of(ns)]++;
	h->n++;
	h->sum += ns;
	if (ns > h->max)
		h->max = ns;
}

void histogram_add(struct histogram *to, const struct histogram *from)
{
	for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
		to->counts[i] += from->counts[i];
	to->n += from->n;
	to->sum += from->sum;
	if (from->max > to->max)
		to->max = from->max;
}

uint64_t histogram_percentile(const struct histogram *h, unsigned int per_10000)
{
	/* in two steps, so that no count overflows */
	uint64_t rank = h->n / 10000 * per_10000 + (h->n % 10000 * per_10000 + 9999) / 10000;
	uint64_t seen = 0;

	for (size_t i = 0; i < HISTOGRAM_BUCKETS - 1; i++) {
		seen += h->counts[i];
		if (h->counts[i] && seen >= rank) {
			uint64_t upper = histogram_upper_ns(i);

			return upper < h->max ? upper : h->max;
		}
	}
	return h->max; /* in the last bucket, or nothing at all */
}

double histogram_mean(const struct histogram *h)
{
	return h->n ? (double)h->sum / (double)h->n : 0;
}
