/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_TALLY_H
#define CULVERT_BENCH_TALLY_H

#include <stdint.h>

#include "histogram.h"

/* Why a connection, or a transaction, came to nothing. */
enum cause {
	CAUSE_CONNECT, /* connect(2) or socket(2) failed, or took too long; see connect_errno */
	CAUSE_RESET,   /* ECONNRESET and the like on an open connection */
	CAUSE_TIMEOUT, /* no response in time, or no end in time */
	CAUSE_SHORT,   /* ended in order, but with fewer or more bytes than were sent */
	N_CAUSES,
};

#define ERRNO_MAX 134 /* all that Linux has */

/*
 * What one generator process has counted.  It lives in shared memory and is always up to date, so
 * the parent can print it even if it had to kill the process.
 */
struct tally {
	uint64_t opened, failed; /* connections, before the start */
	uint64_t requests;       /* in the measured time, as are the bytes */
	uint64_t bytes_up, bytes_down;
	uint64_t wrong; /* messages or streams with wrong content */
	uint64_t errors[N_CAUSES];
	uint64_t connect_errno[ERRNO_MAX];
	uint64_t least, most; /* payload bytes of one connection in the measured time; transfers */
	uint64_t began_ns;    /* CLOCK_MONOTONIC: when the measured time began */
	uint64_t measured_ns; /* how long the measured time was */
	uint64_t cpu_ns;      /* of this process in it */
	uint64_t max_rss_kib;
	struct histogram latency;
};

/* Zeroed, with nothing in it. */
void tally_open(struct tally *t);
void tally_add(struct tally *to, const struct tally *from);
/* BYTES: what one connection carried in the measured time. */
void tally_share(struct tally *t, uint64_t bytes);

#endif
