// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A session lives on the thread of the worker that has accepted it.  An event of one of its
 * sockets, or its timer, leads to on_event() or on_timer(), which pass it on by the session's state:
 * session_header.h, connect.h, session_flow.h.  Whatever these do, session_update() then
 * computes anew what to wait for.  A session that ends gives everything back at once and is DEAD; it
 * is freed after the batch of events, since others of the batch may point at it.
 *
 * What epoll is asked for.  In a short session an epoll_ctl(2) counts as much as a message.  So a
 * TCP socket is registered once, edge-triggered, for all that such a session waits for: the
 * upstream's for the end of connect(2), for bytes and for FIN; the client's for bytes and for FIN.
 * What is not wanted any more is told once at most, and needs no EPOLL_CTL_MOD.
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
#include "relay/session.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/order.h"
#include "base/syscalls_needed.h"
#include "datapath/carrier.h"
#include "datapath/tcp.h"
#include "relay/limits.h"
#include "relay/connect.h"
#include "relay/session_flow.h"
#include "relay/session_graft.h"
#include "relay/session_header.h"
#include "relay/session_log.h"

#define READABLE (EPOLLIN | EPOLLRDHUP)
#define ONCE (READABLE | EPOLLPRI | EPOLLET)

SYSCALLS_NEEDED(
	SETSOCKOPT(SOL_SOCKET, SO_LINGER),
	SYSCALL(connect), /* to nowhere: see session_arm_reset() */
	SYSCALL(close));

/* --- its state --- */

#define TO(state) (1U << (state))

static const uint8_t allowed[SESSION_STATES] = {
	[SESSION_HEADER] = TO(SESSION_CONNECTING) | TO(SESSION_DEAD),
	[SESSION_CONNECTING] = TO(SESSION_OPEN) | TO(SESSION_DEAD),
	[SESSION_OPEN] = TO(SESSION_PARTING) | TO(SESSION_DEAD),
	[SESSION_PARTING] = TO(SESSION_DEAD),
};

void session_set_state(struct session *s, enum session_state to)
{
	assert(allowed[s->state] & TO(to));
	s->state = (uint8_t)to;
}

uint64_t session_bytes(const struct session *s, unsigned int dir)
{
	return s->flows[dir].user_out + session_kernel_bytes(s, dir);
}

/* --- what it waits for --- */

static uint32_t side_events(const struct session *s, unsigned int side)
{
	unsigned int in = flow_wants(&s->flows[side]), out = flow_wants(&s->flows[!side]);
	uint32_t events = 0;

	if (s->state == SESSION_HEADER) /* once for each arrival: what comes is left there */
		return side == CLIENT ? EPOLLIN | EPOLLRDHUP | EPOLLET : 0;
	if (s->state == SESSION_CONNECTING)
		return side == UPSTREAM ? EPOLLOUT : 0;
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
	return upstreams_are_unix(&forward_of(s)->upstream);
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
 * earlier bytes: then it is not watched until something is wanted again.  A unix socket raises
 * EPOLLHUP as soon as its peer has closed, whatever is still to be read.
 */
static int watch_side(struct session *s, unsigned int side)
{
	struct source *source = &s->sides[side];
	bool may_hang_up = s->flows[!side].phase == FLOW_DONE || is_unix(s, side);
	uint32_t events;

	if (source->fd < 0)
		return 0;
	if (s->state == SESSION_PARTING)
		return loop_watch(&s->worker->loop, source, 0, false);
	if (s->state == SESSION_CONNECTING && side == CLIENT && session_connect_is_quiet(s))
		return 0;
	events = registration(s, side, side_events(s, side));
	return loop_watch(&s->worker->loop, source, events, events || !may_hang_up);
}

static uint64_t next_due(struct session *s)
{
	uint64_t due;

	if (s->state == SESSION_HEADER)
		return s->told->due_ms;
	if (s->state == SESSION_CONNECTING)
		return session_connect_due(s);
	if (s->state == SESSION_PARTING)
		return s->flows[s->parted].due_ms;
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

/* --- what comes --- */

/* EVENTS of SIDE, in a session that is OPEN. */
static void run_flows(struct session *s, unsigned int side, uint32_t events)
{
	/* a write finds out whether the peer is gone; that there is room may be told unasked */
	if (events & EPOLLHUP ||
	    (events & EPOLLOUT && flow_wants(&s->flows[!side]) & FLOW_WANT_WRITE))
		session_flow_run(s, !side, false);
	if (s->state == SESSION_OPEN && events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP))
		session_flow_run(s, side, events & (EPOLLRDHUP | EPOLLHUP));
	if (events & EPOLLPRI) /* a read has ended before the urgent byte, whatever is behind it */
		s->flows[side].quiet = false;
}

static void on_event(struct session *s, unsigned int side, uint32_t events)
{
	if (s->state == SESSION_DEAD)
		return;
	if (events & ~(uint32_t)EPOLLOUT)
		s->flows[side].quiet = false;
	if (s->state == SESSION_CONNECTING && side == UPSTREAM) {
		session_connect_answered(s, 0, events);
		if (s->state != SESSION_OPEN) {
			session_update(s);
			return;
		}
	}
	/* EPOLLERR is RST, a timeout, or a hard error of the kernel's worker: bytes may be gone */
	if (events & EPOLLERR)
		session_part(s, side, session_cause(side, tcp_take_error(s->sides[side].fd)));
	else if (s->state == SESSION_HEADER)
		session_header_look(s, events & (EPOLLRDHUP | EPOLLHUP));
	else if (s->state == SESSION_OPEN)
		run_flows(s, side, events);
	session_update(s);
}

static void on_client(struct source *source, uint32_t events)
{
	on_event(container_of(source, struct session, sides[CLIENT]), CLIENT, events);
}

static void on_upstream(struct source *source, uint32_t events)
{
	on_event(container_of(source, struct session, sides[UPSTREAM]), UPSTREAM, events);
}

static void on_timer(struct timer *timer)
{
	struct session *s = container_of(timer, struct session, timer);
	uint64_t now = s->worker->loop.now_ms;

	if (s->state == SESSION_HEADER)
		session_header_timer(s);
	else if (s->state == SESSION_CONNECTING)
		session_connect_timer(s);
	else if (s->state == SESSION_PARTING)
		session_part_timer(s);
	for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++) {
		struct flow *f = &s->flows[dir];

		if (flow_wants(f) & FLOW_WANT_TIMER && f->due_ms && f->due_ms <= now) {
			f->due_ms = 0;
			session_flow_run(s, dir, false);
		}
	}
	session_idle_timer(s);
	session_update(s);
}

void session_set_nodelay(struct session *s)
{
	if (s->nodelay_due)
		tcp_set_nodelay(s->sides[UPSTREAM].fd);
	s->nodelay_due = false;
}

/* --- its beginning --- */

/* With what malloc(3) adds, a session that is idle takes less than half a kilobyte. */
_Static_assert(sizeof(struct session) <= 472, "put what few sessions need apart");

struct session *session_new(struct worker *w, struct forward *f, const struct sockaddr *client)
{
	struct session *s = calloc(1, sizeof(*s));

	if (!s || worker_reserve_timer(w)) {
		free(s);
		return NULL;
	}
	s->worker = w;
	s->forward = f;
	client_addr_set(&s->client, client);
	s->pair = NO_PAIR;
	s->graft = NO_GRAFT;
	s->timer.fire = on_timer;
	s->tcp = client->sa_family != AF_UNIX && !upstreams_are_unix(&f->conf->upstream);
	s->sides[CLIENT] = (struct source){ .handle = on_client, .fd = -1 };
	s->sides[UPSTREAM] = (struct source){ .handle = on_upstream, .fd = -1 };
	s->prev = &w->sessions;
	s->next = w->sessions;
	if (s->next)
		s->next->prev = &s->next;
	w->sessions = s;
	w->n_sessions++;
	return s;
}

static void forget(struct session *s)
{
	*s->prev = s->next;
	if (s->next)
		s->next->prev = s->prev;
	s->worker->n_sessions--;
}

struct addr session_address(const struct session *s, uint16_t index)
{
	struct addr a = s->addrs->addrs[index];

	addr_set_port(&a, htons((uint16_t)(ntohs(addr_port(&a)) + s->port_offset)));
	return a;
}

int session_open(struct worker *w, struct forward *f, int fd, const struct sockaddr *client,
		 in_port_t port)
{
	struct session *s = session_new(w, f, client);
	int r = s ? session_connect_expect(s) ?: session_header_expect(s) : -ENOMEM;

	if (r) {
		if (s) {
			forget(s);
			free(s->connecting);
		}
		free(s);
		return r;
	}
	s->id = atomic_fetch_add(&w->shared->last_id, 1) + 1;
	s->born_ms = w->loop.now_ms;
	s->sides[CLIENT].fd = fd;
	if (f->conf->upstream.servers[0].at.n_ports > 1)
		s->port_offset = (uint16_t)(ntohs(port) - ntohs(f->conf->listen.named_port));
	count_add(&forward_stats(f, w->index)->accepted, 1);

	if (s->state == SESSION_HEADER)
		session_header_look(s, false);
	else
		session_connect(s);
	session_update(s);
	return 0;
}

/* --- its end --- */

enum cause cause_of_shortage(int error, enum cause other)
{
	if (error == EMFILE || error == ENFILE)
		return CAUSE_NO_DESCRIPTOR;
	return error == ENOMEM || error == ENOBUFS ? CAUSE_NO_MEMORY : other;
}

enum cause session_cause(unsigned int side, int error)
{
	switch (error) {
	case ECONNRESET:
	case EPIPE:
	case ENOTCONN:
	case 0:
		return side == CLIENT ? CAUSE_CLIENT_RESET : CAUSE_UPSTREAM_RESET;
	default:
		return cause_of_shortage(error, side == CLIENT ? CAUSE_CLIENT_LOST :
								 CAUSE_UPSTREAM_LOST);
	}
}

void session_arm_reset(int fd)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 0 };
	struct sockaddr none = { .sa_family = AF_UNSPEC };

	/*
	 * a BPF program of the cgroup, say, may refuse any option; to disconnect sends RST as well
	 */
	if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)))
		(void)connect(fd, &none, sizeof(none)); /* if that fails too, nothing is left */
}

void session_close_socket(struct source *source, bool rst)
{
	if (source->fd < 0)
		return;
	if (rst)
		session_arm_reset(source->fd);
	/*
	 * close(2) takes it out of epoll, and sends FIN or RST: no other process holds the file.
	 * Nothing is forked while there are sessions.  A descriptor of the privileged process is
	 * used only after its answer, before which that process closes its copy.
	 */
	source->registered = false;
	close(source->fd);
	source->fd = -1;
}

/* S has given everything back but its place in the lists, and in the limits if it is ADMITTED. */
static void die(struct session *s, bool admitted)
{
	struct worker *w = s->worker;

	session_set_state(s, SESSION_DEAD);
	forget(s);
	s->next = w->dead;
	w->dead = s;
	if (s->server)
		server_leave(s->server);
	if (admitted)
		admission_leave(w->shared->admission, s->forward, &s->client.sa);
	else
		admission_cancel(w->shared->admission, s->forward);
}

/* Because of END: a cause, or SESSION_FINISHED. */
static void end(struct session *s, bool rst, unsigned int end)
{
	struct worker *w = s->worker;
	struct forward_stats *fs = forward_stats(s->forward, w->index);
	bool admitted = s->state != SESSION_HEADER; /* it is known whose session it is */
	uint64_t kernel[2];

	for (unsigned int dir = 0; dir < 2; dir++) {
		kernel[dir] = session_kernel_bytes(s, dir);
		s->flows[dir].grafted = session_is_grafted(s);
		s->flows[dir].handovers += s->flows[dir].grafted;
	}
	session_count_kernel(s);
	session_log_ended(w->shared->session_log, s, kernel, end);
	for (unsigned int dir = 0; dir < 2; dir++) {
		count_add(&fs->bytes[dir], session_bytes(s, dir));
		carrier_release(&s->flows[dir], &w->pool);
	}
	count_add(&fs->finished, 1);
	histogram_add(&fs->durations, (w->loop.now_ms - s->born_ms) * 1000);
	session_connect_end(s);
	session_pace_stop(s);
	rst = session_graft_end(s, rst) || rst;
	session_close_socket(&s->sides[CLIENT], rst);
	session_close_socket(&s->sides[UPSTREAM], rst);
	session_give_slots(s);
	timer_cancel(&w->loop, &s->timer);

	die(s, admitted);
}

void session_leave(struct session *s)
{
	s->worker->grafted[s->graft] = NULL;
	s->graft = NO_GRAFT;
	session_close_socket(&s->sides[CLIENT], false);
	session_close_socket(&s->sides[UPSTREAM], false);
	timer_cancel(&s->worker->loop, &s->timer);
	die(s, true);
}

void session_finish(struct session *s)
{
	log_debug("session %llu: finished", (unsigned long long)s->id);
	end(s, false, SESSION_FINISHED);
}

/* Debug: a part of normal life, or logged already, with more, by who has found it. */
static int level_of_reset(enum cause cause)
{
	switch (cause) {
	case CAUSE_CLIENT_LOST:
	case CAUSE_UPSTREAM_LOST:
	case CAUSE_GRACE_OVER:
		return LOG_INFO;
	case CAUSE_NO_DESCRIPTOR:
	case CAUSE_NO_MEMORY:
	case CAUSE_KERNEL_LOST:
	case CAUSE_NO_ROUTE:
	case CAUSE_UNTRANSLATABLE:
	case CAUSE_INTERNAL:
		return LOG_WARNING;
	default:
		return LOG_DEBUG;
	}
}

void session_reset(struct session *s, enum cause cause)
{
	if (s->state == SESSION_DEAD)
		return;
	if (level_of_reset(cause) == LOG_DEBUG)
		log_debug("session %llu: reset: %s", (unsigned long long)s->id, cause_name(cause));
	else
		log_cause(cause, level_of_reset(cause), "session %llu, forward %s: reset",
			  (unsigned long long)s->id, forward_name(s->forward->conf));
	count_add(&s->worker->stats.errors[cause], 1);
	end(s, true, cause);
}

void session_reap(struct worker *w)
{
	while (w->dead) {
		struct session *s = w->dead;

		w->dead = s->next;
		free(s->told);
		free(s->pace);
		free(s->idle);
		addr_list_put(s->addrs);
		free(s);
	}
	session_connect_reap(w);
}

unsigned int session_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
			      enum cause cause)
{
	struct session *s = w->sessions, *next;
	unsigned int n = 0;

	for (; s; s = next) {
		next = s->next;
		if (choose && !choose(arg, s))
			continue;
		session_reset(s, cause);
		n++;
	}
	return n;
}
