/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BUCKET_H
#define CULVERT_BUCKET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * A token bucket: RATE tokens a second come, and up to BURST may wait to be taken.  So in any time
 * no more than RATE * time + BURST are taken.
 *
 * May be shared by threads, without a lock; the clock is given.
 */
struct bucket {
	uint64_t rate;  /* 0: no limit, and nothing may be asked of it */
	uint64_t burst;
	uint64_t start_ms;
	_Atomic uint64_t taken; /* of all tokens that ever came, those before it are gone */
};

/* More would be too many to count with for a year. */
#define BUCKET_RATE_MAX (UINT64_C(1) << 37)

/* It is full.  To be called before it is shared. */
void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms);

/* Take N (at most BURST).  False: there are fewer, but at *RET_DUE_MS there may be as many. */
bool bucket_take(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms);

/*
 * Take N that may come later: they may be used from the time that is returned.  Who comes first has
 * them first, so if everybody takes as many, everybody has as many.
 */
uint64_t bucket_reserve(struct bucket *b, uint64_t n, uint64_t now_ms);

/* N of those that were taken were not used. */
void bucket_give_back(struct bucket *b, uint64_t n);

#endif
