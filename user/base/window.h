/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_WINDOW_H
#define CULVERT_WINDOW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * No more than MOST in any second, however it is spread over that second.
 *
 * A token bucket cannot say this: whoever was late, and made up for it at once, has used up its
 * burst, and may not do so again before it has filled; here he may, as long as the last second was
 * not more than it should be.
 *
 * May be shared by threads, without a lock; the clock is given.
 */

/* A second, in slots, and one more: of the oldest one, only a part may be within the second. */
#define WINDOW_SLOT_MS 25
#define WINDOW_SLOTS (1000 / WINDOW_SLOT_MS + 1)

struct window {
	uint64_t most;
	_Atomic uint64_t last;                /* slot that was last asked for */
	_Atomic uint64_t slots[WINDOW_SLOTS]; /* which one it is, and how much was taken then */
};

/* The most that MOST may be. */
#define WINDOW_MOST_MAX (UINT64_C(1) << 38)

/* To be called before it is shared. */
void window_init(struct window *w, uint64_t most, uint64_t now_ms);

/* Take N (at most MOST).  False: not now. */
bool window_take(struct window *w, uint64_t n, uint64_t now_ms);
/* When there is room for N, if nothing is taken before. */
uint64_t window_due(const struct window *w, uint64_t n, uint64_t now_ms);

/* N of those that were taken at TAKEN_MS were not used. */
void window_give_back(struct window *w, uint64_t n, uint64_t taken_ms);

#endif
