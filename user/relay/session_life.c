// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A session lives on the thread of the worker that has accepted it.  Each event of its sockets and
 * its timer goes to live(), which tells the whole story: each step of a session's life is a
 * function of a module below that returns whether it is done.  A step that finds the session's end
 * leaves a mark (session.h).  When the step has returned, settle() carries the mark out, or
 * computes anew what to wait for.  A session that ends gives everything back at once and is DEAD.
 * Its memory is freed after the batch of events, since other events of the batch may point at it.
 *
 * Registration with epoll.  In a short session an epoll_ctl(2) costs as much as a message.  So a
 * TCP socket is registered once, edge-triggered, with all events of a short session: the upstream's
 * socket with the end of connect(2), bytes and FIN; the client's socket with bytes and FIN.
 * An event that is not wanted any more is reported once at most, and needs no EPOLL_CTL_MOD.
 *
 * Level-triggered epoll reports unread bytes again, and edge-triggered epoll does not.  So the
 * first registration stays only while no bytes are unread: the flow is quiet (flow.h), or has read
 * the end.  Otherwise, or when another event than bytes and FIN is wanted, the socket is registered
 * level-triggered from then on, with the wanted events alone.
 *
 * A short read means "empty", but not where an urgent byte (EPOLLPRI) or FIN (EPOLLRDHUP) has come:
 * both end a read.  On a unix socket, passed descriptors end a read, too, and no event reports
 * them.  So unix sockets are always level-triggered.
 */
#include "relay/session_life.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "datapath/carrier_copy.h"
#include "datapath/tcp.h"
#include "relay/admission.h"
#include "relay/session_connect.h"
#include "relay/session_flow.h"
#include "relay/session_graft.h"
#include "relay/session_header.h"
#include "relay/session_idle_keepalive.h"
#include "relay/session_last_bytes.h"
#include "relay/session_log.h"
#include "relay/session_record.h"
#include "relay/session_sockmap.h"
#include "relay/session_syn.h"
#include "relay/udp/udp_life.h"

#define READABLE (EPOLLIN | EPOLLRDHUP)
#define ONCE (READABLE | EPOLLPRI | EPOLLET)

/* --- the events that a session waits for --- */

static uint32_t side_events(const struct session *s, unsigned int side)
{
	unsigned int in = flow_wants(&s->flows[side]), out = flow_wants(&s->flows[!side]);
	uint32_t events = 0;

	if (s->state == SESSION_HEADER) /* once for each arrival: bytes stay in the socket */
		return side == CLIENT ? ONCE : 0;
	if (s->state == SESSION_CONNECTING && session_postgres_waits(s))
		return side == UPSTREAM ? READABLE : 0;
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

/*
 * Returns the events to register for SIDE when EVENTS are wanted: the events of the socket's
 * edge-triggered registration if they suffice, else EVENTS.
 */
static uint32_t registration(struct session *s, unsigned int side, uint32_t events)
{
	const struct source *source = &s->sides[side];
	struct flow *f = &s->flows[side];
	bool connecting = s->state == SESSION_CONNECTING && events == EPOLLOUT;
	bool reading = s->state == SESSION_OPEN && events == READABLE;

	if (!s->tcp || s->pair != NO_PAIR)
		return events;
	if (!source->registered && (connecting || reading)) {
		f->quiet = true;
		return events | ONCE;
	}
	if (source->registered && (source->events & ONCE) == ONCE &&
	    (connecting || (reading && f->quiet) || (!events && f->phase == FLOW_DONE)))
		return source->events;
	return events;
}

/*
 * A side is watched for EPOLLERR even if no event is wanted.  But once we have sent FIN, the FIN of
 * the peer raises EPOLLHUP.  EPOLLHUP cannot be masked.  The loop would spin until all bytes before
 * the peer's FIN are delivered.  So the side is not watched until an event is wanted again.  A unix
 * socket raises EPOLLHUP as soon as its peer has closed, even if bytes are unread.
 */
static int watch_side(struct session *s, unsigned int side)
{
	struct source *source = &s->sides[side];
	bool is_unix = side == CLIENT ? session_peer(s)->sa.sa_family == AF_UNIX :
					upstreams_are_unix(&s->forward->conf->upstream);
	bool may_hang_up = s->flows[!side].phase == FLOW_DONE || is_unix;
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

	if (s->state == SESSION_HEADER || session_postgres_waits(s))
		return s->told->due_ms;
	if (s->state == SESSION_CONNECTING)
		return session_connect_due(s);
	if (s->state == SESSION_PARTING)
		return s->flows[s->parted].due_ms;
	due = smaller(session_idle_due(s), session_graft_due(s));
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

/* --- its end --- */

/* S, whose bytes are counted, closes its sockets, with RST or without, and leaves all lists. */
static void die(struct session *s, bool rst)
{
	struct worker *w = s->worker;
	bool admitted = s->told ? s->told->admitted : s->state != SESSION_HEADER;

	tcp_close(&w->loop, &s->sides[CLIENT], rst);
	tcp_close(&w->loop, &s->sides[UPSTREAM], rst);
	timer_cancel(&s->timer);
	session_set_state(s, SESSION_DEAD);
	LIST_REMOVE(s, in_worker);
	w->n_sessions--;
	if (s->server)
		server_leave(s->server);
	admission_leave(w->shared, s->forward, admitted ? &s->client : NULL);
	free(s->told);
	free(s->idle);
	addr_list_put(s->addrs);
	worker_free_later(w, &s->leftover);
}

/*
 * 0: debug.  Such a cause is a part of normal life, or was logged with more detail where it was
 * found.
 */
static const uint8_t reset_levels[CAUSES] = {
	[CAUSE_CLIENT_LOST] = LOG_INFO,  [CAUSE_UPSTREAM_LOST] = LOG_INFO,
	[CAUSE_GRACE_OVER] = LOG_INFO,   [CAUSE_NO_DESCRIPTOR] = LOG_WARNING,
	[CAUSE_NO_MEMORY] = LOG_WARNING, [CAUSE_KERNEL_LOST] = LOG_WARNING,
	[CAUSE_NO_ROUTE] = LOG_WARNING,  [CAUSE_UNTRANSLATABLE] = LOG_WARNING,
	[CAUSE_INTERNAL] = LOG_WARNING,
};

/* Count S as accepted by its forward, if NOW.  A TLS hello decides which forward that is. */
static void count_accepted(struct session *s, bool now)
{
	count_add(&forward_stats(s->forward, s->worker->index)->accepted, now);
}

/* End S as its mark says. */
static void end(struct session *s)
{
	bool rst = s->ending == ENDING_RESETS;
	unsigned int why = rst ? s->end_cause : SESSION_FINISHED;
	struct session_view view;

	if (rst && reset_levels[why])
		log_cause(why, reset_levels[why], "session %llu, forward %s: reset",
			  (unsigned long long)s->id, forward_name(s->forward->conf));
	count_accepted(s, s->state == SESSION_HEADER && s->forward->conf->hellos);
	session_count_kernel(s);
	session_view(s, &view);
	session_ended(s->worker, &view, why);
	for (unsigned int dir = 0; dir < 2; dir++)
		carrier_release(&s->flows[dir], &s->worker->pool);
	session_connect_end(s);
	if (session_graft_end(s, rst)) /* its packets go on, or a RST of the programs ends it */
		rst = true;
	else if (loop_descriptors_are_shared())
		for (unsigned int side = 0; side < 2; side++)
			tcp_end_now(s->sides[side].fd, rst);
	pace_free(s->pace);
	die(s, rst);
	session_sockmap_give_slots(s);
}

/* S leaves this relay in silence: it is DEAD here, and STANDBY in the packet programs. */
static bool leave(struct session *s)
{
	struct session_view view;

	session_count_kernel(s);
	session_view(s, &view); /* a slot that is STANDBY may change */
	if (!session_graft_hand_over(s))
		return false;
	session_ended(s->worker, &view, SESSION_MOVED);
	die(s, true);
	return true;
}

#define PARTED_MS 300000 /* after which other relays that were lost count as dead */

/*
 * S ends here.  Does it go on by another relay?  If another relay was lost a short time ago, answers to
 * probes of this relay may go by that one.
 */
static bool others_carry(const struct session *s)
{
	uint64_t lost_ms = atomic_load(&s->worker->shared->standbys_ms);

	if (session_graft_is_apart(s))
		return true;
	if ((s->end_cause == CAUSE_CLIENT_LOST || s->end_cause == CAUSE_UPSTREAM_LOST) && lost_ms &&
	    clock_ms() < lost_ms + PARTED_MS && session_graft_is_shared(s))
		return true;
	if (s->end_cause == CAUSE_GRACE_OVER)
		return session_graft_is_told(s);
	return s->end_cause != CAUSE_KILLED && session_graft_is_unheard(s);
}

/* A step has returned: carry out its mark, or compute anew which events S waits for. */
static void settle(struct session *s)
{
	uint64_t due;

	if (s->state == SESSION_DEAD)
		return;
	if (s->ending == ENDING_PARTS)
		session_part_begin(s);
	if (!s->ending && (watch_side(s, CLIENT) || watch_side(s, UPSTREAM)))
		session_reset(s, CAUSE_NO_MEMORY);
	if (s->ending == ENDING_RESETS && session_graft_awaits_sockets(s))
		return;
	if (s->ending && others_carry(s) && leave(s))
		return;
	if (s->ending) {
		end(s);
		return;
	}
	due = next_due(s);
	if (due == NEVER)
		timer_cancel(&s->timer);
	else
		timer_set(&s->worker->loop, &s->timer, due);
}

/* --- its life --- */

/*
 * EVENTS were reported on the socket FROM: CLIENT, UPSTREAM, or UPSTREAM + N for attempt N to
 * connect.  NOBODY: no socket; the timer has fired, or the session begins.
 */
#define NOBODY UINT_MAX

static void on_rival(struct source *source, uint32_t events);

static bool connect_upstream(struct session *s, unsigned int from, uint32_t events)
{
	if (!s->connecting && !session_connect_begin(s, on_rival))
		return false;
	if (from == NOBODY)
		return session_connect_timer(s);
	return from != CLIENT && session_connect_answered(s, from - UPSTREAM, events);
}

/* True: S is connected, and its server knows what was said before the payload. */
static bool reach_server(struct session *s, unsigned int from, uint32_t events)
{
	if (session_postgres_waits(s))
		return session_postgres_hear(s);
	return connect_upstream(s, from, events) && session_header_send(s) &&
	       !session_postgres_ask(s);
}

/* EVENTS of SIDE, in a session that is OPEN. */
static void run_flows(struct session *s, unsigned int side, uint32_t events)
{
	/* a write finds out whether the peer is gone; EPOLLOUT may come unasked */
	if (events & EPOLLHUP ||
	    (events & EPOLLOUT && flow_wants(&s->flows[!side]) & FLOW_WANT_WRITE))
		session_flow_run(s, !side, false);
	if (s->state == SESSION_OPEN && events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP))
		session_flow_run(s, side, events & (EPOLLRDHUP | EPOLLHUP));
	if (events & EPOLLPRI) /* a read ends before the urgent byte; more may follow it */
		s->flows[side].quiet = false;
}

/*
 * Most clients have sent bytes by now, and a read at once saves a round through epoll.
 * Edge-triggered epoll does not report a FIN twice, so the events that came before OPEN are taken
 * into account.
 */
static void open_flows(struct session *s)
{
	session_connect_end(s);
	session_set_state(s, SESSION_OPEN);
	session_flows_start(s);
	if (s->server && atomic_load(&s->server->dead)) /* meanwhile */
		session_reset(s, CAUSE_SERVER_DOWN);
	run_flows(s, CLIENT, EPOLLIN | (s->told ? s->told->events : 0));
}

static void run_timers(struct session *s)
{
	for (unsigned int dir = 0; dir < 2 && session_runs(s); dir++) {
		struct flow *f = &s->flows[dir];

		if (flow_wants(f) & FLOW_WANT_TIMER && f->due_ms &&
		    f->due_ms <= s->worker->loop.now_ms) {
			f->due_ms = 0;
			session_flow_run(s, dir, false);
		}
	}
	session_idle_timer(s);
	session_graft_timer(s);
}

/* True: the client's PROXY header and TLS hello have come, where the forward asks for them. */
static bool leave_header(struct session *s, uint32_t events)
{
	bool ended = events & (EPOLLRDHUP | EPOLLHUP), hellos = s->forward->conf->hellos;

	if (!session_header_read(s, ended) || !session_hello_read(s, ended))
		return false;
	count_accepted(s, hellos); /* without hellos session_open() has counted S */
	session_set_state(s, SESSION_CONNECTING);
	return true;
}

/*
 * The life of a session, from accept(2) to its last byte.  Each step gets the events, and is
 * done if it returns true.
 */
static void live(struct session *s, unsigned int from, uint32_t events)
{
	if (s->state == SESSION_DEAD)
		return;
	if (from <= UPSTREAM && events & ~(uint32_t)EPOLLOUT)
		s->flows[from].quiet = false;
	if (from == CLIENT && s->told && !session_runs(s))
		s->told->events |= events;
	/*
	 * EPOLLERR means RST, a timeout, or a failed write of sk_psock_backlog() to this socket:
	 * bytes may be gone.
	 */
	if (from <= UPSTREAM && events & EPOLLERR &&
	    (from == CLIENT || s->state != SESSION_CONNECTING))
		session_lose_side(s, from, tcp_take_error(s->sides[from].fd));
	if (s->state == SESSION_HEADER && !s->ending && leave_header(s, events))
		from = NOBODY;
	if (s->state == SESSION_CONNECTING && !s->ending && reach_server(s, from, events))
		open_flows(s);
	if (session_runs(s) && from <= UPSTREAM)
		run_flows(s, from, events);
	if (session_runs(s) && from == NOBODY)
		run_timers(s);
	if (s->state == SESSION_PARTING && from == NOBODY)
		session_part_go_on(s);
	settle(s);
}

static void on_client(struct source *source, uint32_t events)
{
	live(container_of(source, struct session, sides[CLIENT]), CLIENT, events);
}

static void on_upstream(struct source *source, uint32_t events)
{
	live(container_of(source, struct session, sides[UPSTREAM]), UPSTREAM, events);
}

static void on_rival(struct source *source, uint32_t events)
{
	unsigned int attempt;
	struct session *s = session_of_rival(source, &attempt);

	live(s, UPSTREAM + attempt, events);
}

static void on_timer(struct timer *timer)
{
	live(container_of(timer, struct session, timer), NOBODY, 0);
}

/* --- its beginning --- */

/* With the overhead of malloc(3), an idle session takes less than half a kilobyte. */
_Static_assert(sizeof(struct session) <= 456, "put what few sessions need apart");

/* A session in HEADER, without sockets and id.  NULL: no memory. */
static struct session *new_session(struct worker *w, struct forward *f,
				   const union client_addr *client)
{
	struct session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->worker = w;
	s->forward = f;
	s->client = *client;
	s->pair = NO_PAIR;
	s->graft = NO_GRAFT;
	s->probe_at_ms = NEVER;
	s->timer.fire = on_timer;
	s->tcp = client->sa.sa_family != AF_UNIX && !upstreams_are_unix(&f->conf->upstream);
	s->sides[CLIENT] = (struct source){ .handle = on_client, .fd = -1 };
	s->sides[UPSTREAM] = (struct source){ .handle = on_upstream, .fd = -1 };
	LIST_INSERT_HEAD(&w->sessions, s, in_worker);
	w->n_sessions++;
	return s;
}

int session_open(struct worker *w, struct forward *f, int fd, const union client_addr *client,
		 in_port_t port)
{
	struct session *s = new_session(w, f, client);

	if (!s)
		return -ENOMEM;
	s->id = atomic_fetch_add(&w->shared->last_id, 1) + 1;
	s->born_ms = w->loop.now_ms;
	s->sides[CLIENT].fd = fd;
	s->port_offset = forward_port_offset(f, port);
	count_accepted(s, !f->conf->hellos);
	if (session_header_expect(s))
		session_reset(s, CAUSE_NO_MEMORY);
	live(s, NOBODY, 0);
	return 0;
}

/* --- all sessions of a worker --- */

static enum cause count_udp(void *arg, const struct session_view *v)
{
	uint64_t *flows = arg;

	flows[v->flows[CLIENT].carrier]++;
	flows[v->flows[UPSTREAM].carrier]++;
	return CAUSE_NONE;
}

void worker_count_sessions(struct worker *w, uint64_t flows[CARRIERS])
{
	struct session *s;

	session_catch_up(w);
	session_syn_sweep(w, true);
	LIST_FOREACH(s, &w->sessions, in_worker) { /* to make a view takes long */
		session_count_kernel(s);
		flows[session_carrier(s, CLIENT)]++;
		flows[session_carrier(s, UPSTREAM)]++;
	}
	udp_sessions_visit(w, 0, 1, count_udp, flows);
}

void worker_visit_sessions(struct worker *w, uint64_t piece, uint64_t pieces, session_visit_fn *fn,
			   void *arg)
{
	struct session *s;
	struct session_view view;
	enum cause why;

	session_catch_up(w);
	session_syn_sweep(w, true);
	LIST_FOREACH(s, &w->sessions, in_worker) {
		if (s->id % pieces != piece)
			continue;
		session_count_kernel(s);
		session_view(s, &view);
		why = fn(arg, &view);
		if (why == CAUSE_NONE)
			continue;
		session_reset(s, why);
		settle(s);
	}
	udp_sessions_visit(w, piece, pieces, fn, arg);
}

/* Returns how many flows of S need time for it. */
static unsigned int follow_engine(struct session *s)
{
	unsigned int n = 0;

	for (unsigned int dir = 0; dir < 2 && session_runs(s); dir++)
		n += !session_flow_follow(s, dir);
	settle(s);
	return n;
}

unsigned int worker_follow_engines(struct worker *w)
{
	struct session *s;
	unsigned int n = 0;

	session_syn_sweep(w, true);
	LIST_FOREACH(s, &w->sessions, in_worker)
		n += follow_engine(s);
	udp_sessions_follow_engines(w);
	return n;
}

/* --- sessions in the kernel --- */

/*
 * A sweep makes at most this many flows leave for want of memory: each costs 6 system calls and a
 * fence.
 */
#define SWEEP_LEAVES 256

static void kernel_event(struct session *s, unsigned int dir, unsigned int kind)
{
	if (session_sockmap_event(s, dir, kind))
		session_flow_run(s, !dir, false);
	session_flow_run(s, dir, false);
	settle(s);
}

int session_kernel_event(void *worker, void *event, size_t size)
{
	const struct culvert_event *ev = event;
	struct worker *w = worker;
	struct session *s = w->owners[ev->slot / 2];

	(void)size;
	if (ev->kind == CULVERT_EVENT_MEMORY)
		w->shared->kernel->is_short = true;
	if (s && s->state == SESSION_OPEN &&
	    (uint16_t)w->shared->kernel->ctls[ev->slot].epoch == ev->epoch)
		kernel_event(s, ev->slot % 2, ev->kind);
	return 0;
}

void session_kernel_sweep(struct worker *w)
{
	struct session *s;
	unsigned int leaves = SWEEP_LEAVES;

	LIST_FOREACH(s, &w->sessions, in_worker) {
		for (unsigned int dir = 0; dir < 2 && session_runs(s) && s->pair != NO_PAIR;
		     dir++) {
			unsigned int kind = session_sockmap_missed(s, dir);

			if (kind && (kind != CULVERT_EVENT_MEMORY || leaves-- > 0))
				kernel_event(s, dir, kind);
		}
	}
}

/* --- grafted sessions --- */

static void look_at_graft(struct session *s)
{
	bool back;

	/* the address of S has left, or another relay has S, too */
	if (session_graft_is_away(s)) {
		if (session_graft_holds_bytes(s))
			session_reset(s, CAUSE_NO_ROUTE);
		else if (leave(s))
			return;
	}
	back = session_graft_follow_state(s);
	for (unsigned int dir = 0; dir < 2 && back; dir++)
		session_flow_run(s, dir, false);
	settle(s);
}

int session_graft_event(void *worker, void *event, size_t size)
{
	const struct graft_event *ev = event;
	struct worker *w = worker;
	struct session *s = w->grafted[ev->slot];

	(void)size;
	if (s && s->id == ev->id)
		look_at_graft(s);
	else if (!s)
		session_syn_event(w, ev->slot, ev->id);
	return 0;
}

void session_catch_up(struct worker *w)
{
	if (w->ring)
		ring_buffer__consume(w->ring);
}

void worker_follow_news(struct worker *w)
{
	struct session *s;
	struct shared *shared = w->shared;
	uint64_t news = atomic_load_explicit(&shared->news, memory_order_acquire);

	if (shared->grafts)
		news += *graft_rings(shared->grafts)->lost;
	if (news == w->news_seen)
		return;
	w->news_seen = news;
	session_syn_sweep(w, true);
	LIST_FOREACH(s, &w->sessions, in_worker) {
		if (s->server && s->state >= SESSION_OPEN && atomic_load(&s->server->dead)) {
			session_reset(s, CAUSE_SERVER_DOWN);
			settle(s);
		} else if (s->graft != NO_GRAFT) {
			look_at_graft(s);
		}
	}
	session_syn_follow_news(w);
	udp_sessions_follow_news(w);
}

void session_wake_waiting(struct worker *w)
{
	struct session *s;

	while ((s = woken_take(&w->woken)))
		live(s, NOBODY, 0);
}

void worker_leave_behind(struct worker *w)
{
	struct session *s;
	bool survives = w->shared->grafts && graft_table_survive(w->shared->grafts);

	LIST_FOREACH(s, &w->sessions, in_worker)
		if (survives && session_graft_leave_behind(s)) {
			count_add(&forward_stats(s->forward, w->index)->moved, 1);
			die(s, false);
		}
	udp_sessions_leave_behind(w);
}

void session_revive(struct session *s)
{
	if (s->sides[CLIENT].fd >= 0)
		return;
	session_graft_take_sockets(s);
	if (s->ending) /* S has waited for them, which may be missing */
		end(s);
	else
		look_at_graft(s);
}

/* A session that is grafted already gets its object S, if there is memory. */
static int take_over(struct session *s, uint32_t slot, enum reason reason)
{
	if (!s)
		return -ENOMEM;
	session_graft_adopt(s, slot, reason);
	session_set_state(s, SESSION_CONNECTING);
	session_set_state(s, SESSION_OPEN);
	look_at_graft(s); /* it may have ended meanwhile */
	return 0;
}

int session_adopt(struct worker *w, struct forward *f, const union client_addr *client,
		  uint32_t slot)
{
	struct session *s = new_session(w, f, client);

	if (s && graft_is_orphan(w->shared->grafts, slot)) /* no daemon has timed its silence */
		session_idle_begin(s);
	count_add(&forward_stats(f, w->index)->adopted, !!s);
	return take_over(s, slot, REASON_ADOPTED);
}

int session_begun(struct worker *w, struct forward *f, const union client_addr *client,
		  uint32_t slot, struct server *server)
{
	struct session *s = new_session(w, f, client);
	int r;

	if (s)
		s->server = server;
	count_add(&forward_stats(f, w->index)->accepted, !!s);
	r = take_over(s, slot, REASON_FROM_SYN);
	if (!r)
		follow_engine(s); /* an order may have come since its SYN */
	return r;
}

/* --- a hand-over to the next daemon --- */

unsigned int worker_leave_kernel(struct worker *w)
{
	unsigned int n = 0;
	struct session *s;

	session_catch_up(w);
	LIST_FOREACH(s, &w->sessions, in_worker) {
		for (unsigned int dir = 0; dir < 2 && session_runs(s); dir++) {
			struct flow *f = &s->flows[dir];

			if (f->phase == FLOW_KERNEL)
				session_sockmap_leave(s, dir, policy_start(ENGINE_COPY));
			if (f->phase != FLOW_USER && f->phase != FLOW_DONE)
				session_flow_run(s, dir, false);
			n += f->phase != FLOW_USER && f->phase != FLOW_DONE;
		}
		settle(s);
	}
	return n;
}

void worker_hand_ahead(struct worker *w, const struct handing *h, struct bundle *b)
{
	struct session *s;

	LIST_FOREACH(s, &w->sessions, in_worker)
		s->sent_ahead = s->id <= h->last_id && s->forward->leaves &&
				session_record_is_settled(s) && session_record_put(s, h->same, b);
}

/*
 * Find the session ID in AHEAD, whose order is that of the worker's list: new sessions come to its
 * head.  Sessions before it have ended.
 */
static bool handing_find(struct handing *h, struct bundle *ahead, uint64_t id, struct record *ret)
{
	while (bundle_get(ahead, ret)) {
		if (session_record_id(ret) == id)
			return true;
		bundle_put(&h->changed, &(struct record){ .of = h->at++ });
	}
	return false;
}

/* Put S, unless the next daemon has the same of it already.  False: S stays. */
static bool handing_put(struct handing *h, struct session *s)
{
	struct record before, now;
	bool found = s->sent_ahead && handing_find(h, &h->ahead[s->worker->index], s->id, &before),
	     put;
	size_t len = h->now.len, n_fds = h->now.n_fds;
	struct bundle look;

	put = s->state != SESSION_DEAD && s->forward->leaves &&
	      session_record_put(s, h->same, &h->now);
	look = h->now;
	look.at = len;
	look.fds_at = n_fds;
	if (found && put && bundle_get(&look, &now) && now.size == before.size && !now.n_more &&
	    !memcmp(now.at, before.at, now.size)) {
		h->now.len = len;
		h->now.n_fds = n_fds;
		h->at++;
	} else if (found) {
		bundle_put(&h->changed, &(struct record){ .of = h->at++ });
	}
	return put;
}

void worker_hand_over(struct worker *w, struct handing *h)
{
	struct session *s;
	struct record r;

	session_catch_up(w);
	session_syn_sweep(w, true);
	LIST_FOREACH(s, &w->sessions, in_worker) {
		struct pollfd p = { .fd = s->sides[UPSTREAM].fd, .events = POLLOUT };

		/* else the server would see a connection that ends at once, and another one */
		if (s->state == SESSION_CONNECTING && p.fd >= 0 && !session_postgres_waits(s) &&
		    poll(&p, 1, 0) == 1)
			live(s, UPSTREAM, EPOLLOUT);
		session_count_kernel(s);
		if (s->graft != NO_GRAFT)
			graft_return(w->shared->grafts, s->graft, false);
		s->handed_over = handing_put(h, s);
		if (!s->handed_over && s->forward->leaves && h->same && session_is_grafted(s))
			session_record_frozen(s, &h->now);
	}
	handing_find(h, &h->ahead[w->index], 0,
		     &r); /* no session has this id: the rest has ended */
	udp_sessions_hand_over(w, &h->now);
}

/* The sockets of S are another daemon's, so no end shall notice. */
static void give_away(struct session *s)
{
	if (s->graft != NO_GRAFT)
		s->worker->grafted[s->graft] = NULL;
	for (unsigned int dir = 0; dir < 2; dir++)
		carrier_release(&s->flows[dir], &s->worker->pool);
	session_connect_end(s);
	pace_free(s->pace);
	die(s, false);
	session_sockmap_give_slots(s);
}

void worker_give_away(struct worker *w)
{
	struct session *s;

	LIST_FOREACH(s, &w->sessions, in_worker)
		if (s->handed_over || (s->forward->leaves && session_is_grafted(s)))
			give_away(s);
	udp_sessions_give_away(w);
}

void session_take_back(struct session *s, bool lost)
{
	if (lost && s->state != SESSION_DEAD) {
		session_reset(s, CAUSE_GRACE_OVER);
		settle(s);
		return;
	}
	count_add(&forward_stats(s->forward, s->worker->index)->adopted, UINT64_MAX);
	if (s->state != SESSION_DEAD)
		give_away(s);
}

/* S is connected in the daemon before this one: let its flows go on. */
static int take_open(struct session *s)
{
	session_set_state(s, SESSION_CONNECTING);
	session_set_state(s, SESSION_OPEN);
	s->probe_at_ms = s->forward->conf->keepalive_ms ? s->worker->loop.now_ms : NEVER;
	if (s->graft != NO_GRAFT) {
		graft_table_keep(s->worker->shared->grafts, s->graft);
		s->worker->grafted[s->graft] = s;
	}
	return session_flows_take(s);
}

/* S has no server yet.  It goes on when its worker runs.  SINCE_MS: see session_record_waits(). */
static void take_young(struct session *s, uint64_t since_ms)
{
	if (!s->told || since_ms) /* who waits has told all */
		session_set_state(s, SESSION_CONNECTING);
	/* now, before any session can look for a place */
	if (since_ms && session_connect_begin(s, on_rival))
		session_connect_wait(s, since_ms);
	timer_set(&s->worker->loop, &s->timer, 0);
}

int session_take_over(struct worker *w, struct forward *f, const struct record *from,
		      struct session **ret)
{
	struct session_record *r = session_record_read(w->shared->grafts, from);
	const union client_addr *client;
	struct session *s = NULL;
	uint64_t since_ms = 0;
	bool admitted;
	int e = -EPROTO;

	if (r) {
		since_ms = session_record_waits(r);
		client = session_record_client(r, &admitted);
		e = admission_adopt(w->shared, f, admitted ? client : NULL, true) ? 0 : -ENOMEM;
	}
	if (!e) {
		s = new_session(w, f, client);
		e = s ? session_record_apply(s, r, from) : -ENOMEM;
	}
	free(r);
	if (e < 0)
		return e;
	count_add(&forward_stats(f, w->index)->adopted, 1);
	if (e && take_open(s))
		session_reset(s, CAUSE_NO_MEMORY);
	if (e > 1)
		session_lose_side(s, (unsigned int)e - 2, 0);
	if (e)
		settle(s);
	else
		take_young(s, since_ms);
	*ret = s;
	return 0;
}
