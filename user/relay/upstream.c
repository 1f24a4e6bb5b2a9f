// SPDX-License-Identifier: BSD-2-Clause
#include "relay/upstream.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "relay/happy_eyeballs.h"

#define SHOWN 4 /* addresses of a list that are written out */
#define INDEX_BITS 16

/* --- lists --- */

struct addr_list *addr_list_new(const struct addr *addrs, size_t n)
{
	struct addr_list *list = malloc(sizeof(*list) + n * sizeof(*addrs));

	if (!list)
		return NULL;
	atomic_init(&list->refs, 1);
	atomic_init(&list->preferred, 0);
	list->n = n;
	happy_sort(addrs, list->addrs, n);
	return list;
}

void addr_list_put(struct addr_list *list)
{
	if (list && atomic_fetch_sub_explicit(&list->refs, 1, memory_order_acq_rel) == 1)
		free(list);
}

/* `preferred` is the time until which it holds, and in the low bits the index; 0: none. */
size_t addr_list_first(struct addr_list *list, uint64_t now_ms)
{
	uint64_t p = atomic_load_explicit(&list->preferred, memory_order_relaxed);

	return p >> INDEX_BITS > now_ms ? p & ((1U << INDEX_BITS) - 1) : 0;
}

void addr_list_prefer(struct addr_list *list, size_t index, uint64_t now_ms)
{
	uint64_t until = now_ms + ADDR_PREFER_MS;

	if (index < 1U << INDEX_BITS)
		atomic_store_explicit(&list->preferred, until << INDEX_BITS | index,
				      memory_order_relaxed);
}

void addr_list_forget(struct addr_list *list)
{
	atomic_store_explicit(&list->preferred, 0, memory_order_relaxed);
}

const char *addr_list_format(const struct addr_list *list, char *buf, size_t size)
{
	char text[ADDR_STRLEN];
	size_t at = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < list->n && i < SHOWN && at < size; i++) {
		const struct addr *a = &list->addrs[i];

		at += (size_t)snprintf(buf + at, size - at, "%s%s", i ? ", " : "",
				       addr_format((const struct sockaddr *)&a->ss, a->len, text,
						   sizeof(text)));
	}
	if (list->n > SHOWN && at < size)
		snprintf(buf + at, size - at, " and %zu more", list->n - SHOWN);
	return buf;
}

static bool list_has(const struct addr_list *list, const struct addr *a)
{
	for (size_t i = 0; i < list->n; i++)
		if (addr_equal(&list->addrs[i], a))
			return true;
	return false;
}

/* Both have every address once, so one way is enough. */
static bool same_set(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (!list_has(b, &a->addrs[i]))
			return false;
	return a->n == b->n;
}

/* What was learnt of an address that is in both stays known. */
static void inherit_preferred(struct addr_list *to, struct addr_list *from)
{
	uint64_t p = atomic_load_explicit(&from->preferred, memory_order_relaxed);
	size_t index = p & ((1U << INDEX_BITS) - 1);

	for (size_t i = 1; p && index < from->n && i < to->n; i++)
		if (addr_equal(&to->addrs[i], &from->addrs[index]))
			atomic_store_explicit(&to->preferred,
					      p >> INDEX_BITS << INDEX_BITS | i,
					      memory_order_relaxed);
}

/* --- upstreams --- */

int upstream_open(struct upstream *u, const struct endpoint *conf, const struct endpoint *listen,
		  unsigned int interval_ms, uint64_t now_ms)
{
	memset(u, 0, sizeof(*u));
	u->list = addr_list_new(conf->addrs, conf->n_addrs);
	if (!u->list)
		return -ENOMEM;
	pthread_mutex_init(&u->lock, NULL);
	u->conf = conf;
	u->listen = listen;
	u->interval_ms = interval_ms;
	u->record.resolved_ms = now_ms;
	return 0;
}

void upstream_close(struct upstream *u)
{
	if (!u->list)
		return;
	if (atomic_load(&u->ask))
		u->forget(u->arg, u);
	addr_list_put(u->list);
	u->list = NULL;
	pthread_mutex_destroy(&u->lock);
}

struct addr_list *upstream_get(struct upstream *u)
{
	struct addr_list *list;

	pthread_mutex_lock(&u->lock);
	list = u->list;
	atomic_fetch_add_explicit(&list->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&u->lock);
	return list;
}

bool upstream_is_unknown(struct upstream *u)
{
	bool is;

	pthread_mutex_lock(&u->lock);
	is = !u->list->n;
	pthread_mutex_unlock(&u->lock);
	return is;
}

/* --- sessions that wait for the first address --- */

static void want(struct upstream *u)
{
	upstream_ask_fn *ask = atomic_load(&u->ask);

	if (ask && !atomic_exchange(&u->wanted, true))
		ask(u->arg);
}

/*
 * SEEN is the number of look-ups that had ended when the session came, and one: so any that ends
 * later is told from them, also the one that was under way.
 */
int upstream_await(struct upstream *u, uint64_t *seen, struct addr_list **ret)
{
	int r = 0;

	pthread_mutex_lock(&u->lock);
	if (u->list->n) {
		*ret = u->list;
		atomic_fetch_add_explicit(&u->list->refs, 1, memory_order_relaxed);
		r = 1;
	} else if ((*seen && *seen != u->record.lookups + 1) || !atomic_load(&u->ask)) {
		r = -ENOENT;
	} else {
		*seen = u->record.lookups + 1;
		u->awaited = true;
	}
	pthread_mutex_unlock(&u->lock);
	if (!r)
		want(u);
	return r;
}

bool upstream_awaited(struct upstream *u)
{
	bool awaited;

	pthread_mutex_lock(&u->lock);
	awaited = u->awaited;
	u->awaited = false;
	pthread_mutex_unlock(&u->lock);
	return awaited;
}

/* --- what is found --- */

/*
 * The port of a name's addresses; 0: it is the name of a service, and will be known with the first
 * of them.  By whoever replaces the list.
 */
static in_port_t port_wanted(const struct upstream *u)
{
	if (u->conf->n_addrs || !u->list->n)
		return u->conf->n_addrs ? addr_port(&u->conf->addrs[0]) : u->conf->named_port;
	return addr_port(&u->list->addrs[0]);
}

static bool is_acceptable(const struct upstream *u, const struct addr *a)
{
	in_port_t port = port_wanted(u);

	if (!addr_is_inet(a) || !addr_port(a) || (port && addr_port(a) != port))
		return false;
	for (size_t i = 0; i < u->listen->n_addrs; i++)
		if (addr_leads_to(a, &u->listen->addrs[i]))
			return false;
	return true;
}

static bool same_order(const struct addr_list *a, const struct addr_list *b)
{
	for (size_t i = 0; a->n == b->n && i < a->n; i++)
		if (!addr_equal(&a->addrs[i], &b->addrs[i]))
			return false;
	return a->n == b->n;
}

/*
 * What it was: the list stays, so that sessions that are about to connect tell those that come what
 * they have learnt of it.
 */
static void confirm(struct upstream *u, uint64_t now_ms)
{
	pthread_mutex_lock(&u->lock);
	u->record.lookups++;
	u->record.resolved_ms = now_ms;
	u->record.why[0] = '\0';
	pthread_mutex_unlock(&u->lock);
}

/* The list is U's from now on.  Returns whether its set of addresses is another. */
static bool replace(struct upstream *u, struct addr_list *list, uint64_t now_ms)
{
	struct addr_list *old;
	bool same;

	/* there is one who replaces it: no lock is needed to look */
	inherit_preferred(list, u->list);
	same = same_set(list, u->list);
	pthread_mutex_lock(&u->lock);
	old = u->list;
	u->list = list;
	pthread_mutex_unlock(&u->lock);
	confirm(u, now_ms);
	addr_list_put(old);
	return !same;
}

int upstream_found(struct upstream *u, const struct addr *addrs, size_t n, uint64_t now_ms)
{
	struct addr *good = calloc(n ?: 1, sizeof(*good));
	struct addr_list *list = NULL;
	size_t n_good = 0;

	for (size_t i = 0; good && i < n; i++)
		if (is_acceptable(u, &addrs[i]))
			good[n_good++] = addrs[i];
	if (n_good)
		list = addr_list_new(good, n_good);
	free(good);
	if (list && same_order(list, u->list)) {
		addr_list_put(list);
		confirm(u, now_ms);
		return 0;
	}
	if (list)
		return replace(u, list, now_ms);
	if (good && !n_good) {
		upstream_not_found(u, n ? "its only address is the listener of this forward" :
					  "it has no address");
		return -EADDRNOTAVAIL;
	}
	upstream_not_found(u, "out of memory");
	return -ENOMEM;
}

bool upstream_not_found(struct upstream *u, const char *why)
{
	bool news;

	pthread_mutex_lock(&u->lock);
	news = strncmp(u->record.why, why, sizeof(u->record.why) - 1) != 0;
	snprintf(u->record.why, sizeof(u->record.why), "%s", why);
	u->record.lookups++;
	u->record.failures++;
	pthread_mutex_unlock(&u->lock);
	return news;
}

void upstream_record(struct upstream *u, struct lookup_record *ret)
{
	pthread_mutex_lock(&u->lock);
	*ret = u->record;
	pthread_mutex_unlock(&u->lock);
}

void upstream_failed(struct upstream *u, uint64_t now_ms)
{
	uint64_t last = atomic_load_explicit(&u->wanted_ms, memory_order_relaxed);
	upstream_ask_fn *ask = atomic_load(&u->ask);

	if (!ask || (last && now_ms < last + UPSTREAM_ASK_MS))
		return;
	if (!atomic_compare_exchange_strong(&u->wanted_ms, &last, now_ms))
		return; /* another worker has asked just now */
	atomic_store(&u->wanted, true);
	ask(u->arg);
}
