// SPDX-License-Identifier: BSD-2-Clause
/*
 * On the thread of one export.  It looks at all sessions each EXPORT_LOOK_MS, and sends a record of
 * each place whose key has changed.  A peer that takes nothing holds up this export alone, and is
 * cut off in the end.
 */
#include "daemon/standby_stream.h"

#include <string.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/log.h"
#include "datapath/graft/udp_graft.h"
#include "relay/upstream_socket.h"

#define EXPORT_LOOK_MS 50
#define EXPORT_ALIVE_MS 1000

/* --- records on their way --- */

static bool export_flush(struct stream *s)
{
	const char *text = (char *)s->buffer;
	int r = s->len ? control_send(s->control, s->fd, STREAM_DEAF_MS, text, s->len) : 0;

	s->len = 0;
	s->last_ms = clock_ms();
	return !r;
}

/* Of no kind: there is nothing to send.  False: the peer takes nothing. */
static bool export_put(struct stream *s, struct graft_record *r)
{
	if (r->kind == RECORD_NONE)
		return true;
	if (s->len + RECORD_MAX > STREAM_BUFFER && !export_flush(s))
		return false;
	s->len += record_pack(r, clock_ns(), s->buffer + s->len);
	s->records++;
	return true;
}

/* --- keys: a place is exported anew if its key changes --- */

#define KEY_NONE 0U /* the place is not exported */

/* A session of this relay has an odd key. */
static uint32_t export_key_owned(uint32_t identity)
{
	return identity << 1 | 1;
}

static bool export_is_owned(uint32_t key)
{
	return key & 1;
}

/*
 * A STANDBY session has an even key.  Its owner exports it, not this relay, unless its address is
 * here already: so the key changes with each address that moves.  But its end is exported by each
 * relay that knew it.
 */
static uint32_t export_key_standby(const struct stream *s)
{
	return (s->sb->ways.moves + 1) << 1;
}

/* A session, and which of its ends have sent FIN. */
static uint32_t export_key_session(const struct stream *s, const struct held *h)
{
	const volatile struct graft_entry *g = graft_of(h->grafts, h->slot);
	uint64_t offered = g->offered_ns;
	uint32_t fins = g->side[1].fin << 2 | g->side[0].fin;

	if (graft_state(h->grafts, h->slot) == GRAFT_DONE || s->now_ns < offered + s->after_ns)
		return KEY_NONE;
	return export_key_owned(((uint32_t)(offered / 1000) ^ (uint32_t)*h->id << 20) << 4 | fins);
}

/* An exported flow stays exported while its sockets carry it: the peer needs its port alone. */
static uint32_t export_key_flow(const struct stream *s, const struct held *h)
{
	const struct udp_table *us = graft_table_udp(h->grafts);
	uint32_t age = (uint32_t)(s->now_ns >> UDP_TICK_SHIFT) - udp_flow_of(us, h->slot)->born;

	if (age < s->after_ns >> UDP_TICK_SHIFT ||
	    !(*h->mirrored || udp_graft_carries(us, h->slot, 0) ||
	      udp_graft_carries(us, h->slot, 1)))
		return KEY_NONE;
	return export_key_owned((uint32_t)*h->id);
}

static uint32_t export_key(const struct stream *s, const struct held *h)
{
	if (h->state == HELD_STANDBY)
		return *h->alone_ms == ALONE_EXPIRED ? KEY_NONE : export_key_standby(s);
	if (h->state == HELD_NOTHING || *h->mirrored == GRAFT_OVER)
		return KEY_NONE;
	return h->udp ? export_key_flow(s, h) : export_key_session(s, h);
}

/* --- looks --- */

/*
 * The session of WAS was exported from place H, and is there no more.  If the session has another
 * place now, it is exported from there.  NOW is the key of the place.
 */
static void export_end(const struct held *h, const struct exported *was, uint32_t now,
		       struct graft_record *ret)
{
	struct held other = { .at = held_find(h->grafts, h->udp, &was->client) };
	bool expired = h->state == HELD_STANDBY && now == KEY_NONE;

	if (other.at != h->at && other.at != NO_SLOT) {
		other = held_at(h->grafts, other.at);
		/* the session has ended here while the peer exported it: that copy has come back */
		if (now != KEY_NONE || !export_is_owned(was->key) || other.state != HELD_STANDBY)
			return;
		held_end(&other);
	}
	/* an expired session may go on elsewhere, unless its address is here */
	*ret = (struct graft_record){
		.kind = expired && !held_is_here(h) ? RECORD_LEFT : RECORD_GONE,
		.udp = h->udp,
		.client = was->client,
	};
}

/* The session that is in place H now. */
static void export_session(const struct held *h, struct graft_record *ret)
{
	if (h->state == HELD_STANDBY && !held_is_here(h)) {
		*ret = (struct graft_record){ .kind = RECORD_LEFT,
					      .udp = h->udp,
					      .client = h->leg[0]->tuple };
		return;
	}
	*h->mirrored = GRAFT_TOLD;
	held_record(h, ret);
}

/*
 * Make the records of a place whose key has changed.  The lock is held, or this export would see
 * the moment in which an import replaces a session, and tell all other relays that the session is
 * over.
 */
static void export_change(struct stream *s, uint32_t at, struct graft_record *ret_end,
			  struct graft_record *ret)
{
	struct held h = held_at(s->sb->grafts, at);
	struct exported *now = &s->exported[at], was = *now;
	uint32_t key = export_key(s, &h);

	if (key == was.key || (!h.udp && graft_state(h.grafts, h.slot) == GRAFT_SETTING))
		return;
	if (key != KEY_NONE && !standby_ways_follow(&s->sb->ways, &h.leg[0]->tuple.local)) {
		log_limited(LOG_WARNING, "standby: sessions of too many addresses: some are not "
					 "told of");
		key = KEY_NONE;
	}
	*now = (struct exported){ .key = key, .client = h.leg[0]->tuple };
	bit_set(s->known, at, key != KEY_NONE);
	if (was.key != KEY_NONE &&
	    (key == KEY_NONE || memcmp(&now->client, &was.client, sizeof(was.client)) != 0))
		export_end(&h, &was, key, ret_end);
	if (key != KEY_NONE)
		export_session(&h, ret);
}

/* False: the peer takes nothing. */
static bool export_place(struct stream *s, uint32_t at)
{
	struct held h = held_at(s->sb->grafts, at);
	struct graft_record end, now;

	if (export_key(s, &h) == s->exported[at].key)
		return true;
	end.kind = now.kind = RECORD_NONE;
	pthread_mutex_lock(&s->sb->lock);
	export_change(s, at, &end, &now);
	pthread_mutex_unlock(&s->sb->lock);
	return export_put(s, &end) && export_put(s, &now);
}

static bool export_all(struct stream *s)
{
	const uint64_t *used = graft_table_used(s->sb->grafts);
	uint32_t n = held_places(s->sb->grafts);

	s->now_ns = clock_ns();
	for (uint32_t at = 0; bit_next(used, s->known, n, &at); at++)
		if (!export_place(s, at))
			return false;
	return true;
}

/* --- the stream --- */

/* A peer says nothing: if something can be read, the peer has gone. */
static void export_run(struct stream *s)
{
	struct graft_record r = { .kind = RECORD_BEGIN };
	uint64_t alive_ms;

	if (!export_put(s, &r) || !export_all(s))
		return;
	r.kind = RECORD_SYNC;
	if (!export_put(s, &r) || !export_flush(s))
		return;
	standby_stream_enter(s, STREAM_IN_SYNC);
	r.kind = RECORD_PORTS;
	upstream_ports(r.ports);
	export_put(s, &r);
	r.kind = RECORD_ALIVE;
	for (alive_ms = clock_ms(); !control_wait(s->control, s->fd, EXPORT_LOOK_MS);) {
		if (!export_all(s))
			return;
		if (clock_ms() - alive_ms >= EXPORT_ALIVE_MS) {
			alive_ms = clock_ms();
			export_put(s, &r);
		}
		if (!export_flush(s))
			return;
	}
}

void standby_export(struct standby *sb, const struct control *c, int fd, uint64_t after_ms)
{
	struct stream *s = standby_stream_open(sb, c, fd, NULL);

	if (!s)
		return;
	s->after_ns = after_ms * NS_PER_MS;
	export_run(s);
	standby_stream_close(s);
}
