/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PROBE_TRY_H
#define CULVERT_PROBE_TRY_H

#include <stdbool.h>
#include <stdint.h>

#include "probe/probe_list.h"
#include "probe/probe_rig.h"

/*
 * The environment variable PROBE_FAIL_VARIABLE makes checks fail that would hold: a list of names
 * with commas between them; after a name, ":hang" lets the check hang, ":crash" kills the process
 * that tries it.  It is there for the tests, in every build, so that what is tested is what is
 * installed.  It can only ever take a carrier away, with a line in the log that names it, or delay
 * the start by PROBE_TOTAL_MS (times PROBE_SLOW_VARIABLE); and who chooses the environment of a
 * process that root starts has better ways to stop it.
 */
#define PROBE_FAIL_VARIABLE "CULVERT_PROBE_FAIL"

/*
 * A whole number from 1 to 100, by which the times below and the time of each check are multiplied:
 * for emulated machines.  Anything else is refused, see probe_check_variable().
 */
#define PROBE_SLOW_VARIABLE "CULVERT_PROBE_SLOW"

/* Without a report for so long, a check hangs.  Loading a program has no bound of its own. */
#define PROBE_HANG_MS 10000
/* All checks together. */
#define PROBE_TOTAL_MS 30000

enum probe_outcome {
	PROBE_SKIPPED, /* not tried: something that it needs does not hold, or the process has
			* ended */
	PROBE_HOLDS,
	PROBE_FAILS,
};

struct probe_result {
	uint32_t outcome; /* enum probe_outcome */
	uint32_t late;    /* 1: it failed when its time was over, so perhaps the machine is only
			   * busy */
	char detail[PROBE_DETAIL];
};

struct probe_results {
	struct probe_result of[PROBE_CHECKS]; /* as probe_checks */
	unsigned int carriers;                /* those that were asked about: enum probe_carrier */
	bool tcp_memory_short;                /* when they were ready */
	unsigned int took_ms;
};

/*
 * Try the checks that CARRIERS rely on.  Everything happens in a process of its own, which has
 * ended on return, so nothing is left behind: no descriptor, no map, no change of network
 * namespace, even if the kernel should crash it.  To be called before there are threads.
 */
void probe_try(unsigned int carriers, struct probe_results *ret);

/* The first check that CARRIER relies on and that fails; else the first that was not tried; else
 * PROBE_CHECKS. */
size_t probe_first_bad(const struct probe_results *results, unsigned int carrier);

/* 0 if both variables are absent or can be understood; else -EINVAL, and ERR says why not. */
int probe_check_variable(char *err, size_t len);

#endif
