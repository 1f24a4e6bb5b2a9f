// SPDX-License-Identifier: BSD-2-Clause
#include "relay/servers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/minmax.h"
#include "datapath/graft/graft_tuple.h"
#include "relay/balance.h"

/* --- a server --- */

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
	struct server_queue *q = s->queue;

	atomic_fetch_sub(&s->live, 1); /* before the look at the queue */
	server_put(s);
	queue_wake(q);
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

/* Add to SS a server of place number I, called NAME, which BEFORE may have already.  -ENOMEM. */
static int add_member(struct servers *ss, const struct servers *before, size_t i, const char *name,
		      struct addr_list *list)
{
	const struct member *known = find_name(before, name);
	struct server *s;

	if (ss->n == SERVERS_IN_USE_MAX || find_name(ss, name))
		return 0;
	s = known ? known->server : calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	if (!known) {
		snprintf(s->name, sizeof(s->name), "%s", name);
		s->queue = ss->queue;
	}
	ss->members[ss->n++] = (struct member){
		.server = server_get(s),
		.conf = &ss->conf->upstream.servers[i],
		.place = &ss->places[i],
		.list = addr_list_get(list),
		.turn = known ? known->turn : 0,
	};
	return 0;
}

static void drop_members(struct servers *ss)
{
	for (size_t i = 0; i < ss->n; i++) {
		addr_list_put(ss->members[i].list);
		server_put(ss->members[i].server);
	}
	free(ss->members);
}

static int add_place(struct servers *ss, const struct servers *before, size_t i)
{
	const struct endpoint *conf = &ss->conf->upstream.servers[i].at;
	struct addr_list *list = lookup_get(&ss->places[i].lookup);
	bool each = ss->conf->each_address && conf->named && list->n;
	char name[ADDR_STRLEN];
	int r = each ? 0 : add_member(ss, before, i, conf->text, list);

	for (size_t j = 0; each && !r && j < list->n; j++) {
		const struct addr *a = &list->addrs[j];
		struct addr_list *one = addr_list_new(a, 1);

		addr_format(&a->sa, a->len, name, sizeof(name));
		r = one ? add_member(ss, before, i, name, one) : -ENOMEM;
		addr_list_put(one);
	}
	addr_list_put(list);
	return r;
}

/* Make the members of SS anew.  Servers that BEFORE or SS has keep their state.  -ENOMEM. */
static int make_members(struct servers *ss, const struct servers *before)
{
	struct servers fresh = *ss, old = *ss;
	int r = 0;

	fresh.n = 0;
	fresh.members = calloc(SERVERS_IN_USE_MAX, sizeof(*fresh.members));
	if (!fresh.members)
		return -ENOMEM;
	for (size_t i = 0; !r && i < ss->conf->upstream.n; i++)
		r = add_place(&fresh, before, i);
	if (!r) { /* other fields are read without the lock */
		ss->members = fresh.members;
		ss->n = fresh.n;
	}
	drop_members(r ? &fresh : &old);
	return r;
}

void servers_refresh(struct servers *ss)
{
	struct lookup_record record;
	bool stale = false;

	for (size_t i = 0; i < ss->conf->upstream.n; i++) {
		if (!ss->conf->upstream.servers[i].at.named)
			continue;
		lookup_record(&ss->places[i].lookup, &record);
		stale = stale || ss->places[i].seen != record.lookups;
		ss->places[i].seen = record.lookups;
	}
	if (stale && make_members(ss, ss))
		log_limited(LOG_WARNING, "upstream %s: no memory to follow its addresses",
			    ss->conf->upstream.text);
	/* a reload may have ended the checks: no later one would replace the last result */
	for (size_t i = 0; i < ss->n; i++) {
		struct server *s = ss->members[i].server;
		bool checks = ss->conf->check_ms, agent = checks && ss->conf->check_agent;

		s->health.checked = s->health.checked && checks;
		s->health.told_down = s->health.told_down && agent;
		s->health.told_drain = s->health.told_drain && agent;
		if (!agent)
			s->agent[0] = '\0';
		if (checks)
			continue;
		s->answer[0] = '\0';
		atomic_store(&s->dead, false);
	}
}

/* --- beginning and end --- */

/* Give P the addresses and counts of the place of BEFORE that has the same TEXT. */
static void know_addresses(struct place *p, struct servers *before, const char *text)
{
	for (size_t i = 0; before && i < before->conf->upstream.n; i++)
		if (!strcmp(before->conf->upstream.servers[i].at.text, text)) {
			lookup_inherit(&p->lookup, &before->places[i].lookup);
			p->sessions = before->places[i].sessions;
			p->failures = before->places[i].failures;
		}
}

int servers_open(struct servers *ss, const struct forward_conf *fc, struct servers *before,
		 pthread_mutex_t *lock, struct server_queue *queue, uint64_t now_ms)
{
	const struct upstream *up = &fc->upstream;
	int r = 0;

	*ss = (struct servers){ .conf = fc, .lock = lock, .queue = queue };
	ss->places = calloc(larger(up->n, 1), sizeof(*ss->places));
	if (!ss->places)
		return -ENOMEM;
	pthread_mutex_lock(lock);
	for (size_t i = 0; !r && i < up->n; i++) {
		struct place *p = &ss->places[i];

		r = lookup_open(&p->lookup, fc, &up->servers[i].at, now_ms);
		if (!r)
			know_addresses(p, before, up->servers[i].at.text);
	}
	r = r ?: make_members(ss, before);
	pthread_mutex_unlock(lock);
	return r;
}

void servers_close(struct servers *ss)
{
	for (size_t i = 0; ss->places && i < ss->conf->upstream.n; i++)
		lookup_close(&ss->places[i].lookup);
	drop_members(ss);
	free(ss->places);
}

void servers_add_names(struct servers *ss, struct names *names)
{
	for (size_t i = 0; i < ss->conf->upstream.n; i++)
		names_add(names, &ss->places[i].lookup);
}

/* --- choosing one --- */

/* A client is an IPv4 address, or an IPv6 /64 prefix. */
static uint64_t hash_of(const union client_addr *client)
{
	if (client->sa.sa_family == AF_INET)
		return balance_hash(&client->in.sin_addr, sizeof(client->in.sin_addr), 0);
	return client->sa.sa_family == AF_INET6 ? balance_hash(&client->in6.sin6_addr, 8, 0) : 0;
}

/* May M get a session that has TRIED those N servers? */
static bool may_be_used(const struct member *m, struct server *const *tried, size_t n,
			uint64_t now_ms)
{
	while (n > 0)
		if (tried[--n] == m->server)
			return false;
	return health_state(&m->server->health, now_ms) <= SERVER_ASIDE;
}

static bool member_is_full(const struct member *m)
{
	return m->conf->max_sessions && atomic_load(&m->server->live) >= m->conf->max_sessions;
}

/*
 * Find the servers that can be connected to, other than the N servers TRIED.  *RET_FULL: some of them
 * have no place.
 */
static size_t find_candidates(struct servers *ss, struct server *const *tried, size_t n,
			      uint64_t now_ms, struct candidate *ret, bool *ret_full)
{
	size_t found = 0;

	*ret_full = false;

	for (struct member *m = ss->members; m < ss->members + ss->n; m++) {
		const struct server *s = m->server;

		if (!m->list->n || !may_be_used(m, tried, n, now_ms))
			continue;
		if (member_is_full(m)) {
			*ret_full = true;
			continue;
		}
		ret[found++] = (struct candidate){
			.aside = health_state(&s->health, now_ms) == SERVER_ASIDE,
			.backup = m->conf->backup,
			.silent = now_ms < s->ask_ms && is_silent(s->owes_ms, s->usual_ms, now_ms),
			.weight = health_weight(&s->health, member_weight(m), now_ms),
			.live = atomic_load_explicit(&s->live, memory_order_relaxed) + s->prepared,
			.name = balance_hash(s->name, strlen(s->name), 0),
			.turn = &m->turn,
		};
	}
	return found;
}

/* There is no candidate: look up the names without an address.  Returns as servers_pick(). */
static int await_names(struct servers *ss, struct server *const *tried, size_t n, uint64_t *seen,
		       uint64_t now_ms)
{
	int r = -EHOSTDOWN;

	for (struct member *m = ss->members; r && m < ss->members + ss->n; m++)
		if (!m->list->n && may_be_used(m, tried, n, now_ms))
			r = lookup_failed(&m->place->lookup, seen, NEVER) ? 0 : -ENOENT;
	return r;
}

/* servers_move_on() while the lock is held. */
static bool move_on(struct member *m, uint16_t at, bool refused, uint64_t now_ms)
{
	struct server *s = m->server;
	size_t n = m->list->n;

	if (n < 2 || atomic_load(&s->first) % n != at % n)
		return n > 1;
	if (!refused && (!s->owes_ms || now_ms < larger(s->owes_ms, s->moved_ms) + ASK_AGAIN_MS))
		return false;
	s->moved_ms = now_ms;
	atomic_store(&s->first, (uint16_t)((at + 1) % n));
	return true;
}

bool servers_move_on(struct servers *ss, const struct server *s, uint16_t at, bool refused,
		     uint64_t now_ms)
{
	struct member *m;
	uint64_t seen = 0;
	bool moved;

	pthread_mutex_lock(ss->lock);
	m = find_name(ss, s->name);
	moved = m && move_on(m, at, refused, now_ms);
	if (m)
		lookup_failed(&m->place->lookup, &seen, now_ms);
	pthread_mutex_unlock(ss->lock);
	return moved;
}

static void count_session(struct member *m)
{
	m->server->sessions++;
	m->place->sessions++;
}

/* M gets a session. */
static void choose(struct member *m, uint64_t now_ms)
{
	struct server *s = m->server;

	count_session(m);
	s->ask_ms = now_ms + ASK_AGAIN_MS;
	if (!s->owes_ms)
		s->owes_ms = now_ms;
	if (health_state(&s->health, now_ms) == SERVER_TRIAL)
		health_refused(&s->health, now_ms);
}

int servers_pick(struct servers *ss, const union client_addr *client, struct server *const *tried,
		 size_t n, const struct waiter *waiter, uint64_t *seen, uint64_t now_ms,
		 struct server **ret, struct addr_list **ret_list)
{
	struct candidate c[SERVERS_IN_USE_MAX];
	/* of UDP none waits: TCP's sessions of a forward that was TCP may */
	bool first = ss->conf->listen.udp || queue_is_first(ss->queue, waiter), full;
	struct member *best;
	size_t found, at;
	int r;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	found = find_candidates(ss, tried, n, now_ms, c, &full);
	if (!first || (!found && full)) {
		r = -EBUSY;
	} else if (found) {
		at = balance_pick(ss->conf->balance, c, found, hash_of(client));
		best = container_of(c[at].turn, struct member, turn);
		/* if each question has a new port, no session lasts long enough to move on */
		if (ss->conf->listen.udp && ss->conf->replies)
			move_on(best, atomic_load(&best->server->first), false, now_ms);
		choose(best, now_ms);
		*ret = server_enter(best->server);
		*ret_list = addr_list_get(best->list);
		r = (int)found;
	} else {
		r = await_names(ss, tried, n, seen, now_ms);
	}
	pthread_mutex_unlock(ss->lock);
	return r;
}

/* --- how they fare --- */

/* Log it if S is not in state WAS any more.  WHY: what has changed the state. */
static void say(const struct servers *ss, const struct server *s, enum server_state was,
		const char *why, uint64_t now_ms)
{
	enum server_state is = health_state(&s->health, now_ms);

	if (is == was)
		return;
	/* a server that is alone gets every session, even if it is set aside */
	if (is == SERVER_ASIDE && was != SERVER_TRIAL && ss->n > 1)
		log_warning("forward %s: server %s is set aside for %.0f s: %s",
			    forward_name(ss->conf), s->name,
			    (double)(s->health.aside_ms - now_ms) / 1000, s->error);
	else if (is == SERVER_FAILED)
		log_warning("forward %s: server %s has failed its checks: %s",
			    forward_name(ss->conf), s->name, s->error);
	else if (is == SERVER_DRAIN || is == SERVER_DOWN)
		log_info("forward %s: server %s gets no sessions: %s", forward_name(ss->conf),
			 s->name, why);
	else if (is == SERVER_RETURNING || was == SERVER_FAILED || was >= SERVER_DRAIN)
		log_info("forward %s: server %s is back: %s", forward_name(ss->conf), s->name, why);
}

/* Mark the servers whose sessions are to end.  True: there is another one.  With the lock. */
static bool mark_dead(struct servers *ss, uint64_t now_ms)
{
	bool serves = false, more = false; /* SERVES: one that is no backup */

	for (const struct member *m = ss->members; m < ss->members + ss->n; m++)
		serves = serves || (!m->conf->backup && m->list->n && m->server->health.checked &&
				    !member_is_full(m) &&
				    health_state(&m->server->health, now_ms) <= SERVER_RETURNING);
	for (const struct member *m = ss->members; m < ss->members + ss->n; m++) {
		enum server_state state = health_state(&m->server->health, now_ms);
		bool told = state == SERVER_DOWN && m->server->told_off;
		bool dead = (ss->conf->on_down && (state == SERVER_FAILED || told)) ||
			    (ss->conf->on_backup && m->conf->backup && serves);

		more = (!atomic_exchange(&m->server->dead, dead) && dead) || more;
	}
	return more;
}

/*
 * A check of S, or a connect of a session, has ended: 0, or errno ERROR.  WHY: what the check has
 * found; NULL: no check.  With the lock.
 */
static void judge(struct servers *ss, struct server *s, const char *why, int error, uint64_t now_ms)
{
	enum server_state was = health_state(&s->health, now_ms);

	if (error) {
		snprintf(s->error, sizeof(s->error), "%s", why ?: strerror(error));
		s->error_ms = now_ms;
	}
	if (why) {
		snprintf(s->answer, sizeof(s->answer), "%s", why);
		s->answer_ms = now_ms;
		health_checked(&s->health, !error, ss->conf->rise, ss->conf->fall, now_ms);
	} else if (error) {
		health_refused(&s->health, now_ms);
	} else {
		health_connected(&s->health, now_ms);
	}
	say(ss, s, was, why ?: "connects", now_ms);
	if (!why && health_state(&s->health, now_ms) != was)
		mark_dead(ss, now_ms); /* a backup may be needed again; the next check tells */
}

bool servers_refused(struct servers *ss, struct server *s, int error, uint64_t *seen,
		     uint64_t now_ms)
{
	struct member *m;
	bool may_move;

	pthread_mutex_lock(ss->lock);
	m = find_name(ss, s->name);
	may_move = m && lookup_failed(&m->place->lookup, seen, now_ms);
	if (m)
		m->place->failures++;
	s->failures++;
	s->owes_ms = 0;
	judge(ss, s, NULL, error, now_ms);
	pthread_mutex_unlock(ss->lock);
	return may_move;
}

void servers_connected(struct servers *ss, struct server *s, uint64_t took_ms, uint64_t now_ms)
{
	pthread_mutex_lock(ss->lock);
	s->usual_ms = took_ms;
	s->owes_ms = 0;
	judge(ss, s, NULL, 0, now_ms);
	pthread_mutex_unlock(ss->lock);
}

bool servers_checked(struct servers *ss, struct server *s, int error, const char *why,
		     uint64_t now_ms)
{
	enum server_state was;
	bool changes;

	pthread_mutex_lock(ss->lock);
	was = health_state(&s->health, now_ms);
	judge(ss, s, why, error, now_ms);
	changes = mark_dead(ss, now_ms) || health_state(&s->health, now_ms) != was;
	pthread_mutex_unlock(ss->lock);
	if (changes)
		queue_wake(ss->queue);
	return changes;
}

/* The agent of M's server has said A, for the first time: its orders and its share count. */
static void take_orders(const struct servers *ss, const struct member *m,
			const struct check_advice *a)
{
	struct server *s = m->server;

	if (a->said & ADVICE_ORDER) {
		s->health.order = a->order;
		s->told_off = a->order == ORDER_DOWN;
	}
	if (a->said & ADVICE_WEIGHT)
		s->health.told_drain = !a->percent;
	if (a->said & ADVICE_WEIGHT && a->percent)
		s->weight = (unsigned int)smaller(larger(m->conf->weight * a->percent / 100, 1),
						  SERVER_WEIGHT_MAX);
	if (!a->said)
		log_limited(LOG_WARNING, "forward %s: server %s: not understood: agent: %s",
			    forward_name(ss->conf), s->name, s->agent);
}

bool servers_told(struct servers *ss, struct server *s, const struct check_advice *a,
		  const char *line, uint64_t now_ms)
{
	char why[SERVER_ERROR_LEN], said[CHECK_WHY_LEN];
	enum server_state was;
	unsigned int weight = 0;
	struct member *m;
	bool changes;

	pthread_mutex_lock(ss->lock);
	was = health_state(&s->health, now_ms);
	weight = s->weight;
	m = find_name(ss, s->name);
	log_escape(line, said, sizeof(said));
	if (a->said & ADVICE_STATE)
		s->health.told_down = a->down;
	if (m && strcmp(said, s->agent) != 0) {
		strcpy(s->agent, said);
		take_orders(ss, m, a);
	}
	snprintf(why, sizeof(why), "agent: %.50s", said);
	if (a->said & ADVICE_STATE && a->down) {
		strcpy(s->error, why);
		s->error_ms = now_ms;
	}
	say(ss, s, was, why, now_ms);
	changes = mark_dead(ss, now_ms) || health_state(&s->health, now_ms) != was ||
		  s->weight != weight;
	pthread_mutex_unlock(ss->lock);
	if (changes)
		queue_wake(ss->queue);
	return changes;
}

/* --- by name, by address --- */

/* True if A is FIRST, or has one of the N - 1 ports after that of FIRST. */
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
		const struct member *m = &ss->members[i];

		for (size_t j = 0; !found && j < m->list->n; j++)
			if (is_in_range(*addr, &m->list->addrs[j], m->conf->at.n_ports))
				found = server_enter(m->server);
	}
	pthread_mutex_unlock(ss->lock);
	return found;
}

/* --- choices before there is a client --- */

#define WAY_RENEW_MS 4000 /* then a session by sockets shows the way again */

/* Is the way to M known, to the address with which its sessions begin? */
static bool way_is_known(const struct member *m, uint64_t now_ms)
{
	const struct server *s = m->server;
	struct addr to = graft_tuple_address(&s->way, false);

	return s->way_ms && now_ms - s->way_ms < GRAFT_PROOF_NS / NS_PER_MS &&
	       addr_equal(&to, &m->list->addrs[atomic_load(&s->first) % m->list->n]);
}

struct server *servers_prepare(struct servers *ss, uint64_t now_ms, struct graft_tuple *ret_way)
{
	struct candidate c[SERVERS_IN_USE_MAX];
	struct server *s = NULL;
	struct member *m;
	size_t n, at;
	bool asks, full;

	*ret_way = (struct graft_tuple){ 0 };
	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	/* a choice without a session would keep a place from those who wait */
	n = ss->conf->upstream.limited ? 0 : find_candidates(ss, NULL, 0, now_ms, c, &full);
	at = n ? balance_pick(ss->conf->balance, c, n, 0) : 0;
	if (n && !c[at].aside && !c[at].silent) {
		m = container_of(c[at].turn, struct member, turn);
		s = server_get(m->server);
		s->prepared++;
		/* one session tries a server that has failed, with all its time-outs */
		asks = !way_is_known(m, now_ms) ||
		       health_state(&s->health, now_ms) == SERVER_TRIAL ||
		       is_silent(s->owes_ms, s->usual_ms, now_ms);
		if (!asks && now_ms - larger(s->way_ms, s->asked_ms) >= WAY_RENEW_MS) {
			s->asked_ms = now_ms;
			asks = true;
		}
		if (!asks)
			*ret_way = s->way;
	}
	pthread_mutex_unlock(ss->lock);
	return s;
}

void servers_unprepare(struct servers *ss, struct server *s, uint64_t now_ms)
{
	struct candidate c[SERVERS_IN_USE_MAX];
	size_t n;
	bool full;

	pthread_mutex_lock(ss->lock);
	n = find_candidates(ss, NULL, 0, now_ms, c, &full);
	for (size_t i = 0; i < n; i++)
		if (container_of(c[i].turn, struct member, turn)->server == s)
			balance_undo(ss->conf->balance, c, n, i);
	s->prepared--;
	pthread_mutex_unlock(ss->lock);
	server_put(s);
}

int servers_pick_prepared(struct servers *ss, struct server *s, uint64_t now_ms,
			  struct addr_list **ret_list)
{
	struct member *m;
	int n = 0;

	pthread_mutex_lock(ss->lock);
	s->prepared--;
	m = find_name(ss, s->name);
	if (m && m->server == s && m->list->n && may_be_used(m, NULL, 0, now_ms)) {
		choose(m, now_ms);
		server_enter(s);
		*ret_list = addr_list_get(m->list);
		n = (int)ss->n;
	}
	pthread_mutex_unlock(ss->lock);
	server_put(s);
	return n;
}

void servers_begun(struct servers *ss, struct server *s, uint64_t took_ms, uint64_t now_ms)
{
	struct member *m;

	pthread_mutex_lock(ss->lock);
	s->prepared--;
	server_enter(s);
	m = find_name(ss, s->name);
	if (m)
		count_session(m);
	pthread_mutex_unlock(ss->lock);
	servers_connected(ss, s, took_ms, now_ms);
	server_put(s);
}

bool servers_silent(struct servers *ss, struct server *s, uint64_t since_ms, uint64_t now_ms)
{
	bool silent;

	pthread_mutex_lock(ss->lock);
	silent = is_silent(since_ms, s->usual_ms, now_ms);
	if (silent) {
		s->owes_ms = s->owes_ms ?: since_ms;
		s->ask_ms = larger(s->ask_ms, since_ms + ASK_AGAIN_MS);
	}
	pthread_mutex_unlock(ss->lock);
	return silent;
}

void servers_learn(struct servers *ss, struct server *s, const struct graft_tuple *way,
		   uint64_t now_ms)
{
	pthread_mutex_lock(ss->lock);
	if (way)
		s->way = *way;
	s->way_ms = way ? now_ms : 0;
	pthread_mutex_unlock(ss->lock);
}

struct server *servers_order(struct servers *ss, const char *name, const enum server_order *order,
			     const unsigned int *weight)
{
	struct server *s = NULL;
	struct member *m;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	m = find_name(ss, name);
	if (m) {
		s = server_get(m->server);
		s->health.order = order ? *order : s->health.order;
		s->weight = weight ? *weight : s->weight;
		s->told_off = s->told_off && !order;
		/* the operator's order stands in place of the agent's "0%" */
		s->health.told_drain = s->health.told_drain && !order && !weight;
		mark_dead(ss, clock_ms());
	}
	pthread_mutex_unlock(ss->lock);
	queue_wake(ss->queue);
	return s;
}

void servers_why(struct servers *ss, char *buf, size_t size)
{
	snprintf(buf, size, "by order of `culvert upstream`");
	pthread_mutex_lock(ss->lock);
	for (const struct member *m = ss->members; m < ss->members + ss->n; m++)
		if (m->server->health.order == ORDER_READY && *m->server->error)
			snprintf(buf, size, "%s: %s", m->server->name, m->server->error);
	pthread_mutex_unlock(ss->lock);
}

struct lookup *servers_first_name(struct servers *ss)
{
	for (size_t i = 0; i < ss->conf->upstream.n; i++)
		if (ss->conf->upstream.servers[i].at.named)
			return &ss->places[i].lookup;
	return NULL;
}

/* --- a hand-over to the next daemon --- */

/* A field is only ever added at the end (base/bundle.h). */
struct server_record {
	char name[SERVER_NAME_LEN], error[SERVER_ERROR_LEN];
	uint64_t error_ms;
	struct health health;
	uint32_t weight;
	char agent[CHECK_WHY_LEN];
};

void servers_hand_over(struct servers *ss, uint32_t of, struct bundle *b)
{
	struct server_record r = { 0 };

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++) {
		struct server *s = ss->members[i].server;

		memcpy(r.name, s->name, sizeof(r.name));
		memcpy(r.error, s->error, sizeof(r.error));
		r.error_ms = s->error_ms;
		r.health = s->health;
		r.weight = s->weight;
		memcpy(r.agent, s->agent, sizeof(r.agent));
		bundle_put(b, &(struct record){ .kind = HANDED_SERVER,
						.of = of,
						.at = (uint8_t *)&r,
						.size = sizeof(r) });
	}
	pthread_mutex_unlock(ss->lock);
}

void servers_take_over(struct servers *ss, const struct record *from)
{
	struct server_record r;
	struct member *m;

	record_read(from, &r, sizeof(r));
	r.name[SERVER_NAME_LEN - 1] = r.error[SERVER_ERROR_LEN - 1] = '\0';
	r.agent[CHECK_WHY_LEN - 1] = '\0';
	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	m = find_name(ss, r.name);
	if (m && r.health.order < ORDERS) {
		m->server->health = r.health;
		m->server->weight = (unsigned int)smaller(r.weight, SERVER_WEIGHT_MAX);
		m->server->error_ms = r.error_ms;
		memcpy(m->server->error, r.error, sizeof(r.error));
		memcpy(m->server->agent, r.agent, sizeof(r.agent));
	}
	pthread_mutex_unlock(ss->lock);
}
