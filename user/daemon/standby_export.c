// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: exports share one look at all sessions, each EXPORT_LOOK_MS at least, and each
 * export sends a record of each place whose key has changed.  A peer that takes nothing holds up this
 * export alone, and is cut off in the end.
 *
 * Each export has a thread of the control socket, on which all of this runs.
 */
#include "daemon/standby_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "datapath/graft/udp_graft.h"
#include "relay/upstream_socket.h"

#define EXPORT_LOOK_MS 50
#define IDLE_LOOKS 4      /* at one look of so many held sessions of others are seen, too */
#define EXPORT_EARLY_MS 5 /* so that a single export finds all keys itself */
#define EXPORT_ALIVE_MS 1000
#define HEARD_NS (NS_PER_S / 2) /* between two words of packets that go by this relay */

/* --- records on their way --- */

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

/* Copy the active forwards to *RET, which the caller frees.  Returns how many there are. */
static size_t export_list_forwards(struct stream *s, struct graft_record **ret)
{
	struct service *sv = s->sb->service;
	const struct forward *f;
	size_t n = 0;

	pthread_mutex_lock(&sv->forwards.lock);
	s->changes = sv->changes;
	TAILQ_FOREACH(f, &sv->forwards.list, in_forwards)
		n++;
	*ret = calloc(n + 1, sizeof(**ret)); /* without memory nothing is told */
	n = 0;
	TAILQ_FOREACH(f, &sv->forwards.list, in_forwards) {
		struct graft_record *r;

		if (!*ret || f->state != FORWARD_ACTIVE || !forward_grafts(f))
			continue;
		r = *ret + n++;
		*r = (struct graft_record){ .kind = RECORD_FORWARD, .udp = f->conf->listen.udp };
		r->named.tag = f->tag;
		snprintf(r->named.name, RECORD_NAME_MAX, "%.63s", forward_name(f->conf));
	}
	pthread_mutex_unlock(&sv->forwards.lock);
	return n;
}

/* The peer says at once of which forwards it will refuse sessions. */
static bool export_forwards(struct stream *s)
{
	struct graft_record *list;
	size_t n = export_list_forwards(s, &list);
	bool ok = true;

	for (size_t i = 0; ok && i < n; i++)
		ok = export_put(s, &list[i]);
	free(list);
	return ok;
}

/* --- keys: a place is exported anew if its key changes --- */

#define KEY_NONE 0U /* the place is not exported */
/*
 * A bit of a key: this relay owns the session.  Without the bit the session is STANDBY.  This relay
 * exports a STANDBY session only while the client's destination address is here, so the key changes
 * with each move of an address.  When a session ends, every relay that knew the session exports the
 * end.
 */
#define KEY_OWNED 1U
/*
 * Split horizon: STANDBY, and the relay that has the session tells all others itself.  Else each relay
 * would tell what it was told, and relays could tell each other of a session after its end.
 */
#define KEY_TOLD 2U
/* The low bits of a larger key: another relay has the session, whose packets go by here. */
#define KEY_HELPED 2U
#define KEY_LOW 3U

void standby_export_again(struct standby *sb, uint32_t at)
{
	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++)
		/* without low bits it is HELD, which is not news; and KEY_NONE would hide what was told */
		if (s->keys && s->keys[at] & KEY_LOW)
			__atomic_fetch_and(&s->keys[at], KEY_LOW, __ATOMIC_RELAXED);
}

/* The session may end before an export looks: the record of its end needs what was told of it. */
void standby_export_came(struct standby *sb, uint32_t was, uint32_t at)
{
	struct grafted h = grafted_at(sb->grafts, at);

	for (const struct stream *s = sb->streams; s < sb->streams + STREAMS_MAX; s++) {
		uint32_t key = KEY_TOLD;
		/* else the client has taken its port again, and the earlier session is over */
		bool moves = s->keys && was != NO_SLOT &&
			     (!(h.head->id >> ID_COUNTER_BITS) ||
			      s->exported[was].id == h.head->id);

		if (!s->keys || (!moves && s->keys[at] != KEY_NONE))
			continue;
		if (moves) { /* an end of an earlier session at AT is told from there */
			s->exported[was] = s->exported[at];
			key = __atomic_exchange_n(&s->keys[was], s->keys[at], __ATOMIC_RELAXED);
			bit_set(s->known, was, s->keys[was] != KEY_NONE);
		}
		s->exported[at] = (struct exported){ h.leg[0]->tuple, h.head->id };
		__atomic_store_n(&s->keys[at], key, __ATOMIC_RELAXED);
		bit_set(s->known, at, key != KEY_NONE);
	}
}

/*
 * The key of a session of another relay changes when packets come: twice a second, or with each look
 * once an end has finished, or is silent.  Several packets may have one time, the last ACK among them.
 */
static uint32_t export_key_helped(const struct grafted *h)
{
	struct graft_heard heard[2];
	uint32_t flags;
	uint64_t ns, turn;

	grafted_hear(h, heard);
	flags = heard[0].flags | (uint32_t)heard[1].flags << 2;
	ns = larger(heard[0].ns, heard[1].ns);
	turn = flags || clock_ns() - ns > HEARD_NS ? (ns >> 20) + heard[0].acked + heard[1].acked :
						     ns / HEARD_NS;
	return 1U << 31 | (uint32_t)(turn << 4 | flags) << 2 | KEY_HELPED;
}

/* An ACTIVE session of TCP, and which of its ends have sent FIN. */
static uint32_t export_key_session(const struct grafted *h)
{
	const volatile struct graft_entry *g = graft_of(h->grafts, h->slot);
	uint64_t offered = g->offered_ns;
	uint32_t fins = __atomic_load_n(&g->side[1].fin, __ATOMIC_RELAXED) << 2 |
			__atomic_load_n(&g->side[0].fin, __ATOMIC_RELAXED);

	if (graft_state_of(h->head) == GRAFT_DONE)
		return KEY_NONE;
	if (grafted_is_unowned(h))
		return export_key_helped(h);
	return (((uint32_t)(offered / 1000) ^ (uint32_t)h->head->id << 20) << 4 | fins) << 2 |
	       KEY_OWNED;
}

/*
 * A flow that its sockets carry again stays exported: the record keeps the flow's port reserved at
 * the peer.
 */
static uint32_t export_key_flow(const struct grafted *h)
{
	const struct udp_table *us = graft_table_udp(h->grafts);

	if (!h->head->mirrored && !udp_graft_carries(us, h->slot, 0) &&
	    !udp_graft_carries(us, h->slot, 1))
		return KEY_NONE;
	return (uint32_t)h->head->id << 2 | KEY_OWNED;
}

/* H has returned to its sockets, and its worker is about to leave H to the relay that has its address. */
static bool export_is_leaving(const struct grafted *h)
{
	return graft_state_of(h->head) == GRAFT_RETURNED &&
	       graft_of(h->grafts, h->slot)->over == GRAFT_KEPT && h->head->mirrored &&
	       !grafted_is_here(h);
}

/*
 * KEY_NONE: the session ends, or is a flow of UDP that its sockets alone carry and no other relay
 * knows.
 */
static uint32_t export_key(struct standby *sb, const struct grafted *h)
{
	if (h->state == GRAFTED_STANDBY) {
		if (h->head->alone_ms == ALONE_EXPIRED)
			return KEY_NONE;
		if (!standby_is_told(sb, h))
			return (sb->addresses.moves + 1) << 2;
		return grafted_is_helped(h) ? export_key_helped(h) : KEY_TOLD;
	}
	if (!h->udp && export_is_leaving(h))
		return KEY_TOLD;
	if (h->state == GRAFTED_NOTHING || h->head->mirrored == GRAFT_OVER)
		return KEY_NONE;
	return h->udp ? export_key_flow(h) : export_key_session(h);
}

/* Is H younger than S exports it? */
static bool export_is_young(const struct stream *s, const struct grafted *h)
{
	uint32_t ticks = (uint32_t)(s->now_ns >> UDP_TICK_SHIFT);

	if (h->udp)
		return ticks - udp_flow_of(graft_table_udp(h->grafts), h->slot)->born <
		       s->after_ns >> UDP_TICK_SHIFT;
	return s->now_ns < graft_of(h->grafts, h->slot)->offered_ns + s->after_ns;
}

/*
 * Find all keys, for all exports: to look at each session costs far more than to compare keys.  Returns
 * how many keys have changed so far.  On the thread of an export.
 */
static unsigned int export_find_keys(struct standby *sb)
{
	const uint64_t *used = graft_table_used(sb->grafts);
	uint32_t n = grafted_places(sb->grafts);
	unsigned int changes;

	pthread_mutex_lock(&sb->keys_lock);
	changes = sb->keys_changes;
	if (clock_ms() - sb->keys_ms >= EXPORT_LOOK_MS - EXPORT_EARLY_MS) {
		for (uint32_t at = 0; bit_next(used, sb->keyed, n, &at); at++) {
			struct grafted h;
			uint32_t key;

			if (bit_is(sb->rests, at) && sb->keys_looks % IDLE_LOOKS)
				continue;
			h = grafted_at(sb->grafts, at);
			key = export_key(sb, &h);
			if (bit_is(sb->rests, at) != (key == KEY_TOLD))
				bit_set(sb->rests, at, key == KEY_TOLD);
			changes += key != sb->keys[at];
			__atomic_store_n(&sb->keys[at], key, __ATOMIC_RELAXED);
			if (bit_is(sb->keyed, at) != (key != KEY_NONE))
				bit_set(sb->keyed, at, key != KEY_NONE);
		}
		sb->keys_changes = changes;
		sb->keys_looks++;
		sb->keys_ms = clock_ms();
	}
	pthread_mutex_unlock(&sb->keys_lock);
	return changes;
}

/* --- looks --- */

/* H is a session of another relay: tell what was seen here. */
static void export_heard(const struct grafted *h, struct graft_record *ret)
{
	*ret = (struct graft_record){
		.kind = RECORD_HEARD, .udp = h->udp, .client = h->leg[0]->tuple, .id = h->head->id
	};
	grafted_hear(h, ret->heard);
}

/*
 * Place H has exported the session WAS, and exports it no more: make the record of its end.  There is
 * none if this relay owns or holds the session at another place.  NOW is the key of H, and was WAS_KEY.
 */
static void export_end(const struct standby *sb, const struct grafted *h,
		       const struct exported *was, uint32_t was_key, uint32_t now,
		       struct graft_record *ret)
{
	struct grafted other = { .at = grafted_find(h->grafts, h->udp, &was->client) };
	bool expired = h->state == GRAFTED_STANDBY && now == KEY_NONE;
	bool same = !memcmp(&h->leg[0]->tuple, &was->client, sizeof(was->client));
	const volatile struct graft_entry *g = h->udp ? NULL : graft_of(h->grafts, h->slot);
	/* by this relay, maybe at once when it adopted the session */
	bool killed = same && g && g->killed && !h->head->source;
	bool found;
	bool moved;
	bool owned;

	/*
	 * ends are the owner's to tell, but FINs and a reset may have gone by here alone, even all of
	 * them since the last look
	 */
	if ((was_key & KEY_LOW) == KEY_HELPED && !killed &&
	    !(g && graft_state_of(h->head) == GRAFT_RETURNED)) { /* reset: see export_is_leaving() */
		if (same && g &&
		    (g->side[0].reset || g->side[1].reset ||
		     (g->side[0].fin == GRAFT_FIN_ACKED && g->side[1].fin == GRAFT_FIN_ACKED)))
			export_heard(h, ret);
		return;
	}
	if (other.at != h->at && other.at != NO_SLOT)
		other = grafted_at(h->grafts, other.at);
	/* a later session of the tuple does not hide the end */
	found = other.head && (!(was->id >> ID_COUNTER_BITS) || other.head->id == was->id);
	moved = found && now != KEY_NONE;
	owned = found && other.state == GRAFTED_ACTIVE && !grafted_is_unowned(&other);
	if (killed && owned) { /* a late record has brought its copy back, adopted by now */
		other.head->mirrored = GRAFT_CONDEMNED;
		shared_tell_news(sb->service->shared);
	} else if (found) {
		/* owned or held at its new place, which tells that */
		if ((!(was_key & KEY_OWNED) && !killed) || owned ||
		    (moved && other.state == GRAFTED_STANDBY && !standby_is_told(sb, &other)))
			return;
		/* else the session has ended here, and a late record has brought its copy back */
		if (!moved && other.state == GRAFTED_STANDBY)
			grafted_end(&other);
		else if (!moved && graft_finish(other.grafts, other.slot, -1))
			graft_put(other.grafts, other.slot);
	}
	/* an expired session may go on elsewhere */
	*ret = (struct graft_record){
		.kind = killed           ? RECORD_KILLED :
			expired || moved ? RECORD_LEFT :
					   RECORD_GONE,
		.udp = h->udp,
		.client = was->client,
		.id = was->id,
	};
	if (same && g && graft_state_of(h->head) == GRAFT_RETURNED && h->head->mirrored < GRAFT_OVER)
		h->head->mirrored = GRAFT_UNKNOWN;
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
	uint32_t was_key = __atomic_load_n(&s->keys[at], __ATOMIC_RELAXED);
	uint32_t key = export_key(s->sb, &h);
	const struct graft_record left = {
		.kind = RECORD_LEFT, .udp = h.udp, .client = h.leg[0]->tuple, .id = h.head->id
	};
	bool same = !memcmp(&left.client, &was.client, sizeof(was.client));

	if (key == was_key || graft_state_of(h.head) == GRAFT_SETTING ||
	    (key & KEY_OWNED && was_key == KEY_NONE && export_is_young(s, &h)))
		return;
	if (key != KEY_NONE &&
	    !standby_addresses_follow(&s->sb->addresses, &h.leg[0]->tuple.local)) {
		log_limited(LOG_WARNING, "standby: too many local addresses: sessions of some are "
					 "not exported");
		key = KEY_NONE;
	}
	__atomic_store_n(&s->keys[at], key, __ATOMIC_RELAXED);
	*now = (struct exported){ .client = h.leg[0]->tuple, .id = h.head->id };
	bit_set(s->known, at, key != KEY_NONE);
	if (was_key != KEY_NONE && (key == KEY_NONE || !same))
		export_end(s->sb, &h, &was, was_key, key, ret_end);
	if ((key & KEY_LOW) == KEY_HELPED) {
		/* others may have heard this relay alone; a reflector keeps a record until its end */
		if (same && was_key && (was_key & KEY_LOW) != KEY_HELPED)
			*ret_end = left;
		export_heard(&h, ret);
		/* a relay that yields tells of a FIN, which the new owner may not have seen */
		if (key == KEY_TOLD &&
		    !(same && was_key & KEY_OWNED && (ret->heard[0].flags || ret->heard[1].flags)))
			ret->kind = RECORD_NONE;
		return;
	}
	if (key != KEY_NONE && h.state == GRAFTED_STANDBY && !grafted_is_here(&h)) {
		*ret = left;
	} else if (key != KEY_NONE) {
		if (h.head->mirrored <= GRAFT_CAME) /* else a worker is to see it first */
			h.head->mirrored = GRAFT_TOLD;
		grafted_record(&h, ret);
		if (h.state == GRAFTED_STANDBY)
			ret->kind = h.udp ? RECORD_HELD_UDP : RECORD_HELD_TCP;
	}
}

/* False: the peer takes nothing. */
static bool export_all(struct stream *s)
{
	const uint64_t *used = graft_table_used(s->sb->grafts);
	uint32_t n = grafted_places(s->sb->grafts);
	struct graft_record end, now;
	unsigned int changes = export_find_keys(s->sb);

	if (atomic_load(&s->sb->service->shared->handed_over)) /* the next daemon has the sessions */
		return false;
	/* a session that was too young, or a key that an import has changed, waits up to 200 ms */
	if (changes == s->key_changes && s->idle_looks++ % IDLE_LOOKS)
		return true;
	s->key_changes = changes;
	s->now_ns = clock_ns();
	for (uint32_t at = 0; bit_next(used, s->known, n, &at); at++) {
		if (__atomic_load_n(&s->sb->keys[at], __ATOMIC_RELAXED) ==
		    __atomic_load_n(&s->keys[at], __ATOMIC_RELAXED))
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

/* Tell which sessions of other relays are to end.  False: the peer takes nothing. */
static bool export_condemned(struct stream *s)
{
	struct standby *sb = s->sb;
	bool ok = true;

	pthread_mutex_lock(&sb->lock);
	while (ok && s->condemned < sb->n_condemned) {
		struct graft_record r = { .kind = RECORD_END };

		s->condemned = larger(s->condemned,
				      sb->n_condemned - smaller(sb->n_condemned, CONDEMNED_MAX));
		r.udp = sb->condemned[s->condemned % CONDEMNED_MAX].udp;
		r.id = sb->condemned[s->condemned % CONDEMNED_MAX].id;
		r.client = sb->condemned[s->condemned++ % CONDEMNED_MAX].client;
		pthread_mutex_unlock(&sb->lock);
		ok = export_put(s, &r);
		pthread_mutex_lock(&sb->lock);
	}
	pthread_mutex_unlock(&sb->lock);
	return ok;
}

/* --- the stream --- */

/* The peer of an export sends nothing: its socket becomes readable when the peer has gone. */
static void export_run(struct stream *s)
{
	struct graft_record r = { .kind = RECORD_BEGIN };
	uint64_t alive_ms;

	bool ok = export_put(s, &r);

	r.kind = RECORD_RELAY;
	r.named.tag = s->sb->own;
	snprintf(r.named.name, RECORD_NAME_MAX, "%s", s->sb->service->start->relay ?: "");
	ok = ok && (!s->sb->own || export_put(s, &r));
	pthread_mutex_lock(&s->sb->lock);
	s->condemned = s->sb->n_condemned;
	pthread_mutex_unlock(&s->sb->lock);
	if (!ok || !export_forwards(s) || !export_all(s))
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
		if (s->changes != s->sb->service->changes && !export_forwards(s))
			return;
		if (!export_all(s) || !export_condemned(s))
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
