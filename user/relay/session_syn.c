// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * The workers choose servers for sessions that will come, and push a prepared slot for each choice
 * into the stock of its forward.  A SYN of a proven client takes the first slot
 * (bpf/graft_from_syn.h); its CPU's worker owns the session.  A session by sockets takes the first
 * choice, too: so servers take turns as if all sessions went one way.  Where a session by sockets has
 * to show the way to a server, or to try it (servers_prepare()), no choice follows until one has come.
 *
 * Prepared slots are counted as sessions, so no limit is exceeded by the sessions that take them.
 * A client that a limit refuses gets the place of a prepared slot.
 *
 * The end of a session is an event.  Its object is made then, and ends in the same call, so counters
 * and log are those of any session.  A session that lives for SYN_YOUNG_MS gets its object by a
 * sweep, and is an adopted session from then on.
 *
 * Locks: that of a stock is taken before those of servers and of slots.
 */
#include "relay/session_syn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "datapath/graft/graft_tuple.h"
#include "relay/admission.h"

#define SYN_SWEEP_MS 50
#define SYN_YOUNG_MS 50
#define SYN_HALF_OPEN_NS (3 * NS_PER_S) /* a client or a server that says nothing for so long */
#define SYN_STALE_MS 500                /* a choice of this age is made anew */
#define SYN_LEAST 8                     /* prepared slots of a forward */
#define SYN_MOST (GRAFT_STOCK / 2)

struct syn_stock {
	pthread_mutex_t lock;            /* of the rest, and of the pushing side of RING */
	struct forward *_Atomic forward; /* NULL: free */
	unsigned int listeners;
	struct graft_stock *ring;
	struct server *next;    /* the choice behind those of RING, which has no way; NULL: none */
	uint32_t want;          /* prepared slots */
	uint32_t missed_seen;   /* of RING */
	uint32_t sweep_first;   /* of RING, at sweep_ms, and what was taken back since */
	uint64_t sweep_ms;      /* when WANT was judged last */
	unsigned int live_seen; /* sessions of FORWARD, the prepared ones, too */
	uint32_t stale_last;    /* of RING, at stale_ms: positions before it are older */
	uint64_t stale_ms;
};

struct syn_slot {
	/* counts the slot as a session, until an object does; NULL: none */
	struct forward *_Atomic forward;
	struct server *server; /* belongs to the thread that takes FORWARD out */
};

struct syn {
	struct shared *shared;
	syn_begin_fn *begin;
	struct syn_stock stocks[GRAFT_STOCKS];
	struct syn_slot slots[];
};

struct syn *session_syn_open(struct shared *shared, syn_begin_fn *begin)
{
	uint32_t n = shared->grafts ? graft_table_syn_slots(shared->grafts) : 0;
	struct syn *y;

	if (!n)
		return NULL;
	y = allocated(calloc(1, sizeof(*y) + n * sizeof(y->slots[0])));
	y->shared = shared;
	y->begin = begin;
	for (unsigned int i = 0; i < GRAFT_STOCKS; i++) {
		pthread_mutex_init(&y->stocks[i].lock, NULL);
		y->stocks[i].ring = graft_stock(shared->grafts, i);
	}
	return y;
}

void session_syn_close(struct syn *y)
{
	for (unsigned int i = 0; y && i < GRAFT_STOCKS; i++)
		pthread_mutex_destroy(&y->stocks[i].lock);
	free(y);
}

const char *session_syn_refusal(const struct forward_conf *fc, const char *no_syn, bool grafts,
				bool hooks)
{
	const struct endpoint *at = &fc->listen;

	return fc->set_up == SET_UP_SOCKETS            ? "set-up = sockets" :
	       fc->set_up == SET_UP_AUTO && hooks      ? "hooks of netfilter" :
	       fc->hellos || fc->sni                   ? "sni" :
	       at->udp || !at->n_addrs                 ? "not tcp" :
	       !addr_is_inet(&at->addrs[0])            ? "not tcp" :
	       upstreams_are_unix(&fc->upstream)       ? "not tcp" :
	       no_syn                                  ? no_syn :
	       !grafts                                 ? "no graft" :
	       fc->proxy_protocol                      ? "proxy-protocol" :
	       fc->transparent                         ? "transparent" :
	       fc->bandwidth                           ? "bandwidth" :
	       fc->bandwidth_per_client                ? "bandwidth" :
	       fc->balance == BALANCE_SOURCE           ? "balance = source" :
	       fc->upstream.limited                    ? "max-sessions of a server" :
	       at->n_ports != 1                        ? "a range of ports" :
	       fc->upstream.servers[0].at.n_ports != 1 ? "a range of ports" :
							 NULL;
}

const char *session_syn_hindrance(const struct shared *shared, const struct forward *f)
{
	bool grafts = shared->syn && forward_grafts(f) &&
		      !probe_hindrance(shared->probe, ENGINE_GRAFT);

	return session_syn_refusal(f->conf, shared->no_syn, grafts,
				   shared->grafts && graft_syn_hooks(shared->grafts));
}

/* --- stocks --- */

/* The stock of F, or NULL.  A stock is F's while F has listeners. */
static struct syn_stock *syn_stock_of(const struct shared *shared, const struct forward *f)
{
	return shared->syn ? atomic_load(&((struct forward *)f)->syn) : NULL;
}

/*
 * SLOT was prepared, and no session has it.  Returns its server, if that is to be KEPT.  With or
 * without the stock's lock.
 */
static struct server *syn_unprepare(struct syn *y, uint32_t slot, bool keep)
{
	struct forward *f = atomic_exchange(&y->slots[slot].forward, NULL);
	struct server *s = y->slots[slot].server;

	graft_put(y->shared->grafts, slot);
	if (!keep)
		servers_unprepare(&f->servers, s, clock_ms());
	bucket_hold(&f->accepts, -1);
	admission_undo(y->shared, f);
	return s;
}

/*
 * Take the first choice out.  Returns its server, which then belongs to the caller; NULL: there is
 * no choice.  With the lock.
 */
static struct server *syn_take(struct syn *y, struct syn_stock *k)
{
	uint32_t slot = graft_syn_take(y->shared->grafts, k->ring);
	struct server *next = k->next;

	if (slot != NO_SLOT) {
		k->sweep_first++; /* no SYN has taken it */
		return syn_unprepare(y, slot, true);
	}
	k->next = NULL;
	return next;
}

/* Take back all choices.  With the lock. */
static void syn_take_back(struct syn *y, struct syn_stock *k)
{
	struct server *s;

	while ((s = syn_take(y, k)))
		servers_unprepare(&k->forward->servers, s, clock_ms());
}

struct syn_stock *session_syn_listen(const struct shared *shared, struct forward *f)
{
	struct syn *y = shared->syn;

	for (unsigned int i = 0; y && f->conf->set_up != SET_UP_SOCKETS && i < GRAFT_STOCKS; i++) {
		struct syn_stock *k = &y->stocks[i], *none = NULL;
		bool is;

		pthread_mutex_lock(&k->lock);
		is = k->forward == f ||
		     (!k->forward && atomic_compare_exchange_strong(&f->syn, &none, k));
		if (is) {
			k->forward = f;
			k->listeners++;
		}
		pthread_mutex_unlock(&k->lock);
		if (is)
			return k;
	}
	return NULL;
}

void session_syn_leave(const struct shared *shared, struct syn_stock *k)
{
	if (!k || !shared->syn) /* daemon_take_over() may have given the stocks up */
		return;
	pthread_mutex_lock(&k->lock);
	if (!--k->listeners) {
		syn_take_back(shared->syn, k);
		atomic_store(&k->forward->syn, NULL);
		k->forward = NULL;
	}
	pthread_mutex_unlock(&k->lock);
}

uint16_t session_syn_stock(const struct shared *shared, const struct forward *f)
{
	struct syn_stock *k = syn_stock_of(shared, f);

	return k && !session_syn_hindrance(shared, f) ? (uint16_t)(k - shared->syn->stocks + 1) : 0;
}

void session_syn_learn(const struct session *s, const struct graft_tuple *way)
{
	if (s->server && syn_stock_of(s->worker->shared, s->forward))
		servers_learn(&s->forward->servers, s->server, way, s->worker->loop.now_ms);
}

int session_syn_choice(struct worker *w, struct forward *f, struct server **ret,
		       struct addr_list **ret_list)
{
	struct syn_stock *k = syn_stock_of(w->shared, f);

	*ret = NULL;
	if (!k)
		return 0;
	pthread_mutex_lock(&k->lock);
	if (k->forward == f)
		*ret = syn_take(w->shared->syn, k);
	pthread_mutex_unlock(&k->lock);
	return *ret ? servers_pick_prepared(&f->servers, *ret, w->loop.now_ms, ret_list) : 0;
}

bool session_syn_give_way(const struct shared *shared, struct forward *f, enum cause limit)
{
	const struct syn_stock *own = syn_stock_of(shared, f);
	struct server *s = NULL;

	for (unsigned int i = 0; shared->syn && !s && i < GRAFT_STOCKS; i++) {
		struct syn_stock *k = &shared->syn->stocks[i];

		if (k != own && (limit != CAUSE_SESSION_LIMIT || !k->forward))
			continue;
		pthread_mutex_lock(&k->lock);
		s = k->forward ? syn_take(shared->syn, k) : NULL;
		if (s)
			servers_unprepare(&k->forward->servers, s, clock_ms());
		pthread_mutex_unlock(&k->lock);
	}
	return s;
}

void session_syn_order(const struct shared *shared, const struct forward *f)
{
	struct syn_stock *k = syn_stock_of(shared, f);

	if (!k)
		return;
	pthread_mutex_lock(&k->lock);
	if (k->forward)
		syn_take_back(shared->syn, k);
	pthread_mutex_unlock(&k->lock);
}

/* --- filling --- */

/* Prepare a slot for WAY to S.  False: none is free, or a limit is reached. */
static bool syn_prepare(struct syn *y, struct syn_stock *k, struct server *s,
			const struct graft_tuple *way, uint64_t now_ms)
{
	struct shared *shared = y->shared;
	struct forward *f = k->forward;
	uint32_t near_us = f->engine == ENGINE_GRAFT ? 0 : f->conf->graft_rtt_us;
	uint64_t due_ms;
	uint32_t slot;

	if (admission_enter_at_rate(shared, f, now_ms, &due_ms) != CAUSE_NONE)
		return false;
	slot = graft_syn_prepare(shared->grafts, way, atomic_fetch_add(&shared->last_id, 1) + 1,
				 f->tag, near_us);
	if (slot == NO_SLOT) {
		admission_undo(shared, f);
		return false;
	}
	bucket_hold(&f->accepts, 1);
	y->slots[slot].server = s;
	atomic_store(&y->slots[slot].forward, f);
	graft_syn_push(k->ring, slot);
	return true;
}

/* Make a choice.  False: no more now. */
static bool syn_choose(struct syn *y, struct syn_stock *k, uint64_t now_ms)
{
	struct graft_tuple way;
	struct server *s = servers_prepare(&k->forward->servers, now_ms, &way);

	if (!s)
		return false;
	if (way.remote_port && syn_prepare(y, k, s, &way, now_ms))
		return true;
	if (way.remote_port)
		servers_unprepare(&k->forward->servers, s, now_ms);
	else
		k->next = s;
	return false;
}

/* How many slots K wants: what SYNs take between two sweeps, twice. */
static uint32_t syn_wanted(struct syn_stock *k, uint64_t now_ms)
{
	uint32_t first = graft_syn_first(k->ring),
		 missed = __atomic_load_n(&k->ring->missed, __ATOMIC_RELAXED);

	if (missed != k->missed_seen)
		k->want *= 2;
	k->missed_seen = missed;
	if (now_ms - k->sweep_ms >= SYN_SWEEP_MS) {
		k->want = (uint32_t)larger(2 * (first - k->sweep_first), k->want / 2);
		k->sweep_first = first;
		k->sweep_ms = now_ms;
	}
	k->want = (uint32_t)smaller(larger(k->want, SYN_LEAST), SYN_MOST);
	return k->want;
}

static void syn_fill(struct syn *y, struct syn_stock *k, uint64_t now_ms)
{
	bool hindered = session_syn_hindrance(y->shared, k->forward);
	const _Atomic unsigned int *live = &k->forward->totals->live;

	/* a choice by numbers of sessions is as good as these are new */
	if (k->forward->conf->balance == BALANCE_LEAST_SESSIONS && *live != k->live_seen &&
	    graft_syn_left(k->ring) <= 2 * SYN_LEAST)
		syn_take_back(y, k);
	if (now_ms - k->stale_ms >= SYN_STALE_MS) {
		if (hindered || (int32_t)(graft_syn_first(k->ring) - k->stale_last) < 0)
			syn_take_back(y, k);
		k->stale_last = k->ring->last;
		k->stale_ms = now_ms;
	}
	for (uint32_t want = syn_wanted(k, now_ms);
	     !hindered && !k->next && graft_syn_left(k->ring) < want && syn_choose(y, k, now_ms);)
		;
	k->live_seen = *live;
}

void session_syn_fill(struct worker *w)
{
	struct syn *y = w->shared->syn;

	for (struct syn_stock *k = y ? y->stocks : NULL; k && k < y->stocks + GRAFT_STOCKS; k++) {
		/* another worker fills it just now */
		if (!k->forward || pthread_mutex_trylock(&k->lock))
			continue;
		if (k->forward)
			syn_fill(y, k, w->loop.now_ms);
		pthread_mutex_unlock(&k->lock);
	}
}

static unsigned int syn_live(unsigned int live, unsigned int prepared)
{
	return live > prepared ? live - prepared : 0;
}

unsigned int session_syn_prepared(const struct shared *shared)
{
	unsigned int n = 0;

	for (unsigned int i = 0; shared->syn && i < GRAFT_STOCKS; i++)
		if (shared->syn->stocks[i].forward)
			n += graft_syn_left(shared->syn->stocks[i].ring);
	return n;
}

unsigned int session_syn_live(const struct shared *shared)
{
	return syn_live(atomic_load(&shared->live), session_syn_prepared(shared));
}

unsigned int session_syn_forward_live(const struct shared *shared, const struct forward *f)
{
	struct syn_stock *k = syn_stock_of(shared, f);

	return syn_live(atomic_load(&f->totals->live), k ? graft_syn_left(k->ring) : 0);
}

/* --- sessions --- */

/* The session of SLOT gets an object, which goes on, or ends at once. */
static void syn_adopt(struct worker *w, uint32_t slot)
{
	struct shared *shared = w->shared;
	struct syn_slot *own = &shared->syn->slots[slot];
	struct forward *f = atomic_load(&own->forward);
	const volatile struct graft_entry *e = graft_of(shared->grafts, slot);
	const struct graft_tuple t = ((const struct graft_entry *)e)->side[CLIENT].tuple;
	struct addr a = graft_tuple_address(&t, false);
	union client_addr client;
	enum cause why;

	client_addr_set(&client, &a.sa);
	why = admission_enter_client(shared, f, &client, true);
	if (why != CAUSE_NONE) {
		graft_syn_forget_client(shared->grafts, &t);
		graft_kill(shared->grafts, slot);
		syn_unprepare(shared->syn, slot, false);
		return;
	}
	atomic_store(&own->forward, NULL);
	bucket_hold(&f->accepts, -1);
	histogram_add(&forward_stats(f, w->index)->connects, e->stuck_ns / 1000);
	servers_begun(&f->servers, own->server, e->stuck_ns / NS_PER_MS, w->loop.now_ms);
	if (!shared->syn->begin(w, f, &client, slot, own->server)) {
		if (graft_carries(shared->grafts, slot))
			shared_want_sockets(shared);
		return;
	}
	server_leave(own->server);
	admission_leave(shared, f, &client);
	graft_kill(shared->grafts, slot);
	graft_put(shared->grafts, slot);
}

/* The SYN of SLOT has no answer.  If its server has answered no later one, it may be silent. */
static void syn_look_at_silence(struct worker *w, uint32_t slot)
{
	struct syn_slot *own = &w->shared->syn->slots[slot];
	struct forward *f = atomic_load(&own->forward);
	uint64_t began_ns = graft_of(w->shared->grafts, slot)->offered_ns;

	if (atomic_load(&own->server->answered_ns) < began_ns &&
	    servers_silent(&f->servers, own->server, began_ns / NS_PER_MS, w->loop.now_ms))
		session_syn_order(w->shared, f);
}

/* The session of SLOT gave up before it began; WHY is of enum graft_past. */
static void syn_gave_up(struct worker *w, uint32_t slot, uint32_t why)
{
	struct syn_slot *own = &w->shared->syn->slots[slot];
	struct forward *f = atomic_load(&own->forward);
	uint64_t now_ms = w->loop.now_ms, seen = 0;

	if (why == GRAFT_PAST_REFUSED || why == GRAFT_PAST_UNREACHABLE) {
		servers_refused(&f->servers, own->server,
				why == GRAFT_PAST_REFUSED ? ECONNREFUSED : EHOSTUNREACH, &seen,
				now_ms);
		session_syn_order(w->shared, f);
	} else if (why == GRAFT_PAST_UNPROVEN_SERVER) {
		servers_learn(&f->servers, own->server, NULL, now_ms);
		session_syn_order(w->shared, f);
	} else if (why == GRAFT_PAST_SILENT) {
		syn_look_at_silence(w, slot);
	}
	syn_unprepare(w->shared->syn, slot, false);
}

void session_syn_follow_news(struct worker *w)
{
	if (w->shared->syn && !graft_syn_awake(w->shared->grafts, w->index, true))
		timer_set(&w->loop, &w->syn_sweep, w->loop.now_ms + SYN_SWEEP_MS);
}

void session_syn_event(struct worker *w, uint32_t slot, uint64_t id)
{
	struct graft_table *gs = w->shared->grafts;
	enum graft_state state;

	if (!w->shared->syn || slot >= graft_table_syn_slots(gs) ||
	    !atomic_load(&w->shared->syn->slots[slot].forward))
		return;
	state = graft_state(gs, slot);
	/* last: SLOT may have its next session by now, which may be another worker's */
	if (graft_of(gs, slot)->head.id != id)
		return;
	switch (state) {
	case GRAFT_DONE:
		syn_adopt(w, slot);
		break;
	case GRAFT_GAVE_UP:
		syn_gave_up(w, slot, graft_of(gs, slot)->why_back);
		break;
	default:
		session_syn_follow_news(w);
	}
}

/*
 * SLOT may get its next session meanwhile, which another worker prepares.  Then the answer is noted
 * too late by one look.
 */
#define SYN_MAY_RACE __attribute__((no_sanitize("thread")))

/* Note when the server of SLOT has answered. */
SYN_MAY_RACE static void syn_note_answer(const struct worker *w, uint32_t slot)
{
	const volatile struct graft_entry *e = graft_of(w->shared->grafts, slot);
	struct server *s = w->shared->syn->slots[slot].server;
	enum graft_state state = graft_state(w->shared->grafts, slot);
	uint64_t ns = e->offered_ns + e->stuck_ns;

	if ((state == GRAFT_ANSWERED || graft_state_carries(state)) &&
	    ns > atomic_load(&s->answered_ns))
		atomic_store(&s->answered_ns, ns);
}

/* True: look at SLOT again. */
SYN_MAY_RACE static bool syn_look(struct worker *w, uint32_t slot, uint64_t now_ns, bool all)
{
	struct graft_table *gs = w->shared->grafts;
	const volatile struct graft_entry *e = graft_of(gs, slot);
	/* before the times, which a SYN sets before the state */
	enum graft_state state = graft_state(gs, slot);
	int64_t age_ns = (int64_t)(now_ns - e->offered_ns);
	uint64_t heard_ns = e->side[CLIENT].heard_ns; /* 0: a SYN takes the slot just now */

	switch (state) {
	case GRAFT_SYN_SENT:
	case GRAFT_ANSWERED:
		if (heard_ns && (int64_t)(now_ns - heard_ns) > (int64_t)SYN_HALF_OPEN_NS)
			graft_syn_expire(gs, slot);
		else if (heard_ns && state == GRAFT_SYN_SENT && age_ns > 0)
			syn_look_at_silence(w, slot);
		return true;
	case GRAFT_DONE:
	case GRAFT_GAVE_UP:
		session_syn_event(w, slot, e->head.id); /* its event was lost */
		return false;
	case GRAFT_ACTIVE:
	case GRAFT_RETURNING:
		if (!all && age_ns < (int64_t)(SYN_YOUNG_MS * NS_PER_MS))
			return true;
		syn_adopt(w, slot);
		return false;
	default:
		return false;
	}
}

static bool syn_is_of(const struct worker *w, uint32_t slot)
{
	const volatile struct graft_head *h = &graft_of(w->shared->grafts, slot)->head;

	return atomic_load_explicit(&w->shared->syn->slots[slot].forward, memory_order_relaxed) &&
	       __atomic_load_n(&h->worker, __ATOMIC_RELAXED) == w->index;
}

void session_syn_sweep(struct worker *w, bool all)
{
	uint32_t n = w->shared->syn && !w->shared->handed_over ?
			     graft_table_syn_slots(w->shared->grafts) :
			     0;
	uint64_t now_ns = clock_ns();
	bool some = false;

	/* all answers first: a server that has answered any later SYN is not silent */
	for (uint32_t slot = 0; slot < n; slot++)
		if (syn_is_of(w, slot))
			syn_note_answer(w, slot);
	for (uint32_t slot = 0; slot < n; slot++)
		if (syn_is_of(w, slot))
			some = syn_look(w, slot, now_ns, all) || some;
	if (some && !all)
		timer_set(&w->loop, &w->syn_sweep, w->loop.now_ms + SYN_SWEEP_MS);
}

void session_syn_on_sweep(struct timer *t)
{
	struct worker *w = container_of(t, struct worker, syn_sweep);

	/* before the look: a SYN that comes after it tells W */
	graft_syn_awake(w->shared->grafts, w->index, false);
	session_syn_sweep(w, false);
	if (w->syn_sweep.prev)
		graft_syn_awake(w->shared->grafts, w->index, true);
}
