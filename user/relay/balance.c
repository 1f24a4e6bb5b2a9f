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
 *
 * Failed connects.  A crowd of sessions that fails at once counts as one failure.  When the time of a
 * server that was set aside is over, one session tries it, with the full share of the server.  That
 * counts as a failure until it is connected: so a server that is silent keeps few sessions waiting.
 *
 * Silence.  Before a connect fails for want of an answer seconds pass, and sessions go on coming.  So
 * a server that has owed an answer for SILENT_MS stands behind its equals, but for one attempt in
 * ASK_AGAIN_MS.  A slow server is no silent one: it has twice as long as its last connect took, too.
 * Where all are silent, or there is one alone, nothing changes; and a backup does not step in.  Nor
 * does a client leave its server under BALANCE_SOURCE, which promises to keep it.
 */
#include "relay/balance.h"

#include <limits.h>
#include <math.h>

#include "base/minmax.h"

const char *const server_order_names[ORDERS] = {
	[ORDER_READY] = "ready", [ORDER_DRAIN] = "drain", [ORDER_DOWN] = "down",
};

const char *const server_state_names[SERVER_STATES] = {
	[SERVER_UP] = "up", [SERVER_RETURNING] = "returning", [SERVER_TRIAL] = "trial",
	[SERVER_ASIDE] = "aside", [SERVER_FAILED] = "failed", [SERVER_DRAIN] = "drain",
	[SERVER_DOWN] = "down",
};

/* --- health --- */

enum server_state health_state(const struct health *h, uint64_t now_ms)
{
	if (h->order != ORDER_READY)
		return h->order == ORDER_DRAIN ? SERVER_DRAIN : SERVER_DOWN;
	if (h->checked && h->down)
		return SERVER_FAILED;
	if (h->refused)
		return now_ms < h->aside_ms ? SERVER_ASIDE : SERVER_TRIAL;
	return h->back_ms && now_ms < h->back_ms + BACK_SLOWLY_MS ? SERVER_RETURNING : SERVER_UP;
}

void health_refused(struct health *h, uint64_t now_ms)
{
	if (h->refused && now_ms < h->aside_ms)
		return;
	h->aside_ms = now_ms + smaller((uint64_t)ASIDE_MS << smaller(h->refused, 6), ASIDE_MAX_MS);
	h->refused++;
}

static void come_back(struct health *h, uint64_t now_ms)
{
	h->refused = 0;
	h->back_ms = now_ms;
}

void health_connected(struct health *h, uint64_t now_ms)
{
	if (h->refused)
		come_back(h, now_ms);
}

void health_checked(struct health *h, bool good, unsigned int rise, unsigned int fall,
		    uint64_t now_ms)
{
	/* nothing is known before the first one */
	unsigned int needed = !h->checked ? 1 : h->down ? rise : fall;

	h->checked = true;
	if (good && h->refused)
		come_back(h, now_ms);
	if (good != h->down) {
		h->streak = 0;
		return;
	}
	if (++h->streak < needed)
		return;
	h->streak = 0;
	h->down = !good;
	come_back(h, now_ms);
}

unsigned int health_weight(const struct health *h, unsigned int weight, uint64_t now_ms)
{
	uint64_t since = now_ms > h->back_ms ? now_ms - h->back_ms : 0;
	unsigned int full = weight * FULL_SHARE;

	if (!h->back_ms || since >= BACK_SLOWLY_MS || h->refused) /* a trial must not wait long */
		return full;
	return 1 + (unsigned int)((full - 1) * since / BACK_SLOWLY_MS);
}

bool is_silent(uint64_t owes_ms, uint64_t usual_ms, uint64_t now_ms)
{
	return owes_ms && now_ms >= owes_ms + smaller(SILENT_MS + 2 * usual_ms, ASK_AGAIN_MS);
}

/* --- choosing one --- */

uint64_t balance_hash(const void *p, size_t len, uint64_t seed)
{
	uint64_t hash = 14695981039346656037U ^ seed; /* FNV-1a */

	for (const unsigned char *at = p; len--; at++)
		hash = (hash ^ *at) * 1099511628211U;
	/* its upper bits depend little on the last bytes: the finalizer of SplitMix64 */
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
		if (how != BALANCE_SOURCE) { /* nobody takes turns, and a reload may keep accounts */
			*c[i].turn += c[i].weight;
			sum += c[i].weight;
		}
		if (best == n || is_better(how, &c[i], &c[best], client))
			best = i;
	}
	*c[best].turn -= sum;
	/* accounts decide between equals: what one has not got for long it must not get later */
	for (size_t i = 0; how == BALANCE_LEAST_SESSIONS && i < n; i++)
		*c[i].turn = *c[i].turn > sum ? sum : *c[i].turn < -sum ? -sum : *c[i].turn;
	return best;
}
