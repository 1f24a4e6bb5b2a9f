/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_REPORT_H
#define CULVERT_BENCH_REPORT_H

#include "options.h"
#include "tally.h"

/*
 * Results as one line of JSON each on stdout.  Times are in the unit that the key names, gbps is
 * 1e9 bit/s, rate is requests (crr: transactions) per second of measured time.
 */

/* idle: all connections have been opened, or have failed to. */
void report_ready(const struct tally *t);

/* The end of a generator.  PROCESSES: how many it had. */
void report_client(const struct options *o, const struct tally *t, unsigned int processes);

struct sink_tally {
	uint64_t connections;
	uint64_t received, sent; /* payload bytes */
	uint64_t wrong;          /* messages or streams with wrong content */
	uint64_t cut;            /* connections that ended within a message or a stream */
	uint64_t bad_headers;    /* connections without one, or with a damaged one */
	uint64_t pauses;         /* times that accepting had to wait for descriptors or memory */
};

void sink_tally_add(struct sink_tally *to, const struct sink_tally *from);
void report_sink(const struct sink_tally *t);

#endif
