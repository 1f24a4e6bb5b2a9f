// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * round-robin: each candidate's account gets its weight, the richest is chosen and pays the sum of
 * all weights.  So servers take turns evenly: with weights 2, 1, 1 as a b c a, not a a b c.
 *
 * source: rendezvous hashing (Thaler and Ravishankar 1998) with weights: each pair of client and
 * server has a score, and the best score wins.  A server that comes takes its share of clients from
 * all others, one that goes leaves its clients to all others, and nobody else moves.
 */
#include "relay/balance.h"

#include <limits.h>
#include <math.h>

#include "base/minmax.h"

uint64_t balance_hash(const void *p, size_t len, uint64_t seed)
{
	uint64_t hash = 14695981039346656037U ^ seed; /* FNV-1a */

	for (const unsigned char *at = p; len--; at++)
		hash = (hash ^ *at) * 1099511628211U;
	/* FNV-1a's upper bits depend little on the last bytes: so the finalizer of SplitMix64 */
	hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9U;
	hash = (hash ^ hash >> 27) * 0x94d049bb133111ebU;
	return hash ^ hash >> 31;
}

static unsigned int rank_of(enum balance how, const struct candidate *c)
{
	return (c->aside ? 4 : 0) + (c->backup ? 2 : 0) + (c->silent && how != BALANCE_SOURCE);
}

/* An exponential variate with the server's weight as its rate: the least of all wins. */
static double distance(const struct candidate *c, uint64_t client)
{
	uint64_t hash = balance_hash(&c->name, sizeof(c->name), client);

	return -log(((double)(hash >> 11) + 0.5) / (double)(1ULL << 53)) / c->weight;
}

/* Is A the better choice than B? */
static bool is_better(enum balance how, const struct candidate *a, const struct candidate *b,
		      uint64_t client)
{
	uint64_t x = (uint64_t)(a->live + 1) * b->weight, y = (uint64_t)(b->live + 1) * a->weight;

	if (how == BALANCE_SOURCE)
		return distance(a, client) < distance(b, client);
	if (how == BALANCE_LEAST_SESSIONS && x != y)
		return x < y;
	return *a->turn > *b->turn;
}

size_t balance_pick(enum balance how, const struct candidate *c, size_t n, uint64_t client)
{
	unsigned int rank = UINT_MAX;
	int64_t sum = 0;
	size_t best = n;

	for (size_t i = 0; i < n; i++)
		rank = (unsigned int)smaller(rank, rank_of(how, &c[i]));
	for (size_t i = 0; i < n; i++) {
		if (rank_of(how, &c[i]) != rank)
			continue;
		if (how != BALANCE_SOURCE) { /* BALANCE_SOURCE leaves the accounts as they are */
			*c[i].turn += c[i].weight;
			sum += c[i].weight;
		}
		if (best == n || is_better(how, &c[i], &c[best], client))
			best = i;
	}
	*c[best].turn -= sum;
	/* accounts decide between equals, and must not save up turns for later */
	for (size_t i = 0; how == BALANCE_LEAST_SESSIONS && i < n; i++)
		*c[i].turn = *c[i].turn > sum ? sum : *c[i].turn < -sum ? -sum : *c[i].turn;
	return best;
}

void balance_undo(enum balance how, const struct candidate *c, size_t n, size_t at)
{
	/* the accounts of other ways decide between equals alone */
	for (size_t i = 0; how == BALANCE_ROUND_ROBIN && i < n; i++) {
		if (rank_of(how, &c[i]) != rank_of(how, &c[at]))
			continue;
		*c[i].turn -= c[i].weight;
		*c[at].turn += c[i].weight;
	}
}
