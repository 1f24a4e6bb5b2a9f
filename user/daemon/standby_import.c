// SPDX-License-Identifier: BSD-2-Clause
/*
 * On the thread of one import.  It enters the sessions of its peer as STANDBY, each under the lock
 * of all imports and exports, and under the lock of forwards.
 */
#include "daemon/standby_stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/json_add.h"
#include "base/log.h"
#include "relay/upstream_socket.h"

/* --- records: under both locks --- */

/* A peer knows the addresses of R from now on.  -errno. */
static int import_addresses(struct standby *sb, struct graft_record *r)
{
	const struct forward *f;

	f = forward_with_tag(&sb->service->forwards,
			     r->kind == RECORD_UDP ? r->flow.forward : r->tcp.forward);
	if (!f)
		return -ENOENT;
	/* of a transparent forward the address at the server's side is the client's */
	for (int side = 0; side < 2 - f->conf->transparent; side++)
		if (!standby_ways_follow(&sb->ways, &record_leg(r, side)->tuple.local))
			return -ENOSPC;
	return 0;
}

/*
 * Enter the session of R.  A known session keeps its place: if two relays took each other's records
 * as news, while an address is at both, they would export them for ever.
 */
static int import_session(struct stream *s, struct graft_record *r)
{
	struct graft_table *gs = s->sb->grafts;
	uint32_t was, at;
	struct held h;
	int e = import_addresses(s->sb, r);

	if (e)
		return e;
	was = at = held_find(gs, r->kind == RECORD_UDP, &record_leg(r, 0)->tuple);
	if (was == NO_SLOT || !held_is_same(gs, was, r))
		e = held_import(gs, r, &at);
	if (e && (e != -EEXIST || was == NO_SLOT)) /* else a worker has the session */
		return e;
	bit_set(s->known, at, true);
	h = held_at(gs, at);
	*h.source = s->tag;
	*h.alone_ms = ALONE_NEVER;
	standby_ways_find(&s->sb->ways, &h);
	return 0;
}

/*
 * All sessions of the peer have come.  STANDBY sessions of this import, or of none, that have not
 * come are over, unless their address is here.  Of other such sessions the peer tells no more.
 */
static void import_sync(struct stream *s)
{
	for (struct held h = { 0 }; held_next(s->sb->grafts, &h); h.at++) {
		if (bit_is(s->known, h.at) || (*h.source && *h.source != s->tag))
			continue;
		*h.source = 0;
		if (h.state == HELD_STANDBY && !held_is_here(&h))
			held_end(&h);
	}
}

/* The session of R is over, or has LEFT the peer, which does not know what becomes of it. */
static void import_end(struct stream *s, const struct graft_record *r)
{
	uint32_t at = held_find(s->sb->grafts, r->udp, &r->client);
	struct held h;

	if (at == NO_SLOT)
		return;
	h = held_at(s->sb->grafts, at);
	if (r->kind == RECORD_LEFT)
		*h.source = 0;
	else if (h.state == HELD_STANDBY)
		held_end(&h);
	else if (*h.mirrored || *h.source) { /* a stray will be dropped, too */
		*h.mirrored = GRAFT_OVER;
		*h.source = 0; /* no peer exports the session once its address has left */
	}
}

static void import_ports(struct stream *s, const unsigned int its[2])
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

/* WHY: the fault of R, if its kind is RECORD_NONE: the records that follow may be right. */
static void import_take(struct stream *s, struct graft_record *r, const char *why)
{
	int e;

	if (!s->records++)
		standby_stream_enter(s, STREAM_DUMPS);
	standby_lock(s->sb);
	e = import_record(s, r);
	standby_unlock(s->sb);
	if (r->kind == RECORD_SYNC)
		standby_stream_enter(s, STREAM_IN_SYNC);
	if (!e || e == -EEXIST) /* a worker has the session */
		return;
	s->sb->refused++;
	log_limited(LOG_WARNING, "standby: import %s: a session is refused: %s", s->name,
		    e == -ENOENT     ? "no forward here has the name of its forward" :
		    e == -EBADMSG    ? why :
		    e == -EADDRINUSE ? "another session here has its port, or its client's" :
				       "max-sessions is too low for those of both relays");
}

/* --- the stream --- */

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
		control_send(s->control, s->fd, STREAM_DEAF_MS, text, len);
	json_object_put(o);
}

/*
 * Take the whole records of the buffer.  *BYTES: so much of the stream is taken.  Returns a fault.
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

static void import_run(struct stream *s)
{
	const char *why = NULL;
	uint64_t bytes = 0;
	ssize_t n;
	int ready;

	/* before its first record an import hinders nobody, and ssh may ask for a password */
	while ((ready = control_wait(s->control, s->fd, s->records ? STREAM_DEAF_MS : -1)) > 0) {
		n = recv(s->fd, s->buffer + s->len, STREAM_BUFFER - s->len, MSG_DONTWAIT);
		if (n <= 0 && s->len)
			why = "it is not whole";
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
		why = "it does not come";
	if (why)
		import_refuse(s, bytes, why);
}

void standby_import(struct standby *sb, const struct control *c, int fd, const char *name)
{
	struct stream *s = standby_stream_open(sb, c, fd, name);

	if (!s)
		return;
	import_run(s);
	standby_stream_close(s);
}
