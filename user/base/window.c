// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a ring of slots, each with its number and the sum of what was taken while it
 * was the current one, in one word.  The slots of the last second are added up; a slot with an
 * older number is empty.  The oldest slot counts as a whole, so it is rather too much that is
 * counted than too little.
 *
 * Who takes adds to the current slot, and looks again: if two threads have done so at the same
 * time, and it is too much, at least one of them sees what the other has added, and undoes it.
 *
 * After half a week the known bits of a number come again, and what is long past would look like the
 * last second.  So whoever comes first after a second of silence empties all slots; who comes
 * meanwhile is told to come again.
 */
#include "base/window.h"

/* Of a word: the sum, and above it the number, of which so many bits are known. */
#define SUM_BITS 40
#define SUM_OF(word) ((word) & ((UINT64_C(1) << SUM_BITS) - 1))
#define NUMBER_MASK ((UINT32_C(1) << (64 - SUM_BITS)) - 1)
/* So much may a clock be behind another thread's, in slots; others are older than half a week. */
#define BEHIND_MAX (10000 / WINDOW_SLOT_MS)

/* Of `last`: somebody empties the slots. */
#define EMPTYING UINT64_MAX

/* By how many slots WORD is older than NUMBER; large if it is newer. */
static uint32_t age(uint64_t word, uint64_t number)
{
	return ((uint32_t)number - (uint32_t)(word >> SUM_BITS)) & NUMBER_MASK;
}

static bool is_newer(uint64_t word, uint64_t number)
{
	return age(word, number) >= NUMBER_MASK - BEHIND_MAX;
}

static void empty(struct window *w, uint64_t number)
{
	for (unsigned int i = 0; i < WINDOW_SLOTS; i++)
		atomic_store(&w->slots[i], (number - WINDOW_SLOTS) << SUM_BITS);
}

void window_init(struct window *w, uint64_t most, uint64_t now_ms)
{
	uint64_t number = now_ms / WINDOW_SLOT_MS;

	w->most = most;
	empty(w, number);
	atomic_init(&w->last, number);
}

/* LAST: the slot that was last asked for. */
static bool is_silent(uint64_t last, uint64_t number)
{
	return last != EMPTYING && number > last + WINDOW_SLOTS;
}

/* False: just now the slots are being emptied. */
static bool wake(struct window *w, uint64_t number)
{
	uint64_t last = atomic_load(&w->last);

	if (is_silent(last, number)) {
		if (!atomic_compare_exchange_strong(&w->last, &last, EMPTYING))
			return false;
		empty(w, number);
		atomic_store(&w->last, number);
		return true;
	}
	while (last < number) /* not EMPTYING */
		if (atomic_compare_exchange_weak(&w->last, &last, number))
			return true;
	return last != EMPTYING;
}

static uint64_t sum(const struct window *w, uint64_t number)
{
	uint64_t last = atomic_load(&w->last), all = 0;

	if (is_silent(last, number))
		return 0;
	for (unsigned int i = 0; i < WINDOW_SLOTS; i++) {
		uint64_t word = atomic_load(&w->slots[i]);

		if (age(word, number) < WINDOW_SLOTS || is_newer(word, number))
			all += SUM_OF(word);
	}
	return all;
}

/* False: the clock is so far behind that another thread has begun the slot after it. */
static bool add(struct window *w, uint64_t n, uint64_t number)
{
	_Atomic uint64_t *slot = &w->slots[number % WINDOW_SLOTS];
	uint64_t word = atomic_load(slot), next;

	do {
		if (is_newer(word, number))
			return false;
		next = age(word, number) ? number << SUM_BITS | n : word + n;
	} while (!atomic_compare_exchange_weak(slot, &word, next));
	return true;
}

bool window_take(struct window *w, uint64_t n, uint64_t now_ms)
{
	uint64_t number = now_ms / WINDOW_SLOT_MS;

	if (!wake(w, number) || sum(w, number) + n > w->most || !add(w, n, number))
		return false;
	if (sum(w, number) <= w->most)
		return true;
	window_give_back(w, n, now_ms);
	return false;
}

uint64_t window_due(const struct window *w, uint64_t n, uint64_t now_ms)
{
	uint64_t number = now_ms / WINDOW_SLOT_MS, next = number;
	uint64_t all = sum(w, number);

	/* the place of the next slot is that of the oldest one */
	for (unsigned int i = 0; i < WINDOW_SLOTS && all + n > w->most; i++) {
		uint64_t word = atomic_load(&w->slots[++next % WINDOW_SLOTS]);

		if (age(word, number) < WINDOW_SLOTS)
			all -= SUM_OF(word) < all ? SUM_OF(word) : all;
	}
	return next > number ? next * WINDOW_SLOT_MS : now_ms;
}

void window_give_back(struct window *w, uint64_t n, uint64_t taken_ms)
{
	uint64_t number = taken_ms / WINDOW_SLOT_MS;
	_Atomic uint64_t *slot = &w->slots[number % WINDOW_SLOTS];
	uint64_t word = atomic_load(slot);

	while (!age(word, number) && SUM_OF(word) >= n)
		if (atomic_compare_exchange_weak(slot, &word, word - n))
			return;
}
