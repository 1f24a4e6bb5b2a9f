/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FAULTS_SWEEP_H
#define CULVERT_TEST_FAULTS_SWEEP_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * One engine's sweep: a daemon with the interposer, and after every injection the invariant: no
 * wrong byte, no stream cut off, nothing left over, no session stuck, the others untouched, the
 * daemon alive.
 */

struct sweep_options {
	const char *culvert; /* the program */
	const char *preload; /* the interposer */
	const char *engine;
	const char *only;     /* sites whose description holds this; NULL: all */
	/* Of so many sweeps that share the work, this is number SHARE (from 0); see sweep.c. */
	unsigned int share, shares;
	const char *syscalls; /* have strace count system calls into this file; NULL: do not */
	bool full;            /* every error in every mode */
	unsigned int most;    /* errors tried at a site, about; 0: all */
	bool verbose;
	uint64_t seed;
};

/*
 * Appends one object an injection to RESULTS.  Returns the number of injections after which the
 * invariant did not hold, -ENOTSUP if the engine cannot work here, or another -errno with a message
 * printed.
 */
int sweep_run(const struct sweep_options *o, struct json_object *results);

#endif
