/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "options.h"

/* --- latencies --- */

/*
 * Latencies in nanoseconds, counted in a fixed number of buckets.  As in HdrHistogram, each power
 * of two has 256 buckets of equal width.  So the width of a bucket is at most 1/256 (0.4 %) of each
 * of its values.  Each value below 512 ns has a bucket of its own.  Counts, sum and maximum are
 * exact; the place of a value within its bucket is lost.  Histograms can be added.
 *
 * A latency above HISTOGRAM_LIMIT_NS counts in the last bucket (sum and maximum remain exact).
 */
#define HISTOGRAM_SUB_BITS 8
#define HISTOGRAM_SUB (1U << HISTOGRAM_SUB_BITS)
#define HISTOGRAM_TOP_BIT 41 /* 2^42 ns: 73 minutes */
#define HISTOGRAM_LIMIT_NS ((UINT64_C(1) << (HISTOGRAM_TOP_BIT + 1)) - 1)
#define HISTOGRAM_BUCKETS ((HISTOGRAM_TOP_BIT - HISTOGRAM_SUB_BITS + 2) * HISTOGRAM_SUB)

/* Zero it before use. */
struct histogram {
	uint64_t n;
	uint64_t sum; /* ns */
	uint64_t max; /* ns */
	uint64_t counts[HISTOGRAM_BUCKETS];
};

void histogram_record(struct histogram *h, uint64_t ns);
void histogram_add(struct histogram *to, const struct histogram *from);

/*
 * The percentile of PER_10000 (5000: the median, 9990: 99.9 %; 1 to 10000) in nanoseconds.  Its
 * rank is that share of all values, rounded up to a whole value.  The result is the upper end of
 * the bucket that has this rank, but never more than the maximum.  0 if nothing is recorded.
 */
uint64_t histogram_percentile(const struct histogram *h, unsigned int per_10000);

/* --- all that is counted --- */

/* Why a connection, or a transaction, came to nothing. */
enum cause {
	CAUSE_CONNECT, /* connect(2) or socket(2) failed, or took too long */
	CAUSE_RESET,   /* ECONNRESET and the like on an open connection */
	CAUSE_TIMEOUT, /* no response in time, or no end in time */
	CAUSE_SHORT,   /* ended in order, but with fewer or more bytes than were sent */
	N_CAUSES,
};

/*
 * What one generator process has counted.  It lives in shared memory and is always up to date, so
 * the parent can print it even if it had to kill the process.
 */
struct tally {
	uint64_t opened, failed; /* connections, before the start */
	uint64_t requests;       /* in the measured time, as are the bytes */
	uint64_t bytes_up, bytes_down;
	uint64_t lossless; /* UDP bulk-up: datagrams a second without loss */
	uint64_t wrong;    /* messages or streams with wrong content */
	uint64_t errors[N_CAUSES];
	/* the parent does not add up the next four members */
	uint64_t least, most; /* payload bytes of one connection in the measured time; transfers */
	uint64_t began_ns;    /* CLOCK_MONOTONIC: when the measured time began */
	uint64_t measured_ns; /* how long the measured time was */
	struct histogram latency;
};

/* Zeroed, with nothing in it. */
void tally_open(struct tally *t);
void tally_add(struct tally *to, const struct tally *from);
/* BYTES: what one connection carried in the measured time. */
void tally_share(struct tally *t, uint64_t bytes);

/* What a process of the sink has counted. */
struct sink_tally {
	uint64_t connections;
	uint64_t received, sent; /* payload bytes */
	uint64_t wrong;          /* messages or streams with wrong content */
	uint64_t cut;            /* connections that ended within a message or a stream */
	uint64_t bad_headers;    /* connections without one, or with a damaged one */
};

void sink_tally_add(struct sink_tally *to, const struct sink_tally *from);

/* --- its print --- */

/*
 * Results as one line of JSON each on stdout.  Times are in the unit that the key names, gbps is
 * 1e9 bit/s, rate is requests (crr: transactions) per second of measured time.
 */

/* idle: all connections have been opened, or have failed to. */
void report_ready(const struct tally *t);

/* The end of a generator. */
void report_client(const struct options *o, const struct tally *t);

/* The end of a sink. */
void report_sink(const struct sink_tally *t);
