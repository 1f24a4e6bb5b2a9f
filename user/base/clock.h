/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/*
 * Points in time.  Unless a comment says otherwise, they are of the machine's CLOCK_MONOTONIC,
 * which the packet programs read, too.
 */

#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

/* A point in time that does not come. */
#define NEVER UINT64_MAX

/*
 * How far the clock of this time namespace is behind the machine's.  Set by clock_open(), before
 * any thread is started.
 */
extern int64_t clock_behind_ns;
void clock_open(void);

static inline uint64_t clock_ns_of(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * NS_PER_S + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_ns(void)
{
	return clock_ns_of(CLOCK_MONOTONIC) + (uint64_t)clock_behind_ns;
}

static inline uint64_t clock_ms(void)
{
	return clock_ns() / NS_PER_MS;
}

/* Since 1970.  This clock may be set back. */
static inline uint64_t clock_real_ms(void)
{
	return clock_ns_of(CLOCK_REALTIME) / NS_PER_MS;
}

/* MS for system calls, which use the clock of the time namespace. */
static inline struct timespec clock_timespec(uint64_t ms)
{
	uint64_t ns = ms * NS_PER_MS - (uint64_t)clock_behind_ns;

	return (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S),
				  .tv_nsec = (long)(ns % NS_PER_S) };
}

/* Take LOCK.  False: not within MS. */
bool lock_within(pthread_mutex_t *lock, uint64_t ms);
