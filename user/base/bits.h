/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sets of numbers, a bit each, which several threads may change at once. */

#define BITS_WORDS(n) (((size_t)(n) + 63) / 64)

static inline void bit_set(uint64_t *bits, uint32_t i, bool is)
{
	if (is)
		__atomic_fetch_or(&bits[i / 64], 1ULL << i % 64, __ATOMIC_RELEASE);
	else
		__atomic_fetch_and(&bits[i / 64], ~(1ULL << i % 64), __ATOMIC_RELEASE);
}

static inline bool bit_is(const uint64_t *bits, uint32_t i)
{
	return __atomic_load_n(&bits[i / 64], __ATOMIC_ACQUIRE) >> i % 64 & 1;
}

/* Set *AT to the next number, from *AT on and below N, in A or B.  False: there is none. */
static inline bool bit_next(const uint64_t *a, const uint64_t *b, uint32_t n, uint32_t *at)
{
	uint64_t left;

	for (; *at < n; *at = (*at | 63) + 1) {
		left = __atomic_load_n(&a[*at / 64], __ATOMIC_ACQUIRE) |
		       __atomic_load_n(&b[*at / 64], __ATOMIC_ACQUIRE);
		left &= ~0ULL << *at % 64;
		if (left) {
			*at = (*at & ~63U) + (uint32_t)__builtin_ctzll(left);
			return *at < n;
		}
	}
	return false;
}
