// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: an import enters the sessions of its peer as STANDBY, each under the lock of
 * all imports and exports, and under the lock of forwards.
 *
 * Each import has a thread of the control socket, on which all of this runs.
 */
#include "daemon/standby_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "base/minmax.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/graft/udp_graft.h"
#include "relay/upstream_socket.h"

/* --- records, under both locks --- */

/*
 * Two relays have the session: the one keeps it that has had data more lately, by a second; else the
 * one of the lower id, or name.
 */
static bool import_yields(const struct stream *s, const struct grafted *h,
			  const struct graft_record *r)
{
	const volatile struct graft_side *side = graft_of(h->grafts, h->slot)->side;
	bool first = r->head.id == h->head->id ? s->origin < s->sb->own : r->head.id < h->head->id;
	uint64_t mine, its;

	if (h->udp)
		return first;
	mine = larger(side[0].data_ns, side[1].data_ns);
	its = larger(r->tcp.side[0].data_ns, r->tcp.side[1].data_ns);

	return its > mine + NS_PER_S || (its + NS_PER_S > mine && first);
}

/* The peer owns H.  A new owner has yet to be told of the packets that have gone by this relay. */
static void import_owner(const struct stream *s, const struct grafted *h)
{
	if (h->head->source != s->origin)
		standby_export_again(s->sb, h->at);
	h->head->source = s->origin;
}

/* R is of a session whose packets go by this relay. */
static void import_compare(struct stream *s, const struct grafted *h, const struct graft_record *r)
{
	bool mine = !grafted_is_unowned(h);

	bit_set(s->known, h->at, true);
	if (r->kind != RECORD_TCP && r->kind != RECORD_UDP)
		return;
	if (mine && !import_yields(s, h, r)) {
		if (s->sb->own) /* the other one is to yield */
			standby_export_again(s->sb, h->at);
		return;
	}
	import_owner(s, h);
	if (!mine)
		return;
	h->head->mirrored = GRAFT_YIELD;
	shared_tell_news(s->sb->service->shared);
}

/*
 * Is R of an earlier session that had the tuple of H?  A late record may come by another way, through a
 * reflector.  Relays without numbers give adopted sessions new ids.
 */
static bool import_is_other(const struct grafted *h, const struct graft_record *r)
{
	return r->id >> ID_COUNTER_BITS && h->head->id != r->id;
}

/* The session that R names.  False: it is not here. */
static bool import_find(const struct stream *s, const struct graft_record *r, struct grafted *ret)
{
	uint32_t at = grafted_find(s->sb->grafts, r->udp, &r->client);

	if (at != NO_SLOT)
		*ret = grafted_at(s->sb->grafts, at);
	return at != NO_SLOT && !import_is_other(ret, r);
}

/* Has each end of H the FIN of the other one? */
static bool import_is_finished(const struct grafted *h, const struct graft_heard heard[2])
{
	bool finished = true;

	for (int i = 0; i < 2; i++)
		finished = finished && heard[i].flags & HEARD_FIN &&
			   heard[i].acked + graft_of(h->grafts, h->slot)->side[i].ack_add ==
				   heard[!i].end;
	return finished;
}

/* R is of a session some packets of which go by the peer. */
static void import_heard(struct stream *s, const struct graft_record *r)
{
	struct heard *heard;
	struct grafted h;

	if (!import_find(s, r, &h))
		return;
	if (h.udp) {
		if (h.state == GRAFTED_ACTIVE)
			udp_graft_merge(graft_table_udp(s->sb->grafts), h.slot, r->heard);
		return;
	}
	/* this relay has parted with the session, and the helper that saw both FINs does not keep it */
	if (h.state == GRAFTED_STANDBY && import_is_finished(&h, r->heard) &&
	    !standby_is_told(s->sb, &h)) {
		grafted_end(&h);
		return;
	}
	if (h.head->mirrored == GRAFT_TOLD) {
		h.head->mirrored = GRAFT_HELPED;
		if (!graft_of(s->sb->grafts, h.slot)->why_back)
			graft_return(s->sb->grafts, h.slot, false);
	}
	heard = &s->sb->heard[h.slot];
	if (heard->id != h.head->id)
		*heard = (struct heard){ .id = h.head->id };
	for (int i = 0; i < 2; i++)
		graft_heard_note(&heard->of[i][1], &r->heard[i]);
	if (h.state == GRAFTED_ACTIVE && !grafted_is_unowned(&h) &&
	    graft_merge(s->sb->grafts, h.slot, heard->of))
		shared_tell_news(s->sb->service->shared);
}

/* Does F connect to its server from the address of R's session? */
static bool import_has_source(const struct forward *f, struct graft_record *r)
{
	struct addr its = graft_tuple_address(&record_leg(r, 1)->tuple, true);

	addr_set_port(&its, addr_port(&f->conf->source));
	return !f->conf->source.len || addr_equal(&its, &f->conf->source);
}

/*
 * Enter the session of R.  A session that has not changed keeps its place, and so its key.  Else
 * two relays that both have an address would export each other's sessions for ever.
 */
static int import_session(struct stream *s, struct graft_record *r)
{
	struct graft_table *gs = s->sb->grafts;
	const struct forward *f = forward_with_tag(&s->sb->service->forwards, r->head.forward);
	bool held = r->kind == RECORD_HELD_TCP || r->kind == RECORD_HELD_UDP;
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
		if (!standby_addresses_follow(&s->sb->addresses, &record_leg(r, side)->tuple.local))
			return -ENOSPC;
	was = at = grafted_find(gs, record_is_udp(r), &record_leg(r, 0)->tuple);
	if (was != NO_SLOT) {
		h = grafted_at(gs, was);
		if (h.state == GRAFTED_ACTIVE) {
			import_compare(s, &h, r);
			return 0;
		}
	}
	if (was == NO_SLOT || !grafted_is_same(gs, was, r))
		e = grafted_import(gs, r, import_has_source(f, r), &at);
	if (e && (e != -EEXIST || was == NO_SLOT)) /* -EEXIST: a worker has the session */
		return e;
	if (was != at)
		standby_export_came(s->sb, was, at);
	bit_set(s->known, at, true);
	h = grafted_at(gs, at);
	if (!held)
		import_owner(s, &h);
	else if (was == NO_SLOT)
		h.head->source = 0;
	if (!held || was == NO_SLOT || h.head->alone_ms == ALONE_EXPIRED)
		h.head->alone_ms = ALONE_NEVER;
	standby_addresses_find_routes(&s->sb->addresses, &h);
	return 0;
}

/*
 * All sessions of a relay have come.  Any other session of that relay, or of none, has no exporter now.
 * If it is STANDBY, and its address is not here, it is taken out: nobody is told that it is over.
 */
static void import_sync(struct stream *s)
{
	for (struct grafted h = { 0 }; grafted_next(s->sb->grafts, &h); h.at++) {
		if (bit_is(s->known, h.at) || (h.head->source && h.head->source != s->origin))
			continue;
		h.head->source = 0;
		/* not "over": a relay without an import of this one may carry it */
		if (h.state == GRAFTED_STANDBY && !grafted_is_here(&h))
			h.head->alone_ms = ALONE_EXPIRED;
	}
}

/* R: the session is over; or (LEFT) the peer no longer has it, and cannot say how it ended. */
static void import_end(struct stream *s, const struct graft_record *r)
{
	struct grafted h;

	if (!import_find(s, r, &h))
		return;
	if (r->kind == RECORD_END) {
		h.head->mirrored = GRAFT_CONDEMNED; /* of no owner: if this relay adopts it */
		shared_tell_news(s->sb->service->shared);
		return;
	}
	if (r->kind == RECORD_LEFT && h.head->source == s->origin)
		h.head->source = 0;
	if (r->kind == RECORD_LEFT)
		return;
	if (h.state == GRAFTED_STANDBY)
		grafted_end(&h);
	else if (!h.udp && grafted_is_unowned(&h)) {
		if (r->kind == RECORD_KILLED) /* the stack answers late packets by RST */
			grafted_end(&h);
		else if (graft_finish(h.grafts, h.slot, -1))
			graft_put(h.grafts, h.slot);
	} else if (h.head->mirrored && r->kind == RECORD_KILLED && !h.udp) { /* two have had it */
		h.head->mirrored = GRAFT_CONDEMNED;
		shared_tell_news(s->sb->service->shared);
	} else if (h.head->mirrored || h.head->source) { /* graft_part() drops the session later */
		h.head->mirrored = GRAFT_OVER;
		h.head->source = 0; /* no peer exports the session once its address has left */
		/* without a name of this relay R may be of an earlier session */
		if (!h.udp && r->kind == RECORD_GONE && s->sb->own &&
		    graft_finish(h.grafts, h.slot, -1))
			shared_tell_news(s->sb->service->shared);
	}
}

static void import_ports(struct stream *s, const unsigned int its[2])
{
	const unsigned int *own = upstream_ports;

	s->same_ports = upstream_use_any(its);
	if (s->same_ports && !s->sb->own) /* in a fleet each relay has a source of its own */
		log_limited(LOG_WARNING,
			    "standby: import %s: it connects from ports %u to %u, and this relay "
			    "from %u to %u: a session whose port is in use is refused "
			    "(net.ipv4.ip_local_port_range)",
			    s->name, its[0], its[1], own[0], own[1]);
}

/* R is a forward of the peer: sessions of a forward that is not here are refused, before and at a move. */
static void import_forward(struct stream *s, const struct graft_record *r)
{
	const struct forward *f = forward_with_tag(&s->sb->service->forwards, r->named.tag);
	bool known = f && f->state == FORWARD_ACTIVE && f->conf->listen.udp == r->udp;

	if (known && !strcmp(s->lacks, r->named.name))
		s->lacks[0] = '\0';
	if (known || !strcmp(s->lacks, r->named.name))
		return;
	log_warning("standby: import %s: its forward %.64s is not here: sessions of it are refused",
		    s->name, r->named.name);
	memcpy(s->lacks, r->named.name, RECORD_NAME_MAX);
}

static int import_record(struct stream *s, struct graft_record *r)
{
	if (r->kind == RECORD_NONE)
		return -EBADMSG;
	if (r->kind == RECORD_RELAY)
		s->origin = r->named.tag;
	if (s->origin == s->sb->own) /* a reflector tells this relay's own */
		return 0;
	/* a reflector sends these two while it hears no relay */
	if (r->kind != RECORD_BEGIN && r->kind != RECORD_SYNC)
		standby_hear(s->sb, s->origin);
	if (record_is_tcp(r) || record_is_udp(r))
		return import_session(s, r);
	if (r->kind == RECORD_FORWARD)
		import_forward(s, r);
	else if (r->kind == RECORD_HEARD)
		import_heard(s, r);
	else if (record_is_end(r))
		import_end(s, r);
	else if (r->kind == RECORD_SYNC)
		import_sync(s);
	else if (r->kind == RECORD_PORTS)
		import_ports(s, r->ports);
	return 0;
}

/* See stream_read(): a wrong R is counted as refused. */
static const char *import_take(void *arg, struct graft_record *r, const char *why)
{
	struct stream *s = arg;
	bool handed_over;
	int e = 0;

	s->last_ms = clock_ms();
	if (!s->records++)
		stream_enter(s, STREAM_DUMPS);
	stream_lock(s->sb);
	handed_over = atomic_load(&s->sb->service->shared->handed_over);
	if (!handed_over)
		e = import_record(s, r);
	stream_unlock(s->sb);
	if (handed_over)
		return "the next daemon has the sessions: import again";
	if (r->kind == RECORD_SYNC && !s->synced_ms) /* a reflector tells one for each relay */
		stream_enter(s, STREAM_IN_SYNC);
	if (!e || e == -EEXIST) /* a worker has the session */
		return NULL;
	s->sb->refused++;
	log_limited(LOG_WARNING, "standby: import %s: a session is refused: %s", s->name,
		    e == -ENOENT     ? "no forward here has the name of its forward" :
		    e == -EBADMSG    ? why :
		    e == -EADDRINUSE ? "another session here has the same local port or client" :
				       "max-sessions is too low for those of both relays");
	return NULL;
}

void standby_import(struct standby *sb, const struct control *c, int fd, const char *name)
{
	struct stream *s = stream_open(sb, c, fd, name);

	if (!s)
		return;
	stream_read(c, fd, name, import_take, s);
	stream_close(s);
}
