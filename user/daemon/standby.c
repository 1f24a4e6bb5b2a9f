// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each export and import has a thread of the control socket.  An export looks
 * at all that is entered each LOOK_MS, and tells of what is not as it has told.  A reader that takes
 * nothing holds up this export alone, and is cut off in the end.
 *
 * What an import tells is STANDBY in the maps of the packet programs.  Nobody else sees it, until
 * the address that its client has connected to is here, and a packet makes it ACTIVE.  Then the
 * thread that reloads lets a worker adopt it, as if a daemon before this one had left it.  When the
 * address leaves, sessions that another relay was told of become STANDBY again.  So a failover is
 * addresses that move, of which netlink tells.
 */
#include "daemon/standby.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bits.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/minmax.h"
#include "daemon/adopt.h"
#include "datapath/graft_record.h"
#include "datapath/udp_graft.h"
#include "relay/session_life.h"
#include "relay/udp_upstream.h"
#include "relay/upstream_socket.h"

#define LOOK_MS 50
#define ALIVE_MS 1000
#define DEAF_MS 10000   /* who takes nothing, or says nothing, for so long is cut off */
#define LEAVING_MS 1000 /* packets may come that long after the address has left */
#define GONE_MS 10000   /* a relay whose stream has ended may come again within that time */
#define LOST_MS 20000   /* and if not, what it had is lost, and times out from then on */
#define CARE_MS 2000    /* between two looks at these, and at addresses that no session names */
#define REVIVE_MS 5000
#define BUFFER 65536

/* Forwards, too: control requests have theirs when they ask what is shown. */
static void lock_both(struct standby *sb)
{
	pthread_mutex_lock(&sb->reload->forwards.lock);
	pthread_mutex_lock(&sb->lock);
}

static void unlock_both(struct standby *sb)
{
	pthread_mutex_unlock(&sb->lock);
	pthread_mutex_unlock(&sb->reload->forwards.lock);
}

/* --- addresses, and ways: under the lock --- */

/* RET: A's, or where it would be. */
static bool find_address(const struct standby *sb, const struct graft_addr *a,
			 struct standby_address **ret)
{
	*ret = sb->addresses;
	for (size_t n = sb->n_addresses; n; n /= 2)
		if (memcmp(&(*ret)[n / 2].is, a, sizeof(*a)) < 0) {
			*ret += n / 2 + 1;
			n--;
		}
	return *ret < sb->addresses + sb->n_addresses && !memcmp(&(*ret)->is, a, sizeof(*a));
}

/* Tell the packet programs whether A is here, from now on.  False: there is no room for it. */
static bool follow_address(struct standby *sb, const struct graft_addr *a)
{
	struct standby_address *at;

	if (find_address(sb, a, &at))
		return true;
	if (sb->n_addresses == sb->n)
		return false;
	memmove(at + 1, at, (size_t)(&sb->addresses[sb->n_addresses++] - at) * sizeof(*at));
	*at = (struct standby_address){ .is = *a };
	at->here = routes_ask(&sb->routes, a, NULL, 0).local &&
		   grafts_set_here(sb->grafts, a, true);
	return true;
}

/* No session names them any more. */
static void forget_addresses(struct standby *sb)
{
	struct standby_address *at, *to = sb->addresses;

	/* those that were left, or went back to their sockets, too: they may be carried again */
	for (uint32_t i = 0; held_next(sb->shared, &i); i++) {
		struct held h = held_at(sb->shared, i);

		for (unsigned int leg = 0; leg < 2; leg++)
			if (find_address(sb, &h.leg[leg]->tuple.local, &at))
				at->used = true;
	}
	for (at = sb->addresses; at < sb->addresses + sb->n_addresses; at++) {
		bool used = at->used;

		at->used = false;
		if (used)
			*to++ = *at;
		else
			grafts_set_here(sb->grafts, &at->is, false);
	}
	sb->n_addresses = (unsigned int)(to - sb->addresses);
}

/* True: sessions are to leave. */
static bool look_at_addresses(struct standby *sb)
{
	uint64_t now = clock_ms();
	bool left = false;

	sb->looked_ms = now;
	sb->news = false;
	for (struct standby_address *a = sb->addresses; a < sb->addresses + sb->n_addresses; a++) {
		bool here = routes_ask(&sb->routes, &a->is, NULL, 0).local;

		if (here)
			a->gone_ms = 0;
		else if (a->here && !a->gone_ms)
			a->gone_ms = now + LEAVING_MS;
		if (here == a->here || (!here && now < a->gone_ms)) {
			sb->news = sb->news || a->gone_ms;
			continue;
		}
		a->here = grafts_set_here(sb->grafts, &a->is, here) && here;
		a->gone_ms = 0;
		left = left || !here;
		sb->moves++;
	}
	return left;
}

/* Its relay is heard each second, so one that is dead does not tell, whatever its stream does. */
static bool is_told_of(const struct standby *sb, uint32_t source)
{
	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++)
		if (s->is_open && s->is_import && s->synced_ms && s->tag == source &&
		    clock_ms() - s->last_ms < GONE_MS)
			return true;
	return false;
}

static bool is_here(const struct standby *sb, const struct held *h)
{
	return grafts_have(sb->grafts, &h->leg[0]->tuple.local);
}

/* Value of alone_ms: nobody has taken the session, and the next look takes it out. */
#define LET_GO 2U /* times are odd */

/*
 * No relay has told of H for MS.  The owner of H is gone, so its time-outs begin.  A relay without
 * packets must not reset H, nor probe its ends: the question for a neighbour would bring packets here.
 * So H is let go in silence, unless keepalive is due first: then H is taken over, to be probed.
 */
static void look_at_lost(struct standby *sb, uint32_t at, const struct held *h, uint64_t ms)
{
	const struct forward *f = forward_with_tag(&sb->reload->forwards, *h->forward);
	uint64_t idle = f ? f->conf->idle_timeout_ms : 1;
	uint64_t keepalive = f ? f->conf->keepalive_ms : 0;

	if (idle && ms >= LOST_MS + idle)
		*h->alone_ms = LET_GO;
	else if (at < sb->n && keepalive && ms >= larger(keepalive, GONE_MS) && is_here(sb, h))
		graft_wake(sb->grafts, at);
}

static void look_at_held(struct standby *sb)
{
	uint32_t now = (uint32_t)clock_ms() | 1;

	for (uint32_t at = 0; held_next(sb->shared, &at); at++) {
		struct held h = held_at(sb->shared, at);

		if (h.state != HELD_STANDBY)
			continue;
		if (*h.alone_ms == LET_GO)
			held_end(sb->shared, at);
		else if (is_told_of(sb, *h.source))
			*h.alone_ms = 0;
		else if (!*h.alone_ms)
			*h.alone_ms = now;
		else
			look_at_lost(sb, at, &h, now - *h.alone_ms);
	}
}

/* Both ways of what has no sockets yet. */
static void find_ways(struct standby *sb, const struct held *h)
{
	for (unsigned int i = 0; i < 2; i++) {
		struct graft_leg *l = h->leg[i];
		/* of a source that is not here the kernel answers nothing */
		bool here = routes_ask(&sb->routes, &l->tuple.local, NULL, 0).local;
		struct route r = routes_ask(&sb->routes, &l->tuple.remote,
					    here ? &l->tuple.local : NULL, l->way.mark);

		grafts_set_way(sb->grafts, &l->way, r.ifindex, r.mtu);
	}
}

void standby_news(struct standby *sb)
{
	pthread_mutex_lock(&sb->lock);
	routes_forget(&sb->routes);
	sb->news = true;
	/* else the next look comes soon */
	if (clock_ms() - sb->looked_ms >= LOOK_MS && look_at_addresses(sb))
		threads_tell_of_grafts(&sb->reload->threads);
	pthread_mutex_unlock(&sb->lock);
}

/* --- sessions that come --- */

/*
 * Has a packet come for what nobody has; or is it time to make sockets for what has none?  STRAY: the
 * address that its client has connected to is not here.  Looked at once, for packets go on.
 */
static enum { WAITS, STRAY, HAS_COME } arrival(const struct standby *sb, uint32_t at)
{
	struct held h = held_at(sb->shared, at);
	const volatile struct udp_flow *f;

	if (at < sb->n) {
		enum graft_state state = graft_state(sb->grafts, at);

		if (sb->revives && graft_is_bare(sb->grafts, at))
			return HAS_COME;
		if (!graft_is_orphan(sb->grafts, at))
			return WAITS;
		if (state == GRAFT_DONE)
			return HAS_COME;
		if (state != GRAFT_ACTIVE && state != GRAFT_RETURNING)
			return WAITS;
	} else {
		f = udp_flow_of(sb->udp, at - sb->n);
		if (h.state != HELD_STANDBY ||
		    !(f->at[0].packets || f->at[1].packets || udp_graft_word(f, 0) != UDP_ACTIVE ||
		      udp_graft_word(f, 1) != UDP_ACTIVE))
			return WAITS;
	}
	return is_here(sb, &h) ? HAS_COME : STRAY;
}

static void make_sockets(struct standby *sb, uint32_t slot)
{
	const struct graft_entry *g = (const struct graft_entry *)graft_of(sb->grafts, slot);
	struct privileged *p = sb->reload->privileged;
	int fds[2] = { -1, -1 };
	char err[256];

	/* one alone would be in the way of the next try */
	if (privileged_revive(p, &g->side[0], &fds[0], err, sizeof(err)) ||
	    privileged_revive(p, &g->side[1], &fds[1], err, sizeof(err))) {
		log_limited(LOG_WARNING, "graft: nothing probes the ends of a session yet: %s",
			    err);
		if (fds[0] >= 0)
			close(fds[0]);
		fds[0] = fds[1] = -1;
	}
	graft_give_sockets(sb->grafts, slot, fds);
}

/* On the thread of W. */
static void adopt_some(struct worker *w, const void *arg)
{
	struct standby *sb = (struct standby *)arg;

	for (uint32_t at = 0; held_next(sb->shared, &at); at++) {
		_Atomic uint64_t *last_id = &sb->shared->last_id;
		struct held h = held_at(sb->shared, at);
		uint64_t id = *h.id;
		bool later;
		int r;

		if (at < sb->n && w->grafted[at] && graft_has_sockets(sb->grafts, at))
			session_revive(w->grafted[at]);
		if (arrival(sb, at) != HAS_COME || !held_is_of(sb->shared, w, at) ||
		    (at < sb->n &&
		     (!graft_has_sockets(sb->grafts, at) || !graft_is_orphan(sb->grafts, at))))
			continue;
		if (id <= atomic_load(last_id)) /* another one here may have it */
			*h.id = atomic_fetch_add(last_id, 1) + 1;
		r = held_adopt(sb->shared, w, &sb->reload->forwards, at);
		if (!r) {
			sb->adopted++;
			continue;
		}
		*h.id = id;
		/* UDP needs the address at the server's side, which may come a moment later */
		later = at >= sb->n && r != -ENOENT && r != -EUSERS;
		log_limited(LOG_WARNING, "standby: a session that came is %s: %s",
			    later ? "not taken over yet" : "reset",
			    r == -ENOENT ? "no forward has its name" :
			    r == -EUSERS ? "a limit is reached" :
					   strerror(-r));
		if (!later)
			held_end(sb->shared, at);
	}
}

/* It has come to the one address that is still here, or is here already.  Its client's decides. */
static void send_back(struct standby *sb, uint32_t at)
{
	if (at < sb->n)
		graft_leave(sb->grafts, at);
	else
		udp_graft_part(sb->udp, at - sb->n);
}

/*
 * What has come goes the way of its own addresses from now on, which are here: rules may look at them.
 * All get their ways before the first one gets sockets, which takes longer.
 */
static bool prepare(struct standby *sb)
{
	bool some = false;

	for (uint32_t at = 0; held_next(sb->shared, &at); at++) {
		struct held h = held_at(sb->shared, at);

		switch (arrival(sb, at)) {
		case WAITS:
			continue;
		case STRAY:
			send_back(sb, at);
			continue;
		case HAS_COME:
			some = true;
		}
		if (at < sb->n && !graft_is_orphan(sb->grafts, at))
			continue;
		pthread_mutex_lock(&sb->lock);
		find_ways(sb, &h);
		pthread_mutex_unlock(&sb->lock);
	}
	for (uint32_t at = 0; some && held_next(sb->shared, &at) && at < sb->n; at++)
		if (arrival(sb, at) == HAS_COME && !graft_has_sockets(sb->grafts, at))
			make_sockets(sb, at);
	return some;
}

static void on_look(struct timer *t)
{
	struct standby *sb = container_of(t, struct standby, look);
	uint64_t before = sb->adopted, began = clock_ms();
	bool some, left;

	sb->revives = sb->reload->privileged && began >= sb->revive_ms;
	some = prepare(sb);
	if (some)
		threads_call(&sb->reload->threads, adopt_some, sb);
	/* what has left or ended meanwhile has no use for them, and its slot gets another session */
	for (uint32_t at = 0; some && at < sb->n; at++)
		graft_close_sockets(sb->grafts, at);
	/* thousands that fail for long are not to keep this thread busy */
	if (sb->revives)
		sb->revive_ms = clock_ms() + REVIVE_MS + 10 * (clock_ms() - began);
	if (sb->adopted != before)
		log_info("standby: %llu sessions of another relay have come",
			 (unsigned long long)(sb->adopted - before));
	pthread_mutex_lock(&sb->lock);
	left = sb->news && look_at_addresses(sb);
	if (began >= sb->cared_ms + CARE_MS) {
		look_at_held(sb);
		forget_addresses(sb);
		sb->cared_ms = began;
	}
	pthread_mutex_unlock(&sb->lock);
	if (left)
		threads_tell_of_grafts(&sb->reload->threads);
	timer_set(&sb->reload->loop, t, clock_ms() + LOOK_MS);
}

/* --- streams --- */

static void begin_looks(void *arg)
{
	struct standby *sb = arg;

	upstream_avoid(sb->grafts);
	timer_set(&sb->reload->loop, &sb->look, 0);
}

static void mark_ports(uint8_t *ports, const struct endpoint *e, uint8_t as)
{
	for (unsigned int i = 0; i < e->n_ports; i++)
		ports[htons((uint16_t)(ntohs(e->named_port) + i))] |= as;
	for (size_t i = 0; i < e->n_addrs; i++)
		ports[addr_port(&e->addrs[i])] |= as;
}

/* UNSYNCED: the stack answers for no port of a forward. */
static void mark_unsynced(struct standby *sb, bool unsynced)
{
	uint8_t *ports = grafts_unsynced(sb->grafts);

	if (!unsynced) {
		memset(ports, 0, GRAFT_PORTS);
		return;
	}
	for (const struct forward *f = sb->reload->forwards.first; f; f = f->next) {
		const struct upstream *u = &f->conf->upstream;

		mark_ports(ports, &f->conf->listen, GRAFT_PORT_LISTENS);
		for (size_t i = 0; i < u->n; i++)
			mark_ports(ports, &u->servers[i].at, GRAFT_PORT_SERVER);
	}
}

/* Sessions show whether a standby has them; while a dump comes, what it may have is not reset. */
static void count_streams(struct standby *sb)
{
	unsigned int readers = 0, unsynced = 0;

	for (struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++) {
		readers += s->is_open && !s->is_import && s->synced_ms;
		unsynced += s->is_open && s->is_import && s->records && !s->synced_ms;
	}
	atomic_store(&sb->reload->shared->standbys, readers);
	mark_unsynced(sb, unsynced);
}

static void change_stream(struct stream *s, bool is_open, bool in_sync)
{
	struct standby *sb = s->sb;
	bool was_synced = s->synced_ms;

	lock_both(sb);
	s->is_open = is_open;
	s->last_ms = clock_ms();
	s->synced_ms = in_sync ? s->last_ms : 0;
	count_streams(sb);
	unlock_both(sb);
	/* one that tries for days is no news */
	if (in_sync)
		log_info("standby: %s%s is in sync", s->is_import ? "import " : "an export",
			 s->name);
	else if (was_synced)
		log_warning("standby: %s%s has ended", s->is_import ? "import " : "an export",
			    s->name);
}

/* What is told of a place. */
struct exported {
	uint32_t key; /* changes with what is to be told; 0: nothing is */
	struct graft_tuple client;
};

/* NAME: of an import.  NULL: there are too many, or there is no memory. */
static struct stream *open_stream(struct standby *sb, const struct control *c, int fd,
				  const char *name)
{
	uint64_t *known = calloc(BITS_WORDS(2 * sb->n), sizeof(*known));
	struct exported *told = name ? NULL : calloc(2 * (size_t)sb->n, sizeof(*told));
	uint8_t *buffer = malloc(BUFFER);
	struct stream *s = sb->streams;

	pthread_mutex_lock(&sb->lock);
	while (s < sb->streams + STREAMS_MAX && s->known)
		s++;
	if (s == sb->streams + STREAMS_MAX || !known || (!name && !told) || !buffer) {
		pthread_mutex_unlock(&sb->lock);
		free(known);
		free(told);
		free(buffer);
		log_warning("standby: no memory, or more than %d exports and imports", STREAMS_MAX);
		return NULL;
	}
	*s = (struct stream){ .sb = sb,
			      .control = c,
			      .fd = fd,
			      .is_import = name,
			      .tag = name ? graft_tag(name) | 1 : 0, /* 0 is none */
			      .known = known,
			      .told = told,
			      .buffer = buffer };
	snprintf(s->name, sizeof(s->name), "%s", name ?: "");
	pthread_mutex_unlock(&sb->lock);
	change_stream(s, true, false);
	loop_call(&sb->reload->loop, begin_looks, sb, 2000);
	return s;
}

static void close_stream(struct stream *s)
{
	change_stream(s, false, false);
	free(s->buffer);
	free(s->told);
	free(s->known);
	pthread_mutex_lock(&s->sb->lock);
	s->known = NULL; /* last: another one may use it */
	pthread_mutex_unlock(&s->sb->lock);
}

/* --- export --- */

static bool flush(struct stream *s)
{
	int r = s->len ? control_send(s->control, s->fd, DEAF_MS, (char *)s->buffer, s->len) : 0;

	s->len = 0;
	s->last_ms = clock_ms();
	return !r;
}

static bool put(struct stream *s, struct graft_record *r)
{
	if (s->len + RECORD_MAX > BUFFER && !flush(s))
		return false;
	s->len += record_pack(r, clock_ns(), s->buffer + s->len);
	s->records++;
	return true;
}

static uint32_t key_of_session(const struct stream *s, const struct held *h, uint32_t slot)
{
	const volatile struct graft_entry *g = graft_of(s->sb->grafts, slot);
	uint64_t offered = g->offered_ns;

	if (graft_state(s->sb->grafts, slot) == GRAFT_DONE || s->now_ns < offered + s->after_ns)
		return 0;
	return ((uint32_t)(offered / 1000) ^ (uint32_t)*h->id << 20) << 5 | g->side[1].fin << 3 |
	       g->side[0].fin << 1 | 1;
}

/* An exported flow stays exported while its sockets carry it: the other relay needs its port alone. */
static uint32_t key_of_flow(const struct stream *s, const struct held *h, uint32_t slot)
{
	const volatile struct udp_flow *f = udp_flow_of(s->sb->udp, slot);

	if ((uint32_t)(s->now_ns >> UDP_TICK_SHIFT) - f->born < s->after_ns >> UDP_TICK_SHIFT ||
	    !(*h->mirrored || udp_graft_carries(s->sb->udp, slot, 0) ||
	      udp_graft_carries(s->sb->udp, slot, 1)))
		return 0;
	return (uint32_t)*h->id << 1 | 1;
}

/*
 * A STANDBY session has an even key.  The relay that has its address exports it; its end is exported by
 * each relay that knew it.  A session that is let go has ended only if its address is here.
 */
static uint32_t key_of(const struct stream *s, const struct held *h, uint32_t at)
{
	if (h->state == HELD_STANDBY)
		return *h->alone_ms == LET_GO ? 0 : (s->sb->moves + 1) << 1;
	if (h->state == HELD_NOTHING || *h->mirrored == GRAFT_OVER)
		return 0;
	return at < s->sb->n ? key_of_session(s, h, at) : key_of_flow(s, h, at - s->sb->n);
}

/* The place of what has that tuple; or NO_SLOT. */
static uint32_t find(const struct standby *sb, const struct graft_tuple *client, bool udp)
{
	uint32_t slot = udp ? udp_graft_find(sb->udp, client) : graft_find(sb->grafts, client);

	return udp && slot != NO_SLOT ? slot + sb->n : slot;
}

typedef uint64_t __attribute__((may_alias)) word;

/* What packet programs and workers change meanwhile, word by word: a record needs no more. */
__attribute__((no_sanitize("thread"))) static void copy(void *to, const volatile void *from,
							size_t size)
{
	for (size_t i = 0; i < size / sizeof(word); i++)
		((word *)to)[i] = ((const volatile word *)from)[i];
}

/*
 * Note what is to be told of AT: RET_GONE, that what was there is over, and RET; or no kind.  Under the
 * lock, or an import would be seen between the old and the new record of a session: and who is told
 * that it is over tells the others, too.
 */
static void note(struct stream *s, uint32_t at, struct graft_record *ret_gone,
		 struct graft_record *ret)
{
	struct standby *sb = s->sb;
	struct held h = held_at(sb->shared, at);
	uint32_t key = key_of(s, &h, at), found;
	struct exported *told = &s->told[at], was = *told;
	bool udp = at >= sb->n;

	if (key == was.key || (!udp && graft_state(sb->grafts, at) == GRAFT_SETTING))
		return;
	if (key && !follow_address(sb, &h.leg[0]->tuple.local)) {
		log_limited(LOG_WARNING, "standby: sessions of too many addresses: some are not "
					 "told of");
		key = 0;
	}
	*told = (struct exported){ .key = key, .client = h.leg[0]->tuple };
	bit_set(s->known, at, key);
	if (was.key && (!key || memcmp(&told->client, &was.client, sizeof(was.client)) != 0)) {
		found = find(sb, &was.client, udp);
		/* the session has ended here, and FOUND is the other relay's copy of it */
		if (!key && was.key & 1 && found != NO_SLOT && found != at &&
		    held_at(sb->shared, found).state == HELD_STANDBY) {
			held_end(sb->shared, found);
			found = NO_SLOT;
		}
		/* else it has another place, which is told of, too */
		if (found == at || found == NO_SLOT)
			*ret_gone = (struct graft_record){
				.kind = h.state == HELD_STANDBY && !key && !is_here(sb, &h) ?
						RECORD_LEFT :
						RECORD_GONE,
				.udp = udp,
				.client = was.client
			};
	}
	if (!key)
		return;
	if (h.state == HELD_STANDBY && !is_here(sb, &h)) {
		*ret = (struct graft_record){ .kind = RECORD_LEFT,
					      .udp = udp,
					      .client = told->client };
		return;
	}
	*h.mirrored = GRAFT_TOLD;
	ret->kind = udp ? RECORD_UDP : RECORD_TCP;
	if (udp)
		copy(&ret->flow, udp_flow_of(sb->udp, at - sb->n), sizeof(ret->flow));
	else
		copy(&ret->tcp, graft_of(sb->grafts, at), sizeof(ret->tcp));
}

/* Tell of what is at AT if that has changed.  False: the reader does not take it. */
static bool tell(struct stream *s, uint32_t at)
{
	struct held h = held_at(s->sb->shared, at);
	struct graft_record gone, r;

	if (key_of(s, &h, at) == s->told[at].key)
		return true;
	gone.kind = r.kind = RECORD_NONE;
	pthread_mutex_lock(&s->sb->lock);
	note(s, at, &gone, &r);
	pthread_mutex_unlock(&s->sb->lock);
	return (!gone.kind || put(s, &gone)) && (!r.kind || put(s, &r));
}

static bool tell_all(struct stream *s)
{
	const uint64_t *used = grafts_used(s->sb->grafts);

	s->now_ns = clock_ns();
	for (uint32_t at = 0; bit_next(used, s->known, 2 * s->sb->n, &at); at++)
		if (!tell(s, at))
			return false;
	return true;
}

/* A reader says nothing; if it can be heard, it has gone. */
static void export(struct stream *s)
{
	struct graft_record r = { .kind = RECORD_BEGIN };
	uint64_t alive_ms;

	if (!put(s, &r) || !tell_all(s))
		return;
	r.kind = RECORD_SYNC;
	if (!put(s, &r) || !flush(s))
		return;
	change_stream(s, true, true);
	r.kind = RECORD_PORTS;
	upstream_ports(r.ports);
	put(s, &r);
	r.kind = RECORD_ALIVE;
	for (alive_ms = clock_ms(); !control_wait(s->control, s->fd, LOOK_MS);) {
		if (!tell_all(s))
			return;
		if (clock_ms() - alive_ms >= ALIVE_MS) {
			alive_ms = clock_ms();
			put(s, &r);
		}
		if (!flush(s))
			return;
	}
}

void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms)
{
	struct stream *s = open_stream(sb, c, fd, NULL);

	if (!s)
		return;
	s->after_ns = after_ms * NS_PER_MS;
	export(s);
	close_stream(s);
}

/* --- import: under both locks --- */

/* R tells nothing new of what is STANDBY at AT. */
static bool is_known(const struct standby *sb, uint32_t at, const struct graft_record *r)
{
	const struct graft_side *have, *told = r->tcp.side;

	if (at == NO_SLOT || held_at(sb->shared, at).state != HELD_STANDBY)
		return false;
	if (at >= sb->n)
		return udp_flow_of(sb->udp, at - sb->n)->id == r->flow.id;
	have = (const struct graft_side *)graft_of(sb->grafts, at)->side;
	for (int i = 0; i < 2; i++)
		if (have[i].seq_add != told[i].seq_add || have[i].tsval_add != told[i].tsval_add ||
		    have[i].fin != told[i].fin)
			return false;
	return graft_of(sb->grafts, at)->id == r->tcp.id;
}

/*
 * 0, or -errno.  What is known stays where it is: if two relays took each other's records as news,
 * while the address is at both, they would tell each other for ever.
 */
static int take_session(struct stream *s, struct graft_record *r)
{
	struct standby *sb = s->sb;
	bool udp = r->kind == RECORD_UDP;
	const struct forward *f;
	struct held h;
	uint32_t was, at;
	int e;

	f = forward_with_tag(&sb->reload->forwards, udp ? r->flow.forward : r->tcp.forward);
	if (!f)
		return -ENOENT;
	/* of one that is transparent the other one is the client's */
	for (int side = 0; side < 2 - f->conf->transparent; side++)
		if (!follow_address(sb, &record_leg(r, side)->tuple.local))
			return -ENOSPC;
	was = at = find(sb, &record_leg(r, 0)->tuple, udp);
	if (!is_known(sb, at, r)) {
		e = udp ? udp_graft_import(sb->udp, &r->flow, &at) :
			  graft_import(sb->grafts, &r->tcp, &at);
		at += udp && !e ? sb->n : 0;
		/* after it is entered, or a new session could take it; not what has just left */
		if (!e && udp && was == NO_SLOT &&
		    udp_port_is_used(record_leg(r, 1)->tuple.local_port)) {
			held_end(sb->shared, at);
			e = -EADDRINUSE;
		}
		if (e && (e != -EEXIST || was == NO_SLOT))
			return e;
	}
	bit_set(s->known, at, true);
	h = held_at(sb->shared, at);
	*h.source = s->tag;
	*h.alone_ms = 0;
	find_ways(sb, &h);
	return 0;
}

/*
 * What is held and this exporter has no more is over, unless its address is here; and what has left
 * for it.  Of what is at work here it tells no more.
 */
static void drop_others(struct stream *s)
{
	for (uint32_t at = 0; held_next(s->sb->shared, &at); at++) {
		struct held h = held_at(s->sb->shared, at);

		if (bit_is(s->known, at) || (*h.source && *h.source != s->tag))
			continue;
		*h.source = 0;
		if (h.state == HELD_STANDBY && !is_here(s->sb, &h))
			held_end(s->sb->shared, at);
	}
}

/* It is over at the exporter, or has LEFT it, who does not know any more what becomes of it. */
static void part(struct stream *s, const struct graft_record *r)
{
	uint32_t at = find(s->sb, &r->client, r->udp);
	struct held h;

	if (at == NO_SLOT)
		return;
	h = held_at(s->sb->shared, at);
	if (r->kind == RECORD_LEFT)
		*h.source = 0;
	else if (h.state == HELD_STANDBY)
		held_end(s->sb->shared, at);
	else if (*h.mirrored || *h.source) { /* a stray will be dropped, too */
		*h.mirrored = GRAFT_OVER;
		*h.source = 0; /* nobody tells of it any more, once its address has left */
	}
}

static void compare_ports(struct stream *s, const unsigned int its[2])
{
	unsigned int own[2];

	upstream_ports(own);
	s->same_ports = its[0] <= own[1] && own[0] <= its[1];
	if (s->same_ports)
		log_limited(LOG_WARNING,
			    "standby: import %s: it connects from ports %u to %u, and this relay "
			    "from %u to %u: a session whose port is in use is refused "
			    "(net.ipv4.ip_local_port_range)",
			    s->name, its[0], its[1], own[0], own[1]);
}

static int take(struct stream *s, struct graft_record *r)
{
	if (r->kind == RECORD_TCP || r->kind == RECORD_UDP)
		return take_session(s, r);
	if (r->kind == RECORD_GONE || r->kind == RECORD_LEFT)
		part(s, r);
	else if (r->kind == RECORD_SYNC)
		drop_others(s);
	else if (r->kind == RECORD_PORTS)
		compare_ports(s, r->ports);
	return 0;
}

/* WHY: what is wrong with R, if it is none: those that follow may be right. */
static void take_record(struct stream *s, struct graft_record *r, const char *why)
{
	struct standby *sb = s->sb;
	int e;

	if (!s->records++)
		change_stream(s, true, false);
	lock_both(sb);
	e = r->kind ? take(s, r) : -EBADMSG;
	unlock_both(sb);
	if (r->kind == RECORD_SYNC)
		change_stream(s, true, true);
	if (!e || e == -EEXIST) /* it is at work here */
		return;
	sb->refused++;
	log_limited(LOG_WARNING, "standby: import %s: a session is refused: %s", s->name,
		    e == -ENOENT     ? "no forward here has the name of its forward" :
		    e == -EBADMSG    ? why :
		    e == -EADDRINUSE ? "another session here has its port, or its client's" :
				       "max-sessions is too low for those of both relays");
}

/* Say why no more is read.  What was taken stays. */
static void refuse(const struct stream *s, uint64_t at, const char *why)
{
	struct json_object *o = request_error_json(ERROR_MALFORMED,
						   "import %s: the record at byte %llu: %s",
						   s->name, (unsigned long long)at, why);
	size_t len;
	const char *text = json_line(o, JSON_C_TO_STRING_PLAIN, &len);

	log_warning("standby: import %s: the record at byte %llu: %s", s->name,
		    (unsigned long long)at, why);
	if (text)
		control_send(s->control, s->fd, DEAF_MS, text, len);
	json_object_put(o);
}

static void import(struct stream *s)
{
	struct graft_record r;
	const char *why = NULL;
	uint64_t before = 0; /* bytes of the stream */
	ssize_t n;
	size_t at;
	int took, ready;

	/* before its first record an import hinders nobody, and ssh may ask for a password */
	while ((ready = control_wait(s->control, s->fd, s->records ? DEAF_MS : -1)) > 0) {
		n = recv(s->fd, s->buffer + s->len, BUFFER - s->len, MSG_DONTWAIT);
		if (n <= 0 && s->len)
			why = "it is not whole";
		if (n <= 0)
			break;
		s->len += (size_t)n;
		s->last_ms = clock_ms();
		if (!s->records && *s->buffer != RECORD_BEGIN) {
			why = "not what `culvert export` begins with";
			break;
		}
		for (at = 0;
		     (took = record_unpack(s->buffer + at, s->len - at, clock_ns(), &r, &why)) > 0;
		     at += (size_t)took) {
			take_record(s, &r, why);
		}
		before += at;
		if (took < 0)
			break;
		why = NULL;
		s->len -= at;
		memmove(s->buffer, s->buffer + at, s->len);
	}
	if (!ready)
		why = "it does not come";
	if (why)
		refuse(s, before, why);
}

void standby_import(struct standby *sb, const struct control *c, int fd, const char *name)
{
	struct stream *s = open_stream(sb, c, fd, name);

	if (!s)
		return;
	import(s);
	close_stream(s);
}

/* --- what is shown --- */

unsigned int standby_held(const struct standby *sb)
{
	unsigned int held = 0;

	for (uint32_t at = 0; held_next(sb->shared, &at); at++)
		held += held_at(sb->shared, at).state == HELD_STANDBY;
	return held;
}

struct json_object *standby_json(struct standby *sb)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_add_int(o, "held", standby_held(sb));
	json_add_int(o, "adopted", sb->adopted);
	json_add_int(o, "refused", sb->refused);
	pthread_mutex_lock(&sb->lock);
	json_add_int(o, "addresses", sb->n_addresses);
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
		json_append(list, one);
	}
	pthread_mutex_unlock(&sb->lock);
	json_add(o, "streams", list);
	return o;
}

/* --- opening, closing --- */

int standby_open(struct standby *sb, struct reload *r)
{
	int e = routes_open(&sb->routes);

	if (e)
		return e;
	sb->reload = r;
	sb->shared = r->shared;
	sb->grafts = r->shared->grafts;
	sb->udp = grafts_udp(sb->grafts);
	sb->n = grafts_total(sb->grafts);
	sb->addresses = allocated(calloc((size_t)sb->n + 1, sizeof(*sb->addresses)));
	pthread_mutex_init(&sb->lock, NULL);
	sb->look.fire = on_look;
	for (uint32_t at = 0; held_next(sb->shared, &at); at++) {
		struct held h = held_at(sb->shared, at);

		begin_looks(sb);
		if (h.state != HELD_STANDBY && !(h.state == HELD_ACTIVE && *h.mirrored))
			continue;
		follow_address(sb, &h.leg[0]->tuple.local);
		/* else another relay has it by now */
		if (h.state == HELD_ACTIVE && !is_here(sb, &h))
			send_back(sb, at);
	}
	return 0;
}

void standby_close(struct standby *sb)
{
	routes_close(&sb->routes);
	free(sb->addresses);
	pthread_mutex_destroy(&sb->lock);
}
