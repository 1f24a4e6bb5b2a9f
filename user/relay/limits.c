// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: sessions are counted in atomic integers.  Clients are in trees, one for all
 * forwards and one for each forward that limits its clients.  One mutex guards a tree.  It is taken
 * twice a session, for a look at a few cache lines, while the session's own set-up is some 20 system
 * calls.  tsearch(3) keeps a tree balanced, so an attacker who can choose addresses (an IPv6 /48 has
 * 65,536 clients) cannot make the look a long one.
 */
#include "relay/limits.h"

#include <errno.h>
#include <netinet/in.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "base/addr.h"
#include "base/array.h"
#include "base/log.h"
#include "relay/forward.h"
#include "relay/rates.h"

/* --- clients --- */

struct client {
	/* the upper half of an IPv6 address; or ff, which begins no such half, and an IPv4 address */
	uint8_t key[8];
	unsigned int sessions;
	struct bandwidth *bandwidth; /* a reference, or NULL */
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
	*c = (struct clients){ 0 };
	pthread_mutex_init(&c->lock, NULL);
}

static void client_free(void *client)
{
	bandwidth_put(((struct client *)client)->bandwidth);
	free(client);
}

void clients_close(struct clients *c)
{
	tdestroy(c->tree, client_free);
	pthread_mutex_destroy(&c->lock);
}

static struct client *find(struct clients *c, const struct client *key)
{
	struct client **at = tfind(key, &c->tree, compare);

	return at ? *at : NULL;
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

int clients_enter(struct clients *c, const struct sockaddr *client, unsigned int most)
{
	struct client key, *found;
	int r = 0;

	if (!c || !key_of(client, &key))
		return 0;
	pthread_mutex_lock(&c->lock);
	found = find(c, &key) ?: add(c, &key);
	if (!found)
		r = -ENOMEM;
	else if (most && found->sessions >= most)
		r = -EUSERS;
	else
		found->sessions++;
	pthread_mutex_unlock(&c->lock);
	return r;
}

void clients_leave(struct clients *c, const struct sockaddr *client)
{
	struct client key, *found;

	if (!c || !key_of(client, &key))
		return;
	pthread_mutex_lock(&c->lock);
	found = find(c, &key);
	if (found && !--found->sessions) {
		tdelete(found, &c->tree, compare);
		client_free(found);
		c->n--;
	}
	pthread_mutex_unlock(&c->lock);
}

int clients_bandwidth(struct clients *c, const struct sockaddr *client, uint64_t rate,
		      struct bandwidth **ret)
{
	struct client key, *found;
	int r = 0;

	*ret = NULL;
	if (!c || !rate || !key_of(client, &key))
		return 0;
	pthread_mutex_lock(&c->lock);
	found = find(c, &key);
	if (!bandwidth_is(found->bandwidth, rate)) {
		bandwidth_put(found->bandwidth);
		r = bandwidth_new(rate, &found->bandwidth);
	}
	*ret = bandwidth_get(found->bandwidth);
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* --- admission --- */

struct admission {
	const struct config *config;
	_Atomic unsigned int live; /* sessions of all forwards */
	struct clients clients;
};

struct admission *admission_open(const struct config *c)
{
	struct admission *a = allocated(calloc(1, sizeof(*a)));

	a->config = c;
	clients_init(&a->clients);
	return a;
}

void admission_close(struct admission *a)
{
	if (!a)
		return;
	clients_close(&a->clients);
	free(a);
}

/* MOST 0: any number. */
static bool count_in(_Atomic unsigned int *live, unsigned int most)
{
	if (atomic_fetch_add(live, 1) < most || !most)
		return true;
	atomic_fetch_sub(live, 1);
	return false;
}

bool admission_enter(struct admission *a, struct forward *f, enum cause *ret_why)
{
	if (!count_in(&f->totals->live, f->conf->max_sessions)) {
		*ret_why = CAUSE_FORWARD_LIMIT;
		return false;
	}
	if (!count_in(&a->live, a->config->max_sessions)) {
		atomic_fetch_sub(&f->totals->live, 1);
		*ret_why = CAUSE_SESSION_LIMIT;
		return false;
	}
	atomic_fetch_add(&f->sessions, 1);
	return true;
}

void admission_cancel(struct admission *a, struct forward *f)
{
	atomic_fetch_sub(&a->live, 1);
	atomic_fetch_sub(&f->totals->live, 1);
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
}

bool admission_enter_client(struct admission *a, struct forward *f, const struct sockaddr *client,
			    enum cause *ret_why)
{
	const char *which = "here (max-sessions-per-client)";
	unsigned int most = f->conf->max_sessions_per_client;
	int r = clients_enter(f->clients, client, most);
	union client_addr addr;
	char text[ADDR_STRLEN];

	if (!r) {
		which = "in all (--max-sessions-per-client)";
		most = a->config->max_sessions_per_client;
		r = clients_enter(&a->clients, client, most);
		if (r)
			clients_leave(f->clients, client);
	}
	if (r == -EUSERS) {
		client_addr_set(&addr, client);
		log_cause(CAUSE_CLIENT_LIMIT, LOG_WARNING,
			  "forward %s: refused %s: it has %u session(s) %s", forward_name(f->conf),
			  client_addr_text(&addr, text, sizeof(text)), most, which);
	}
	*ret_why = r == -EUSERS ? CAUSE_CLIENT_LIMIT : CAUSE_NO_MEMORY;
	return !r;
}

void admission_leave(struct admission *a, struct forward *f, const struct sockaddr *client)
{
	clients_leave(&a->clients, client);
	clients_leave(f->clients, client);
	admission_cancel(a, f);
}

unsigned int admission_sessions(struct admission *a)
{
	return atomic_load(&a->live);
}

unsigned int admission_clients(struct admission *a)
{
	return atomic_load(&a->clients.n);
}
