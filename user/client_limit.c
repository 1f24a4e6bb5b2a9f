// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a hash table with chains, of clients that have sessions.  Its entries are
 * allocated at the start, one for each session there can be, so it cannot run full.
 *
 * Who can choose addresses (an IPv6 /48 has 65,536 clients) must not be able to choose chains: the
 * hash is multiply-shift with an odd random multiplier, which is 2-universal: two different keys
 * that were chosen without knowing it meet with a probability of at most 2 / buckets.
 *
 * One mutex guards it all.  It is taken twice a session, for a look at one or two cache lines,
 * while the session's own set-up is some 20 system calls.  And it orders everything, so that no
 * argument about the order of memory accesses is needed: the count that a worker sees is that of
 * all sessions counted in or out before.
 */
#include "client_limit.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define NONE UINT32_MAX

struct key {
	uint64_t bits; /* an IPv4 address, or the upper half of an IPv6 address */
	bool v6;
};

struct entry {
	struct key key;
	uint32_t sessions;
	uint32_t next; /* in its chain, or in the free list */
};

struct client_limit {
	pthread_mutex_t lock; /* of what changes below */
	unsigned int most, total;
	unsigned int refs; /* of the one thread that shares and closes */
	unsigned int shift; /* 64 - log2 of the number of buckets */
	uint64_t multiplier;
	uint32_t *buckets; /* first entry of each chain */
	struct entry *entries;
	uint32_t free;
	unsigned int clients;
};

static bool make_key(const struct sockaddr *sa, struct key *ret)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;
	uint32_t v4;

	*ret = (struct key){ 0 };
	if (sa->sa_family == AF_INET) {
		ret->bits = in->sin_addr.s_addr;
		return true;
	}
	if (sa->sa_family != AF_INET6)
		return false;
	if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) { /* else all of IPv4 would be one client */
		memcpy(&v4, &in6->sin6_addr.s6_addr[12], sizeof(v4));
		ret->bits = v4;
		return true;
	}
	memcpy(&ret->bits, &in6->sin6_addr, sizeof(ret->bits));
	ret->v6 = true;
	return true;
}

static bool same(const struct key *a, const struct key *b)
{
	return a->bits == b->bits && a->v6 == b->v6;
}

/* An IPv4 address and a prefix of equal bits share a chain, which does no harm. */
static uint32_t *bucket_of(struct client_limit *l, const struct key *key)
{
	return &l->buckets[(key->bits * l->multiplier) >> l->shift];
}

/* The link that leads to the entry of KEY, or the end of its chain. */
static uint32_t *find(struct client_limit *l, const struct key *key)
{
	uint32_t *link = bucket_of(l, key);

	while (*link != NONE && !same(&l->entries[*link].key, key))
		link = &l->entries[*link].next;
	return link;
}

static uint64_t random_odd(void)
{
	struct timespec ts;
	uint64_t n;

	/* early at boot there may be no randomness yet; to wait for it would be worse */
	if (getrandom(&n, sizeof(n), GRND_NONBLOCK) != sizeof(n)) {
		clock_gettime(CLOCK_REALTIME, &ts);
		n = (uint64_t)ts.tv_nsec * 0x9e3779b97f4a7c15U ^ (uint64_t)ts.tv_sec ^
		    (uintptr_t)&ts;
	}
	return n | 1;
}

int client_limit_open(unsigned int most, unsigned int total, struct client_limit **ret)
{
	struct client_limit *l;
	size_t n_buckets = 2;

	*ret = NULL;
	if (!most)
		return 0;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	pthread_mutex_init(&l->lock, NULL);
	l->shift = 63;
	while (n_buckets < total) {
		n_buckets *= 2;
		l->shift--;
	}
	l->most = most;
	l->total = total;
	l->refs = 1;
	l->multiplier = random_odd();
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

static bool enter(struct client_limit *l, const struct key *key)
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

static void leave(struct client_limit *l, const struct key *key)
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
	struct key key;
	bool r;

	if (!l || !make_key(client, &key))
		return true;
	pthread_mutex_lock(&l->lock);
	r = enter(l, &key);
	pthread_mutex_unlock(&l->lock);
	return r;
}

void client_limit_leave(struct client_limit *l, const struct sockaddr *client)
{
	struct key key;

	if (!l || !make_key(client, &key))
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
