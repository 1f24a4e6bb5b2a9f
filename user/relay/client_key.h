/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_KEY_H
#define CULVERT_CLIENT_KEY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * Who is one client, to a table of clients: an IPv4 address or an IPv6 /64, which is what one
 * customer or one machine can choose addresses from.
 *
 * Who can choose addresses (an IPv6 /48 has 65,536 clients) must not be able to choose chains: the
 * hash is multiply-shift with an odd random multiplier, which is 2-universal: two different keys
 * that were chosen without knowing it meet with a probability of at most 2 / buckets.
 */
struct client_key {
	uint64_t bits; /* an IPv4 address, or the upper half of an IPv6 address */
	bool v6;
};

/* False: a client of a unix socket, which has no address. */
bool client_key_make(const struct sockaddr *sa, struct client_key *ret);

static inline bool client_key_same(const struct client_key *a, const struct client_key *b)
{
	return a->bits == b->bits && a->v6 == b->v6;
}

struct client_hash {
	unsigned int shift; /* 64 - log2 of the number of buckets */
	uint64_t multiplier;
};

/* For at least N buckets; returns how many. */
uint32_t client_hash_init(struct client_hash *h, uint32_t n);

/* An IPv4 address and a prefix of equal bits share a chain, which does no harm. */
static inline uint32_t client_hash(const struct client_hash *h, const struct client_key *key)
{
	return (uint32_t)((key->bits * h->multiplier) >> h->shift);
}

#endif
