// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: sessions are counted in atomic integers.  Clients are in hash tables with
 * chains, one for all forwards and one for each forward that limits its clients.  One mutex guards
 * a table.  It is taken twice a session, for a look at one or two cache lines, while the session's
 * own set-up is some 20 system calls.
 *
 * An attacker who can choose addresses (an IPv6 /48 has 65,536 clients) must not be able to choose
 * chains.  The hash is multiply-shift with an odd random multiplier, which is 2-universal: two keys
 * that were chosen without knowing it meet with a probability of at most 2 / chains.
 *
 * A client that closes all its connections and comes back must not find a full bucket each time.
 * So the entry of a client with a bandwidth stays until its bucket has surely filled.  Each newcomer
 * looks through two chains for entries that may go.
 */
#include "relay/limits.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/addr.h"
#include "base/clock.h"
#include "base/log.h"
#include "relay/forward.h"
#include "relay/rates.h"

/* --- clients --- */

#define KEEP_MS 1000
#define CHAINS_MAX_SHIFT 20

struct key {
	uint64_t bits; /* an IPv4 address, or the upper half of an IPv6 address */
	bool v6;
};

struct entry {
	struct key key;
	unsigned int sessions;
	uint64_t left_ms;            /* when the last session ended */
	struct bandwidth *bandwidth; /* a reference, or NULL */
	struct entry *next;          /* in its chain */
};

struct clients {
	pthread_mutex_t lock; /* of all chains and the rest */
	uint64_t multiplier;
	unsigned int shift; /* 64 - log2 of the number of chains */
	unsigned int n;     /* entries with sessions */
	size_t sweep;       /* the chain to look through next */
	struct entry *chains[];
};

/* False: CLIENT is one of a unix socket. */
static bool key_of(const struct sockaddr *client, struct key *ret)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)client;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)client;
	uint32_t v4;

	*ret = (struct key){ 0 };
	if (client->sa_family == AF_INET) {
		ret->bits = in->sin_addr.s_addr;
		return true;
	}
	if (client->sa_family != AF_INET6)
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

static uint64_t random_odd(void)
{
	uint64_t n;

	/* early at boot there may be no randomness yet; to wait for it would be worse */
	if (getrandom(&n, sizeof(n), GRND_NONBLOCK) != sizeof(n))
		n = clock_ms() * 0x9e3779b97f4a7c15U ^ (uintptr_t)&n;
	return n | 1;
}

static size_t chains_of(const struct clients *c)
{
	return (size_t)1 << (64 - c->shift);
}

int clients_open(unsigned int sessions, struct clients **ret)
{
	unsigned int log2 = 1;

	while (log2 < CHAINS_MAX_SHIFT && 1U << log2 < sessions)
		log2++;
	*ret = calloc(1, sizeof(**ret) + ((size_t)1 << log2) * sizeof((*ret)->chains[0]));
	if (!*ret)
		return -ENOMEM;
	pthread_mutex_init(&(*ret)->lock, NULL);
	(*ret)->multiplier = random_odd();
	(*ret)->shift = 64 - log2;
	return 0;
}

static void remove_entry(struct entry **link)
{
	struct entry *e = *link;

	*link = e->next;
	bandwidth_put(e->bandwidth);
	free(e);
}

void clients_close(struct clients *c)
{
	if (!c)
		return;
	for (size_t i = 0; i < chains_of(c); i++)
		while (c->chains[i])
			remove_entry(&c->chains[i]);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* The link that leads to the entry of KEY, or the end of its chain. */
static struct entry **find(struct clients *c, const struct key *key)
{
	struct entry **link = &c->chains[(key->bits * c->multiplier) >> c->shift];

	while (*link && ((*link)->key.bits != key->bits || (*link)->key.v6 != key->v6))
		link = &(*link)->next;
	return link;
}

/* Free the entries of the next chain that nobody needs any more. */
static void sweep(struct clients *c)
{
	uint64_t now = clock_ms();
	struct entry **link = &c->chains[c->sweep];

	c->sweep = (c->sweep + 1) & (chains_of(c) - 1);
	while (*link) {
		if (!(*link)->sessions && now - (*link)->left_ms >= KEEP_MS)
			remove_entry(link);
		else
			link = &(*link)->next;
	}
}

static int enter(struct clients *c, const struct key *key, unsigned int most)
{
	struct entry **link;

	sweep(c);
	sweep(c);
	link = find(c, key);
	if (!*link) {
		*link = calloc(1, sizeof(**link));
		if (!*link)
			return -ENOMEM;
		(*link)->key = *key;
	}
	if (most && (*link)->sessions >= most)
		return -EUSERS;
	if (!(*link)->sessions++)
		c->n++;
	return 0;
}

int clients_enter(struct clients *c, const struct sockaddr *client, unsigned int most)
{
	struct key key;
	int r;

	if (!c || !key_of(client, &key))
		return 0;
	pthread_mutex_lock(&c->lock);
	r = enter(c, &key, most);
	pthread_mutex_unlock(&c->lock);
	return r;
}

static void leave(struct clients *c, struct entry **link)
{
	if (!*link || --(*link)->sessions)
		return;
	c->n--;
	if ((*link)->bandwidth)
		(*link)->left_ms = clock_ms();
	else
		remove_entry(link);
}

void clients_leave(struct clients *c, const struct sockaddr *client)
{
	struct key key;

	if (!c || !key_of(client, &key))
		return;
	pthread_mutex_lock(&c->lock);
	leave(c, find(c, &key));
	pthread_mutex_unlock(&c->lock);
}

unsigned int clients_count(struct clients *c)
{
	unsigned int n;

	pthread_mutex_lock(&c->lock);
	n = c->n;
	pthread_mutex_unlock(&c->lock);
	return n;
}

static int share(struct entry *e, uint64_t rate, struct bandwidth **ret)
{
	if (!bandwidth_is(e->bandwidth, rate)) {
		int r = bandwidth_new(rate, ret);

		if (r)
			return r;
		bandwidth_put(e->bandwidth);
		e->bandwidth = *ret;
	}
	*ret = bandwidth_get(e->bandwidth);
	return 0;
}

int clients_bandwidth(struct clients *c, const struct sockaddr *client, uint64_t rate,
		      struct bandwidth **ret)
{
	struct key key;
	int r;

	*ret = NULL;
	if (!c || !rate || !key_of(client, &key))
		return 0;
	pthread_mutex_lock(&c->lock);
	r = share(*find(c, &key), rate, ret);
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* --- admission --- */

struct admission {
	const struct config *config;
	_Atomic unsigned int live; /* sessions of all forwards */
	struct clients *clients;
};

int admission_open(const struct config *c, struct admission **ret)
{
	struct admission *a = calloc(1, sizeof(*a));

	*ret = NULL;
	if (!a || clients_open(c->max_sessions, &a->clients)) {
		free(a);
		return -ENOMEM;
	}
	a->config = c;
	*ret = a;
	return 0;
}

void admission_close(struct admission *a)
{
	if (!a)
		return;
	clients_close(a->clients);
	free(a);
}

/* MOST 0: any number. */
static bool count_in(_Atomic unsigned int *live, unsigned int most)
{
	unsigned int n = atomic_load(live);

	do
		if (most && n >= most)
			return false;
	while (!atomic_compare_exchange_weak(live, &n, n + 1));
	return true;
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

static void log_full(const struct sockaddr *client, unsigned int most, const struct forward *f)
{
	char text[ADDR_STRLEN];
	union client_addr a;

	client_addr_set(&a, client);
	client_addr_text(&a, text, sizeof(text));
	if (f)
		log_limited(LOG_WARNING, "refused %s: it has %u session%s of forward %s "
			    "(max-sessions-per-client)", text, most, most == 1 ? "" : "s",
			    forward_name(f->conf));
	else
		log_limited(LOG_WARNING, "refused %s: it has %u session%s "
			    "(--max-sessions-per-client)", text, most, most == 1 ? "" : "s");
}

bool admission_enter_client(struct admission *a, struct forward *f, const struct sockaddr *client,
			    enum cause *ret_why)
{
	unsigned int own_most = f->conf->max_sessions_per_client;
	unsigned int most = a->config->max_sessions_per_client;
	int r = clients_enter(f->clients, client, own_most);

	if (r == -EUSERS)
		log_full(client, own_most, f);
	if (!r) {
		r = clients_enter(a->clients, client, most);
		if (r == -EUSERS)
			log_full(client, most, NULL);
		if (r)
			clients_leave(f->clients, client);
	}
	*ret_why = r == -EUSERS ? CAUSE_CLIENT_LIMIT : CAUSE_NO_MEMORY;
	return !r;
}

void admission_leave(struct admission *a, struct forward *f, const struct sockaddr *client)
{
	clients_leave(a->clients, client);
	clients_leave(f->clients, client);
	admission_cancel(a, f);
}

unsigned int admission_sessions(struct admission *a)
{
	return atomic_load(&a->live);
}

unsigned int admission_clients(struct admission *a)
{
	return clients_count(a->clients);
}
