// SPDX-License-Identifier: BSD-2-Clause
#include "pattern.h"

#include <string.h>

static uint8_t table[PATTERN_PERIOD + PATTERN_PIECE];

/* The finalizer of SplitMix64. */
uint64_t pattern_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

void pattern_init(void)
{
	uint64_t state = 0;

	for (size_t i = 0; i < PATTERN_PERIOD; i++) {
		state += UINT64_C(0x9e3779b97f4a7c15);
		table[i] = (uint8_t)(pattern_mix(state) >> 56);
	}
	for (size_t i = PATTERN_PERIOD; i < sizeof(table); i++)
		table[i] = table[i - PATTERN_PERIOD];
}

void pattern_open(struct pattern *p, uint64_t seed, enum pattern_direction direction)
{
	p->position = 0;
	p->at = (uint32_t)(pattern_mix(2 * seed + direction + 1) % PATTERN_PERIOD);
}

const uint8_t *pattern_bytes(const struct pattern *p)
{
	return table + p->at;
}

void pattern_advance(struct pattern *p, uint64_t n)
{
	p->position += n;
	p->at = (uint32_t)((p->at + n % PATTERN_PERIOD) % PATTERN_PERIOD);
}

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
	size_t i = 0;

	while (i < n && a[i] == b[i])
		i++;
	return i;
}

static bool sample_equal(const uint8_t *expected, const uint8_t *data, size_t first, size_t n)
{
	for (size_t i = first; i + sizeof(uint64_t) <= n; i += PATTERN_STRIDE) {
		uint64_t want, is;

		memcpy(&want, expected + i, sizeof(want));
		memcpy(&is, data + i, sizeof(is));
		if (want != is)
			return false;
	}
	return true;
}

size_t pattern_check(const struct pattern *p, const uint8_t *data, size_t n, bool full)
{
	const uint8_t *expected = table + p->at;
	size_t first = (PATTERN_STRIDE - p->position % PATTERN_STRIDE) % PATTERN_STRIDE;
	bool equal;

	if (full || n < PATTERN_STRIDE)
		equal = !memcmp(expected, data, n);
	else
		equal = sample_equal(expected, data, first, n);
	return equal ? n : first_difference(expected, data, n);
}
