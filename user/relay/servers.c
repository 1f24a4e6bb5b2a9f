// SPDX-License-Identifier: BSD-2-Clause
#include "relay/servers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"

/* --- a server --- */

static struct server *server_new(const char *name)
{
	struct server *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	atomic_init(&s->refs, 1);
	snprintf(s->name, sizeof(s->name), "%s", name);
	s->hash = balance_hash(name, strlen(name), 0);
	return s;
}

struct server *server_get(struct server *s)
{
	atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
	return s;
}

void server_put(struct server *s)
{
	if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1)
		free(s);
}

void server_leave(struct server *s)
{
	atomic_fetch_sub_explicit(&s->live, 1, memory_order_relaxed);
	server_put(s);
}

static struct server *server_enter(struct server *s)
{
	atomic_fetch_add_explicit(&s->live, 1, memory_order_relaxed);
	return server_get(s);
}

/* --- members --- */

static struct member *find_name(const struct servers *ss, const char *name)
{
	for (size_t i = 0; ss && i < ss->n; i++)
		if (!strcmp(ss->members[i].server->name, name))
			return &ss->members[i];
	return NULL;
}

/*
 * Add to SS the server NAME of CONF and P, which BEFORE may have already.  A: its only address; NULL:
 * those of P.  -ENOMEM.
 */
static int add_member(struct servers *ss, const struct servers *before,
		      const struct server_conf *conf, struct place *p, const char *name,
		      const struct addr *a)
{
	const struct member *known = find_name(before, name);
	struct member m = { .conf = conf, .upstream = &p->upstream, .turn = known ? known->turn : 0 };

	if (ss->n == SERVERS_IN_USE_MAX || find_name(ss, name))
		return 0;
	m.server = known ? server_get(known->server) : server_new(name);
	m.list = a ? addr_list_new(a, 1) : NULL;
	if (!m.server || (a && !m.list)) {
		server_put(m.server);
		addr_list_put(m.list);
		return -ENOMEM;
	}
	ss->members[ss->n++] = m;
	return 0;
}

static void drop_members(struct servers *ss)
{
	for (size_t i = 0; i < ss->n; i++) {
		addr_list_put(ss->members[i].list);
		server_put(ss->members[i].server);
	}
	free(ss->members);
	ss->members = NULL;
	ss->n = 0;
}

static int add_place(struct servers *ss, const struct servers *before,
		     const struct server_conf *conf, struct place *p)
{
	struct addr_list *list = lookup_get(&p->upstream);
	bool each = ss->conf->each_address && conf->at.named && list->n;
	char name[ADDR_STRLEN];
	int r = each ? 0 : add_member(ss, before, conf, p, conf->at.text, NULL);

	for (size_t i = 0; each && !r && i < list->n; i++) {
		const struct addr *a = &list->addrs[i];

		addr_format((const struct sockaddr *)&a->ss, a->len, name, sizeof(name));
		r = add_member(ss, before, conf, p, name, a);
	}
	addr_list_put(r ? list : p->seen);
	p->seen = r ? p->seen : list;
	return r;
}

/* Make the members of SS anew; what BEFORE, or SS itself, knows of a server stays.  -ENOMEM. */
static int make_members(struct servers *ss, const struct servers *before)
{
	struct servers fresh = { .conf = ss->conf }, old = *ss;
	const struct upstream *up = &ss->conf->upstream;
	int r = 0;

	fresh.members = calloc(SERVERS_IN_USE_MAX, sizeof(*fresh.members));
	if (!fresh.members)
		return -ENOMEM;
	for (size_t i = 0; !r && i < up->n; i++)
		r = add_place(&fresh, before, &up->servers[i], &ss->places[i]);
	if (!r) {
		ss->members = fresh.members;
		ss->n = fresh.n;
	}
	drop_members(r ? &fresh : &old);
	return r;
}

void servers_refresh(struct servers *ss)
{
	bool stale = false;

	for (size_t i = 0; ss->conf->each_address && i < ss->conf->upstream.n; i++) {
		struct place *p = &ss->places[i];
		struct addr_list *list;

		if (!ss->conf->upstream.servers[i].at.named)
			continue;
		list = lookup_get(&p->upstream);
		stale = stale || list != p->seen;
		addr_list_put(list);
	}
	if (stale && make_members(ss, ss))
		log_limited(LOG_WARNING, "upstream %s: no memory to follow its addresses",
			    ss->conf->upstream.text);
}

struct addr_list *member_list(const struct member *m)
{
	if (!m->list)
		return lookup_get(m->upstream);
	atomic_fetch_add_explicit(&m->list->refs, 1, memory_order_relaxed);
	return m->list;
}

static struct member *member_of(struct servers *ss, const struct server *s)
{
	for (size_t i = 0; i < ss->n; i++)
		if (ss->members[i].server == s)
			return &ss->members[i];
	return NULL;
}

/* --- beginning and end --- */

/* The place of BEFORE with that text knows the addresses of its name, and has its counts. */
static void know_addresses(struct place *p, struct servers *before, const char *text)
{
	for (size_t i = 0; before && i < before->conf->upstream.n; i++)
		if (!strcmp(before->conf->upstream.servers[i].at.text, text)) {
			lookup_know(&p->upstream, &before->places[i].upstream);
			p->sessions = before->places[i].sessions;
			p->failures = before->places[i].failures;
		}
}

int servers_open(struct servers *ss, const struct forward_conf *fc, struct servers *before,
		 pthread_mutex_t *lock, uint64_t now_ms)
{
	const struct upstream *up = &fc->upstream;
	int r = 0;

	*ss = (struct servers){ .conf = fc, .lock = lock };
	ss->places = calloc(up->n, sizeof(*ss->places));
	if (!ss->places)
		return -ENOMEM;
	pthread_mutex_lock(lock);
	for (size_t i = 0; !r && i < up->n; i++) {
		struct place *p = &ss->places[i];

		r = lookup_open(&p->upstream, &up->servers[i].at, &fc->listen,
				  fc->resolve_interval_ms, now_ms);
		if (!r)
			know_addresses(p, before, up->servers[i].at.text);
	}
	r = r ?: make_members(ss, before);
	pthread_mutex_unlock(lock);
	return r;
}

void servers_close(struct servers *ss)
{
	for (size_t i = 0; ss->places && i < ss->conf->upstream.n; i++) {
		lookup_close(&ss->places[i].upstream);
		addr_list_put(ss->places[i].seen);
	}
	drop_members(ss);
	free(ss->places);
	ss->places = NULL;
}

int servers_add_names(struct servers *ss, struct names *names)
{
	int r = 0;

	for (size_t i = 0; !r && i < ss->conf->upstream.n; i++)
		r = names_add(names, &ss->places[i].upstream);
	return r;
}

/* --- choosing one --- */

static struct place *place_of(const struct member *m)
{
	return container_of(m->upstream, struct place, upstream);
}

static bool is_among(struct server *const *tried, size_t n, const struct server *s)
{
	while (n > 0)
		if (tried[--n] == s)
			return true;
	return false;
}

/* A client is an IPv4 address, or an IPv6 /64 prefix. */
static uint64_t hash_of(const union client_addr *client)
{
	if (client->sa.sa_family == AF_INET)
		return balance_hash(&client->in.sin_addr, sizeof(client->in.sin_addr), 0);
	return client->sa.sa_family == AF_INET6 ? balance_hash(&client->in6.sin6_addr, 8, 0) : 0;
}

/* What is known of each member that can be connected to; of the others a name that has no address. */
struct choice {
	size_t n;
	struct member *members[SERVERS_IN_USE_MAX];
	struct candidate candidates[SERVERS_IN_USE_MAX];
	struct lookup *nameless;
};

static void consider(struct choice *c, struct member *m, uint64_t now_ms)
{
	const struct server *s = m->server;
	enum server_state state = health_state(&s->health, now_ms);
	struct lookup_record record;
	struct addr_list *list;
	bool empty;

	if (state > SERVER_ASIDE)
		return;
	list = member_list(m);
	empty = !list->n;
	addr_list_put(list);
	if (empty) {
		lookup_record(m->upstream, &record);
		if (!c->nameless || !record.why[0]) /* one that is being looked up comes first */
			c->nameless = m->upstream;
		return;
	}
	c->members[c->n] = m;
	c->candidates[c->n++] = (struct candidate){
		.state = state, .backup = m->conf->backup,
		.silent = now_ms < s->ask_ms &&
			  is_silent(atomic_load(&s->owes_ms), atomic_load(&s->usual_ms), now_ms),
		.weight = health_weight(&s->health, m->conf->weight, now_ms),
		.live = atomic_load_explicit(&s->live, memory_order_relaxed),
		.name = s->hash, .turn = &m->turn,
	};
}

/* As servers_pick(), with the lock; RET_NAMELESS: a name that may yet get an address, or NULL. */
static int pick(struct servers *ss, const union client_addr *client, struct server *const *tried,
		size_t n, uint64_t now_ms, struct server **ret, struct addr_list **ret_list,
		struct lookup **ret_nameless)
{
	struct choice c;
	size_t best;

	c.n = 0;
	c.nameless = NULL;
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++)
		if (!is_among(tried, n, ss->members[i].server))
			consider(&c, &ss->members[i], now_ms);
	*ret_nameless = c.nameless;
	best = balance_pick(ss->conf->balance, c.candidates, c.n, hash_of(client));
	if (best == c.n)
		return -EHOSTDOWN;
	*ret = server_enter(c.members[best]->server);
	*ret_list = member_list(c.members[best]);
	(*ret)->sessions++;
	(*ret)->ask_ms = now_ms + ASK_AGAIN_MS;
	if (!atomic_load(&(*ret)->owes_ms))
		atomic_store(&(*ret)->owes_ms, now_ms);
	place_of(c.members[best])->sessions++;
	if (c.candidates[best].state == SERVER_TRIAL)
		health_try(&(*ret)->health, now_ms);
	return (int)c.n;
}

int servers_pick(struct servers *ss, const union client_addr *client,
		 struct server *const *tried, size_t n, uint64_t *seen, uint64_t now_ms,
		 struct server **ret, struct addr_list **ret_list)
{
	struct lookup *nameless;
	int r;

	for (;;) {
		pthread_mutex_lock(ss->lock);
		r = pick(ss, client, tried, n, now_ms, ret, ret_list, &nameless);
		pthread_mutex_unlock(ss->lock);
		if (r > 0 || !nameless)
			return r;
		r = lookup_await(nameless, seen, ret_list);
		if (r <= 0)
			return r;
		addr_list_put(*ret_list); /* it has just got one */
	}
}

/* --- how they fare --- */

/* Log it if S is not in state WAS any more. */
static void say(const struct servers *ss, const struct server *s, enum server_state was,
		uint64_t now_ms)
{
	enum server_state is = health_state(&s->health, now_ms);

	if (is == was)
		return;
	if (is == SERVER_ASIDE && was != SERVER_TRIAL)
		log_warning("forward %s: server %s is set aside for %.0f s: %s",
			    forward_name(ss->conf), s->name,
			    (double)(s->health.aside_ms - now_ms) / 1000, s->error);
	else if (is == SERVER_FAILED)
		log_warning("forward %s: server %s has failed its checks: %s",
			    forward_name(ss->conf), s->name, s->error);
	else if (is == SERVER_RETURNING)
		log_info("forward %s: server %s is back", forward_name(ss->conf), s->name);
}

static void note_error(struct server *s, int error, uint64_t now_ms)
{
	snprintf(s->error, sizeof(s->error), "%s", strerror(error));
	s->error_ms = now_ms;
}

bool servers_refused(struct servers *ss, struct server *s, int error, uint64_t *seen,
		     uint64_t now_ms)
{
	enum server_state was;
	struct member *m;
	bool may_move;

	pthread_mutex_lock(ss->lock);
	was = health_state(&s->health, now_ms);
	m = member_of(ss, s);
	may_move = m && lookup_failed(m->upstream, seen, now_ms);
	if (m)
		place_of(m)->failures++;
	s->failures++;
	atomic_store(&s->owes_ms, 0);
	note_error(s, error, now_ms);
	atomic_store_explicit(&s->refuses, true, memory_order_relaxed);
	/* one alone gets every session, whatever has become of those before */
	if (ss->n > 1) {
		health_refused(&s->health, now_ms);
		say(ss, s, was, now_ms);
	}
	pthread_mutex_unlock(ss->lock);
	return may_move;
}

void servers_connected(struct servers *ss, struct server *s, uint64_t took_ms, uint64_t now_ms)
{
	enum server_state was;

	atomic_store_explicit(&s->usual_ms, took_ms, memory_order_relaxed);
	atomic_store_explicit(&s->owes_ms, 0, memory_order_relaxed);
	if (!atomic_load_explicit(&s->refuses, memory_order_relaxed))
		return;
	pthread_mutex_lock(ss->lock);
	atomic_store_explicit(&s->refuses, false, memory_order_relaxed);
	was = health_state(&s->health, now_ms);
	health_connected(&s->health, now_ms);
	say(ss, s, was, now_ms);
	pthread_mutex_unlock(ss->lock);
}

void servers_checked(struct servers *ss, struct server *s, int error, uint64_t now_ms)
{
	enum server_state was;

	pthread_mutex_lock(ss->lock);
	was = health_state(&s->health, now_ms);
	if (error)
		note_error(s, error, now_ms);
	else
		atomic_store_explicit(&s->refuses, false, memory_order_relaxed);
	if (s->check_ms)
		health_checked(&s->health, !error, ss->conf->rise, ss->conf->fall, now_ms);
	say(ss, s, was, now_ms);
	pthread_mutex_unlock(ss->lock);
}

void servers_unchecked(struct servers *ss)
{
	pthread_mutex_lock(ss->lock);
	for (size_t i = 0; i < ss->n; i++) {
		ss->members[i].server->health.checked = false;
		ss->members[i].server->check_ms = 0;
	}
	pthread_mutex_unlock(ss->lock);
}

/* --- by name, by address --- */

/* True if A is FIRST, or has one of the N - 1 ports behind that of FIRST. */
static bool is_in_range(struct addr a, const struct addr *first, unsigned int n)
{
	int behind = ntohs(addr_port(&a)) - ntohs(addr_port(first));

	addr_set_port(&a, addr_port(first));
	return addr_equal(&a, first) && (unsigned int)behind < n;
}

struct server *servers_find(struct servers *ss, const struct addr *addr)
{
	struct server *found = NULL;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; !found && i < ss->n; i++) {
		struct addr_list *list = member_list(&ss->members[i]);

		for (size_t j = 0; !found && j < list->n; j++)
			if (is_in_range(*addr, &list->addrs[j], ss->members[i].conf->at.n_ports))
				found = server_enter(ss->members[i].server);
		addr_list_put(list);
	}
	pthread_mutex_unlock(ss->lock);
	return found;
}

struct server *servers_order(struct servers *ss, const char *name, enum server_order order)
{
	struct server *s = NULL;
	struct member *m;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	m = find_name(ss, name);
	if (m) {
		s = server_get(m->server);
		s->health.order = order;
	}
	pthread_mutex_unlock(ss->lock);
	return s;
}

struct lookup *servers_first_name(struct servers *ss)
{
	for (size_t i = 0; i < ss->conf->upstream.n; i++)
		if (ss->conf->upstream.servers[i].at.named)
			return &ss->places[i].upstream;
	return NULL;
}
