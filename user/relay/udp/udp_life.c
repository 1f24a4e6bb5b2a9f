// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A session lives on the thread of its worker.  Three kinds of events reach it: a datagram of its
 * client, events of its socket to the server, and its timer.  udp_live() tells the whole story:
 * each step is a function of a module below.  A step that finds the end of the session leaves a
 * mark (udp_session_end()).  When the step has returned, udp_settle() carries the mark out.  The
 * functions at the end of this file, for the worker, mark and settle in the same way.
 *
 * A session that has ended is DEAD: it has given everything back, and is in no list.  Its memory is
 * freed after the batch of events.
 *
 * Datagrams do not move the timer.  When the timer fires, it is set to idle-timeout after the last
 * datagram so far.
 */
#include "relay/udp/udp_life.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/icmp_send.h"
#include "relay/admission.h"
#include "relay/proxy_protocol.h"
#include "relay/session_log.h"
#include "relay/udp/udp_activate.h"
#include "relay/udp/udp_errors.h"
#include "relay/udp/udp_proof.h"
#include "relay/udp/udp_server.h"

#define BUCKETS_MAX (1U << 18)
/* Once a worker stops, a session that owes an answer ends after this time of silence. */
#define OWES_MS 1000

/* --- datagrams from the client --- */

static int udp_send_on(struct udp_session *s, const struct udp_message *m)
{
	struct proxy_header header = { .version = 2, .has_addresses = true, .udp = true };
	uint8_t buf[PROXY_PROTOCOL_WRITE_MAX];
	size_t len = 0;

	if (s->forward->conf->proxy_protocol & PROXY_SEND) {
		header.source = s->client;
		header.destination = s->destination;
		len = proxy_protocol_write(&header, buf);
	}
	return udp_send(s->upstream->source.fd, m, len ? buf : NULL, len);
}

/* Send M, of the client of S, to the server; an error of the path may end S. */
static void udp_copy_question(struct udp_session *s, const struct udp_message *m)
{
	struct udp_count n = { .bytes = m->len, .datagrams = udp_datagrams(m) };
	int r;

	if (!pace_take(s->pace, CLIENT, m->len)) {
		count_add(&s->worker->stats.errors[CAUSE_OVER_BANDWIDTH], n.datagrams);
		return;
	}
	udp_activate_enter(s);
	udp_session_count(s, CLIENT, CARRIER_COPY, n);
	r = udp_send_on(s, m);
	if (r == -ECONNREFUSED || r == -EHOSTUNREACH || r == -ENETUNREACH)
		udp_server_unreachable(s, -r);
	else if (r) /* no room; or a firewall does not let it out, say */
		count_add(&s->worker->stats.errors[CAUSE_SEND_BUFFER], n.datagrams);
	if (!s->ends)
		udp_activate_wait(s);
}

/* --- datagrams from the server --- */

/* The client has had all the answers that it is to get (`responses`). */
static bool udp_copy_is_complete(const struct udp_session *s)
{
	unsigned int n = s->forward->conf->responses;

	return n && s->copied[UPSTREAM].datagrams >= n * s->copied[CLIENT].datagrams;
}

static void udp_copy_answer(struct udp_session *s, struct udp_message *m)
{
	struct udp_count n = { .bytes = m->len, .datagrams = udp_datagrams(m) };
	enum cause why = CAUSE_NONE;

	s->heard_ms[UPSTREAM] = udp_now(s);
	udp_server_answered(s);
	if (!udp_proof_allows(s, m))
		why = CAUSE_REPLY_LIMIT;
	else if (!pace_take(s->pace, UPSTREAM, m->len))
		why = CAUSE_OVER_BANDWIDTH;
	if (why == CAUSE_NONE) {
		m->peer = s->peer;
		m->local = s->local;
		if (!addr_is_any(&s->socket->addr))
			m->local.sa.sa_family = AF_UNSPEC;
		udp_session_count(s, UPSTREAM, CARRIER_COPY, n);
		if (udp_send_to(s->socket->source.fd, m))
			why = CAUSE_SEND_BUFFER;
	}
	if (why != CAUSE_NONE)
		count_add(&s->worker->stats.errors[why], n.datagrams);
}

/* Send answers to the client; the last one ends S (`responses`). */
static void udp_copy_answers(struct udp_session *s)
{
	struct udp_batch *b = s->worker->udp->batch;
	uint32_t word = udp_word(s, UPSTREAM);
	int got = udp_receive(b, s->upstream->source.fd);

	if (got < 0) { /* an error of an earlier datagram */
		udp_errors_take(s);
		got = s->ends ? 0 : udp_receive(b, s->upstream->source.fd);
	}
	if (got == UDP_BATCH) /* epoll shall report the rest again */
		loop_watch(&s->worker->loop, &s->upstream->source, EPOLLIN, true);
	for (int i = 0; i < got; i++)
		udp_copy_answer(s, udp_batch_at(b, (unsigned int)i));
	if (got > 0 && udp_copy_is_complete(s))
		udp_session_end(s, SESSION_FINISHED);
	else if (got > 0)
		udp_activate_server(s, word, got < UDP_BATCH);
}

/* --- its end --- */

/*
 * How long the port of S, which ends, has to rest.  The server of a stream may go on sending, if it
 * has done so lately.  An unproven session is a stream only if it has more answers than questions.
 */
static uint64_t udp_rests_ms(const struct udp_session *s)
{
	uint64_t idle = s->forward->conf->idle_timeout_ms ?: UDP_PORT_OWED_MS;

	/* with several questions it would not be known which of them were answered */
	if (s->copied[CLIENT].datagrams == 1 && udp_copy_is_complete(s))
		return UDP_PORT_RESTS_MS;
	if ((udp_proof_seen(s) || udp_all_datagrams(s, UPSTREAM) > udp_all_datagrams(s, CLIENT)) &&
	    udp_heard_ms(s, UPSTREAM) + smaller(idle, UDP_PORT_OWED_MS) > udp_now(s))
		return UDP_PORT_STREAM_MS;
	return UDP_PORT_OWED_MS;
}

/* S leaves all lists, and gives everything back, but is still counted in. */
static void udp_die(struct udp_session *s)
{
	struct worker *w = s->worker;
	uint64_t ms = udp_rests_ms(s);

	udp_activate_wait_no_more(s);
	udp_list_remove(s);
	udp_session_set_state(s, UDP_DEAD);
	LIST_REMOVE(s, in_bucket);
	worker_free_later(w, &s->leftover);
	w->n_sessions--;
	timer_cancel(&s->timer);
	/* if only datagrams that the network doubled can come, the socket may be used again */
	if (s->upstream && !(ms == UDP_PORT_RESTS_MS && udp_upstream_rest(s->upstream, s->forward)))
		udp_upstream_close(s->upstream, ms);
	if (s->server)
		server_leave(s->server);
	pace_free(s->pace);
	s->socket->refs--;
}

/* End S as its mark says. */
static void udp_end(struct udp_session *s)
{
	struct worker *w = s->worker;
	struct session_view view;

	udp_session_count_kernel(s);
	udp_view(s, &view);
	session_ended(w, &view, s->end);
	if (s->end == SESSION_MOVED)
		udp_graft_part(udp_table_of(s), s->slot);
	else if (s->end != SESSION_LEFT)
		udp_activate_leave(s);
	udp_die(s);
	admission_leave(w->shared, s->forward, &s->client);
	/* last: a client that asks again at once must not meet this session, nor its slot */
	if (s->end_error)
		icmp_tell(&s->peer, &s->local, s->end_error, 0);
}

bool udp_settle(struct udp_session *s)
{
	if (s->ends)
		udp_end(s);
	return !s->ends;
}

/* --- its life --- */

/* End S if both ends were silent for idle-timeout.  Otherwise set the timer for the next look. */
static void udp_look_at_silence(struct udp_session *s)
{
	uint64_t over_ms = udp_last_ms(s) + s->forward->conf->idle_timeout_ms;

	udp_errors_forget_mtu(s);
	if (udp_now(s) >= over_ms) {
		udp_session_end(s, SESSION_FINISHED);
		return;
	}
	udp_server_doubt(s);
	timer_set(&s->worker->loop, &s->timer, over_ms);
}

/*
 * The life of a session, from its first datagram to its end.  The cause of a call is M, from the
 * client; or EVENTS of the socket to the server; or, without both, the timer.
 */
static void udp_live(struct udp_session *s, const struct udp_message *m, uint32_t events)
{
	if (m) {
		udp_activate_wake(s);
		s->heard_ms[CLIENT] = udp_now(s);
		udp_proof_give(s);
		udp_copy_question(s, m);
	} else if (!events) {
		udp_look_at_silence(s);
	}
	if (events & EPOLLERR)
		udp_errors_take(s);
	if (events & EPOLLIN && !s->ends && !udp_errors_client_gone(s))
		udp_copy_answers(s);
	udp_settle(s);
}

void udp_session_take(struct udp_session *s, struct udp_listen_socket *us,
		      const struct udp_message *m)
{
	if (s->socket != us) { /* a look at the earlier socket says nothing any more */
		udp_activate_wait_no_more(s);
		s->socket->refs--;
		s->socket = us;
		us->refs++;
	}
	udp_live(s, m, 0);
}

static void udp_on_upstream(struct udp_session *s, uint32_t events)
{
	udp_live(s, NULL, events);
}

static void udp_on_timer(struct timer *timer)
{
	udp_live(container_of(timer, struct udp_session, timer), NULL, 0);
}

/* --- its beginning --- */

static struct udp_session *udp_new_session(struct udp_listen_socket *us, struct forward *f,
					   const struct graft_tuple *tuple,
					   const struct udp_message *m,
					   const union client_addr *client)
{
	struct udp_session *s = calloc(1, sizeof(*s));
	struct worker *w = us->worker;

	if (!s)
		return NULL;
	s->worker = w;
	s->forward = f;
	s->socket = us;
	us->refs++;
	s->tuple = *tuple;
	s->client = *client;
	s->peer = m->peer;
	s->local = m->local;
	s->slot = NO_SLOT;
	s->timer.fire = udp_on_timer;
	LIST_INSERT_HEAD(udp_session_bucket(w, tuple), s, in_bucket);
	udp_proof_begin(s);
	w->n_sessions++;
	return s;
}

enum cause udp_session_open(struct udp_listen_socket *us, const struct graft_tuple *tuple,
			    const struct udp_message *m, const union client_addr *client,
			    const union client_addr *destination, struct udp_session **ret)
{
	struct worker *w = us->worker;
	struct forward *f = us->forward;
	struct udp_session *s = udp_new_session(us, f, tuple, m, client);
	enum cause cause;

	if (!s)
		return CAUSE_NO_MEMORY;
	s->destination = *destination;
	s->id = atomic_fetch_add(&w->shared->last_id, 1) + 1;
	s->born_ms = s->heard_ms[CLIENT] = udp_now(s);
	cause = forward_pace(f, &client->sa, &s->pace) ? CAUSE_NO_MEMORY : udp_server_choose(s);
	if (cause != CAUSE_NONE) {
		udp_die(s);
		return cause;
	}
	count_add(&forward_stats(f, w->index)->accepted, 1);
	if (f->conf->idle_timeout_ms)
		timer_set(&w->loop, &s->timer, udp_now(s) + f->conf->idle_timeout_ms);
	*ret = s;
	return CAUSE_NONE;
}

/* --- for the worker --- */

void udp_worker_open(struct worker *w)
{
	struct udp_worker *u = allocated(calloc(1, sizeof(*u)));
	uint32_t n = 1024;

	while (n < w->shared->config->max_sessions && n < BUCKETS_MAX)
		n *= 2;
	u->mask = n - 1;
	u->seed = arc4random();
	u->buckets = allocated(calloc(n, sizeof(*u->buckets)));
	u->batch = allocated(udp_batch_new());
	TAILQ_INIT(&u->sessions);
	udp_upstreams_open(&u->upstreams, w, udp_on_upstream);
	w->udp = u;
}

void udp_sessions_visit(struct worker *w, uint64_t piece, uint64_t pieces, session_visit_fn *fn,
			void *arg)
{
	struct session_view view;
	struct udp_session *s;
	enum cause why;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		if (s->id % pieces != piece)
			continue;
		udp_session_count_kernel(s);
		udp_view(s, &view);
		why = fn(arg, &view);
		if (why != CAUSE_NONE)
			udp_session_end(s, why);
		udp_settle(s);
	}
}

void udp_sessions_follow_engines(struct worker *w)
{
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker)
		udp_activate_follow_engine(s);
}

void udp_sessions_leave_behind(struct worker *w)
{
	bool survives = w->shared->grafts && graft_table_survive(w->shared->grafts);
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		/* the server owes an answer, which may still come */
		bool owed = udp_all_datagrams(s, UPSTREAM) < udp_all_datagrams(s, CLIENT) &&
			    udp_now(s) < udp_heard_ms(s, CLIENT) + UDP_PORT_OWED_MS;

		if (survives && udp_carries(s, CLIENT) && (udp_carries(s, UPSTREAM) || !owed))
			udp_session_end(s, SESSION_LEFT);
		else if (!owed || udp_now(s) >= udp_last_ms(s) + OWES_MS)
			udp_session_end(s, SESSION_FINISHED);
		udp_settle(s);
	}
}

void udp_sessions_follow_news(struct worker *w)
{
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		const volatile struct udp_flow *f = udp_slot_of(s);

		/* another relay knows it, and its address has left; or that relay has it, too */
		if (f->head.mirrored == GRAFT_YIELD ||
		    (f->head.mirrored &&
		     !graft_table_has_address(w->shared->grafts, &f->leg[CLIENT].tuple.local)))
			udp_session_end(s, SESSION_MOVED);
		else if (f->head.mirrored == GRAFT_CONDEMNED)
			udp_session_end(s, CAUSE_KILLED);
		else if (udp_server_is_lost(s))
			udp_session_end(s, CAUSE_UPSTREAM_LOST);
		else if (s->server && atomic_load(&s->server->dead))
			udp_session_end(s, CAUSE_SERVER_DOWN);
		udp_settle(s);
	}
}

/* --- adoption: sessions of an earlier daemon, or of another relay --- */

/* The socket of W that gets the datagrams to A; or NULL. */
static struct udp_listen_socket *udp_socket_for(struct worker *w, const struct addr *a)
{
	struct udp_listen_socket *us;

	LIST_FOREACH(us, &w->udp->sockets, in_worker)
		if (us->addr.ss.ss_family == a->ss.ss_family &&
		    addr_port(&us->addr) == addr_port(a) &&
		    (addr_is_any(&us->addr) || addr_equal(&us->addr, a)))
			break;
	return us;
}

int udp_session_adopt(struct worker *w, struct forward *f, uint32_t slot)
{
	volatile struct udp_flow *flow = udp_flow_of(graft_table_udp(w->shared->grafts), slot);
	struct graft_tuple tuple = flow->leg[CLIENT].tuple;
	struct addr peer = graft_tuple_address(&tuple, false);
	struct addr local = graft_tuple_address(&tuple, true);
	struct udp_listen_socket *us = udp_socket_for(w, &local);
	uint32_t ago = (uint32_t)(clock_ns() >> UDP_TICK_SHIFT) - flow->born; /* ticks wrap */
	struct udp_message m = { 0 };
	struct udp_session *s;
	int r;

	if (!us)
		return -ENOENT;
	client_addr_set(&m.peer, &peer.sa);
	client_addr_set(&m.local, &local.sa);
	s = udp_new_session(us, f, &tuple, &m, &m.peer);
	if (!s)
		return -ENOMEM;
	s->adopted = true;
	s->id = flow->head.id;
	shared_saw_id(w->shared, s->id);
	s->born_ms = clock_ms() - ((uint64_t)ago << UDP_TICK_SHIFT) / NS_PER_MS;
	s->connect_ms = 1; /* the time to the first answer is not known */
	udp_session_set_state(s, UDP_ANSWERED);
	r = udp_server_adopt(s, flow);
	if (r) {
		udp_die(s);
		return r;
	}
	count_add(&forward_stats(f, w->index)->adopted, 1);
	udp_activate_adopt(s, slot);
	if (f->conf->idle_timeout_ms)
		timer_set(&w->loop, &s->timer, w->loop.now_ms);
	return 0;
}

/* --- a hand-over to the next daemon --- */

/* A field is only ever added at the end (base/bundle.h). */
struct udp_record {
	uint64_t id, born_ms, asked;
	uint64_t heard_ms[2];
	struct udp_count copied[2];
	union client_addr client, destination, peer, local;
	uint32_t connect_ms;
	uint8_t state;
};

void udp_sessions_hand_over(struct worker *w, struct bundle *b)
{
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		struct udp_record r = { .id = s->id,
					.born_ms = s->born_ms,
					.asked = s->asked,
					.client = s->client,
					.destination = s->destination,
					.peer = s->peer,
					.local = s->local,
					.connect_ms = s->connect_ms,
					.state = s->state };

		s->handed_over = s->forward->leaves && s->upstream && !s->ends;
		if (!s->handed_over)
			continue;
		udp_activate_leave(s);
		memcpy(r.heard_ms, s->heard_ms, sizeof(r.heard_ms));
		memcpy(r.copied, s->copied, sizeof(r.copied));
		bundle_put(b, &(struct record){ .kind = HANDED_UDP_SESSION,
						.of = s->forward->tag,
						.at = (uint8_t *)&r,
						.size = sizeof(r),
						.fds = &s->upstream->source.fd,
						.n_fds = 1 });
	}
}

void udp_sessions_give_away(struct worker *w)
{
	struct udp_listen_socket *us;
	struct udp_session *s;

	LIST_FOREACH(us, &w->udp->sockets, in_worker)
		if (us->forward->leaves) /* datagrams are the next daemon's */
			loop_watch(&w->loop, &us->source, 0, false);
	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		if (s->handed_over)
			udp_session_end(s, SESSION_LEFT);
		udp_settle(s);
	}
}

/* FD is connected to the server TO, from the port of OWN: S has it from now on.  -errno. */
static int udp_take_upstream(struct udp_session *s, int fd)
{
	struct addr to = { .len = sizeof(to.ss) }, own = to;

	if (getpeername(fd, &to.sa, &to.len) || getsockname(fd, &own.sa, &own.len))
		return -errno;
	s->server = servers_find(&s->forward->servers, &to);
	if (s->server)
		s->server_lost = atomic_load(&s->server->lost);
	return forward_pace(s->forward, &s->client.sa, &s->pace) ?:
		       udp_upstream_adopt(&s->worker->udp->upstreams, s, &s->client, &to,
					  addr_port(&own), fd, &s->upstream);
}

int udp_session_take_over(struct worker *w, struct forward *f, const struct record *from)
{
	struct addr local;
	struct udp_message m = { 0 };
	struct udp_listen_socket *us;
	struct graft_tuple tuple;
	struct udp_session *s;
	struct udp_record r;
	int e;

	record_read(from, &r, sizeof(r));
	if (from->n_fds != 1)
		return -EPROTO;
	w = &w->shared->workers[udp_worker(&r.peer, w->shared->config->workers)];
	graft_tuple_set(&tuple, &r.peer.sa, &r.local.sa);
	local = graft_tuple_address(&tuple, true);
	us = udp_socket_for(w, &local) ?: udp_socket_for(w->shared->workers, &local);
	if (!us)
		return -ENOENT;
	if (!admission_adopt(w->shared, f, &r.client, false))
		return -ENOMEM;
	m.peer = r.peer;
	m.local = r.local;
	s = udp_new_session(us, f, &tuple, &m, &r.client);
	if (!s)
		return -ENOMEM;
	s->destination = r.destination;
	s->id = r.id;
	shared_saw_id(w->shared, r.id);
	s->born_ms = r.born_ms;
	s->connect_ms = r.connect_ms;
	s->asked = r.asked;
	memcpy(s->heard_ms, r.heard_ms, sizeof(r.heard_ms));
	memcpy(s->copied, r.copied, sizeof(r.copied));
	if (r.state >= UDP_ANSWERED)
		udp_session_set_state(s, UDP_ANSWERED);
	if (r.state >= UDP_PROVEN)
		udp_proof_give(s);
	e = udp_take_upstream(s, from->fds[0]);
	if (e) {
		udp_die(s);
		admission_leave(w->shared, f, &r.client);
		return e;
	}
	count_add(&forward_stats(f, us->worker->index)->adopted, 1);
	if (f->conf->idle_timeout_ms)
		timer_set(&us->worker->loop, &s->timer, us->worker->loop.now_ms);
	return 0;
}
