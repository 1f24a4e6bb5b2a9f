/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdint.h>
#include <time.h>

/*
 * Points in time.  Those that say nothing else are of CLOCK_MONOTONIC, which is the same in every
 * process of the machine, and never goes back.
 */

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

/* A point in time that does not come. */
#define NEVER UINT64_MAX

static inline uint64_t clock_ns_of(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_ns(void)
{
	return clock_ns_of(CLOCK_MONOTONIC);
}

static inline uint64_t clock_ms(void)
{
	return clock_ns() / NS_PER_MS;
}

/* Since 1970, as the machine's clock says, which may be set. */
static inline uint64_t clock_real_ms(void)
{
	return clock_ns_of(CLOCK_REALTIME) / NS_PER_MS;
}

/* MS as system calls want it. */
static inline struct timespec clock_timespec(uint64_t ms)
{
	return (struct timespec){ .tv_sec = (time_t)(ms / 1000),
				  .tv_nsec = (long)(ms % 1000 * NS_PER_MS) };
}
