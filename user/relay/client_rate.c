// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a hash table with chains, whose entries are allocated at the start, one for
 * each session there can be, and not touched before they are needed.  An entry whose last session
 * has ended stays where it is, as long as no other client needs it, and the one that has been
 * without for the longest time is taken first: else a client would have a full bucket with each new
 * connection.
 *
 * One mutex guards it all but the bandwidths.  It is taken twice a session.
 */
#include "relay/client_rate.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct client_rates {
	pthread_mutex_t lock;
	uint64_t rate;
	struct client_hash hash;
	uint32_t *buckets; /* first entry of each chain */
	struct client_rate *entries;
	uint32_t total, fresh; /* entries; of these, those that have been used */
	uint32_t oldest, newest; /* of those without sessions */
};

static uint32_t *chain_of(struct client_rates *l, const struct client_key *key)
{
	return &l->buckets[client_hash(&l->hash, key)];
}

/* The link that leads to the entry of KEY, or the end of its chain. */
static uint32_t *find(struct client_rates *l, const struct client_key *key)
{
	uint32_t *link = chain_of(l, key);

	while (*link != NONE && !client_key_same(&l->entries[*link].key, key))
		link = &l->entries[*link].next;
	return link;
}

/* --- those without sessions --- */

static void put_newest(struct client_rates *l, uint32_t at)
{
	struct client_rate *e = &l->entries[at];

	e->older = l->newest;
	e->newer = NONE;
	if (l->newest != NONE)
		l->entries[l->newest].newer = at;
	else
		l->oldest = at;
	l->newest = at;
}

static void take_off(struct client_rates *l, uint32_t at)
{
	const struct client_rate *e = &l->entries[at];

	if (e->older != NONE)
		l->entries[e->older].newer = e->newer;
	else
		l->oldest = e->newer;
	if (e->newer != NONE)
		l->entries[e->newer].older = e->older;
	else
		l->newest = e->older;
}

/* For another client: one that was never used, or the one that has been without for longest. */
static uint32_t take_place(struct client_rates *l)
{
	uint32_t at = l->oldest;

	if (l->fresh < l->total)
		return l->fresh++;
	if (at != NONE)
		take_off(l, at);
	return at;
}

/* --- the table --- */

int client_rates_open(uint64_t rate, uint32_t total, struct client_rates **ret)
{
	struct client_rates *l;
	uint32_t n;

	*ret = NULL;
	if (!rate)
		return 0;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	l->rate = rate;
	n = client_hash_init(&l->hash, total);
	l->buckets = malloc(n * sizeof(*l->buckets));
	l->entries = calloc(total, sizeof(*l->entries));
	if (!l->buckets || !l->entries) {
		client_rates_close(l);
		return -ENOMEM;
	}
	memset(l->buckets, 0xff, n * sizeof(*l->buckets));
	l->oldest = l->newest = NONE;
	l->total = total;
	*ret = l;
	return 0;
}

void client_rates_close(struct client_rates *l)
{
	if (!l)
		return;
	pthread_mutex_destroy(&l->lock);
	free(l->buckets);
	free(l->entries);
	free(l);
}

static int enter(struct client_rates *l, const struct client_key *key, uint64_t now_ms,
		 struct client_rate **ret)
{
	uint32_t at = *find(l, key);
	struct client_rate *e;

	if (at != NONE) {
		e = &l->entries[at];
		if (!e->sessions++)
			take_off(l, at);
		*ret = e;
		return 0;
	}
	at = take_place(l);
	if (at == NONE)
		return -ENOSPC;
	e = &l->entries[at];
	if (e->known)
		*find(l, &e->key) = e->next;
	e->key = *key;
	e->known = true;
	e->sessions = 1;
	e->next = *chain_of(l, key);
	*chain_of(l, key) = at;
	bandwidth_init(&e->bandwidth, l->rate, now_ms);
	*ret = e;
	return 0;
}

int client_rates_enter(struct client_rates *l, const struct sockaddr *client, uint64_t now_ms,
		       struct client_rate **ret)
{
	struct client_key key;
	int r;

	*ret = NULL;
	if (!l || !client_key_make(client, &key))
		return 0;
	pthread_mutex_lock(&l->lock);
	r = enter(l, &key, now_ms, ret);
	pthread_mutex_unlock(&l->lock);
	return r;
}

void client_rates_leave(struct client_rates *l, struct client_rate *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&l->lock);
	if (!--r->sessions)
		put_newest(l, (uint32_t)(r - l->entries));
	pthread_mutex_unlock(&l->lock);
}
