/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The payload of one direction of one connection: a pure function of (seed, connection, direction,
 * offset), so that a receiver knows every byte without being told, and a byte that is lost,
 * duplicated, reordered or taken from another connection is a wrong byte at a known offset.
 */

#define PATTERN_HEAD_MAX 64

struct pattern {
	uint64_t key;
	char head[PATTERN_HEAD_MAX]; /* overrides the first HEAD_LEN bytes of the stream */
	size_t head_len;
};

enum pattern_direction {
	PATTERN_TO_SERVER,
	PATTERN_TO_CLIENT,
};

/* No head.  Same arguments, same stream. */
void pattern_init(struct pattern *p, uint64_t seed, uint64_t connection,
		  enum pattern_direction dir);

/* Write bytes [OFF, OFF + LEN) of the stream to BUF. */
void pattern_fill(const struct pattern *p, uint64_t off, void *buf, size_t len);

/* True if BUF is bytes [OFF, OFF + LEN); else *RET_WRONG is the first wrong offset. */
bool pattern_check(const struct pattern *p, uint64_t off, const void *buf, size_t len,
		   uint64_t *ret_wrong);

/*
 * Diagnosis of a wrong byte: where in the stream do these LEN bytes come from?  Looks 32 MiB to
 * both sides of OFF.  Returns false if they are nowhere there (or too few to tell).
 */
bool pattern_locate(const struct pattern *p, uint64_t off, const void *buf, size_t len,
		    uint64_t *ret_off);

/* The same mixing function as a random number generator: returns the next number. */
uint64_t rng_next(uint64_t *state);

/* A number in [LOW, HIGH]. */
uint64_t rng_range(uint64_t *state, uint64_t low, uint64_t high);

/* True in PERCENT of 100 cases. */
bool rng_chance(uint64_t *state, unsigned int percent);
