// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a hash table with chains, of clients that have sessions.  Its entries are
 * allocated at the start, one for each session there can be, so it cannot run full.
 *
 * One mutex guards it all.  It is taken twice a session, for a look at one or two cache lines,
 * while the session's own set-up is some 20 system calls.  And it orders everything, so that no
 * argument about the order of memory accesses is needed: the count that a worker sees is that of
 * all sessions counted in or out before.
 */
#include "relay/client_limit.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "relay/client_key.h"

#define NONE UINT32_MAX

struct entry {
	struct client_key key;
	uint32_t sessions;
	uint32_t next; /* in its chain, or in the free list */
};

struct client_limit {
	pthread_mutex_t lock; /* of what changes below */
	unsigned int most, total;
	unsigned int refs; /* of the one thread that shares and closes */
	struct client_hash hash;
	uint32_t *buckets; /* first entry of each chain */
	struct entry *entries;
	uint32_t free;
	unsigned int clients;
};

static uint32_t *bucket_of(struct client_limit *l, const struct client_key *key)
{
	return &l->buckets[client_hash(&l->hash, key)];
}

/* The link that leads to the entry of KEY, or the end of its chain. */
static uint32_t *find(struct client_limit *l, const struct client_key *key)
{
	uint32_t *link = bucket_of(l, key);

	while (*link != NONE && !client_key_same(&l->entries[*link].key, key))
		link = &l->entries[*link].next;
	return link;
}

int client_limit_open(unsigned int most, unsigned int total, struct client_limit **ret)
{
	struct client_limit *l;
	size_t n_buckets;

	*ret = NULL;
	if (!most)
		return 0;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	n_buckets = client_hash_init(&l->hash, total);
	l->most = most;
	l->total = total;
	l->refs = 1;
	l->buckets = malloc(n_buckets * sizeof(*l->buckets));
	l->entries = calloc(total, sizeof(*l->entries));
	if (!l->buckets || !l->entries) {
		client_limit_close(l);
		return -ENOMEM;
	}
	memset(l->buckets, 0xff, n_buckets * sizeof(*l->buckets));
	for (uint32_t i = 0; i < total; i++)
		l->entries[i].next = i + 1 < total ? i + 1 : NONE;
	*ret = l;
	return 0;
}

struct client_limit *client_limit_share(struct client_limit *l)
{
	if (l)
		l->refs++;
	return l;
}

bool client_limit_is(const struct client_limit *l, unsigned int most, unsigned int total)
{
	return l ? l->most == most && l->total == total : !most;
}

void client_limit_close(struct client_limit *l)
{
	if (!l || (l->refs && --l->refs))
		return;
	pthread_mutex_destroy(&l->lock);
	free(l->buckets);
	free(l->entries);
	free(l);
}

static bool enter(struct client_limit *l, const struct client_key *key)
{
	uint32_t at = *find(l, key);
	struct entry *e;

	if (at != NONE) {
		if (l->entries[at].sessions >= l->most)
			return false;
		l->entries[at].sessions++;
		return true;
	}
	at = l->free;
	if (at == NONE) /* more sessions than TOTAL: the caller's own limit is off */
		return false;
	e = &l->entries[at];
	l->free = e->next;
	*e = (struct entry){ .key = *key, .sessions = 1, .next = *bucket_of(l, key) };
	*bucket_of(l, key) = at;
	l->clients++;
	return true;
}

static void leave(struct client_limit *l, const struct client_key *key)
{
	uint32_t *link = find(l, key), at = *link;
	struct entry *e;

	if (at == NONE)
		return;
	e = &l->entries[at];
	if (--e->sessions)
		return;
	*link = e->next;
	e->next = l->free;
	l->free = at;
	l->clients--;
}

bool client_limit_enter(struct client_limit *l, const struct sockaddr *client)
{
	struct client_key key;
	bool r;

	if (!l || !client_key_make(client, &key))
		return true;
	pthread_mutex_lock(&l->lock);
	r = enter(l, &key);
	pthread_mutex_unlock(&l->lock);
	return r;
}

void client_limit_leave(struct client_limit *l, const struct sockaddr *client)
{
	struct client_key key;

	if (!l || !client_key_make(client, &key))
		return;
	pthread_mutex_lock(&l->lock);
	leave(l, &key);
	pthread_mutex_unlock(&l->lock);
}

unsigned int client_limit_clients(struct client_limit *l)
{
	unsigned int n;

	if (!l)
		return 0;
	pthread_mutex_lock(&l->lock);
	n = l->clients;
	pthread_mutex_unlock(&l->lock);
	return n;
}
