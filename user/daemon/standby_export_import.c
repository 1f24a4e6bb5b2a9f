// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: each export and each import has a thread of the control socket, on which all
 * of this runs.
 *
 * An export looks at all sessions each EXPORT_LOOK_MS, and sends a record of each place whose key
 * has changed.  A peer that takes nothing holds up this export alone, and is cut off in the end.
 *
 * An import enters the sessions of its peer as STANDBY, each under the lock of all imports and
 * exports, and under the lock of forwards.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "daemon/standby.h"
#include "datapath/graft/udp_graft.h"
#include "relay/upstream_socket.h"

#define BEGIN_MS 2000 /* for the thread that reloads to begin its looks */
#define DEAF_MS 10000 /* a peer that takes nothing, or sends nothing, for this time is cut off */
#define EXPORT_LOOK_MS 50
#define EXPORT_ALIVE_MS 1000

enum stream_phase {
	STREAM_CLOSED,
	STREAM_DUMPS, /* all present sessions travel; begins anew at an import's first record */
	STREAM_IN_SYNC,
};

/* The state of a place as an export has sent it last. */
struct exported {
	uint32_t key; /* changes with the record of the place; 0: there is none */
	struct graft_tuple client;
};

/*
 * Take the lock of streams after that of forwards.  Control requests that show streams take both
 * in this order, too.
 */
static void stream_lock(struct standby *sb)
{
	pthread_mutex_lock(&sb->service->forwards.lock);
	pthread_mutex_lock(&sb->lock);
}

static void stream_unlock(struct standby *sb)
{
	pthread_mutex_unlock(&sb->lock);
	pthread_mutex_unlock(&sb->service->forwards.lock);
}

/* --- ports for which the stack does not answer --- */

static void stream_mark_ports(uint8_t *ports, const struct endpoint *e, uint8_t as)
{
	for (unsigned int i = 0; i < e->n_ports; i++)
		ports[htons((uint16_t)(ntohs(e->named_port) + i))] |= as;
	for (size_t i = 0; i < e->n_addrs; i++)
		ports[addr_port(&e->addrs[i])] |= as;
}

static void stream_mark_forwards(uint8_t *ports, const struct forwards *all)
{
	const struct forward *f;

	TAILQ_FOREACH(f, &all->list, in_forwards) {
		const struct upstream *u = &f->conf->upstream;

		stream_mark_ports(ports, &f->conf->listen, GRAFT_PORT_LISTENS);
		for (size_t i = 0; i < u->n; i++)
			stream_mark_ports(ports, &u->servers[i].at, GRAFT_PORT_SERVER);
	}
}

/*
 * Count exports in sync: without any, sessions show "no standby".  While an import is not in sync,
 * the stack resets no connection at ports of forwards: a packet there may be of a session that has
 * not come yet.
 */
static void stream_count(struct standby *sb)
{
	unsigned int readers = 0, unsynced = 0;

	for (struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++) {
		readers += s->is_open && !s->is_import && s->synced_ms;
		unsynced += s->is_open && s->is_import && s->records && !s->synced_ms;
	}
	atomic_store(&sb->service->shared->standbys, readers);
	if (unsynced)
		stream_mark_forwards(graft_table_unsynced_ports(sb->grafts),
				     &sb->service->forwards);
	else
		memset(graft_table_unsynced_ports(sb->grafts), 0, GRAFT_PORTS);
}

/* --- opening, closing --- */

static void stream_enter(struct stream *s, enum stream_phase phase)
{
	const char *kind = s->is_import ? "import " : "an export";
	bool was_synced = s->synced_ms;

	stream_lock(s->sb);
	s->is_open = phase != STREAM_CLOSED;
	s->last_ms = clock_ms();
	s->synced_ms = phase == STREAM_IN_SYNC ? s->last_ms : 0;
	stream_count(s->sb);
	stream_unlock(s->sb);
	/* no message for each new try: a peer may be away for days */
	if (phase == STREAM_IN_SYNC)
		log_info("standby: %s%s is in sync", kind, s->name);
	else if (was_synced)
		log_warning("standby: %s%s has ended", kind, s->name);
}

/*
 * NAME: of an import; NULL: an export.  Returns NULL if there is no memory, or STREAMS_MAX streams
 * are open.
 */
static struct stream *stream_open(struct standby *sb, const struct control *c, int fd,
				  const char *name)
{
	uint32_t n = grafted_places(sb->grafts);
	struct stream new = { .sb = sb,
			      .control = c,
			      .fd = fd,
			      .is_import = name,
			      .tag = name ? graft_tag(name) | 1 : 0, /* 0 is none */
			      .known = calloc(BITS_WORDS(n), sizeof(*new.known)),
			      .exported = name ? NULL : calloc(n, sizeof(*new.exported)) };
	bool ready = new.known && (name || new.exported);
	struct stream *s = sb->streams;

	snprintf(new.name, sizeof(new.name), "%s", name ?: "");
	pthread_mutex_lock(&sb->lock);
	while (s < sb->streams + STREAMS_MAX && s->known)
		s++;
	ready = ready && s < sb->streams + STREAMS_MAX;
	if (ready)
		*s = new;
	pthread_mutex_unlock(&sb->lock);
	if (!ready) {
		free(new.known);
		free(new.exported);
		log_warning("standby: no memory, or more than %d exports and imports", STREAMS_MAX);
		return NULL;
	}
	stream_enter(s, STREAM_DUMPS);
	loop_call(&sb->service->loop, standby_begin_looks, sb, BEGIN_MS);
	return s;
}

static void stream_close(struct stream *s)
{
	stream_enter(s, STREAM_CLOSED);
	free(s->exported);
	free(s->known);
	pthread_mutex_lock(&s->sb->lock);
	s->known = NULL; /* last: another stream may use S now */
	pthread_mutex_unlock(&s->sb->lock);
}

/* --- export: records on their way --- */

static bool export_flush(struct stream *s)
{
	const char *text = (char *)s->buffer;
	int r = s->len ? control_send(s->control, s->fd, DEAF_MS, text, s->len) : 0;

	s->len = 0;
	s->last_ms = clock_ms();
	return !r;
}

/* R of RECORD_NONE: there is nothing to send.  False: the peer takes nothing. */
static bool export_put(struct stream *s, struct graft_record *r)
{
	if (r->kind == RECORD_NONE)
		return true;
	if (s->len + RECORD_MAX > sizeof(s->buffer) && !export_flush(s))
		return false;
	s->len += record_pack(r, clock_ns(), s->buffer + s->len);
	s->records++;
	return true;
}

/* --- export: keys: a place is exported anew if its key changes --- */

#define KEY_NONE 0U /* the place is not exported */
/*
 * A bit of a key: this relay owns the session.  Without the bit the session is STANDBY.  This relay
 * exports a STANDBY session only while the client's destination address is here, so the key changes
 * with each move of an address.  When a session ends, every relay that knew the session exports the
 * end.
 */
#define KEY_OWNED 1U

/* An ACTIVE session of TCP, and which of its ends have sent FIN. */
static uint32_t export_key_session(const struct stream *s, const struct grafted *h)
{
	const volatile struct graft_entry *g = graft_of(h->grafts, h->slot);
	uint64_t offered = g->offered_ns;
	uint32_t fins = g->side[1].fin << 2 | g->side[0].fin;

	if (graft_state_of(h->head) == GRAFT_DONE || s->now_ns < offered + s->after_ns)
		return KEY_NONE;
	return (((uint32_t)(offered / 1000) ^ (uint32_t)h->head->id << 20) << 4 | fins) << 1 |
	       KEY_OWNED;
}

/*
 * A flow that its sockets carry again stays exported: the record keeps the flow's port reserved at
 * the peer.
 */
static uint32_t export_key_flow(const struct stream *s, const struct grafted *h)
{
	const struct udp_table *us = graft_table_udp(h->grafts);
	uint32_t age = (uint32_t)(s->now_ns >> UDP_TICK_SHIFT) - udp_flow_of(us, h->slot)->born;

	if (age < s->after_ns >> UDP_TICK_SHIFT ||
	    !(h->head->mirrored || udp_graft_carries(us, h->slot, 0) ||
	      udp_graft_carries(us, h->slot, 1)))
		return KEY_NONE;
	return (uint32_t)h->head->id << 1 | KEY_OWNED;
}

/*
 * KEY_NONE: the session ends, is younger than after_ns, or is a flow of UDP that its sockets alone
 * carry and no other relay knows.
 */
static uint32_t export_key(const struct stream *s, const struct grafted *h)
{
	if (h->state == GRAFTED_STANDBY)
		return h->head->alone_ms == ALONE_EXPIRED ? KEY_NONE : (s->sb->ways.moves + 1) << 1;
	if (h->state == GRAFTED_NOTHING || h->head->mirrored == GRAFT_OVER)
		return KEY_NONE;
	return h->udp ? export_key_flow(s, h) : export_key_session(s, h);
}

/* --- export: looks --- */

/*
 * Place H has exported the session WAS, and exports it no more: make the record of its end.  If
 * another place exports the session now, there is no such record.  NOW is the key of H.
 */
static void export_end(const struct grafted *h, const struct exported *was, uint32_t now,
		       struct graft_record *ret)
{
	struct grafted other = { .at = grafted_find(h->grafts, h->udp, &was->client) };
	bool expired = h->state == GRAFTED_STANDBY && now == KEY_NONE;

	if (other.at != h->at && other.at != NO_SLOT) {
		other = grafted_at(h->grafts, other.at);
		/* the session has ended here, and its copy has come back from the peer meanwhile */
		if (now != KEY_NONE || !(was->key & KEY_OWNED) || other.state != GRAFTED_STANDBY)
			return;
		grafted_end(&other);
	}
	/* an expired session may go on elsewhere, unless its address is here */
	*ret = (struct graft_record){
		.kind = expired && !grafted_is_here(h) ? RECORD_LEFT : RECORD_GONE,
		.udp = h->udp,
		.client = was->client,
	};
}

/*
 * Make the records of a place whose key has changed.  The caller holds the lock: else this export
 * could see a place while an import replaces its session, and would report the session as over.
 */
static void export_change(struct stream *s, uint32_t at, struct graft_record *ret_end,
			  struct graft_record *ret)
{
	struct grafted h = grafted_at(s->sb->grafts, at);
	struct exported *now = &s->exported[at], was = *now;
	uint32_t key = export_key(s, &h);

	if (key == was.key || graft_state_of(h.head) == GRAFT_SETTING)
		return;
	if (key != KEY_NONE && !standby_ways_follow(&s->sb->ways, &h.leg[0]->tuple.local)) {
		log_limited(LOG_WARNING, "standby: too many local addresses: sessions of some are "
					 "not exported");
		key = KEY_NONE;
	}
	*now = (struct exported){ .key = key, .client = h.leg[0]->tuple };
	bit_set(s->known, at, key != KEY_NONE);
	if (was.key != KEY_NONE &&
	    (key == KEY_NONE || memcmp(&now->client, &was.client, sizeof(was.client)) != 0))
		export_end(&h, &was, key, ret_end);
	if (key != KEY_NONE && h.state == GRAFTED_STANDBY && !grafted_is_here(&h)) {
		*ret = (struct graft_record){ .kind = RECORD_LEFT,
					      .udp = h.udp,
					      .client = now->client };
	} else if (key != KEY_NONE) {
		h.head->mirrored = GRAFT_TOLD;
		grafted_record(&h, ret);
	}
}

/* False: the peer takes nothing. */
static bool export_all(struct stream *s)
{
	const uint64_t *used = graft_table_used(s->sb->grafts);
	uint32_t n = grafted_places(s->sb->grafts);
	struct graft_record end, now;

	s->now_ns = clock_ns();
	for (uint32_t at = 0; bit_next(used, s->known, n, &at); at++) {
		struct grafted h = grafted_at(s->sb->grafts, at);

		if (export_key(s, &h) == s->exported[at].key)
			continue;
		end.kind = now.kind = RECORD_NONE;
		pthread_mutex_lock(&s->sb->lock);
		export_change(s, at, &end, &now);
		pthread_mutex_unlock(&s->sb->lock);
		if (!export_put(s, &end) || !export_put(s, &now))
			return false;
	}
	return true;
}

/* --- export: the stream --- */

/* The peer of an export sends nothing: its socket becomes readable when the peer has gone. */
static void export_run(struct stream *s)
{
	struct graft_record r = { .kind = RECORD_BEGIN };
	uint64_t alive_ms;

	if (!export_put(s, &r) || !export_all(s))
		return;
	r.kind = RECORD_SYNC;
	if (!export_put(s, &r) || !export_flush(s))
		return;
	stream_enter(s, STREAM_IN_SYNC);
	r.kind = RECORD_PORTS;
	memcpy(r.ports, upstream_ports, sizeof(r.ports));
	if (!export_put(s, &r))
		return;
	r.kind = RECORD_ALIVE;
	for (alive_ms = clock_ms(); !control_wait(s->control, s->fd, EXPORT_LOOK_MS);) {
		if (!export_all(s))
			return;
		if (clock_ms() - alive_ms >= EXPORT_ALIVE_MS) {
			alive_ms = clock_ms();
			if (!export_put(s, &r))
				return;
		}
		if (!export_flush(s))
			return;
	}
}

void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms)
{
	struct stream *s = stream_open(sb, c, fd, NULL);

	if (!s)
		return;
	s->after_ns = after_ms * NS_PER_MS;
	export_run(s);
	stream_close(s);
}

/* --- import: records, under both locks --- */

/*
 * Enter the session of R.  A session that has not changed keeps its place, and so its key.  Else
 * two relays that both have an address would export each other's sessions for ever.
 */
static int import_session(struct stream *s, struct graft_record *r)
{
	struct graft_table *gs = s->sb->grafts;
	const struct forward *f = forward_with_tag(&s->sb->service->forwards, r->head.forward);
	uint32_t was, at;
	struct grafted h;
	int e = 0;

	if (!f)
		return -ENOENT;
	/*
	 * the addresses that the ends know of this relay; the server of a transparent forward
	 * knows the client's instead
	 */
	for (int side = 0; side < 2 - f->conf->transparent; side++)
		if (!standby_ways_follow(&s->sb->ways, &record_leg(r, side)->tuple.local))
			return -ENOSPC;
	was = at = grafted_find(gs, r->kind == RECORD_UDP, &record_leg(r, 0)->tuple);
	if (was == NO_SLOT || !grafted_is_same(gs, was, r))
		e = grafted_import(gs, r, &at);
	if (e && (e != -EEXIST || was == NO_SLOT)) /* -EEXIST: a worker has the session */
		return e;
	bit_set(s->known, at, true);
	h = grafted_at(gs, at);
	h.head->source = s->tag;
	h.head->alone_ms = ALONE_NEVER;
	standby_ways_find(&s->sb->ways, &h);
	return 0;
}

/*
 * All sessions of the peer have come.  Any other session of this import, or of no import, has no
 * exporter now.  If it is STANDBY, and its address is not here, it is over.
 */
static void import_sync(struct stream *s)
{
	for (struct grafted h = { 0 }; grafted_next(s->sb->grafts, &h); h.at++) {
		if (bit_is(s->known, h.at) || (h.head->source && h.head->source != s->tag))
			continue;
		h.head->source = 0;
		if (h.state == GRAFTED_STANDBY && !grafted_is_here(&h))
			grafted_end(&h);
	}
}

/* R: the session is over; or (LEFT) the peer no longer has it, and cannot say how it ended. */
static void import_end(struct stream *s, const struct graft_record *r)
{
	uint32_t at = grafted_find(s->sb->grafts, r->udp, &r->client);
	struct grafted h;

	if (at == NO_SLOT)
		return;
	h = grafted_at(s->sb->grafts, at);
	if (r->kind == RECORD_LEFT)
		h.head->source = 0;
	else if (h.state == GRAFTED_STANDBY)
		grafted_end(&h);
	else if (h.head->mirrored || h.head->source) { /* graft_part() drops the session later */
		h.head->mirrored = GRAFT_OVER;
		h.head->source = 0; /* no peer exports the session once its address has left */
	}
}

static void import_ports(struct stream *s, const unsigned int its[2])
{
	const unsigned int *own = upstream_ports;

	s->same_ports = its[0] <= own[1] && own[0] <= its[1];
	if (s->same_ports)
		log_limited(LOG_WARNING,
			    "standby: import %s: it connects from ports %u to %u, and this relay "
			    "from %u to %u: a session whose port is in use is refused "
			    "(net.ipv4.ip_local_port_range)",
			    s->name, its[0], its[1], own[0], own[1]);
}

static int import_record(struct stream *s, struct graft_record *r)
{
	if (r->kind == RECORD_NONE)
		return -EBADMSG;
	if (r->kind == RECORD_TCP || r->kind == RECORD_UDP)
		return import_session(s, r);
	if (r->kind == RECORD_GONE || r->kind == RECORD_LEFT)
		import_end(s, r);
	else if (r->kind == RECORD_SYNC)
		import_sync(s);
	else if (r->kind == RECORD_PORTS)
		import_ports(s, r->ports);
	return 0;
}

/* Take R.  A wrong R has kind RECORD_NONE, and WHY is its fault; later records may be right. */
static void import_take(struct stream *s, struct graft_record *r, const char *why)
{
	int e;

	if (!s->records++)
		stream_enter(s, STREAM_DUMPS);
	stream_lock(s->sb);
	e = import_record(s, r);
	stream_unlock(s->sb);
	if (r->kind == RECORD_SYNC)
		stream_enter(s, STREAM_IN_SYNC);
	if (!e || e == -EEXIST) /* a worker has the session */
		return;
	s->sb->refused++;
	log_limited(LOG_WARNING, "standby: import %s: a session is refused: %s", s->name,
		    e == -ENOENT     ? "no forward here has the name of its forward" :
		    e == -EBADMSG    ? why :
		    e == -EADDRINUSE ? "another session here has the same local port or client" :
				       "max-sessions is too low for those of both relays");
}

/* --- import: the stream --- */

/* The import ends at byte AT.  Sessions that have come stay. */
static void import_refuse(const struct stream *s, uint64_t at, const char *why)
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

/*
 * Take the whole records of the buffer.  *BYTES counts the bytes that are taken.  Returns the
 * fault, or NULL.
 */
static const char *import_buffer(struct stream *s, uint64_t *bytes)
{
	struct graft_record r;
	const char *why = NULL;
	size_t at = 0;
	int took;

	for (; (took = record_unpack(s->buffer + at, s->len - at, clock_ns(), &r, &why)) > 0;
	     at += (size_t)took)
		import_take(s, &r, why);
	*bytes += at;
	s->len -= at;
	memmove(s->buffer, s->buffer + at, s->len);
	return took < 0 ? why : NULL;
}

void standby_import(struct standby *sb, const struct control *c, int fd, const char *name)
{
	struct stream *s = stream_open(sb, c, fd, name);
	const char *why = NULL;
	uint64_t bytes = 0;
	ssize_t n;
	int ready;

	if (!s)
		return;
	/* before its first record an import hinders no session, and ssh may ask for a password */
	while ((ready = control_wait(s->control, s->fd, s->records ? DEAF_MS : -1)) > 0) {
		n = recv(s->fd, s->buffer + s->len, sizeof(s->buffer) - s->len, MSG_DONTWAIT);
		if (n <= 0 && s->len)
			why = "the stream ended within it";
		if (n <= 0)
			break;
		s->len += (size_t)n;
		s->last_ms = clock_ms();
		if (!s->records && *s->buffer != RECORD_BEGIN)
			why = "not what `culvert export` begins with";
		else
			why = import_buffer(s, &bytes);
		if (why)
			break;
	}
	if (!ready)
		why = "nothing came for 10 s";
	if (why)
		import_refuse(s, bytes, why);
	stream_close(s);
}
