// SPDX-License-Identifier: BSD-2-Clause
#include "base/clock.h"

#include <poll.h>
#include <stdio.h>

#define LOCK_LOOK_MS 5 /* between two looks whether a lock is free */

int64_t clock_behind_ns;

void clock_open(void)
{
	FILE *f = fopen("/proc/self/timens_offsets", "re");
	long long s, ns;

	if (!f)
		return;
	if (fscanf(f, "monotonic %lld %lld", &s, &ns) == 2)
		clock_behind_ns = -s * (int64_t)NS_PER_S - ns;
	fclose(f);
}

/* ThreadSanitizer knows no pthread_mutex_clocklock(). */
bool lock_within(pthread_mutex_t *lock, uint64_t ms)
{
	uint64_t end_ms = clock_ms() + ms;

	while (pthread_mutex_trylock(lock)) {
		if (clock_ms() >= end_ms)
			return false;
		poll(NULL, 0, LOCK_LOOK_MS);
	}
	return true;
}
