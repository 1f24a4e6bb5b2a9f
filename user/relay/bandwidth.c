// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a limit is a token bucket, and a token is a byte.  A flow that has something
 * to read reserves the tokens of one turn, waits until they have come, reads at most that much, and
 * returns the rest.  A bucket with a negative level lacks tokens: they are reserved, and have not
 * come yet.  A later reservation ends later, so the flows of one limit have turns in order, nobody
 * starves, and nobody is woken in vain.
 *
 * A flow with two limits first waits for its client's, and then for the forward's.  Reserving both
 * at once would hold back tokens of the forward that the flow cannot use yet.
 *
 * A turn is small, so a short message waits only for a small turn of each other flow.  Tokens that
 * a flow reserves and does not use are missing to the others until its turn ends.
 */
#include "relay/bandwidth.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "config/config.h"

/* --- token bucket --- */

#define PARTS 1000 /* of a token; RATE of them come each millisecond */
/* Longer than any bucket needs to fill; RATE times this fits into 63 bits. */
#define FILL_MS_MAX (UINT64_C(1) << 24)
_Static_assert(BANDWIDTH_MAX < UINT64_C(1) << 38, "a level must not overflow");

void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms)
{
	*b = (struct bucket){ .rate = rate, .most = (int64_t)(burst * PARTS), .at_ms = now_ms };
	b->level = b->most;
	pthread_mutex_init(&b->lock, NULL);
}

/* From now on tokens come at RATE.  Earlier reservations stay. */
static void change_rate(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms)
{
	pthread_mutex_lock(&b->lock);
	if (b->rate != rate) {
		b->most = (int64_t)(burst * PARTS);
		if (!b->rate) /* the first rate: an empty bucket would drop datagrams */
			b->level = b->most;
		b->rate = rate;
		b->at_ms = now_ms;
	}
	pthread_mutex_unlock(&b->lock);
}

/* Add the tokens that came since the last call.  The lock is held. */
static void fill(struct bucket *b, uint64_t now_ms)
{
	uint64_t ms = now_ms > b->at_ms ? now_ms - b->at_ms : 0;

	b->at_ms += ms;
	b->level += (int64_t)(b->rate * smaller(ms, FILL_MS_MAX));
	if (b->level > b->most)
		b->level = b->most;
}

uint64_t bucket_reserve(struct bucket *b, uint64_t n, uint64_t now_ms)
{
	uint64_t lack, due_ms;

	pthread_mutex_lock(&b->lock);
	fill(b, now_ms);
	b->level -= (int64_t)(n * PARTS);
	lack = b->level < 0 ? (uint64_t)-b->level : 0;
	due_ms = b->at_ms + (lack + b->rate - 1) / b->rate;
	pthread_mutex_unlock(&b->lock);
	return lack ? due_ms : now_ms;
}

void bucket_give_back(struct bucket *b, uint64_t n)
{
	pthread_mutex_lock(&b->lock);
	b->level += (int64_t)(n * PARTS);
	pthread_mutex_unlock(&b->lock);
}

void bucket_hold(struct bucket *b, int64_t n)
{
	if (!b->rate)
		return;
	pthread_mutex_lock(&b->lock);
	b->most -= n * PARTS;
	if (b->level > b->most)
		b->level = b->most;
	pthread_mutex_unlock(&b->lock);
}

bool bucket_take(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms)
{
	if (!b->rate)
		return true;
	*ret_due_ms = bucket_reserve(b, n, now_ms);
	if (*ret_due_ms <= now_ms)
		return true;
	bucket_give_back(b, n);
	return false;
}

/* --- bandwidth --- */

/*
 * A turn is the bytes of 2.5 ms, more than a tick of the loop's clock (1 ms).  Sixteen flows of one
 * limit have their turns within 40 ms.  TURN_MIN is worth the system call of a read.
 * TURN_MAX is the size of a pipe.
 */
#define TURNS_PER_SECOND 400
#define TURN_MIN 1024
#define TURN_MAX (512 * 1024)
/* A burst is the bytes of 40 ms.  No thread that gets a CPU is later than that. */
#define BURSTS_PER_SECOND 25

bool bandwidth_is_full(struct bandwidth *b)
{
	bool full = true;

	for (struct bucket *way = b->ways; way < b->ways + 2; way++) {
		pthread_mutex_lock(&way->lock);
		fill(way, clock_ms());
		full = full && way->level == way->most;
		pthread_mutex_unlock(&way->lock);
	}
	return full;
}

/* --- the turns of a session --- */

struct turn {
	uint64_t due_ms; /* when the last reservation will have come */
	uint32_t left;   /* reserved, and not read yet */
	uint8_t held;    /* limits with a reservation, in their order; 0: no turn has begun */
};

struct pace {
	struct bandwidth *limits[LIMITS]; /* NULL: none */
	uint32_t turn;                    /* bytes, as the lowest rate says */
	struct turn turns[2];             /* by flow */
};

int pace_new(struct bandwidth *const limits[LIMITS], const uint64_t rates[LIMITS],
	     struct pace **ret)
{
	struct pace *p;

	*ret = NULL;
	if (!rates[OF_CLIENT] && !rates[OF_FORWARD])
		return 0;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->turn = TURN_MAX;
	for (unsigned int i = 0; i < LIMITS; i++) {
		uint64_t turn = larger(TURN_MIN, rates[i] / TURNS_PER_SECOND);
		uint64_t burst = larger(rates[i] / BURSTS_PER_SECOND, 2 * smaller(turn, TURN_MAX));

		if (!rates[i])
			continue;
		p->limits[i] = limits[i];
		p->turn = (uint32_t)smaller(p->turn, turn);
		for (unsigned int dir = 0; dir < 2; dir++)
			change_rate(&limits[i]->ways[dir], rates[i], burst, clock_ms());
	}
	*ret = p;
	return 0;
}

/* Tokens of the second limit are reserved when those of the first limit have come. */
bool pace_begin(struct pace *p, unsigned int dir, uint64_t *ret_due_ms)
{
	/* the loop's clock may be as late as its thread */
	uint64_t now = clock_ms();
	struct turn *t = &p->turns[dir];

	if (!t->held)
		t->left = p->turn;
	while (t->due_ms <= now && t->held < LIMITS) {
		struct bandwidth *b = p->limits[t->held++];

		if (b)
			t->due_ms = bucket_reserve(&b->ways[dir], p->turn, now);
	}
	if (t->due_ms <= now)
		return true;
	*ret_due_ms = t->due_ms;
	return false;
}

uint64_t pace_left(const struct pace *p, unsigned int dir)
{
	return p ? p->turns[dir].left : UINT64_MAX;
}

void pace_used(struct pace *p, unsigned int dir, uint64_t bytes)
{
	if (p)
		p->turns[dir].left -= (uint32_t)bytes;
}

/* Returns the tokens that flow DIR has not used, also those that it still waits for. */
void pace_end(struct pace *p, unsigned int dir)
{
	struct turn *t = p ? &p->turns[dir] : NULL;

	if (!t)
		return;
	for (unsigned int i = 0; i < t->held; i++) /* held: 0 if only pending bytes were written */
		if (p->limits[i])
			bucket_give_back(&p->limits[i]->ways[dir], t->left);
	*t = (struct turn){ 0 };
}

/* May leave a bucket in debt: a message may be larger than a bucket. */
bool pace_take(struct pace *p, unsigned int dir, uint64_t bytes)
{
	uint64_t now = clock_ms(), due_ms;

	for (unsigned int i = 0; p && i < LIMITS; i++)
		if (p->limits[i] && !bucket_take(&p->limits[i]->ways[dir], 0, now, &due_ms))
			return false;
	for (unsigned int i = 0; p && i < LIMITS; i++)
		if (p->limits[i] && p->limits[i]->ways[dir].rate)
			bucket_reserve(&p->limits[i]->ways[dir], bytes, now);
	return true;
}

void pace_free(struct pace *p)
{
	pace_end(p, 0);
	pace_end(p, 1);
	free(p);
}
