// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: an import enters the sessions of its peer as STANDBY in the maps of the
 * packet programs.  A STANDBY session rests until the address to which its client has connected is
 * on this machine, and a packet makes the session ACTIVE.  Then a worker adopts the session, as if
 * a former daemon had left it.  When an address leaves, sessions that a peer knows become STANDBY
 * again.  So a failover consists of moves of addresses alone, which netlink reports.
 *
 * Threads: each export and each import runs on its own thread of the control socket.  The looks
 * below run on the thread that reloads, each LOOK_MS.  A worker adopts a session on its own thread.
 */
#include "daemon/standby.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bits.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/minmax.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/graft/udp_graft.h"
#include "relay/session_syn.h"
#include "relay/upstream_socket.h"

#define LOOK_MS 50
#define BUSY_MS 10000   /* each look is for arrivals for this time after one, or a moved address; */
#define IDLE_LOOKS 4    /* later, one look of so many is */
#define CARE_MS 2000    /* between two looks at sessions that may expire, and at unused addresses */
#define GONE_MS 10000   /* the least silence after which an orphan is probed */
#define TOLD_MS 5000    /* a relay that is not heard for this time is dead */
#define MISSING_MS 2000 /* a relay that is not heard for this time is missing, */
#define DEAD_MS 300000  /* but not for longer than this */
#define WAKE_MS 200     /* between two tries to wake a silent orphan, */
#define WAKES 6         /* each of which succeeds once in so many: one relay is the first */
#define LOST_MS 20000   /* without an exporter for this time: idle-timeout begins */
#define REVIVE_MS 1000
#define SETTLE_MS 6000 /* see standby_is_settled(), standby_ask_again() */
#define TAKEN_MS 1000  /* for the others to adopt sessions, and to tell of them */

/* --- sessions that expire: under the lock --- */

void standby_hear(struct standby *sb, uint32_t tag)
{
	int at = 0;

	/* if there is no room, the one that was heard least lately is dead */
	for (int i = 0; i < STREAMS_MAX; i++) {
		if (atomic_load(&sb->relays[i].tag) == tag) {
			at = i;
			break;
		}
		if (atomic_load(&sb->relays[i].heard_ms) < atomic_load(&sb->relays[at].heard_ms))
			at = i;
	}
	atomic_store(&sb->relays[at].tag, tag);
	atomic_store(&sb->relays[at].heard_ms, clock_ms());
}

/*
 * A living relay sends a record each second.  A stream that ends may begin again.  After the start each
 * relay has time to be heard.
 */
bool standby_is_told(const struct standby *sb, const struct grafted *h)
{
	uint32_t source = h->head->source;

	for (int i = 0; source && i < STREAMS_MAX; i++)
		if (atomic_load(&sb->relays[i].tag) == source)
			return sb->now_ms < atomic_load(&sb->relays[i].heard_ms) + TOLD_MS;
	return source && sb->now_ms < sb->opened_ms + TOLD_MS;
}

/*
 * No peer has exported H for MS: its owner is gone, so its time-outs begin.  While the address of H
 * is elsewhere, this relay must not reset H, nor probe its ends: a probe's neighbour solicitation
 * (ARP) would bring packets here.  So H expires in silence.  But if the address is here and
 * keepalive is due first, H becomes ACTIVE, and a worker probes its ends.
 */
static void standby_expire(struct standby *sb, const struct grafted *h, uint64_t ms)
{
	const struct forward *f = forward_with_tag(&sb->service->forwards, h->head->forward);
	uint64_t idle = f ? f->conf->idle_timeout_ms : 1;
	uint64_t keepalive = f ? f->conf->keepalive_ms : 0;

	if (idle && ms >= LOST_MS + idle)
		h->head->alone_ms = ALONE_EXPIRED;
	else if (keepalive && ms >= larger(keepalive, GONE_MS) && grafted_is_here(h))
		grafted_wake(h);
}

/* Each export reports an expired session to its peer before the next look takes the session out. */
static void standby_look_at_held(struct standby *sb)
{
	uint32_t now = (uint32_t)clock_ms() | 1;

	sb->orphans = false;
	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++) {
		if (h.state != GRAFTED_STANDBY)
			continue;
		if (h.head->alone_ms == ALONE_EXPIRED) {
			grafted_end(&h);
			continue;
		}
		if (standby_is_told(sb, &h)) {
			h.head->alone_ms = ALONE_NEVER;
			continue;
		}
		sb->orphans = true;
		if (h.head->alone_ms == ALONE_NEVER)
			h.head->alone_ms = now;
		else
			standby_expire(sb, &h, now - h.head->alone_ms);
	}
}

/* --- sessions that arrive --- */

static void standby_make_sockets(struct standby *sb, const struct grafted *h)
{
	struct privileged *p = sb->service->privileged;
	int fds[2] = { -1, -1 };
	struct graft_record r;
	char err[256];

	grafted_record(h, &r);
	/* a single socket would block the next try */
	if (privileged_revive(p, &r.tcp.side[0], &fds[0], err, sizeof(err)) ||
	    privileged_revive(p, &r.tcp.side[1], &fds[1], err, sizeof(err))) {
		log_limited(LOG_WARNING,
			    "graft: a session has no sockets yet, so nothing probes its ends: %s",
			    err);
		if (fds[0] >= 0)
			close(fds[0]);
		fds[0] = fds[1] = -1;
	}
	graft_give_sockets(h->grafts, h->slot, fds);
}

static enum grafted_arrival standby_arrival(const struct standby *sb, const struct grafted *h)
{
	const volatile struct udp_flow *f = udp_flow_of(graft_table_udp(h->grafts), h->slot);
	enum grafted_arrival arrival = grafted_arrival(h, sb->revives);

	/* the sockets of a session carry what cannot be translated */
	if (arrival == ARRIVAL_DUE && !(h->udp && (f->at[0].why || f->at[1].why)) &&
	    standby_is_told(sb, h))
		return ARRIVAL_HELPED;
	return arrival;
}

/* Packets of H, which another relay has, go by this one. */
static void standby_help(struct standby *sb, const struct grafted *h)
{
	if (!h->udp && graft_state_of(h->head) == GRAFT_DONE) { /* exports tell the end */
		pthread_mutex_lock(&sb->lock);
		if (graft_state_of(h->head) == GRAFT_DONE) /* an import may have put it away */
			graft_put(h->grafts, h->slot);
		pthread_mutex_unlock(&sb->lock);
		return;
	}
	if (h->udp)
		udp_graft_help(graft_table_udp(h->grafts), h->slot);
	if (bit_is(sb->helped, h->at))
		return;
	bit_set(sb->helped, h->at, true);
	pthread_mutex_lock(&sb->lock);
	standby_addresses_find_routes(&sb->addresses, h);
	pthread_mutex_unlock(&sb->lock);
}

/*
 * Look up the routes of arrived sessions anew: rules may route by source addresses, which are here
 * now.  All sessions get routes before the first session gets sockets, because sockets take longer.
 * A stray has had a packet, but only the address that its server knows is here.  The address that
 * its client knows has not come yet, or has left.
 */
static bool standby_prepare(struct standby *sb)
{
	bool some = false;

	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++) {
		enum grafted_arrival arrival = standby_arrival(sb, &h);

		some = some || arrival >= ARRIVAL_BARE;
		if (arrival > ARRIVAL_HELPED) /* a helped one stays that as long as it lives */
			sb->busy_ms = sb->now_ms;
		if (arrival == ARRIVAL_HELPED)
			standby_help(sb, &h);
		if (arrival == ARRIVAL_STRAY)
			grafted_stand_by(&h);
		if (arrival != ARRIVAL_DUE)
			continue;
		pthread_mutex_lock(&sb->lock);
		standby_addresses_find_routes(&sb->addresses, &h);
		pthread_mutex_unlock(&sb->lock);
	}
	for (struct grafted h = { 0 }; some && grafted_next(sb->grafts, &h); h.at++)
		if (grafted_wants_sockets(&h) && standby_arrival(sb, &h) >= ARRIVAL_BARE)
			standby_make_sockets(sb, &h);
	return some;
}

/* On the thread of W, under the lock: an import could end H meanwhile. */
static void standby_adopt(struct standby *sb, struct worker *w, const struct grafted *h)
{
	_Atomic uint64_t *last_id = &w->shared->last_id;
	uint64_t id = h->head->id;
	int r;

	/* another session here may have it, unless relays have numbers */
	if (!(id >> ID_COUNTER_BITS) && id <= atomic_load(last_id))
		h->head->id = atomic_fetch_add(last_id, 1) + 1;
	r = grafted_adopt(h, w, &sb->service->forwards);
	if (!r) {
		h->head->source = 0;
		bit_set(sb->rests, h->at, false);
		sb->adopted++;
		if (h->head->mirrored == GRAFT_CONDEMNED)
			shared_tell_news(sb->service->shared);
		return;
	}
	h->head->id = id;
	if (r == -EAGAIN)
		return;
	log_limited(LOG_WARNING, "standby: an imported session is not adopted: %s",
		    r == -ENOENT ? "no forward has its name" : strerror(-r));
	if (r == -ENOMEM)
		return;
	/* a relay that is not heard may carry it all the same */
	if (!h->udp && graft_is_unheard(h->grafts, h->slot))
		graft_part(h->grafts, h->slot, ALONE_EXPIRED);
	else
		grafted_end(h);
}

/* The worker W is to adopt H. */
static bool standby_is_due(const struct standby *sb, const struct worker *w,
			   const struct grafted *h)
{
	return standby_arrival(sb, h) == ARRIVAL_DUE && grafted_is_of(h, w) &&
	       !grafted_wants_sockets(h);
}

/* On the thread of W. */
static void standby_adopt_all(struct worker *w, const void *arg)
{
	struct standby *sb = *(struct standby *const *)arg;

	if (atomic_load(&w->shared->handed_over)) /* the next daemon has the maps */
		return;
	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++) {
		grafted_revive(&h, w);
		if (!standby_is_due(sb, w, &h))
			continue;
		pthread_mutex_lock(&sb->lock);
		h = grafted_at(sb->grafts, h.at);
		if (standby_is_due(sb, w, &h))
			standby_adopt(sb, w, &h);
		pthread_mutex_unlock(&sb->lock);
	}
}

/* --- ports for which the stack does not answer --- */

static void standby_mark_endpoint(uint8_t *ports, const struct endpoint *e, uint8_t as)
{
	for (unsigned int i = 0; i < e->n_ports; i++)
		ports[htons((uint16_t)(ntohs(e->named_port) + i))] |= as;
	for (size_t i = 0; i < e->n_addrs; i++)
		ports[addr_port(&e->addrs[i])] |= as;
}

static void standby_mark_forwards(uint8_t *ports, const struct forwards *all)
{
	const struct forward *f;

	TAILQ_FOREACH(f, &all->list, in_forwards) {
		const struct upstream *u = &f->conf->upstream;

		standby_mark_endpoint(ports, &f->conf->listen, GRAFT_PORT_LISTENS);
		for (size_t i = 0; i < u->n; i++)
			standby_mark_endpoint(ports, &u->servers[i].at, GRAFT_PORT_SERVER);
	}
}

/*
 * A relay that starts may have lost sessions.  The other relays adopt these sessions, and export them, once
 * an export of this relay is in sync, or TOLD_MS after they heard this relay last.
 */
static bool standby_is_settled(struct standby *sb)
{
	uint64_t told_ms = 0, now = clock_ms();

	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++) {
		if (!s->is_open || !s->synced_ms)
			continue;
		if (!s->is_import)
			told_ms = larger(told_ms, s->synced_ms);
		else if (!sb->synced_ms)
			sb->synced_ms = s->synced_ms;
	}
	return now >= sb->synced_ms + SETTLE_MS || (told_ms && now >= told_ms + TAKEN_MS);
}

void standby_mark_ports(struct standby *sb)
{
	bool some = !standby_is_settled(sb);

	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++)
		some = some || (s->is_open && s->is_import && s->records && !s->synced_ms);
	if (some)
		standby_mark_forwards(graft_table_unsynced_ports(sb->grafts),
				      &sb->service->forwards);
	else if (sb->marked)
		memset(graft_table_unsynced_ports(sb->grafts), 0, GRAFT_PORTS);
	sb->marked = some;
}

/* --- looks --- */

static void standby_look_for_arrivals(struct standby *sb)
{
	uint64_t before = sb->adopted, began = clock_ms();
	bool handed_over;

	sb->revives = sb->service->privileged && began >= sb->revive_ms;
	if (standby_prepare(sb)) {
		threads_call(&sb->service->threads, standby_adopt_all, &sb);
		/*
		 * close the sockets that no worker took: their session has left or ended, and the
		 * slot gets another session; but a session of the next daemon would be reset
		 */
		handed_over = atomic_load(&sb->service->shared->handed_over);
		for (uint32_t slot = 0; !handed_over && slot < graft_table_total(sb->grafts);
		     slot++)
			graft_close_sockets(sb->grafts, slot);
	}
	/* a longer pause: thousands of vain tries must not keep this thread busy */
	if (sb->revives)
		sb->revive_ms = clock_ms() + REVIVE_MS + 10 * (clock_ms() - began);
	if (sb->adopted != before)
		log_info("standby: %llu imported sessions are adopted",
			 (unsigned long long)(sb->adopted - before));
}

/*
 * A session that is silent, and that no relay has, needs an owner that probes its ends.  If all relays
 * woke it at once, all would adopt it.
 */
static void standby_wake_orphans(struct standby *sb)
{
	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++) {
		sb->chance = sb->chance * 1664525 + 1013904223;
		if (!h.udp && h.state == GRAFTED_STANDBY && h.head->alone_ms != ALONE_EXPIRED &&
		    (sb->chance >> 8) % WAKES == 0 && !standby_is_told(sb, &h) &&
		    grafted_is_here(&h))
			grafted_wake(&h);
	}
}

/*
 * Sessions that an earlier daemon had left may have ended at other relays meanwhile.  Now that these
 * relays know the sessions, the answer to a probe comes here by any way.
 */
static void standby_ask_again(struct standby *sb)
{
	sb->asked_again = true;
	graft_table_doubt_ways(sb->grafts, GRAFT_CHANGE_ROUTES);
	shared_tell_news(sb->service->shared);
}

/* A relay that was heard lately is silent, or on the far side of a partition. */
static void standby_note_missing(struct standby *sb)
{
	for (int i = 0; i < STREAMS_MAX; i++) {
		uint64_t heard_ms = atomic_load(&sb->relays[i].heard_ms);

		if (!heard_ms || sb->now_ms <= heard_ms + MISSING_MS ||
		    sb->now_ms >= heard_ms + DEAD_MS)
			continue;
		atomic_store(&sb->service->shared->missing_ms, sb->now_ms);
		sb->orphans = true;
	}
}

/* Another thread may have the lock of forwards for seconds: then a later look unmarks. */
static void standby_unmark_ports(struct standby *sb)
{
	if (pthread_mutex_trylock(&sb->service->forwards.lock))
		return;
	pthread_mutex_lock(&sb->lock);
	standby_mark_ports(sb);
	pthread_mutex_unlock(&sb->lock);
	pthread_mutex_unlock(&sb->service->forwards.lock);
}

static void standby_on_look(struct timer *t)
{
	struct standby *sb = container_of(t, struct standby, look);
	uint64_t began = clock_ms();

	if (atomic_load(&sb->service->shared->handed_over))
		return;
	sb->now_ms = began;
	if (standby_addresses_look(&sb->addresses))
		shared_tell_news(sb->service->shared);
	if (sb->moves != sb->addresses.moves + sb->addresses.n_news) {
		sb->moves = sb->addresses.moves + sb->addresses.n_news;
		memset(sb->helped, 0, BITS_WORDS(grafted_places(sb->grafts)) * sizeof(*sb->helped));
	}
	if (sb->address_moves != sb->addresses.moves) {
		sb->address_moves = sb->addresses.moves;
		sb->busy_ms = began;
	}
	/* packet programs carry nearly all that arrives before its adoption */
	if (!sb->begun || began < sb->busy_ms + BUSY_MS || !(++sb->idle_looks % IDLE_LOOKS))
		standby_look_for_arrivals(sb);
	if (atomic_load(&sb->service->shared->handed_over)) /* meanwhile */
		return;
	if (began >= sb->wake_ms) {
		standby_note_missing(sb);
		if (sb->orphans)
			standby_wake_orphans(sb);
		if (sb->marked)
			standby_unmark_ports(sb);
		if (!sb->asked_again && sb->synced_ms && began >= sb->synced_ms + SETTLE_MS)
			standby_ask_again(sb);
		sb->wake_ms = began + WAKE_MS;
	}
	if (began >= sb->cared_ms + CARE_MS) {
		pthread_mutex_lock(&sb->lock);
		standby_look_at_held(sb);
		standby_addresses_forget(&sb->addresses);
		pthread_mutex_unlock(&sb->lock);
		sb->cared_ms = began;
	}
	if (sb->begun || graft_any_is_bare(sb->grafts))
		timer_set(&sb->service->loop, t, clock_ms() + LOOK_MS);
}

void standby_begin_looks(void *arg)
{
	struct standby *sb = arg;

	upstream_avoid(sb->grafts);
	sb->begun = true;
	timer_set(&sb->service->loop, &sb->look, 0);
}

void standby_news(struct standby *sb)
{
	/* else the next look comes soon */
	if (standby_addresses_news(&sb->addresses) >= LOOK_MS &&
	    standby_addresses_look(&sb->addresses))
		shared_tell_news(sb->service->shared);
}

/* --- status --- */

/* Add counts of the sessions that no worker here has. */
static void standby_add_counts(const struct standby *sb, struct json_object *o)
{
	unsigned int held = 0, helped = 0, orphans = 0;

	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++) {
		bool helps = grafted_is_helped(&h);

		if (!helps && (h.state != GRAFTED_STANDBY || h.head->alone_ms == ALONE_EXPIRED))
			continue;
		held += !helps;
		if (!standby_is_told(sb, &h))
			orphans++;
		else if (helps)
			helped++;
	}
	json_add_int(o, "held", held);
	json_add_int(o, "helped", helped);
	json_add_int(o, "orphans", orphans);
}

struct json_object *standby_json(struct standby *sb)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_add_int(o, "owned", session_syn_live(sb->service->shared));
	standby_add_counts(sb, o);
	json_add_int(o, "adopted", sb->adopted);
	json_add_int(o, "refused", sb->refused);
	json_add_int(o, "addresses", sb->addresses.n);
	pthread_mutex_lock(&sb->lock);
	for (struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++) {
		uint64_t synced = s->synced_ms, last = s->last_ms, now = clock_ms();
		struct json_object *one;

		if (!s->is_open)
			continue;
		one = json_object_new_object();
		json_add_text(one, "stream", s->is_import ? "import" : "export");
		json_add_text(one, "name", s->name);
		json_add_bool(one, "in_sync", synced);
		json_add_int(one, "since_ms", synced ? now - synced : 0);
		json_add_int(one, "heard_ms", now - last);
		json_add_int(one, "records", s->records);
		json_add_bool(one, "same_ports", s->same_ports);
		json_add_text(one, "lacks", s->lacks);
		json_append(list, one);
	}
	pthread_mutex_unlock(&sb->lock);
	json_add(o, "streams", list);
	return o;
}

/* False: no forward has it. */
static bool standby_view(const struct standby *sb, const struct grafted *h,
			 struct session_view *ret)
{
	struct addr client = graft_tuple_address(&h->leg[CLIENT]->tuple, false);

	*ret = (struct session_view){
		.id = h->head->id,
		.forward = forward_with_tag(&sb->service->forwards, h->head->forward),
		.state = SESSION_OPEN,
		.upstream = graft_tuple_address(&h->leg[UPSTREAM]->tuple, false),
		.not_grafted = "",
		.standby = !standby_is_told(sb, h) ? "orphan" :
			   grafted_is_helped(h)    ? "helped" :
						     "held",
	};
	client_addr_set(&ret->client, &client.sa);
	for (unsigned int dir = 0; dir < 2; dir++)
		ret->flows[dir].carrier = CARRIER_GRAFT;
	return ret->forward;
}

/* No worker here has H. */
static bool standby_is_unowned(const struct grafted *h)
{
	return h->state == GRAFTED_STANDBY || grafted_is_unowned(h);
}

void standby_visit(struct standby *sb, unsigned int piece, unsigned int pieces,
		   standby_visit_fn *fn, void *arg)
{
	struct session_view v;

	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++)
		if (standby_is_unowned(&h) && h.head->id % pieces == piece &&
		    standby_view(sb, &h, &v))
			fn(arg, &v, &h);
}

void standby_condemn(struct standby *sb, const struct grafted *h)
{
	struct grafted now;

	pthread_mutex_lock(&sb->lock);
	now = grafted_at(h->grafts, h->at);
	if (standby_is_told(sb, h)) {
		sb->condemned[sb->n_condemned % CONDEMNED_MAX].client = h->leg[CLIENT]->tuple;
		sb->condemned[sb->n_condemned % CONDEMNED_MAX].id = h->head->id;
		sb->condemned[sb->n_condemned++ % CONDEMNED_MAX].udp = h->udp;
		now.head->mirrored = GRAFT_CONDEMNED; /* if this relay adopts it */
	} else if (standby_is_unowned(&now)) {        /* a worker may have adopted it meanwhile */
		grafted_end(&now);
	}
	pthread_mutex_unlock(&sb->lock);
}

bool standby_has_room(struct standby *sb)
{
	bool room = false;

	pthread_mutex_lock(&sb->lock);
	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++)
		room = room || !s->known;
	pthread_mutex_unlock(&sb->lock);
	return room;
}

/* --- opening --- */

int standby_open(struct standby *sb, struct service *r)
{
	int e = standby_addresses_open(&sb->addresses, r->shared->grafts);

	if (e)
		return e;
	sb->service = r;
	sb->grafts = r->shared->grafts;
	sb->own = r->start->relay ? graft_tag(r->start->relay) | 1 : 0;
	sb->busy_ms = sb->opened_ms = clock_ms();
	sb->chance = (uint32_t)(clock_ns() >> 10) ^ (uint32_t)getpid() << 16;
	sb->helped = allocated(calloc(BITS_WORDS(grafted_places(sb->grafts)), sizeof(*sb->helped)));
	sb->keys = allocated(calloc(grafted_places(sb->grafts), sizeof(*sb->keys)));
	sb->keyed = allocated(calloc(BITS_WORDS(grafted_places(sb->grafts)), sizeof(*sb->keyed)));
	sb->rests = allocated(calloc(BITS_WORDS(grafted_places(sb->grafts)), sizeof(*sb->rests)));
	pthread_mutex_init(&sb->keys_lock, NULL);
	sb->heard = allocated(calloc(graft_table_total(sb->grafts), sizeof(*sb->heard)));
	pthread_mutex_init(&sb->lock, NULL);
	sb->look.fire = standby_on_look;
	if (r->shared->syn) { /* sessions that begin in the kernel get sockets later */
		upstream_avoid(sb->grafts);
		r->sockets = &sb->look;
		r->shared->reload_loop = &r->loop;
	}
	for (struct grafted h = { 0 }; grafted_next(sb->grafts, &h); h.at++) {
		standby_begin_looks(sb);
		if (h.state != GRAFTED_STANDBY && !(h.state == GRAFTED_ACTIVE && h.head->mirrored))
			continue;
		standby_addresses_follow(&sb->addresses, &h.leg[0]->tuple.local);
		/* its address has left while no daemon ran */
		if (h.state == GRAFTED_ACTIVE && !grafted_is_here(&h))
			grafted_stand_by(&h);
	}
	return 0;
}
