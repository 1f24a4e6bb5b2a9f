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
	_Atomic uint64_t taken;    /* of all tokens that ever came, those before it are gone */
	_Atomic uint64_t promised; /* of all that ever will, those before it are somebody's */
};

/* More would be too many to count with for a year. */
#define BUCKET_RATE_MAX (UINT64_C(1) << 37)

/* It is full.  To be called before it is shared. */
void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms);

/* Take N (at most BURST).  False: there are fewer, but at *RET_DUE_MS there may be as many. */
bool bucket_take(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms);

/* N of those that were taken were not used. */
void bucket_give_back(struct bucket *b, uint64_t n);

/*
 * Who wants N in turn with others is told when to take them: when they have come beside those that
 * others were promised before.  Who then takes them finds them, unless many are late and take
 * theirs at the same time.
 */
uint64_t bucket_promise(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_place);
/* N of those that were promised have been taken and given back. */
void bucket_release(struct bucket *b, uint64_t n);
/*
 * N that were promised, to who was told PLACE, will not be taken, or not in that place.  If they
 * are gone by now, there is nothing to release: the promises that follow begin behind them.
 */
void bucket_break(struct bucket *b, uint64_t place, uint64_t n, uint64_t now_ms);
/* How many there are, by now, before the end of PLACE. */
uint64_t bucket_until(const struct bucket *b, uint64_t place, uint64_t now_ms);
/* True if at MS some were promised that were still to come. */
bool bucket_owes(const struct bucket *b, uint64_t ms);

/* Of those that wait, all but N are lost. */
void bucket_keep(struct bucket *b, uint64_t n, uint64_t now_ms);

#endif
