// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: in a short session an epoll_ctl(2) counts as much as a message.  So a TCP
 * socket is registered once, edge-triggered, for all that such a session waits for: the upstream's
 * for the end of connect(2), for bytes and for FIN; the client's for bytes and for FIN.  What is
 * not wanted any more is told once at most, and needs no EPOLL_CTL_MOD.
 *
 * Of bytes that are left unread, level-triggered epoll tells again, and edge-triggered epoll does
 * not.  So the first registration stays only while none are: the flow is quiet (flow.h), or has
 * read the end.  Otherwise, and when anything but bytes and FIN is wanted, the socket is registered
 * for what is wanted, level-triggered, from then on.
 *
 * A short read means "empty", but not where an urgent byte (EPOLLPRI) or FIN (EPOLLRDHUP) has come:
 * both end a read.  On a unix socket descriptors end one, too, and nothing tells of them: so unix
 * sockets are always level-triggered.
 */
#include "relay/session_wait.h"

#include <sys/epoll.h>

#include "relay/session_connect.h"
#include "relay/session_header.h"
#include "relay/session_part.h"

#define READABLE (EPOLLIN | EPOLLRDHUP)
#define ONCE (READABLE | EPOLLPRI | EPOLLET)

static uint32_t side_events(const struct session *s, unsigned int side)
{
	unsigned int in = flow_wants(&s->flows[side]), out = flow_wants(&s->flows[!side]);
	uint32_t events = 0;

	if (s->state == SESSION_HEADER) /* once for each arrival: what comes is left there */
		return side == CLIENT ? EPOLLIN | EPOLLRDHUP | EPOLLET : 0;
	if (s->state == SESSION_CONNECTING)
		return side == UPSTREAM && !s->connecting->retry_ms ? EPOLLOUT : 0;
	if (in & FLOW_WANT_READ)
		events |= READABLE;
	if (in & FLOW_WANT_FIN)
		events |= EPOLLRDHUP;
	if (out & FLOW_WANT_WRITE)
		events |= EPOLLOUT;
	return events;
}

static bool is_unix(const struct session *s, unsigned int side)
{
	if (side == CLIENT)
		return session_peer(s)->sa.sa_family == AF_UNIX;
	return endpoint_is_unix(upstream_of(s));
}

/* EVENTS are wanted of SIDE.  What to register it for: that, or what it has, or will, once. */
static uint32_t registration(struct session *s, unsigned int side, uint32_t events)
{
	const struct source *source = &s->sides[side];
	struct flow *f = &s->flows[side];
	bool connecting = s->state == SESSION_CONNECTING && events == EPOLLOUT;
	bool reading = s->state == SESSION_OPEN && events == READABLE;

	if (!s->tcp || s->pair != NO_PAIR)
		return events;
	if (!source->registered) {
		if (!connecting && !reading)
			return events;
		f->quiet = true;
		return events | ONCE;
	}
	if ((source->events & ONCE) == ONCE &&
	    (connecting || (reading && f->quiet) || (!events && f->phase == FLOW_DONE)))
		return source->events;
	return events;
}

/*
 * Even a side that nothing is wanted of is watched, for EPOLLERR.  But once we have sent FIN to it,
 * its own FIN raises EPOLLHUP, which cannot be masked and would spin while that FIN must wait for
 * earlier bytes: then it is not watched until something is wanted again.
 */
static int watch_side(struct session *s, unsigned int side)
{
	struct source *source = &s->sides[side];
	bool fin_sent = s->flows[!side].phase == FLOW_DONE;
	uint32_t events;

	if (source->fd < 0)
		return 0;
	if (s->state == SESSION_PARTING)
		return loop_watch(&s->worker->loop, source, 0, false);
	if (s->state == SESSION_CONNECTING && side == CLIENT && session_connect_is_quiet(s))
		return 0;
	/*
	 * a unix socket raises EPOLLHUP as soon as its peer has closed, whatever is still to be
	 * read
	 */
	if (is_unix(s, side))
		fin_sent = true;
	events = registration(s, side, side_events(s, side));
	return loop_watch(&s->worker->loop, source, events, events || !fin_sent);
}

static uint64_t next_due(struct session *s)
{
	uint64_t due;

	if (s->state == SESSION_HEADER)
		return session_header_due(s);
	if (s->state == SESSION_CONNECTING)
		return session_connect_due(s);
	if (s->state == SESSION_PARTING)
		return session_part_due(s);
	due = session_idle_due(s);
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct flow *f = &s->flows[dir];

		if (!(flow_wants(f) & FLOW_WANT_TIMER))
			continue;
		if (!f->due_ms)
			flow_look_later(f, s->worker->loop.now_ms);
		if (f->due_ms < due)
			due = f->due_ms;
	}
	return due;
}

void session_update(struct session *s)
{
	struct loop *l = &s->worker->loop;
	uint64_t due;

	if (s->state == SESSION_DEAD)
		return;
	if (watch_side(s, CLIENT) || watch_side(s, UPSTREAM)) {
		session_reset(s, CAUSE_NO_MEMORY);
		return;
	}
	due = next_due(s);
	if (due == UINT64_MAX)
		timer_cancel(l, &s->timer);
	else
		timer_set(l, &s->timer, due);
}
