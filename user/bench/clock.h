/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_CLOCK_H
#define CULVERT_BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

/* A point in time that does not come. */
#define NEVER UINT64_MAX

/* CLOCK_MONOTONIC in nanoseconds: the same clock in every process of the machine. */
static inline uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

/* For struct timer: the first millisecond that is not before NS. */
static inline uint64_t clock_ms_after(uint64_t ns)
{
	return ns / NS_PER_MS + (ns % NS_PER_MS ? 1 : 0);
}

#endif
