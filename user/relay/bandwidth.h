/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The limits per second: accept-rate, bandwidth, and bandwidth-per-client.
 *
 * The kernel cannot wait, so a session whose bandwidth is limited stays in user space.  While a
 * flow must wait, its source is not read: the receive buffer fills, and TCP slows the sender down.
 */

/*
 * A token bucket: RATE tokens a second come, and up to BURST are kept.  So in any time no more than
 * RATE * time + BURST are taken.  Any thread may use it.
 */
struct bucket {
	uint64_t rate;        /* 0: no limit */
	pthread_mutex_t lock; /* of the rest; all tokens are counted in thousandths */
	int64_t level;        /* tokens that are there; below 0: tokens reserved ahead */
	int64_t most;
	uint64_t at_ms; /* LEVEL has the tokens that came until then */
};

/* The bucket begins full. */
void bucket_init(struct bucket *b, uint64_t rate, uint64_t burst, uint64_t now_ms);
/* Take N tokens.  False: there are fewer; try again at *RET_DUE_MS. */
bool bucket_take(struct bucket *b, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms);
/*
 * Take N tokens, some of which may still have to come.  Returns the time at which the last token
 * comes; the caller waits until then.  A later caller waits longer, so callers have turns in order.
 */
uint64_t bucket_reserve(struct bucket *b, uint64_t n, uint64_t now_ms);
/* Keep N tokens less from now on, or more if N is negative: somebody else keeps them. */
void bucket_hold(struct bucket *b, int64_t n);
/* Return N tokens that were taken or reserved. */
void bucket_give_back(struct bucket *b, uint64_t n);

/*
 * The bandwidth that several sessions share, in each direction.  Begins with zeroes; pace_new()
 * sets the rates.
 */
struct bandwidth {
	struct bucket ways[2]; /* by flow */
};

/* True if B, which no session uses, has all its tokens: a new bandwidth would have no more. */
bool bandwidth_is_full(struct bandwidth *b);

/*
 * The turns in which a session reads, if its bandwidth is limited.  NULL: its bandwidth has no
 * limit, and each function below except pace_begin() lets everything pass.
 */
struct pace;

/*
 * Make the turns of a session.  RATES are those of its client and of its forward, in bytes a second
 * (0: no limit).  Older sessions that share a bandwidth get its new rate, too.  LIMITS outlive
 * *RET.  -ENOMEM.
 */
enum { OF_CLIENT, OF_FORWARD, LIMITS };
int pace_new(struct bandwidth *const limits[LIMITS], const uint64_t rates[LIMITS],
	     struct pace **ret);
/* Begin a turn of flow DIR.  False: not before *RET_DUE_MS; call this again then. */
bool pace_begin(struct pace *p, unsigned int dir, uint64_t *ret_due_ms);
/* How many bytes flow DIR may read in this turn; UINT64_MAX: any number. */
uint64_t pace_left(const struct pace *p, unsigned int dir);
void pace_used(struct pace *p, unsigned int dir, uint64_t bytes);
/* The turn ends: return the tokens that the flow has not used. */
void pace_end(struct pace *p, unsigned int dir);
/*
 * For datagrams, which do not wait: flow DIR takes BYTES from both limits, or from neither.  False:
 * tokens that were taken before have not come yet.
 */
bool pace_take(struct pace *p, unsigned int dir, uint64_t bytes);
void pace_free(struct pace *p);
