/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_HAPPY_EYEBALLS_H
#define CULVERT_HAPPY_EYEBALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"

/*
 * Which of several addresses is tried next, and when: RFC 8305 ("Happy Eyeballs").  Pure: no system
 * call, and time is what the caller says it is.
 *
 *   Section 4  getaddrinfo(3) has sorted the addresses (RFC 6724), and names.c lets the
 *              families take turns.
 *   Section 5  the next attempt begins when one has failed, or HAPPY_DELAY_MS after the last one
 *              began, whichever comes first.  Those before go on beside it; the first that is
 *              connected wins.
 */

/* Section 8, "Connection Attempt Delay": recommended. */
#define HAPPY_DELAY_MS 250
/* Of one session, so that a name with many dead addresses does not take every descriptor. */
#define HAPPY_AT_ONCE 8

/* One session's attempts. */
struct happy {
	uint64_t next_ms; /* when the next one may begin; UINT64_MAX: when one ends */
	uint16_t n;       /* addresses */
	uint16_t first;   /* index of the one to begin with; the others follow in their order */
	uint16_t begun;   /* attempts that have begun */
	uint16_t running; /* of them, those that have not ended */
};

void happy_open(struct happy *h, size_t n, size_t first);

/* True if an attempt is to begin now: with address *RET. */
bool happy_next(const struct happy *h, uint64_t now_ms, unsigned int *ret);
/* It has begun. */
void happy_begin(struct happy *h, uint64_t now_ms);
/*
 * It could not, for want of something: try again at AGAIN_MS, or (UINT64_MAX) when one has ended,
 * and so made room for it.
 */
void happy_put_back(struct happy *h, uint64_t again_ms);
/* An attempt has failed. */
void happy_failed(struct happy *h);
/* One has won, and the others are given up: none begins unless that one fails after all. */
void happy_won(struct happy *h);

/* When to ask happy_next() again, if nothing else happens before; UINT64_MAX: no need to. */
uint64_t happy_due(const struct happy *h);
/* All addresses have failed. */
bool happy_is_over(const struct happy *h);

#endif
