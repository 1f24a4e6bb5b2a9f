// SPDX-License-Identifier: BSD-2-Clause
#include "relay/forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"

void forwards_init(struct forwards *all)
{
	all->first = NULL;
	pthread_mutex_init(&all->lock, NULL);
}

void forwards_close(struct forwards *all)
{
	while (all->first) {
		struct forward *f = all->first;

		all->first = f->next;
		forward_free(f);
	}
	pthread_mutex_destroy(&all->lock);
}

struct forward *forwards_find(const struct forwards *all, const char *name)
{
	struct forward *f = all->first;

	while (f && (f->state != FORWARD_ACTIVE || strcmp(forward_name(f->conf), name) != 0))
		f = f->next;
	return f;
}

static bool is_gone(const struct forward *f)
{
	if (f->state == FORWARD_ACTIVE || atomic_load(&f->sessions) ||
	    atomic_load(&f->old_sockets) || atomic_load(&f->checks))
		return false;
	return f->state == FORWARD_REPLACED || !atomic_load(&f->totals->live);
}

void forwards_reap(struct forwards *all)
{
	struct forward **at = &all->first, *f;

	pthread_mutex_lock(&all->lock);
	while ((f = *at)) {
		if (is_gone(f)) {
			*at = f->next;
			forward_free(f);
		} else {
			at = &f->next;
		}
	}
	pthread_mutex_unlock(&all->lock);
}

static struct forward_totals *totals_new(unsigned int n_workers)
{
	size_t size = sizeof(struct forward_totals) + n_workers * sizeof(struct forward_stats);
	struct forward_totals *t = aligned_alloc(_Alignof(struct forward_totals), size);

	if (!t)
		return NULL;
	memset(t, 0, size);
	t->n_workers = n_workers;
	t->due_ms = NEVER;
	clients_init(&t->clients);
	pthread_mutex_init(&t->servers_lock, NULL);
	return t;
}

void config_version_drop(struct config_version *v)
{
	if (!v || --v->refs)
		return;
	config_close(&v->config);
	free(v);
}

struct forward *forward_new(const struct forward_conf *fc, const struct config *c,
			    struct config_version *from, struct forward *before,
			    const struct forward *of)
{
	struct forward *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->conf = fc;
	f->engine = fc->engine;
	f->totals = before ? before->totals : totals_new(c->workers);
	if (f->totals)
		f->totals->refs++;
	f->limits = of ? of->totals : f->totals;
	if (of)
		f->limits->refs++;
	f->from = from;
	if (from)
		from->refs++;
	/* a tenth of a second's connections may come at once */
	bucket_init(&f->accepts, fc->accept_rate, fc->accept_rate / 10 ?: 1, clock_ms());
	if (!f->totals || servers_open(&f->servers, fc, before ? &before->servers : NULL,
				       &f->totals->servers_lock, clock_ms())) {
		forward_free(f);
		return NULL;
	}
	return f;
}

static void drop_totals(struct forward_totals *t)
{
	if (!t || --t->refs)
		return;
	clients_close(&t->clients);
	pthread_mutex_destroy(&t->servers_lock);
	free(t);
}

void forward_free(struct forward *f)
{
	marked_sockets_close(f->stock);
	servers_close(&f->servers);
	if (f->limits != f->totals)
		drop_totals(f->limits);
	drop_totals(f->totals);
	config_version_drop(f->from);
	free(f);
}

/* --- names --- */

void forward_set_names(struct forward *f, struct forward *const *all, size_t n)
{
	struct forward **at = &f->totals->names;

	pthread_mutex_lock(&f->totals->servers_lock);
	for (size_t i = 0; i < n; i++)
		if (all[i]->conf->sni && all[all[i]->conf->of] == f) {
			*at = all[i];
			at = &all[i]->next_name;
		}
	*at = NULL;
	f->totals->nameless = !all;
	pthread_mutex_unlock(&f->totals->servers_lock);
}

/* The words of TEXT are separated by blanks.  Returns the most that FITS says of one of them. */
static size_t best_word(const char *text, const struct tls_hello *h,
			size_t (*fits)(const char *word, size_t len, const struct tls_hello *h))
{
	size_t best = 0;

	for (size_t len; *(text += strspn(text, " \t")); text += len) {
		len = strcspn(text, " \t");
		best = larger(best, fits(text, len, h));
	}
	return best;
}

static size_t offered(const char *protocol, size_t len, const struct tls_hello *h)
{
	return tls_hello_offers(h, protocol, len);
}

/* How well H's name matches: an exact one before all patterns, a longer one before others. */
static size_t matched(const char *pattern, size_t len, const struct tls_hello *h)
{
	if (!tls_name_matches(pattern, len, h->name))
		return 0;
	return *pattern == '*' ? len : SIZE_MAX;
}

struct forward *forward_route(struct forward *f, const struct tls_hello *h)
{
	struct forward *found = NULL;
	bool nameless;
	size_t best = 0;

	pthread_mutex_lock(&f->totals->servers_lock);
	for (struct forward *n = h->name[0] ? f->totals->names : NULL; n; n = n->next_name) {
		size_t fits = best_word(n->conf->sni, h, matched);

		if (fits <= best || (n->conf->alpn && !best_word(n->conf->alpn, h, offered)))
			continue;
		best = fits;
		found = n;
	}
	nameless = f->totals->nameless;
	if (found) {
		atomic_fetch_add(&found->sessions, 1);
		atomic_fetch_add(&found->totals->live, 1);
		atomic_fetch_sub(&f->totals->live, 1);
	}
	pthread_mutex_unlock(&f->totals->servers_lock);
	if (!found)
		return f->conf->upstream.n && !nameless ? f : NULL;
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
	return found;
}

/* Who reaches a unix socket is up to its directory. */
int forward_pace(struct forward *f, const struct sockaddr *client, struct pace **ret)
{
	struct bandwidth *limits[LIMITS] = { [OF_FORWARD] = &f->limits->bandwidth };
	uint64_t rates[LIMITS] = { [OF_FORWARD] = f->conf->bandwidth };

	/* a client of a unix socket has no address, and so no limit */
	if (f->conf->bandwidth_per_client && client->sa_family != AF_UNIX) {
		rates[OF_CLIENT] = f->conf->bandwidth_per_client;
		limits[OF_CLIENT] = clients_bandwidth(&f->limits->clients, client);
		if (!limits[OF_CLIENT])
			return -ENOMEM;
	}
	return pace_new(limits, rates, ret);
}

void forward_warn(const struct forward_conf *fc)
{
	if (!fc->sni && fc->proxy_protocol & PROXY_RECEIVE && !fc->acl.allows &&
	    addr_is_inet(&fc->listen.addrs[0]))
		log_warning("forward %s believes what PROXY headers say, whoever sends them: name "
			    "the proxies with allow",
			    forward_name(fc));
}

const char *forward_state_name(const struct forward *f)
{
	static const char *const names[] = {
		[FORWARD_ACTIVE] = "active",
		[FORWARD_REPLACED] = "replaced",
		[FORWARD_REMOVED] = "removed",
	};

	return f->state == FORWARD_ACTIVE && f->draining ? "draining" : names[f->state];
}
