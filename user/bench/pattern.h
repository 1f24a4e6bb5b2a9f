/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_PATTERN_H
#define CULVERT_BENCH_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The payload.  Each direction of each connection is a stream of its own: PATTERN_PERIOD random
 * bytes over and over, begun at a place that depends on the connection's seed and the direction.
 *
 * Sending costs nothing beside the system call: it sends from the table of random bytes, in which
 * any place is followed by PATTERN_PIECE bytes of the stream.
 *
 * The period is a prime number near 256 KiB.  So a piece of any buffer's or packet's size that is
 * lost, doubled or moved shifts what follows, or itself, to where other random bytes are expected.
 * A loss of exactly one period leaves the content right; that one is found because both ends also
 * compare how many bytes the whole stream had (struct tail).
 *
 * To verify fully is to compare every byte.  A sample compares the 8 bytes at each multiple of
 * 256 in the stream, and every byte of a piece that is shorter than that: it sees each shift
 * within the next 264 bytes, and each moved piece of 264 bytes or more, but only 1 of 32 single
 * flipped bytes.  It is for throughput, where a full comparison would be a cost of its own.
 */
#define PATTERN_PERIOD 262139
#define PATTERN_PIECE (256U << 10)
#define PATTERN_STRIDE 256

enum pattern_direction {
	PATTERN_UP,   /* from the client to the sink */
	PATTERN_DOWN, /* from the sink to the client */
};

/* A place in a stream. */
struct pattern {
	uint64_t position; /* bytes from the stream's begin */
	uint32_t at;       /* in the table */
};

/* Fill the table, which is the same in every process.  Call it once, before anything else. */
void pattern_init(void);

void pattern_open(struct pattern *p, uint64_t seed, enum pattern_direction direction);

/* The next PATTERN_PIECE bytes of the stream. */
const uint8_t *pattern_bytes(const struct pattern *p);

void pattern_advance(struct pattern *p, uint64_t n);

/*
 * Compare the N bytes (at most PATTERN_PIECE) of DATA with the stream at P.  Returns the index of
 * the first that is wrong, or N.  Does not move P.
 */
size_t pattern_check(const struct pattern *p, const uint8_t *data, size_t n, bool full);

/* Spread the bits of X: for seeds. */
uint64_t pattern_mix(uint64_t x);

#endif
