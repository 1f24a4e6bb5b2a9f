/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * Random numbers that are the same in every run, and a few looks at this process.
 */

#include <dirent.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

struct seeded {
	uint64_t state;
};

/* A Weyl sequence, mixed: every seed is a good one, 0 included. */
static inline uint64_t seeded_next(struct seeded *r)
{
	uint64_t x = r->state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
	x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
	return x ^ (x >> 32);
}

/* 0 .. N - 1 */
static inline uint64_t seeded_below(struct seeded *r, uint64_t n)
{
	return seeded_next(r) % n;
}

/* Mostly small, sometimes of any magnitude up to 2^BITS - 1. */
static inline uint64_t seeded_size(struct seeded *r, unsigned int bits)
{
	return seeded_next(r) >> (64 - 1 - seeded_below(r, bits));
}

/* Between two looks at a condition, never instead of one. */
static inline void short_pause(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* Open descriptors of a process, by its DIRECTORY in /proc; 0: it may not be looked at. */
static inline unsigned int descriptors_of(const char *directory)
{
	DIR *d = opendir(directory);
	unsigned int n = 0;

	if (!d)
		return 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2; /* ".", ".." */
}

static inline unsigned int count_descriptors(void)
{
	return descriptors_of("/proc/self/fd") - 1; /* the directory itself */
}
