// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: tokens are numbered as they come, from the start on.  How many have come is
 * computed from the clock, so nothing is added up and no rounding adds up either; `taken` is the
 * number of the next one to be had.  If it lags behind by more than the burst, the oldest are
 * lost: it moves forward.  `promised` is the same for those who wait in turn.  It is a hint for
 * them when to ask and no more, as only who takes has anything: whoever is late has let tokens
 * pass, which may be lost, and those that were promised for later are not moved.
 *
 * All that is known of the past are these words, so a compare-and-swap is all that it takes to
 * share a bucket.  No order with other memory is needed: it guards nothing.  A thread whose clock
 * is a little behind sees fewer tokens than there are.
 *
 * Numbers wrap around; their differences do not.
 */
#include "base/bucket.h"

void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms)
{
	b->rate = rate;
	b->burst = burst;
	b->start_ms = now_ms;
	atomic_init(&b->taken, 0 - burst);
	atomic_init(&b->promised, 0 - burst);
}

static uint64_t age_ms(const struct bucket *b, uint64_t now_ms)
{
	return now_ms > b->start_ms ? now_ms - b->start_ms : 0;
}

/* How many have come. */
static uint64_t come(const struct bucket *b, uint64_t now_ms)
{
	uint64_t ms = age_ms(b, now_ms);

	return b->rate * (ms / 1000) + b->rate * (ms % 1000) / 1000;
}

/* Where who takes some next begins, TAKEN being what was seen, if no more than MOST may wait. */
static uint64_t next_token(uint64_t taken, uint64_t most, uint64_t so_far)
{
	return (int64_t)(so_far - taken) > (int64_t)most ? so_far - most : taken;
}

/* When the token before END comes. */
static uint64_t due(const struct bucket *b, uint64_t end, uint64_t so_far, uint64_t now_ms)
{
	int64_t lack = (int64_t)(end - so_far);
	/* thousandths of the next one that have come already */
	uint64_t part = b->rate * (age_ms(b, now_ms) % 1000) % 1000;

	if (lack <= 0)
		return now_ms;
	return now_ms + ((uint64_t)lack * 1000 - part + b->rate - 1) / b->rate;
}

bool bucket_take(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms)
{
	uint64_t so_far = come(b, now_ms), end;
	uint64_t taken = atomic_load_explicit(&b->taken, memory_order_relaxed);

	do {
		end = next_token(taken, b->burst, so_far) + n;
		*ret_due_ms = due(b, end, so_far, now_ms);
		if (*ret_due_ms > now_ms)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&b->taken, &taken, end,
							memory_order_relaxed,
							memory_order_relaxed));
	return true;
}

void bucket_give_back(struct bucket *b, uint64_t n)
{
	atomic_fetch_sub_explicit(&b->taken, n, memory_order_relaxed);
}

uint64_t bucket_promise(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_place)
{
	uint64_t so_far = come(b, now_ms), end;
	uint64_t taken = atomic_load_explicit(&b->taken, memory_order_relaxed);
	uint64_t promised = atomic_load_explicit(&b->promised, memory_order_relaxed);

	taken = next_token(taken, b->burst, so_far);
	do
		end = ((int64_t)(promised - taken) > 0 ? promised : taken) + n;
	while (!atomic_compare_exchange_weak_explicit(&b->promised, &promised, end,
						      memory_order_relaxed,
						      memory_order_relaxed));
	*ret_place = end;
	return due(b, end, so_far, now_ms);
}

uint64_t bucket_until(const struct bucket *b, uint64_t place, uint64_t now_ms)
{
	uint64_t taken = atomic_load_explicit(&b->taken, memory_order_relaxed);

	taken = next_token(taken, b->burst, come(b, now_ms));
	return (int64_t)(place - taken) > 0 ? place - taken : 0;
}

void bucket_break(struct bucket *b, uint64_t place, uint64_t n, uint64_t now_ms)
{
	if (bucket_until(b, place, now_ms))
		bucket_release(b, n);
}

void bucket_release(struct bucket *b, uint64_t n)
{
	atomic_fetch_sub_explicit(&b->promised, n, memory_order_relaxed);
}

bool bucket_owes(const struct bucket *b, uint64_t ms)
{
	uint64_t promised = atomic_load_explicit(&b->promised, memory_order_relaxed);

	return (int64_t)(promised - come(b, ms)) > 0;
}

void bucket_keep(struct bucket *b, uint64_t n, uint64_t now_ms)
{
	uint64_t so_far = come(b, now_ms), next;
	uint64_t taken = atomic_load_explicit(&b->taken, memory_order_relaxed);

	do {
		next = next_token(taken, n, so_far);
		if (next == taken)
			return;
	} while (!atomic_compare_exchange_weak_explicit(&b->taken, &taken, next,
							memory_order_relaxed,
							memory_order_relaxed));
}
