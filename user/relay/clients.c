// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: clients are in trees, one for all forwards and one for each forward's name.
 * One mutex guards a tree.  A session takes the mutex twice, for a look at a few cache lines.  That
 * is little: the set-up of a session has some 20 system calls.  tsearch(3) keeps a tree balanced,
 * so an attacker who can choose addresses (an IPv6 /48 has 65,536 clients) cannot make the look a
 * long one.
 *
 * A client without sessions is kept while its bandwidth lacks tokens.  Otherwise each of its short
 * sessions would begin with a new burst.
 */
#include "relay/clients.h"

#include <errno.h>
#include <netinet/in.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "relay/bandwidth.h"

struct client {
	/* the upper half of IPv6; or ff and an IPv4 address: no client of IPv6 has ff there */
	uint8_t key[8];
	unsigned int sessions;
	bool proven;
	struct bandwidth *bandwidth; /* owned; NULL: it has had no limit so far */
	TAILQ_ENTRY(client) in_resting;
};

static int compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(((struct client *)0)->key));
}

/* False: CLIENT is one of a unix socket. */
static bool key_of(const struct sockaddr *client, struct client *ret)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)client;
	const struct in6_addr *in6 = &((const struct sockaddr_in6 *)client)->sin6_addr;

	*ret = (struct client){ .key = { 0xff } };
	if (client->sa_family == AF_INET)
		memcpy(ret->key + 4, &in->sin_addr, 4);
	else if (client->sa_family != AF_INET6)
		return false;
	else if (IN6_IS_ADDR_V4MAPPED(in6)) /* else all of IPv4 would be one client */
		memcpy(ret->key + 4, &in6->s6_addr[12], 4);
	else
		memcpy(ret->key, in6, sizeof(ret->key));
	return true;
}

void clients_init(struct clients *c)
{
	*c = (struct clients){ .lock = PTHREAD_MUTEX_INITIALIZER };
	TAILQ_INIT(&c->resting);
}

static void client_free(void *client)
{
	free(((struct client *)client)->bandwidth);
	free(client);
}

void clients_close(struct clients *c)
{
	tdestroy(c->tree, client_free);
	pthread_mutex_destroy(&c->lock);
}

/* Take the lock.  The entry of CLIENT; or NULL. */
static struct client *lock_and_find(struct clients *c, const struct sockaddr *client)
{
	struct client key, **at = NULL;

	pthread_mutex_lock(&c->lock);
	if (key_of(client, &key))
		at = tfind(&key, &c->tree, compare);
	return at ? *at : NULL;
}

static void forget(struct clients *c, struct client *client)
{
	tdelete(client, &c->tree, compare);
	client_free(client);
	c->n--;
}

/* NULL: no memory. */
static struct client *add(struct clients *c, const struct client *key)
{
	struct client *client = malloc(sizeof(*client));

	if (!client)
		return NULL;
	*client = *key;
	if (!tsearch(client, &c->tree, compare)) {
		free(client);
		return NULL;
	}
	c->n++;
	return client;
}

int clients_enter(struct clients *c, const struct sockaddr *client, unsigned int most, bool proven)
{
	struct client key, *found;
	int r = 0;

	if (!key_of(client, &key))
		return 0;
	found = lock_and_find(c, client) ?: add(c, &key);
	if (!found)
		r = -ENOMEM;
	else if (most && found->sessions >= most)
		r = -EUSERS;
	else if (!found->sessions++ && found->bandwidth)
		TAILQ_REMOVE(&c->resting, found, in_resting);
	if (!r)
		found->proven |= proven;
	pthread_mutex_unlock(&c->lock);
	return r;
}

bool clients_proven(struct clients *c, const struct sockaddr *client, bool now)
{
	struct client *found = lock_and_find(c, client);
	bool proven = found && (found->proven |= now);

	pthread_mutex_unlock(&c->lock);
	return proven;
}

void clients_leave(struct clients *c, const struct sockaddr *client)
{
	struct client *found = lock_and_find(c, client), *first;

	if (found && !--found->sessions) {
		found->proven = false;
		if (found->bandwidth)
			TAILQ_INSERT_TAIL(&c->resting, found, in_resting);
		else
			forget(c, found);
	}
	while ((first = TAILQ_FIRST(&c->resting)) && bandwidth_is_full(first->bandwidth)) {
		TAILQ_REMOVE(&c->resting, first, in_resting);
		forget(c, first);
	}
	pthread_mutex_unlock(&c->lock);
}

struct bandwidth *clients_bandwidth(struct clients *c, const struct sockaddr *client)
{
	struct client *found = lock_and_find(c, client);
	struct bandwidth *b = NULL;

	if (found && !found->bandwidth)
		found->bandwidth = calloc(1, sizeof(*found->bandwidth));
	if (found)
		b = found->bandwidth;
	pthread_mutex_unlock(&c->lock);
	return b;
}
