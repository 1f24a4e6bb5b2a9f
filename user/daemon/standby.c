// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each export and import has a thread of the control socket.  An export looks
 * at all slots each LOOK_MS, and tells of those that are not as it has told.  A reader that takes
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
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "daemon/adopt.h"
#include "datapath/graft_record.h"
#include "datapath/udp_graft.h"

#define LOOK_MS 50
#define ALIVE_MS 1000
#define DEAF_MS 10000   /* a reader that takes nothing for so long is cut off */
#define LEAVING_MS 1000 /* packets may come that long after the address has left */
#define WAKE_MS 10000
#define BUFFER 65536

/* --- addresses, and ways: under the lock --- */

/* Tell the packet programs whether A is here, from now on. */
static void follow_address(struct standby *sb, const struct graft_addr *a)
{
	unsigned int i = 0;

	while (i < sb->n_addresses && memcmp(&sb->addresses[i].is, a, sizeof(*a)) != 0)
		i++;
	if (i < sb->n_addresses || i == STANDBY_ADDRESSES)
		return;
	sb->addresses[sb->n_addresses++].is = *a;
	sb->addresses[i].here = routes_ask(&sb->routes, a, 0).local;
	if (sb->addresses[i].here)
		grafts_set_here(sb->grafts, a, true);
}

/* True: sessions are to leave. */
static bool look_at_addresses(struct standby *sb)
{
	uint64_t now = clock_ms();
	bool left = false;

	for (unsigned int i = 0; i < sb->n_addresses; i++) {
		bool here = routes_ask(&sb->routes, &sb->addresses[i].is, 0).local;

		if (here)
			sb->addresses[i].gone_ms = 0;
		else if (sb->addresses[i].here && !sb->addresses[i].gone_ms)
			sb->addresses[i].gone_ms = now + LEAVING_MS;
		if (here == sb->addresses[i].here || (!here && now < sb->addresses[i].gone_ms))
			continue;
		sb->addresses[i].here = here;
		grafts_set_here(sb->grafts, &sb->addresses[i].is, here);
		left = left || !here;
		sb->wake_ms = now + WAKE_MS;
		sb->moves++;
	}
	return left;
}

static bool is_told_of(const struct standby *sb, uint32_t source)
{
	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++)
		if (s->is_open && s->is_import && s->tag == source)
			return true;
	return false;
}

/*
 * Take over what has said nothing since its address came, so that its ends are probed, and its time
 * is up some day; but not from a relay that still tells of it.  Flows of UDP have no ends to probe.
 */
static void wake(struct standby *sb)
{
	for (uint32_t slot = 0; slot < sb->n; slot++)
		if (graft_state(sb->grafts, slot) == GRAFT_STANDBY &&
		    !is_told_of(sb, graft_of(sb->grafts, slot)->source) &&
		    grafts_have(sb->grafts, &graft_of(sb->grafts, slot)->side[0].tuple.local))
			graft_wake(sb->grafts, slot);
	for (uint32_t slot = 0; slot < sb->n; slot++)
		if (udp_graft_is_over(sb->udp, slot))
			udp_graft_leave(sb->udp, slot);
	sb->wake_ms = clock_ms() + WAKE_MS;
}

static void find_way(struct standby *sb, struct graft_leg *l)
{
	struct route r = routes_ask(&sb->routes, &l->tuple.remote, l->way.mark);

	grafts_set_way(sb->grafts, &l->way, r.ifindex, r.mtu);
}

/* Both ways of what STANDBY is entered in SLOT. */
static void find_ways(struct standby *sb, uint32_t slot, bool udp)
{
	struct graft_entry *g = (struct graft_entry *)graft_of(sb->grafts, slot);
	struct udp_flow *f = (struct udp_flow *)udp_flow_of(sb->udp, slot);

	for (unsigned int i = 0; i < 2; i++) {
		if (udp && f->used == UDP_STANDBY)
			find_way(sb, &f->leg[i]);
		else if (!udp && graft_state(sb->grafts, slot) == GRAFT_STANDBY)
			find_way(sb, &g->side[i].leg);
	}
}

static void on_news(struct source *s, uint32_t events)
{
	struct standby *sb = container_of(s, struct standby, news);
	char buf[8192];

	(void)events;
	while (recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT) > 0 || errno == ENOBUFS)
		errno = 0;
	pthread_mutex_lock(&sb->lock);
	routes_forget(&sb->routes);
	look_at_addresses(sb);
	for (uint32_t slot = 0; sb->n_addresses && slot < sb->n; slot++) {
		find_ways(sb, slot, false);
		find_ways(sb, slot, true);
	}
	pthread_mutex_unlock(&sb->lock);
}

/* --- sessions that come --- */

static bool has_come(const struct standby *sb, uint32_t slot)
{
	const volatile struct udp_flow *f = udp_flow_of(sb->udp, slot);

	return f->used == UDP_STANDBY &&
	       (f->at[0].packets || f->at[1].packets || f->at[0].word != UDP_ACTIVE ||
		f->at[1].word != UDP_ACTIVE);
}

static void make_sockets(struct standby *sb, uint32_t slot)
{
	const struct graft_entry *g = (const struct graft_entry *)graft_of(sb->grafts, slot);
	int fds[2] = { -1, -1 };
	char err[256];

	for (unsigned int side = 0; side < 2; side++)
		if (privileged_revive(sb->reload->privileged, &g->side[side], &fds[side], err,
				      sizeof(err)))
			log_limited(LOG_WARNING,
				    "standby: nothing probes the ends of a session that came: %s",
				    err);
	graft_give_sockets(sb->grafts, slot, fds);
}

/* On the thread of W. */
static void adopt_some(struct worker *w, const void *arg)
{
	struct standby *sb = (struct standby *)arg;
	struct shared *shared = sb->reload->shared;
	struct forward *first = sb->reload->forwards.first;

	for (uint32_t slot = 0; slot < sb->n; slot++) {
		if (has_come(sb, slot) && flow_is_of(shared, w, slot))
			sb->adopted += !adopt_flow(shared, w, first, slot);
		if (slot % sb->reload->threads.n != w->index || !graft_is_orphan(sb->grafts, slot))
			continue;
		if (!adopt_session(shared, w, first, slot)) {
			sb->adopted++;
			continue;
		}
		log_limited(LOG_WARNING, "standby: a session that came is reset: no forward has "
					 "its name, or a limit is reached");
		graft_kill(sb->grafts, slot);
		graft_put(sb->grafts, slot);
	}
}

static void on_look(struct timer *t)
{
	struct standby *sb = container_of(t, struct standby, look);
	uint64_t before = sb->adopted;
	bool some = false, left;

	for (uint32_t slot = 0; slot < sb->n; slot++) {
		if (graft_is_orphan(sb->grafts, slot))
			make_sockets(sb, slot);
		some = some || has_come(sb, slot) || graft_is_orphan(sb->grafts, slot);
	}
	if (some)
		threads_call(&sb->reload->threads, adopt_some, sb);
	if (sb->adopted != before)
		log_info("standby: %llu sessions of another relay have come",
			 (unsigned long long)(sb->adopted - before));
	for (uint32_t slot = 0; some && slot < sb->n; slot++)
		if (has_come(sb, slot)) /* no forward has its name, or a limit is reached */
			udp_graft_leave(sb->udp, slot);
	pthread_mutex_lock(&sb->lock);
	left = look_at_addresses(sb);
	if (clock_ms() >= sb->wake_ms)
		wake(sb);
	pthread_mutex_unlock(&sb->lock);
	if (left)
		threads_tell_of_grafts(&sb->reload->threads);
	timer_set(&sb->reload->loop, t, clock_ms() + LOOK_MS);
}

/* --- streams --- */

static void begin_looks(void *arg)
{
	struct standby *sb = arg;

	timer_set(&sb->reload->loop, &sb->look, 0);
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
	grafts_set_unsynced(sb->grafts, unsynced);
}

static void change_stream(struct standby *sb, struct stream *s, bool is_open, bool in_sync)
{
	bool was_synced = s->synced_ms;

	pthread_mutex_lock(&sb->lock);
	s->is_open = is_open;
	s->last_ms = clock_ms();
	s->synced_ms = in_sync ? s->last_ms : 0;
	count_streams(sb);
	pthread_mutex_unlock(&sb->lock);
	if (in_sync || was_synced) /* one that tries for days is no news */
		log_info("standby: %s%s %s", s->is_import ? "import " : "an export", s->name,
			 in_sync ? "is in sync" : "has ended");
}

/* NULL: there are too many. */
static struct stream *open_stream(struct standby *sb, const char *name)
{
	struct stream *s = sb->streams;

	pthread_mutex_lock(&sb->lock);
	while (s < sb->streams + STREAMS_MAX && s->is_open)
		s++;
	if (s < sb->streams + STREAMS_MAX) {
		s->is_import = name;
		s->tag = name ? graft_tag(name) | 1 : 0; /* 0 is none */
		s->records = 0;
		snprintf(s->name, sizeof(s->name), "%s", name ?: "");
		s->is_open = true; /* last: who shows it has no lock */
	}
	pthread_mutex_unlock(&sb->lock);
	if (s == sb->streams + STREAMS_MAX) {
		log_warning("standby: more than %d exports and imports", STREAMS_MAX);
		return NULL;
	}
	change_stream(sb, s, true, false);
	loop_call(&sb->reload->loop, begin_looks, sb, 2000);
	return s;
}

/* --- export --- */

struct told {
	uint32_t key; /* changes with what is to be told; 0: nothing is told */
	struct graft_tuple client;
};

struct export
{
	struct standby *sb;
	struct stream *s;
	const struct control *c;
	int fd;
	uint64_t after_ns, now_ns; /* as of this look */
	struct told *told;         /* by slot, and then of UDP */
	size_t len;
	uint8_t buffer[BUFFER];
};

static bool flush(struct export *e)
{
	int r = e->len ? control_send(e->c, e->fd, DEAF_MS, (char *)e->buffer, e->len) : 0;

	e->len = 0;
	e->s->last_ms = clock_ms();
	return !r;
}

static bool put(struct export *e, struct graft_record *r)
{
	if (e->len + RECORD_MAX > BUFFER && !flush(e))
		return false;
	e->len += record_pack(r, clock_ns(), e->buffer + e->len);
	e->s->records++;
	return true;
}

/*
 * What is STANDBY has an even key: its relay tells of it, if that is here; and of its end each one
 * that knew it.
 */
static uint32_t standby_key(const struct export *e)
{
	return (e->sb->moves + 1) << 1;
}

static uint32_t key_of(const struct export *e, uint32_t slot)
{
	const volatile struct graft_entry *g = graft_of(e->sb->grafts, slot);
	enum graft_state state = graft_state(e->sb->grafts, slot);
	uint64_t offered;

	if (state == GRAFT_STANDBY)
		return standby_key(e);
	if (state != GRAFT_ACTIVE && state != GRAFT_RETURNING)
		return 0;
	offered = g->offered_ns;
	if (e->now_ns < offered + e->after_ns)
		return 0;
	return ((uint32_t)(offered / 1000) ^ (uint32_t)g->id << 20) << 5 | g->side[1].fin << 3 |
	       g->side[0].fin << 1 | 1;
}

static uint32_t udp_key_of(const struct export *e, uint32_t slot)
{
	const volatile struct udp_flow *f = udp_flow_of(e->sb->udp, slot);

	if (f->used == UDP_STANDBY)
		return standby_key(e);
	if (f->used != 1 ||
	    (uint32_t)(e->now_ns >> UDP_TICK_SHIFT) - f->born < e->after_ns >> UDP_TICK_SHIFT ||
	    !(udp_graft_carries(e->sb->udp, slot, 0) || udp_graft_carries(e->sb->udp, slot, 1)))
		return 0;
	return (uint32_t)f->id << 1 | 1;
}

/* It has another slot, which is told of, too. */
static bool is_elsewhere(const struct export *e, uint32_t slot, const struct graft_tuple *client,
			 bool udp)
{
	uint32_t found = udp ? udp_graft_find(e->sb->udp, client) :
			       graft_find(e->sb->grafts, client);

	return found != slot && found != NO_SLOT;
}

/* Tell of SLOT what has changed.  False: the reader does not take it. */
static bool tell(struct export *e, uint32_t slot, bool udp)
{
	struct told *told = &e->told[slot + (udp ? e->sb->n : 0)];
	uint32_t key = udp ? udp_key_of(e, slot) : key_of(e, slot);
	struct graft_record r = { .kind = RECORD_GONE, .udp = udp, .client = told->client };
	volatile struct udp_flow *f = udp_flow_of(e->sb->udp, slot);
	volatile struct graft_entry *g = graft_of(e->sb->grafts, slot);
	bool was = told->key;

	if (key == told->key)
		return true;
	told->key = key;
	told->client = udp ? *(struct graft_tuple *)&f->leg[0].tuple :
			     *(struct graft_tuple *)&g->side[0].tuple;
	if (was && (!key || memcmp(&told->client, &r.client, sizeof(r.client)) != 0) &&
	    !is_elsewhere(e, slot, &r.client, udp) && !put(e, &r))
		return false;
	if (!key)
		return true;
	if (!(key & 1) && !grafts_have(e->sb->grafts, &told->client.local)) {
		r.kind = RECORD_LEFT;
		r.client = told->client;
		return put(e, &r);
	}
	r.kind = udp ? RECORD_UDP : RECORD_TCP;
	if (udp) {
		f->mirrored = 1;
		r.flow = *(struct udp_flow *)f;
	} else {
		pthread_mutex_lock(&e->sb->lock);
		follow_address(e->sb, &told->client.local);
		pthread_mutex_unlock(&e->sb->lock);
		g->mirrored = 1;
		r.tcp = *(struct graft_entry *)g;
	}
	return put(e, &r);
}

static bool tell_all(struct export *e)
{
	e->now_ns = clock_ns();
	for (uint32_t slot = 0; slot < e->sb->n; slot++)
		if (!tell(e, slot, false) || !tell(e, slot, true))
			return false;
	return true;
}

/* A reader says nothing; if it can be heard, it has gone. */
static void export(struct export *e)
{
	struct graft_record r = { .kind = RECORD_BEGIN };
	uint64_t alive_ms;

	if (!put(e, &r) || !tell_all(e))
		return;
	r.kind = RECORD_SYNC;
	if (!put(e, &r) || !flush(e))
		return;
	change_stream(e->sb, e->s, true, true);
	r.kind = RECORD_ALIVE;
	for (alive_ms = clock_ms(); !control_wait(e->c, e->fd, LOOK_MS);) {
		if (!tell_all(e))
			return;
		if (clock_ms() - alive_ms >= ALIVE_MS) {
			alive_ms = clock_ms();
			put(e, &r);
		}
		if (!flush(e))
			return;
	}
}

void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms)
{
	struct export *e = calloc(1, sizeof(*e));
	struct told *told = calloc(2 * (size_t)sb->n, sizeof(*told));
	struct stream *s = e && told ? open_stream(sb, NULL) : NULL;

	if (s) {
		*e = (struct export){ .sb = sb,
				      .s = s,
				      .c = c,
				      .fd = fd,
				      .after_ns = after_ms * NS_PER_MS,
				      .told = told };
		export(e);
		change_stream(sb, s, false, false);
	}
	free(told);
	free(e);
}

/* --- import --- */

struct import {
	struct standby *sb;
	struct stream *s;
	bool *seen; /* by our slots, and then those of UDP: told of in this stream */
};

/* 0, or -errno. */
static int take_session(struct import *i, struct graft_record *r, bool udp)
{
	struct standby *sb = i->sb;
	uint32_t tag = udp ? r->flow.forward : r->tcp.forward, slot;
	const struct forward *f;
	bool transparent;
	int e;

	pthread_mutex_lock(&sb->reload->forwards.lock);
	f = forward_with_tag(sb->reload->forwards.first, tag);
	transparent = f && f->conf->transparent;
	pthread_mutex_unlock(&sb->reload->forwards.lock);
	if (!f)
		return -ENOENT;
	pthread_mutex_lock(&sb->lock);
	for (int side = 0; side < 2 - transparent; side++) /* else that one is the client's */
		follow_address(sb, udp ? &r->flow.leg[side].tuple.local :
					 &r->tcp.side[side].tuple.local);
	e = udp ? udp_graft_import(sb->udp, &r->flow, i->s->tag, &slot) :
		  graft_import(sb->grafts, &r->tcp, i->s->tag, &slot);
	if (!e) {
		i->seen[slot + (udp ? sb->n : 0)] = true;
		find_ways(sb, slot, udp);
	}
	pthread_mutex_unlock(&sb->lock);
	return e;
}

/* What this exporter has no more is over, unless its address is here; and what has left for it. */
static void in_sync(struct import *i)
{
	struct standby *sb = i->sb;

	for (uint32_t slot = 0; slot < sb->n; slot++) {
		volatile struct graft_entry *g = graft_of(sb->grafts, slot);
		volatile struct udp_flow *f = udp_flow_of(sb->udp, slot);

		if (!i->seen[slot] && graft_state(sb->grafts, slot) == GRAFT_STANDBY &&
		    (g->source == i->s->tag || !g->source)) {
			g->source = 0;
			if (!grafts_have(sb->grafts, &g->side[0].tuple.local))
				graft_drop(sb->grafts,
					   (const struct graft_tuple *)&g->side[0].tuple, false);
		}
		if (!i->seen[slot + sb->n] && f->used == UDP_STANDBY &&
		    (f->source == i->s->tag || !f->source)) {
			f->source = 0;
			if (!grafts_have(sb->grafts, &f->leg[0].tuple.local))
				udp_graft_leave(sb->udp, slot);
		}
	}
	change_stream(sb, i->s, true, true);
}

/* It is over at the exporter, or has LEFT it, who does not know any more what becomes of it. */
static void part(struct import *i, const struct graft_record *r, bool left)
{
	struct standby *sb = i->sb;
	uint32_t slot = r->udp ? udp_graft_find(sb->udp, &r->client) :
				 graft_find(sb->grafts, &r->client);
	volatile struct udp_flow *f;

	if (!r->udp && !left) {
		graft_drop(sb->grafts, &r->client, true);
		return;
	}
	if (slot == NO_SLOT)
		return;
	f = udp_flow_of(sb->udp, slot);
	if (!r->udp)
		graft_of(sb->grafts, slot)->source = 0;
	else if (left)
		f->source = 0;
	else if (f->used == UDP_STANDBY)
		udp_graft_leave(sb->udp, slot);
}

static void take_record(struct import *i, struct graft_record *r)
{
	struct standby *sb = i->sb;
	int e = 0;

	if (!i->s->records++)
		change_stream(sb, i->s, true, false);
	if (r->kind == RECORD_TCP || r->kind == RECORD_UDP) {
		e = take_session(i, r, r->kind == RECORD_UDP);
	} else if (r->kind == RECORD_GONE || r->kind == RECORD_LEFT) {
		part(i, r, r->kind == RECORD_LEFT);
	} else if (r->kind == RECORD_SYNC) {
		in_sync(i);
	}
	if (!e || e == -EEXIST) /* it is at work here */
		return;
	sb->refused++;
	log_limited(LOG_WARNING, "standby: import %s: a session is refused: %s", i->s->name,
		    e == -ENOENT ? "no forward here has the name of its forward" :
				   "max-sessions is too low for those of both relays");
}

/* Say why no more is read.  What was taken stays. */
static void refuse(const struct import *i, const struct control *c, int fd, uint64_t at,
		   const char *why)
{
	struct json_object *o = request_error_json(ERROR_MALFORMED,
						   "import %s: the record at byte %llu: %s",
						   i->s->name, (unsigned long long)at, why);
	size_t len;
	const char *text = json_line(o, JSON_C_TO_STRING_PLAIN, &len);

	log_warning("standby: import %s: the record at byte %llu: %s", i->s->name,
		    (unsigned long long)at, why);
	if (text)
		control_send(c, fd, DEAF_MS, text, len);
	json_object_put(o);
}

static void import(struct import *i, const struct control *c, int fd)
{
	uint8_t buffer[BUFFER];
	struct graft_record r;
	const char *why = NULL;
	size_t len = 0, at;
	uint64_t before = 0; /* bytes of the stream */
	ssize_t n;
	int took;

	while (control_wait(c, fd, -1) > 0) {
		n = recv(fd, buffer + len, BUFFER - len, MSG_DONTWAIT);
		if (n <= 0 && len)
			why = "it is not whole";
		if (n <= 0)
			break;
		len += (size_t)n;
		i->s->last_ms = clock_ms();
		if (!i->s->records && *buffer != RECORD_BEGIN) {
			why = "not what `culvert export` begins with";
			break;
		}
		for (at = 0;
		     (took = record_unpack(buffer + at, len - at, clock_ns(), &r, &why)) > 0;
		     at += (size_t)took) {
			take_record(i, &r);
		}
		before += at;
		if (took < 0)
			break;
		why = NULL;
		len -= at;
		memmove(buffer, buffer + at, len);
	}
	if (why)
		refuse(i, c, fd, before, why);
}

void standby_import(struct standby *sb, const struct control *c, int fd, const char *name)
{
	struct import i = { .sb = sb };

	i.seen = calloc(2 * (size_t)sb->n, sizeof(*i.seen));
	i.s = i.seen ? open_stream(sb, name) : NULL;
	if (i.s) {
		import(&i, c, fd);
		change_stream(sb, i.s, false, false);
	}
	free(i.seen);
}

/* --- what is shown --- */

unsigned int standby_held(const struct standby *sb)
{
	unsigned int held = 0;

	for (uint32_t slot = 0; slot < sb->n; slot++)
		held += (graft_state(sb->grafts, slot) == GRAFT_STANDBY) +
			(udp_flow_of(sb->udp, slot)->used == UDP_STANDBY);
	return held;
}

struct json_object *standby_json(struct standby *sb)
{
	struct json_object *o = json_object_new_object(), *list = json_object_new_array();

	json_add_int(o, "held", standby_held(sb));
	json_add_int(o, "adopted", sb->adopted);
	json_add_int(o, "refused", sb->refused);
	for (struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++) {
		uint64_t synced = s->synced_ms, last = s->last_ms, now = clock_ms();
		struct json_object *one;

		if (!s->is_open)
			continue;
		one = json_object_new_object();
		json_add_text(one, "stream", s->is_import ? "import" : "export");
		json_add_text(one, "name", s->name);
		json_add_bool(one, "in_sync", synced);
		json_add_int(one, "in_sync_ms", synced ? now - synced : 0);
		json_add_int(one, "heard_ms", now - last);
		json_add_int(one, "records", s->records);
		json_append(list, one);
	}
	json_add(o, "streams", list);
	return o;
}

/* --- opening, closing --- */

int standby_open(struct standby *sb, struct reload *r)
{
	struct sockaddr_nl all = { .nl_family = AF_NETLINK,
				   .nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR |
						RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE |
						RTMGRP_IPV6_ROUTE | RTMGRP_IPV4_RULE };
	int e;

	sb->reload = r;
	sb->grafts = r->shared->grafts;
	sb->udp = grafts_udp(sb->grafts);
	sb->n = grafts_total(sb->grafts);
	pthread_mutex_init(&sb->lock, NULL);
	sb->look.fire = on_look;
	sb->news = (struct source){
		.handle = on_news,
		.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)
	};
	e = routes_open(&sb->routes);
	if (!e && (sb->news.fd < 0 || bind(sb->news.fd, (struct sockaddr *)&all, sizeof(all))))
		e = -errno;
	if (e)
		return e;
	for (uint32_t slot = 0; slot < sb->n; slot++) {
		const volatile struct graft_entry *g = graft_of(sb->grafts, slot);
		bool standby = graft_state(sb->grafts, slot) == GRAFT_STANDBY;

		if (!standby && !(g->mirrored && graft_carries(sb->grafts, slot)))
			continue;
		follow_address(sb, (const struct graft_addr *)&g->side[0].tuple.local);
		/* else another relay has it by now */
		if (!grafts_have(sb->grafts, &g->side[0].tuple.local))
			graft_leave(sb->grafts, slot);
		begin_looks(sb);
	}
	return loop_watch(&r->loop, &sb->news, EPOLLIN, true);
}

void standby_close(struct standby *sb)
{
	close(sb->news.fd);
	close(sb->routes.fd);
	pthread_mutex_destroy(&sb->lock);
}
