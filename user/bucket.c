// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: tokens are numbered as they come, from the start on.  How many have come is
 * computed from the clock, so nothing is added up and no rounding adds up either; `taken` is the
 * number of the next one to be had.  If it lags behind by more than the burst, the oldest are
 * lost: it moves forward.  If it is ahead, tokens are reserved that are still to come.
 *
 * All that is known of the past is that one word, so a compare-and-swap is all that it takes to
 * share a bucket.  No order with other memory is needed: it guards nothing.  A thread whose clock
 * is a little behind sees fewer tokens than there are.
 *
 * Numbers wrap around; their differences do not.
 */
#include "bucket.h"

void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms)
{
	b->rate = rate;
	b->burst = burst;
	b->start_ms = now_ms;
	atomic_init(&b->taken, 0 - burst);
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

/* Where who takes some next would begin, TAKEN being what was seen. */
static uint64_t next_token(const struct bucket *b, uint64_t taken, uint64_t so_far)
{
	return (int64_t)(so_far - taken) > (int64_t)b->burst ? so_far - b->burst : taken;
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
		end = next_token(b, taken, so_far) + n;
		*ret_due_ms = due(b, end, so_far, now_ms);
		if (*ret_due_ms > now_ms)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&b->taken, &taken, end,
							memory_order_relaxed,
							memory_order_relaxed));
	return true;
}

uint64_t bucket_reserve(struct bucket *b, uint64_t n, uint64_t now_ms)
{
	uint64_t so_far = come(b, now_ms), end;
	uint64_t taken = atomic_load_explicit(&b->taken, memory_order_relaxed);

	do
		end = next_token(b, taken, so_far) + n;
	while (!atomic_compare_exchange_weak_explicit(&b->taken, &taken, end, memory_order_relaxed,
						      memory_order_relaxed));
	return due(b, end, so_far, now_ms);
}

void bucket_give_back(struct bucket *b, uint64_t n)
{
	atomic_fetch_sub_explicit(&b->taken, n, memory_order_relaxed);
}
