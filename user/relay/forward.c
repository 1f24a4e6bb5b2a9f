// SPDX-License-Identifier: BSD-2-Clause
#include "relay/forward.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "datapath/graft/graft.h"
#include "relay/balance.h"

struct forward *forwards_find(const struct forwards *all, const char *name)
{
	struct forward *f;

	TAILQ_FOREACH(f, &all->list, in_forwards)
		if (f->state == FORWARD_ACTIVE && !strcmp(forward_name(f->conf), name))
			break;
	return f;
}

struct forward *forward_with_tag(const struct forwards *all, uint32_t tag)
{
	struct forward *f;

	TAILQ_FOREACH(f, &all->list, in_forwards)
		if (f->tag == tag)
			break;
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
	struct forward *f, *next;

	pthread_mutex_lock(&all->lock);
	for (f = TAILQ_FIRST(&all->list); f; f = next) {
		next = TAILQ_NEXT(f, in_forwards);
		if (!is_gone(f))
			continue;
		TAILQ_REMOVE(&all->list, f, in_forwards);
		forward_free(f);
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
	queue_init(&t->queue);
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

/*
 * Find the next word of *TEXT, and set *TEXT to its end.  Blanks separate words.  Returns the
 * word's length, or 0.
 */
static size_t forward_next_word(const char **text, const char **ret)
{
	*ret = *text + strspn(*text, " \t");
	*text = *ret + strcspn(*ret, " \t");
	return (size_t)(*text - *ret);
}

/* Make the names of F, and buckets for the names of its [sni] sections.  False: no memory. */
static bool forward_take_sni(struct forward *f)
{
	const char *text = f->conf->sni, *word;
	size_t len, n = 1;

	/* workers may look at the totals now, for the forward that F replaces */
	pthread_mutex_lock(&f->totals->servers_lock);
	if (f->conf->hellos && !f->totals->sni)
		f->totals->sni = calloc(SNI_BUCKETS, sizeof(*f->totals->sni));
	pthread_mutex_unlock(&f->totals->servers_lock);
	if (f->conf->hellos && !f->totals->sni)
		return false;
	while (text && forward_next_word(&text, &word))
		n++;
	f->sni = calloc(n, sizeof(*f->sni));
	text = f->conf->sni;
	if (!f->sni)
		return false;
	while (text && (len = forward_next_word(&text, &word))) {
		bool any = *word == '*';

		f->sni[f->n_sni++] = (struct sni_name){
			.text = word + any, .len = len - any, .any = any, .forward = f
		};
	}
	return true;
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
	f->tag = graft_tag(forward_name(fc));
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
	if (!f->totals || !forward_take_sni(f) ||
	    servers_open(&f->servers, fc, before ? &before->servers : NULL,
			 &f->totals->servers_lock, &f->totals->queue, clock_ms())) {
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
	free(t->sni);
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
	free(f->sni);
	free(f);
}

/* --- names --- */

static struct sni_bucket *forward_sni_bucket(const struct forward *f, const char *text, size_t len)
{
	return &f->totals->sni[balance_hash(text, len, 0) % SNI_BUCKETS];
}

static void forward_add_sni(struct forward *f, struct forward *section)
{
	for (struct sni_name *n = section->sni; n < section->sni + section->n_sni; n++)
		STAILQ_INSERT_TAIL(forward_sni_bucket(f, n->text, n->len), n, in_bucket);
}

void forward_set_sni(struct forward *f, struct forward *const *all, size_t n)
{
	pthread_mutex_lock(&f->totals->servers_lock);
	for (size_t i = 0; f->totals->sni && i < SNI_BUCKETS; i++)
		STAILQ_INIT(&f->totals->sni[i]);
	for (size_t i = 0; i < n; i++)
		if (all[i]->conf->sni && all[all[i]->conf->of] == f)
			forward_add_sni(f, all[i]);
	f->totals->nameless = !all;
	pthread_mutex_unlock(&f->totals->servers_lock);
}

static bool is_offered(const char *protocols, const struct tls_hello *h)
{
	bool offered = !protocols;
	const char *word;
	size_t len;

	while (!offered && (len = forward_next_word(&protocols, &word)))
		offered = tls_hello_offers(h, word, len);
	return offered;
}

/* The first section of F with the name TEXT (ANY: "*" and TEXT) that takes a protocol of H. */
static struct forward *forward_find_sni(const struct forward *f, const char *text, bool any,
					const struct tls_hello *h)
{
	size_t len = strlen(text);
	struct sni_name *n;

	STAILQ_FOREACH(n, forward_sni_bucket(f, text, len), in_bucket)
		if (n->any == any && n->len == len && !memcmp(n->text, text, len) &&
		    is_offered(n->forward->conf->alpn, h))
			return n->forward;
	return NULL;
}

/* An exact name counts before all patterns, a longer pattern before others. */
struct forward *forward_route(struct forward *f, const struct tls_hello *h)
{
	static const struct tls_hello none;
	struct forward *found = NULL;
	bool nameless;
	/* no host has that name, and a client that asks for it gets what names no server */
	const char *at = !h ? SNI_NOT_TLS : strcmp(h->name, SNI_NOT_TLS) ? h->name : "";

	pthread_mutex_lock(&f->totals->servers_lock);
	if (!h && f->totals->sni)
		found = forward_find_sni(f, at, false, &none);
	else if (*at && f->totals->sni)
		found = forward_find_sni(f, at, false, h);
	while (h && !found && f->totals->sni && (at = strchr(at, '.')))
		found = forward_find_sni(f, at++, true, h);
	nameless = f->totals->nameless;
	if (found) {
		atomic_fetch_add(&found->sessions, 1);
		atomic_fetch_add(&found->totals->live, 1);
		atomic_fetch_sub(&f->totals->live, 1);
	}
	pthread_mutex_unlock(&f->totals->servers_lock);
	if (!found)
		return h && f->conf->upstream.n && !nameless ? f : NULL;
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
	return found;
}

uint16_t forward_port_offset(const struct forward *f, in_port_t port)
{
	const struct forward_conf *fc = f->conf;

	if (!fc->upstream.n || fc->upstream.servers[0].at.n_ports <= 1)
		return 0;
	return (uint16_t)(ntohs(port) - ntohs(fc->listen.named_port));
}

/* --- sessions that wait --- */

void forward_set_active(struct forward *f, bool is)
{
	pthread_mutex_lock(&f->totals->servers_lock);
	f->totals->active = is ? f : NULL;
	pthread_mutex_unlock(&f->totals->servers_lock);
}

/* May a session of F, at OFFSET, go on with TO?  *RET_OFFSET: its offset there. */
static bool forward_may_follow(const struct forward *f, uint16_t offset, const struct forward *to,
			       uint16_t *ret_offset)
{
	const struct endpoint *had = &f->conf->upstream.servers[0].at, *on = &f->conf->listen;
	in_port_t port = htons((uint16_t)(ntohs(on->named_port) + offset));

	*ret_offset = forward_port_offset(to, port);
	if (to->conf->listen.udp != on->udp || to->limits != f->limits || !to->conf->upstream.n)
		return false;
	/* in a range, PORT has to be known, and TO to have it */
	return to->conf->upstream.servers[0].at.n_ports <= 1 ||
	       (had->n_ports == on->n_ports &&
		*ret_offset < to->conf->upstream.servers[0].at.n_ports);
}

struct forward *forward_follow(struct forward *f, uint16_t *offset)
{
	struct forward *to;
	uint16_t at;

	pthread_mutex_lock(&f->totals->servers_lock);
	to = f->totals->active;
	if (!to || to == f || !forward_may_follow(f, *offset, to, &at)) {
		pthread_mutex_unlock(&f->totals->servers_lock);
		return f;
	}
	atomic_fetch_add(&to->sessions, 1); /* with the lock: TO may be replaced, too */
	pthread_mutex_unlock(&f->totals->servers_lock);
	*offset = at;
	atomic_fetch_sub(&f->sessions, 1); /* last: F may be freed then */
	return to;
}

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

uint64_t forward_sum(const struct forward *f, size_t at)
{
	uint64_t n = 0;

	for (unsigned int w = 0; w < f->totals->n_workers; w++)
		n += count_get((counter *)((char *)&f->totals->stats[w] + at));
	return n;
}
