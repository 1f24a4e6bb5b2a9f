// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: two buckets and a window say what may be taken now, and nothing is taken
 * before it has come; so whoever is late, and however many are, no more than that is used.
 *
 * The queue is what the buckets have promised, and only says when to ask.  Who asks in time finds
 * what he needs.  Who is late may find that others, who are late, too, have used the burst; he then
 * joins the queue again.  Who finds that the second is full keeps his place, and asks again when
 * there is room for him and for those before him.  Who sleeps, promised what he was, is not waited
 * for: his bytes have come, and are lost or taken by others when the bucket is full.  If somebody
 * gives bytes back, whoever joins next is sooner, and may get ahead of those who wait; that is less
 * than a turn of each.
 */
#include "relay/bandwidth.h"

/*
 * A turn is what comes within 2.5 ms: the loop's clock has milliseconds, and sixteen that share
 * have a turn each within 40 ms.  But not so little that a read is hardly worth its call, and not
 * more than a pipe holds.
 */
#define TURNS_PER_SECOND 400
#define TURN_MIN 1024
#define TURN_MAX (512 * 1024)
/* Two make a burst, however low the rate is. */
#define TURNS_PER_SECOND_MIN 80
/* 5 %: by how much a second may be over the rate. */
#define OVER_PER_SECOND 20
/* 40 ms, and 100 ms. */
#define BURSTS_PER_SECOND 25
#define PEAKS_PER_SECOND 10
/* The least to ask for: this part of a turn, but what is worth a read is not cut smaller. */
#define ASK_PART 16
#define ASK_MIN 1024
/*
 * Nobody has taken anything for so long: there was nothing to read.  Or, if there was more than
 * could be read the last time, whoever should have read it had no CPU for longer than can be made
 * up for, or is gone.
 */
#define UNUSED_MS 100
#define USED_UP_MS 1000

static uint32_t turn_of(uint64_t rate)
{
	uint64_t turn = rate / TURNS_PER_SECOND, most = rate / TURNS_PER_SECOND_MIN;

	if (turn < TURN_MIN)
		turn = most < TURN_MIN ? most : TURN_MIN;
	if (turn > TURN_MAX)
		turn = TURN_MAX;
	return turn || !rate ? (uint32_t)turn : 1;
}

static uint64_t at_least(uint64_t n, uint64_t least)
{
	return n < least ? least : n;
}

static void lane_init(struct lane *l, uint64_t rate, uint32_t turn, uint64_t now_ms)
{
	uint64_t over = rate + rate / OVER_PER_SECOND;

	l->burst = at_least(rate / BURSTS_PER_SECOND, 2 * (uint64_t)turn);
	bucket_init(&l->average, rate, at_least(rate, l->burst), now_ms);
	bucket_init(&l->peak, over, at_least(rate / PEAKS_PER_SECOND, l->burst), now_ms);
	window_init(&l->second, at_least(over, rate + l->burst), now_ms);
	atomic_init(&l->used_ms, 0); /* whoever comes first comes after a silence */
	atomic_init(&l->used_up, false);
}

void bandwidth_init(struct bandwidth *b, uint64_t rate, uint64_t now_ms)
{
	b->turn = turn_of(rate);
	for (unsigned int way = 0; way < 2; way++)
		lane_init(&b->ways[way], rate, b->turn, now_ms);
}

uint32_t bandwidth_ask(uint32_t turn, uint32_t used)
{
	uint32_t least = turn / ASK_PART;

	if (least > ASK_MIN)
		least = ASK_MIN;
	if (used >= turn / 2)
		return turn;
	if (2 * used > least)
		return 2 * used;
	return least ?: 1;
}

/* Nobody was kept waiting. */
static bool is_unused(const struct lane *l, uint64_t now_ms)
{
	uint64_t used_ms = atomic_load_explicit(&l->used_ms, memory_order_relaxed);
	bool used_up = atomic_load_explicit(&l->used_up, memory_order_relaxed);

	if (now_ms <= used_ms + (used_up ? USED_UP_MS : UNUSED_MS))
		return false;
	return !bucket_owes(&l->average, used_ms) && !bucket_owes(&l->peak, used_ms);
}

uint64_t lane_join(struct lane *l, uint64_t n, uint64_t now_ms, struct place *ret)
{
	uint64_t average, peak;

	if (is_unused(l, now_ms))
		bucket_keep(&l->average, l->burst, now_ms);
	average = bucket_promise(&l->average, n, now_ms, &ret->average);
	peak = bucket_promise(&l->peak, n, now_ms, &ret->peak);
	ret->turns = (uint32_t)(bucket_until(&l->average, ret->average, now_ms) / n);
	return at_least(average, peak);
}

/* From the buckets; window_take() has said yes. */
static bool take(struct lane *l, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms)
{
	if (!bucket_take(&l->peak, n, now_ms, ret_due_ms))
		return false;
	if (bucket_take(&l->average, n, now_ms, ret_due_ms))
		return true;
	bucket_give_back(&l->peak, n);
	return false;
}

/* When there is room for N bytes in place P, and for those before it. */
static uint64_t room_due(const struct lane *l, const struct place *p, uint64_t n, uint64_t now_ms)
{
	uint64_t all = at_least(bucket_until(&l->average, p->average, now_ms), n);

	return window_due(&l->second, all, now_ms);
}

bool lane_take(struct lane *l, struct place *p, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms)
{
	if (!window_take(&l->second, n, now_ms)) {
		*ret_due_ms = at_least(room_due(l, p, n, now_ms), now_ms + 1);
		return false;
	}
	if (take(l, n, now_ms, ret_due_ms)) {
		atomic_store_explicit(&l->used_ms, now_ms, memory_order_relaxed);
		p->taken_ms = now_ms;
		return true;
	}
	window_give_back(&l->second, n, now_ms);
	lane_leave(l, p, n, now_ms);
	*ret_due_ms = lane_join(l, n, now_ms, p);
	return false;
}

void lane_end(struct lane *l, const struct place *p, uint64_t n)
{
	atomic_store_explicit(&l->used_up, !n, memory_order_relaxed);
	if (!n)
		return;
	window_give_back(&l->second, n, p->taken_ms);
	bucket_give_back(&l->peak, n);
	bucket_release(&l->peak, n);
	bucket_give_back(&l->average, n);
	bucket_release(&l->average, n);
}

void lane_leave(struct lane *l, const struct place *p, uint64_t n, uint64_t now_ms)
{
	bucket_break(&l->peak, p->peak, n, now_ms);
	bucket_break(&l->average, p->average, n, now_ms);
}
