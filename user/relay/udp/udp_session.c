// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Carriers.  A session is entered in the maps of the packet programs before its first datagram is
 * sent on, so that they see the way that this leaves by.  What arrives on a leg passes, and is
 * counted, until the leg is activated.  That is when a look at the socket has found nothing more,
 * and nothing has passed since: so no datagram is overtaken, save one that is between the program and
 * its socket just then.  If each look within FORCE_MS has found something, that is done all the
 * same: then some may be overtaken, once.
 *
 * Proof.  Whoever sends with a false address gets no answer, and an answer would hit somebody else.
 * So a session is unproven until its client has sent a datagram after an answer.  Until then it
 * gives way to others when there is no room; and answers are limited (max-reply-factor), and pass by
 * the daemon, unless its address has proven itself in another session, or by TCP.  That is no proof
 * of the session: who knows a client can forge more of them.
 *
 * Errors.  The kernel tells a session's socket of ICMP errors, whoever has sent the datagram that
 * they quote: the daemon or a packet program.  The other end is told by icmp.c.  An error about the
 * server counts only if that has said nothing since it was asked: who forges one has to be quicker,
 * and to guess the port.  A client's port may be known: see is_gone().
 */
#include "relay/udp/udp_session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "datapath/graft_tuple.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "datapath/icmp.h"
#include "datapath/tcp.h"
#include "relay/admission.h"
#include "relay/session_log.h"
#include "relay/upstream_socket.h"

#define BUCKETS_MAX (1U << 18)
#define FORCE_MS 20
/* A worker that stops ends a session that owes an answer after so long a silence. */
#define OWES_MS 1000
/* What is searched for one that may give way. */
#define CROWD_MOST 64
/* Between two lines of the log about max-reply-factor. */
#define LIMITED_MS 60000
/* A server that was heard so lately is there, whatever ICMP says. */
#define ALIVE_MS 1000
/* A client is gone if so many answers were refused, each so long after the one before. */
#define REFUSALS 3
#define REFUSALS_MS 100
/* No path has less. */
#define MTU_LEAST 576

SYSCALLS_ALLOWED(SYSCALL(getsockname), SYSCALL(close));

static uint64_t now_of(const struct udp_session *s)
{
	return s->worker->loop.now_ms;
}

static struct udp_grafts *grafts_of(const struct udp_session *s)
{
	return grafts_udp(s->worker->shared->grafts);
}

/* --- what packet programs have done --- */

/* All zeroes: it is not entered. */
static const volatile struct udp_flow *flow_of(const struct udp_session *s)
{
	static const struct udp_flow none;

	return s->slot == NO_UDP_SLOT ? &none : udp_flow_of(grafts_of(s), s->slot);
}

static uint32_t word_of(const struct udp_session *s, unsigned int leg)
{
	return udp_graft_word(flow_of(s), leg);
}

static bool carries(const struct udp_session *s, unsigned int leg)
{
	return word_of(s, leg) & UDP_ACTIVE;
}

static struct udp_count grafted(const struct udp_session *s, unsigned int dir)
{
	const volatile struct udp_leg *at = &flow_of(s)->at[dir];

	if (s->slot == NO_UDP_SLOT)
		return s->counted[dir];
	return (struct udp_count){ .bytes = at->bytes, .datagrams = at->packets };
}

static uint64_t all_datagrams(const struct udp_session *s, unsigned int dir)
{
	return s->copied[dir].datagrams + grafted(s, dir).datagrams;
}

/* When the end of side DIR was heard last. */
static uint64_t heard_ms(const struct udp_session *s, unsigned int dir)
{
	return larger(s->heard_ms[dir], udp_graft_heard_ms(flow_of(s), dir));
}

/* DATAGRAMS with BYTES in all have come from side DIR, and C has carried them. */
static void count(struct udp_session *s, unsigned int dir, enum carrier c, uint64_t bytes,
		  uint64_t datagrams)
{
	struct forward_stats *fs = forward_stats(s->forward, s->worker->index);
	struct udp_count *n = c == CARRIER_GRAFT ? &s->counted[dir] : &s->copied[dir];

	n->bytes += bytes;
	n->datagrams += datagrams;
	count_add(&s->worker->stats.carrier_bytes[c], bytes);
	count_add(&fs->carried[dir][c], bytes);
	count_add(&fs->datagrams[dir], datagrams);
}

/* Add to the counters what came since the last call. */
static void count_kernel(struct udp_session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct udp_count n = grafted(s, dir), was = s->counted[dir];

		count(s, dir, CARRIER_GRAFT, n.bytes - was.bytes, n.datagrams - was.datagrams);
	}
}

/* For leg 0 to be activated. */
static void wait_no_more(struct udp_session *s)
{
	if (s->waiting)
		LIST_REMOVE(s, in_waiting);
	s->waiting = false;
}

static void leave_slot(struct udp_session *s)
{
	if (s->slot == NO_UDP_SLOT)
		return;
	/* first, or what is translated after the count would not be in it */
	udp_graft_pass(grafts_of(s), s->slot, CLIENT);
	udp_graft_pass(grafts_of(s), s->slot, UPSTREAM);
	count_kernel(s);
	for (unsigned int dir = 0; dir < 2; dir++)
		s->heard_ms[dir] = heard_ms(s, dir);
	udp_graft_leave(grafts_of(s), s->slot);
	s->slot = NO_UDP_SLOT;
	wait_no_more(s);
}

/* --- which carrier --- */

/* S has had no answer, and its server has an address that its client has not asked. */
static bool may_move_on(const struct udp_session *s)
{
	return !s->connect_ms && s->tried + 1 < s->n_addresses;
}

/* Then its client's next datagram comes here, and goes elsewhere if there is no answer by then. */
static bool waits_for_answer(const struct udp_session *s)
{
	return s->forward->conf->replies && may_move_on(s);
}

/* Why user space carries S, for as long as its configuration is what it is; REASONS: it need not. */
static enum reason hindrance(const struct udp_session *s)
{
	const struct forward_conf *fc = s->forward->conf;
	enum engine engine = s->forward->engine;

	if (!forward_grafts(s->forward))
		return engine == ENGINE_COPY || engine == ENGINE_AUTO ? REASON_ENGINE :
									REASON_NOT_TCP;
	if (!grafts_of(s))
		return REASON_NO_KERNEL;
	if (s->pace)
		return REASON_BANDWIDTH;
	if (fc->responses)
		return REASON_RESPONSES;
	if (fc->proxy_protocol)
		return REASON_PROXY_HEADERS;
	/* addresses that are not unique; what the tuple says would be of any link */
	if (s->peer.sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&s->peer.in6.sin6_addr))
		return REASON_REFUSED;
	return REASONS;
}

static void enter(struct udp_session *s)
{
	struct addr local = { .len = sizeof(local.ss) };
	struct udp_flow f = {
		.leg[CLIENT].tuple = s->tuple,
		.id = s->id,
		.forward = s->forward->tag,
		.idle = udp_graft_idle(s->forward->conf->idle_timeout_ms),
	};

	if (hindrance(s) != REASONS || s->worker->shared->graft_trial != TRIAL_PASSED ||
	    getsockname(s->upstream->source.fd, (void *)&local.ss, &local.len))
		return;
	graft_tuple_set(&f.leg[UPSTREAM].tuple, &s->upstream->to.sa,
			(const struct sockaddr *)&local.ss);
	for (unsigned int dir = 0; dir < 2; dir++) { /* it goes on where it was before */
		f.at[dir].packets = s->counted[dir].datagrams;
		f.at[dir].bytes = s->counted[dir].bytes;
	}
	s->slot = udp_graft_enter(grafts_of(s), &f);
	s->behind_ms[CLIENT] = s->behind_ms[UPSTREAM] = 0;
	s->no_slot = s->slot == NO_UDP_SLOT;
}

/* --- lists --- */

static struct udp_session_list *bucket_of(struct worker *w, const struct graft_tuple *t)
{
	return &w->udp->buckets[udp_hash(t, w->udp->seed) & w->udp->mask];
}

struct udp_session *udp_session_find(struct worker *w, const struct graft_tuple *tuple,
				     const union client_addr *client)
{
	struct udp_session *s;

	LIST_FOREACH(s, bucket_of(w, tuple), in_bucket)
		if (!memcmp(&s->tuple, tuple, sizeof(*tuple)) &&
		    client_addr_equal(&s->client, client))
			break;
	return s;
}

/* Take S off the list. */
static void unlist(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;

	u->n_unproven -= !s->proven;
	if (u->unproven == s)
		u->unproven = TAILQ_NEXT(s, in_worker);
	TAILQ_REMOVE(&u->sessions, s, in_worker);
}

static void prove(struct udp_session *s)
{
	if (s->proven)
		return;
	unlist(s);
	s->proven = true;
	TAILQ_INSERT_HEAD(&s->worker->udp->sessions, s, in_worker);
	clients_prove(&s->worker->shared->clients, &s->client.sa);
}

/* What packet programs have carried for the client since an answer is a proof, too. */
static bool has_proof(const struct udp_session *s)
{
	return s->proven || (s->connect_ms && all_datagrams(s, CLIENT) > s->asked);
}

static bool is_proven(struct udp_session *s)
{
	if (has_proof(s))
		prove(s);
	return s->proven;
}

/* May the client have whatever its server sends?  So it may if its address has proven itself. */
static bool gets_all(struct udp_session *s)
{
	return is_proven(s) || clients_are_proven(&s->worker->shared->clients, &s->client.sa);
}

/*
 * Translate what arrives on LEG from now on, if its word is WORD.  LEVEL: all that has passed was
 * sent on.
 */
static void activate(struct udp_session *s, unsigned int leg, uint32_t word, bool level)
{
	enum reason why = s->forward->engine == ENGINE_GRAFT ? REASON_ENGINE : REASON_ELIGIBLE;
	bool first = !s->counted[CLIENT].datagrams && !carries(s, !leg);

	if (!level && !s->behind_ms[leg])
		s->behind_ms[leg] = now_of(s);
	if (!level && now_of(s) < s->behind_ms[leg] + FORCE_MS)
		return;
	s->behind_ms[leg] = 0;
	if ((leg == CLIENT || gets_all(s)) &&
	    udp_graft_activate(grafts_of(s), s->slot, leg, word) && first)
		count_add(&s->worker->stats.handovers[CARRIER_GRAFT][why], 1);
}

static void await_quiet(struct udp_session *s)
{
	if (s->slot == NO_UDP_SLOT || s->waiting || carries(s, CLIENT) || waits_for_answer(s))
		return;
	s->waiting = true;
	LIST_INSERT_HEAD(&s->socket->waiting, s, in_waiting);
	s->word = UDP_ACTIVE; /* no look has begun */
}

void udp_sessions_look(const struct udp_socket *us)
{
	struct udp_session *s;

	LIST_FOREACH(s, &us->waiting, in_waiting)
		s->word = word_of(s, CLIENT);
}

bool udp_sessions_activate(const struct udp_socket *us, bool quiet)
{
	struct udp_session *next;

	for (struct udp_session *s = LIST_FIRST(&us->waiting); s; s = next) {
		uint32_t now = word_of(s, CLIENT);

		next = LIST_NEXT(s, in_waiting);
		activate(s, CLIENT, now, quiet && now == s->word);
		if (!s->behind_ms[CLIENT]) /* if it is not active now, its next datagram tries */
			wait_no_more(s);
	}
	return !LIST_EMPTY(&us->waiting);
}

/* --- views --- */

static struct flow_view view_flow(const struct udp_session *s, unsigned int dir)
{
	bool active = carries(s, dir);
	enum reason why = hindrance(s);

	if (active)
		why = s->adopted                         ? REASON_ADOPTED :
		      s->forward->engine == ENGINE_GRAFT ? REASON_ENGINE :
							   REASON_ELIGIBLE;
	else if (why == REASONS)
		why = s->no_slot                    ? REASON_NO_SLOT :
		      s->slot == NO_UDP_SLOT        ? REASON_FIRST :
		      dir == UPSTREAM && !s->proven ? REASON_UNPROVEN :
						      REASON_START;
	return (struct flow_view){
		.carrier = active ? CARRIER_GRAFT : CARRIER_COPY,
		.reason = why,
		.phase = active ? FLOW_KERNEL : FLOW_USER,
		.handovers = active,
		.copied = s->copied[dir].bytes,
		.kernel = grafted(s, dir).bytes,
		.datagrams = all_datagrams(s, dir),
	};
}

static void view(const struct udp_session *s, struct session_view *ret)
{
	uint64_t now = now_of(s);
	const volatile struct udp_flow *f = flow_of(s);
	bool waits = s->slot != NO_UDP_SLOT && !(carries(s, CLIENT) && carries(s, UPSTREAM));
	uint8_t why = f->at[CLIENT].why ?: f->at[UPSTREAM].why;

	*ret = (struct session_view){
		.id = s->id,
		.forward = s->forward,
		.server = s->server,
		.worker = s->worker->index,
		.state = SESSION_OPEN,
		.age_ms = now > s->born_ms ? now - s->born_ms : 0,
		.connect_ms = s->connect_ms,
		.client = s->client,
		.not_grafted = waits ? graft_refusal_name((enum graft_refusal)why) : "",
		.standby = standby_text(s->worker->shared, carries(s, CLIENT),
					__atomic_load_n(&f->mirrored, __ATOMIC_RELAXED) ==
						GRAFT_TOLD),
		.flows = { view_flow(s, CLIENT), view_flow(s, UPSTREAM) },
	};
	if (!client_addr_equal(&s->client, &s->peer))
		ret->via = s->peer;
	ret->upstream.len = sizeof(s->upstream->to);
	memcpy(&ret->upstream.ss, &s->upstream->to, sizeof(s->upstream->to));
}

/* --- its end --- */

/* Does the server owe an answer that may still come? */
static bool is_owed(const struct udp_session *s)
{
	return all_datagrams(s, UPSTREAM) < all_datagrams(s, CLIENT) &&
	       now_of(s) < heard_ms(s, CLIENT) + UDP_PORT_OWED_MS;
}

static bool has_all_answers(const struct udp_session *s)
{
	unsigned int n = s->forward->conf->responses;

	return n && s->copied[UPSTREAM].datagrams >= n * s->copied[CLIENT].datagrams;
}

/*
 * How long the port of S, which ends, has to rest.  The server of a stream may go on sending, if it
 * has done so lately.  A false address makes no stream, unless the server says more than was asked.
 */
static uint64_t rests_ms(const struct udp_session *s)
{
	uint64_t idle = s->forward->conf->idle_timeout_ms ?: UDP_PORT_OWED_MS;

	/* one question alone: of several nobody knows which was answered */
	if (s->copied[CLIENT].datagrams == 1 && has_all_answers(s))
		return UDP_PORT_RESTS_MS;
	if ((has_proof(s) || all_datagrams(s, UPSTREAM) > all_datagrams(s, CLIENT)) &&
	    heard_ms(s, UPSTREAM) + smaller(idle, UDP_PORT_OWED_MS) > now_of(s))
		return UDP_PORT_STREAM_MS;
	return UDP_PORT_OWED_MS;
}

/* S leaves all lists, and gives everything back, but is still counted in. */
static void forget(struct udp_session *s)
{
	struct worker *w = s->worker;
	uint64_t ms = rests_ms(s);

	s->ended = true;
	wait_no_more(s);
	unlist(s);
	LIST_REMOVE(s, in_bucket);
	worker_free_later(w, &s->leftover);
	w->n_sessions--;
	timer_cancel(&s->timer);
	/* a socket that hears no more than what the network has doubled may serve another session */
	if (s->upstream && !(ms == UDP_PORT_RESTS_MS && udp_upstream_rest(s->upstream, s->forward)))
		udp_upstream_close(s->upstream, ms);
	if (s->server)
		server_leave(s->server);
	pace_free(s->pace);
	s->socket->refs--;
}

static void die(struct udp_session *s)
{
	forget(s);
	admission_leave(s->worker->shared, s->forward, &s->client.sa);
}

/* WHY: a cause, or SESSION_FINISHED. */
static void end(struct udp_session *s, unsigned int why)
{
	struct session_view v;

	log_debug("session %llu: %s", (unsigned long long)s->id,
		  why == SESSION_FINISHED ? "finished" : cause_name(why));
	view(s, &v);
	session_ended(s->worker, &v, why);
	leave_slot(s);
	die(s);
}

bool udp_session_crowd_out(struct worker *w, const struct forward *f,
			   const struct graft_addr *remote)
{
	struct udp_session *s = w->udp->unproven, *next;

	for (unsigned int i = 0; s && i < CROWD_MOST; i++, s = next) {
		next = TAILQ_NEXT(s, in_worker);
		if ((!f || s->forward->totals == f->totals) &&
		    (!remote || !memcmp(&s->tuple.remote, remote, sizeof(*remote))) &&
		    !is_proven(s)) {
			end(s, CAUSE_CROWDED_OUT);
			return true;
		}
	}
	return false;
}

/* Are there other servers for the client of S? */
static bool has_others(const struct udp_session *s)
{
	return s->forward->conf->upstream.n > 1 || s->forward->conf->each_address;
}

/* The server of S has failed, which those that it has elsewhere are told. */
static void blame(struct udp_session *s, int error)
{
	struct shared *shared = s->worker->shared;
	uint64_t seen = 0;

	if (!s->server)
		return;
	servers_refused(&s->forward->servers, s->server, error, &seen, now_of(s));
	if (!has_others(s) || atomic_load(&s->server->lost) != s->server_lost)
		return;
	atomic_fetch_add(&s->server->lost, 1);
	atomic_fetch_add(&shared->udp_lost, 1);
	for (unsigned int i = 0; i < shared->config->workers; i++)
		loop_wake(&shared->workers[i].loop);
}

/* Packets that leave by LEG have MTU bytes at most; 0: it is not known. */
static void set_path_mtu(struct udp_grafts *us, uint32_t slot, unsigned int leg, uint32_t mtu)
{
	if (slot != NO_UDP_SLOT)
		udp_flow_of(us, slot)->at[leg].path_mtu = (uint16_t)smaller(mtu, UINT16_MAX);
}

/* --- the address of its server --- */

/* A socket for S that is connected to TO, from OWN (NULL: from a port of ours).  -errno. */
static int connect_to(struct udp_session *s, const struct addr *to, const struct addr *own)
{
	return udp_upstream_open(&s->worker->udp->upstreams, s, s->forward, &s->client, to, own,
				 &s->upstream);
}

/* Connect S to an address of LIST that this machine has a way to.  -errno. */
static int connect_server(struct udp_session *s, const struct addr_list *list)
{
	uint16_t first = (uint16_t)(atomic_load(&s->server->first) % list->n);
	uint16_t offset = forward_port_offset(s->forward, s->tuple.local_port);
	int r = -ENETUNREACH;

	s->n_addresses = (uint16_t)list->n;
	for (size_t i = 0; i < list->n; i++) {
		struct addr a;
		union client_addr to;

		s->address = (uint16_t)((first + i) % list->n);
		a = addr_behind(&list->addrs[s->address], offset);
		client_addr_set(&to, (const struct sockaddr *)&a.ss);
		s->upstream = udp_upstream_take(&s->worker->udp->upstreams, s, s->forward,
						&s->client, &to);
		r = s->upstream ? 0 : connect_to(s, &a, NULL);
		if (!r && i)
			atomic_store(&s->server->first, s->address);
		if (!r || upstream_cause(-r) != CAUSE_CONNECT_UNREACHABLE)
			return r;
	}
	return r;
}

/* --- silence --- */

/* Has the server of S answered anybody here within MS? */
static bool has_answered(const struct udp_session *s, uint64_t ms)
{
	const struct udp_session *o;

	TAILQ_FOREACH(o, &s->worker->udp->sessions, in_worker)
		if (o->server == s->server && heard_ms(o, UPSTREAM) + ms > now_of(s))
			return true;
	return false;
}

/*
 * Has the client of S gone on asking for idle-timeout, without an answer?  Packet programs remember
 * the last question alone: at one call that is taken for the first one, and judged at the next.
 */
static bool is_unanswered(struct udp_session *s)
{
	uint64_t asked = heard_ms(s, CLIENT), idle = s->forward->conf->idle_timeout_ms;

	if (s->unanswered_ms <= heard_ms(s, UPSTREAM))
		s->unanswered_ms = asked;
	return asked > s->unanswered_ms && now_of(s) >= s->unanswered_ms + idle;
}

/*
 * The server of S is silent.  If it has answered this client, the path may have moved: S begins anew
 * with its client's next datagram, and stays until then, since the server may speak first.  A server
 * that has answered nobody who asked anew has failed.  One that never answers anybody may be one of
 * logs, say: nothing is known of it.
 */
static void doubt_server(struct udp_session *s)
{
	uint64_t idle = s->forward->conf->idle_timeout_ms;

	s->answered = s->answered || all_datagrams(s, UPSTREAM);
	s->stale = s->answered;
	if (s->server && s->stale)
		servers_move_on(&s->forward->servers, s->server, s->address, false, now_of(s));
	if (s->server && atomic_load(&s->server->answered) &&
	    servers_owed_ms(&s->forward->servers, s->server, now_of(s)) >= idle &&
	    !has_answered(s, idle)) {
		blame(s, ETIMEDOUT);
		s->stale = true;
	}
	if (!s->answered) /* round the addresses again */
		s->tried = 0;
	if ((s->stale || may_move_on(s)) && s->slot != NO_UDP_SLOT) /* that is to come here */
		udp_graft_pass(grafts_of(s), s->slot, CLIENT);
}

static void on_timer(struct timer *timer)
{
	struct udp_session *s = container_of(timer, struct udp_session, timer);
	uint64_t now = now_of(s), idle = s->forward->conf->idle_timeout_ms;
	uint64_t last = larger(heard_ms(s, CLIENT), heard_ms(s, UPSTREAM));

	/* paths may be wider by now; if not, errors say so again */
	for (unsigned int leg = 0; leg < 2; leg++)
		set_path_mtu(grafts_of(s), s->slot, leg, 0);
	if (now >= last + idle) {
		end(s, SESSION_FINISHED);
		return;
	}
	if (s->forward->conf->replies && is_unanswered(s))
		doubt_server(s);
	timer_set(&s->worker->loop, timer, last + idle);
}

bool udp_session_is_over(struct udp_session *s)
{
	struct servers *ss = &s->forward->servers;

	if ((s->stale && heard_ms(s, UPSTREAM) < s->unanswered_ms) ||
	    (waits_for_answer(s) && now_of(s) >= s->born_ms + ASK_AGAIN_MS &&
	     servers_move_on(ss, s->server, s->address, false, now_of(s))))
		end(s, CAUSE_UPSTREAM_LOST);
	s->stale = false;
	return s->ended;
}

/* --- errors --- */

/* What the client sends is too big for the server's side, whose packets have MTU bytes at most. */
static void too_big(struct udp_session *s, uint32_t mtu)
{
	int more = (s->upstream->to.sa.sa_family == AF_INET ? 20 : 0) -
		   (s->peer.sa.sa_family == AF_INET ? 20 : 0);

	if (mtu < MTU_LEAST)
		return;
	set_path_mtu(grafts_of(s), s->slot, UPSTREAM, mtu);
	icmp_tell(&s->peer, &s->local, EMSGSIZE, mtu + (uint32_t)more);
}

static void unreachable(struct udp_session *s, int error)
{
	struct servers *ss = &s->forward->servers;
	bool moved;

	if (heard_ms(s, UPSTREAM) >= heard_ms(s, CLIENT))
		return;
	moved = s->n_addresses > 1 && servers_move_on(ss, s->server, s->address, true, now_of(s));
	if (moved && may_move_on(s)) { /* what its client sends next goes there */
		s->unanswered_ms = heard_ms(s, CLIENT);
		s->stale = true;
		return;
	}
	log_cause(upstream_cause(error), LOG_WARNING, "session %llu, forward %s: its server: %s",
		  (unsigned long long)s->id, forward_name(s->forward->conf), strerror(error));
	/* others may live, unless all were tried */
	if (!(moved && s->connect_ms) && (!has_others(s) || !has_answered(s, ALIVE_MS)))
		blame(s, error);
	end(s, upstream_cause(error));
	/* now: who asks again at once must not meet this session, nor what is left of it */
	icmp_tell(&s->peer, &s->local, error, 0);
}

static void take_errors(struct udp_session *s)
{
	struct udp_error e;
	int error;

	while (!s->ended && udp_next_error(s->upstream->source.fd, &e)) {
		if (e.error == EMSGSIZE)
			too_big(s, e.mtu);
		else
			unreachable(s, e.error);
	}
	error = s->ended ? 0 : tcp_take_error(s->upstream->source.fd);
	if (error && error != EMSGSIZE)
		unreachable(s, error);
}

/*
 * An error has come about what S has sent to its client.  Is that gone?  Of a client that is silent
 * LEAST refusals are believed, of one answer each: to forge these, one has to know when the server
 * speaks and the client does not.  Errors of the path, which may come back, end no sockets either:
 * they count once the client has been silent for idle-timeout.
 */
static bool is_gone(struct udp_session *s, int error, unsigned int least)
{
	uint64_t asked = heard_ms(s, CLIENT), answered = heard_ms(s, UPSTREAM), now = now_of(s);
	unsigned int idle = s->forward->conf->idle_timeout_ms;

	if (asked >= answered)
		return false;
	if (error != ECONNREFUSED)
		return idle && now >= asked + idle;
	if (s->refused_ms <= asked)
		s->refusals = 0;
	if (!s->refusals || (answered > s->refused_ms && now >= s->refused_ms + REFUSALS_MS)) {
		s->refusals++;
		s->refused_ms = now;
	}
	return s->refusals >= least;
}

void udp_session_client_error(struct worker *w, const struct udp_error *e)
{
	struct udp_grafts *us = grafts_udp(w->shared->grafts);
	struct graft_tuple tuple;
	struct udp_session *s;
	uint32_t slot;

	graft_tuple_set(&tuple, &e->peer.sa, &e->local.sa);
	slot = us ? udp_graft_find(us, &tuple) : NO_UDP_SLOT;
	s = udp_session_find(w, &tuple, &e->peer);
	if (e->error == EMSGSIZE) { /* the kernel knows it for copies */
		set_path_mtu(us, slot, CLIENT, e->mtu);
	} else if (s) {
		/* what the server sends from now on meets no socket */
		if (is_gone(s, e->error, REFUSALS))
			end(s, CAUSE_CLIENT_LOST);
	} else if (slot != NO_UDP_SLOT && e->error == ECONNREFUSED) { /* another worker's */
		udp_graft_client_gone(us, slot);
	}
}

/* --- from the client --- */

static int send_on(struct udp_session *s, const struct udp_message *m)
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

/*
 * The client of S comes back.  Packet programs think that a flow is over which was silent for so
 * long, and do not look at it any more.
 */
static void forget_silent(struct udp_session *s)
{
	uint64_t idle = s->forward->conf->idle_timeout_ms;

	if (s->slot == NO_UDP_SLOT)
		return;
	udp_graft_take_gone(grafts_of(s), s->slot);
	if (!idle || now_of(s) < larger(heard_ms(s, CLIENT), heard_ms(s, UPSTREAM)) + idle)
		return;
	leave_slot(s);
}

void udp_session_take(struct udp_session *s, struct udp_socket *us, const struct udp_message *m)
{
	int r;

	if (s->socket != us) { /* from now on, and a look at the one before says nothing */
		wait_no_more(s);
		s->socket->refs--;
		s->socket = us;
		us->refs++;
	}
	forget_silent(s);
	s->heard_ms[CLIENT] = now_of(s);
	if (s->connect_ms)
		prove(s);
	if (!pace_take(s->pace, CLIENT, m->len)) {
		count_add(&s->worker->stats.errors[CAUSE_OVER_BANDWIDTH], udp_datagrams(m));
		return;
	}
	if (s->slot == NO_UDP_SLOT)
		enter(s);
	count(s, CLIENT, CARRIER_COPY, m->len, udp_datagrams(m));
	r = send_on(s, m);
	if (r == -ECONNREFUSED || r == -EHOSTUNREACH || r == -ENETUNREACH)
		unreachable(s, -r);
	else if (r) /* or a firewall does not let it out, say */
		count_add(&s->worker->stats.errors[CAUSE_SEND_BUFFER], udp_datagrams(m));
	if (!s->ended)
		await_quiet(s);
}

/* --- from the server --- */

/* May M be sent to a client that may not know of it? */
static bool is_within_factor(struct udp_session *s, const struct udp_message *m)
{
	uint64_t factor = s->forward->conf->max_reply_factor;
	uint64_t headers = s->peer.sa.sa_family == AF_INET ? 28 : 48; /* of IP and UDP */
	uint64_t in = s->copied[CLIENT].bytes + grafted(s, CLIENT).bytes +
		      headers * all_datagrams(s, CLIENT);
	uint64_t out = s->copied[UPSTREAM].bytes + m->len +
		       headers * (s->copied[UPSTREAM].datagrams + udp_datagrams(m));

	return !factor || s->proven || out <= factor * in || gets_all(s);
}

/* Who subscribes once, and gets the first bytes alone, would find nothing but a count. */
static void say_limited(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;
	char text[ADDR_STRLEN];

	if (now_of(s) < u->say_limited_ms)
		return;
	u->say_limited_ms = now_of(s) + LIMITED_MS;
	log_warning(
		"forward %s: answers to %s are dropped: it may be forged, until it sends something "
		"after an answer, and they have more bytes than max-reply-factor allows",
		forward_name(s->forward->conf), client_addr_text(&s->client, text, sizeof(text)));
}

/* The server has answered for the first time. */
static void first_answer(struct udp_session *s)
{
	struct forward_stats *fs = forward_stats(s->forward, s->worker->index);
	uint64_t took = now_of(s) - s->born_ms;

	s->connect_ms = (uint32_t)took + 1;
	s->asked = all_datagrams(s, CLIENT);
	histogram_add(&fs->connects, took * 1000);
	if (s->server) {
		atomic_store(&s->server->answered, true);
		if (s->n_addresses > 1)
			atomic_store(&s->server->first, s->address);
		servers_connected(&s->forward->servers, s->server, took, now_of(s));
	}
}

/* True: M is to be sent to the client. */
static bool take_answer(struct udp_session *s, struct udp_message *m)
{
	enum cause why = CAUSES;

	s->heard_ms[UPSTREAM] = now_of(s);
	if (!s->connect_ms)
		first_answer(s);
	if (!is_within_factor(s, m))
		why = CAUSE_REPLY_LIMIT;
	else if (!pace_take(s->pace, UPSTREAM, m->len))
		why = CAUSE_OVER_BANDWIDTH;
	if (why == CAUSE_REPLY_LIMIT)
		say_limited(s);
	if (why != CAUSES) {
		count_add(&s->worker->stats.errors[why], udp_datagrams(m));
		return false;
	}
	m->peer = s->peer;
	if (addr_is_any(&s->socket->addr))
		m->local = s->local;
	else
		m->local.sa.sa_family = AF_UNSPEC;
	count(s, UPSTREAM, CARRIER_COPY, m->len, udp_datagrams(m));
	return true;
}

static void take_answers(struct udp_session *s)
{
	struct udp_batch *b = s->worker->udp->batch;
	uint32_t word = word_of(s, UPSTREAM), now;
	int got = udp_receive(b, s->upstream->source.fd);

	/* another worker has heard so, of the answer before */
	if (s->slot != NO_UDP_SLOT && udp_graft_take_gone(grafts_of(s), s->slot) &&
	    is_gone(s, ECONNREFUSED, REFUSALS - 1)) {
		end(s, CAUSE_CLIENT_LOST);
		return;
	}
	if (got < 0) { /* of an earlier datagram */
		take_errors(s);
		got = s->ended ? 0 : udp_receive(b, s->upstream->source.fd);
	}
	if (got == UDP_BATCH) /* epoll shall tell again of what is left */
		loop_watch(&s->worker->loop, &s->upstream->source, EPOLLIN, true);
	for (int i = 0; i < got; i++) {
		struct udp_message *m = udp_batch_at(b, (unsigned int)i);

		if (take_answer(s, m) && udp_send_to(s->socket->source.fd, m))
			count_add(&s->worker->stats.errors[CAUSE_SEND_BUFFER], udp_datagrams(m));
	}
	if (got > 0 && has_all_answers(s)) {
		end(s, SESSION_FINISHED);
	} else if (got > 0 && s->slot != NO_UDP_SLOT) {
		now = word_of(s, UPSTREAM);
		activate(s, UPSTREAM, now, got < UDP_BATCH && now == word);
	}
}

static void on_upstream(struct udp_session *s, uint32_t events)
{
	if (events & EPOLLERR)
		take_errors(s);
	if (!s->ended && events & EPOLLIN)
		take_answers(s);
}

/* --- its beginning --- */

static struct udp_session *new_session(struct udp_socket *us, struct forward *f,
				       const struct graft_tuple *tuple, const struct udp_message *m,
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
	s->slot = NO_UDP_SLOT;
	s->timer.fire = on_timer;
	LIST_INSERT_HEAD(bucket_of(w, tuple), s, in_bucket);
	TAILQ_INSERT_TAIL(&w->udp->sessions, s, in_worker);
	w->udp->unproven = w->udp->unproven ?: s;
	w->udp->n_unproven++;
	w->n_sessions++;
	return s;
}

/* CAUSES, or why there is no server.  One that has no route is set aside: the next has another. */
static enum cause choose_server(struct udp_session *s)
{
	struct servers *ss = &s->forward->servers;
	struct addr_list *list;
	uint64_t seen = 0;
	int r = servers_pick(ss, &s->client, NULL, 0, &seen, now_of(s), &s->server, &list);

	if (r <= 0)
		return r == -EHOSTDOWN ? CAUSE_NO_SERVER : CAUSE_NO_ADDRESS;
	s->server_lost = atomic_load(&s->server->lost);
	r = connect_server(s, list);
	addr_list_put(list);
	if (!r)
		return CAUSES;
	if (upstream_cause(-r) == CAUSE_CONNECT_UNREACHABLE)
		servers_refused(ss, s->server, -r, &seen, now_of(s));
	return r == -EADDRNOTAVAIL ? CAUSE_NO_PORT : upstream_cause(-r);
}

enum cause udp_session_open(struct udp_socket *us, const struct graft_tuple *tuple,
			    const struct udp_message *m, const union client_addr *client,
			    const union client_addr *destination, struct udp_session **ret)
{
	struct worker *w = us->worker;
	struct forward *f = us->forward;
	struct udp_session *s = new_session(us, f, tuple, m, client);
	enum cause cause;

	if (!s)
		return CAUSE_NO_MEMORY;
	s->destination = *destination;
	s->id = atomic_fetch_add(&w->shared->last_id, 1) + 1;
	s->born_ms = s->heard_ms[CLIENT] = now_of(s);
	cause = forward_pace(f, &client->sa, &s->pace) ? CAUSE_NO_MEMORY : choose_server(s);
	if (cause != CAUSES) {
		forget(s);
		return cause;
	}
	count_add(&forward_stats(f, w->index)->accepted, 1);
	if (f->conf->idle_timeout_ms)
		timer_set(&w->loop, &s->timer, now_of(s) + f->conf->idle_timeout_ms);
	*ret = s;
	return CAUSES;
}

/* --- what a worker asks of its sessions --- */

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
	udp_upstreams_open(&u->upstreams, w, on_upstream);
	w->udp = u;
}

void udp_worker_close(struct worker *w)
{
	struct udp_worker *u = w->udp;

	udp_upstreams_end(&u->upstreams);
	while (u->sockets) { /* those of old sessions, which other workers had, too */
		struct udp_socket *us = u->sockets;

		u->sockets = us->next;
		close(us->source.fd);
		free(us);
	}
	free(u->batch);
	free(u->buckets);
	free(u);
}

void udp_sessions_visit(struct worker *w, session_visit_fn *fn, void *arg)
{
	struct session_view v;
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		count_kernel(s);
		view(s, &v);
		fn(arg, &v);
	}
}

unsigned int udp_sessions_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
				   enum cause cause)
{
	struct session_view v;
	struct udp_session *s;
	unsigned int n = 0;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		view(s, &v);
		if (choose && !choose(arg, &v))
			continue;
		end(s, cause);
		n++;
	}
	return n;
}

void udp_sessions_follow_engines(struct worker *w)
{
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		s->no_slot = false;
		if (hindrance(s) != REASONS) /* else its client's next datagram enters it */
			leave_slot(s);
	}
}

void udp_sessions_leave_behind(struct worker *w)
{
	bool survives = w->shared->grafts && grafts_survive(w->shared->grafts);
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		uint64_t last = larger(heard_ms(s, CLIENT), heard_ms(s, UPSTREAM));

		if (survives && carries(s, CLIENT) && (carries(s, UPSTREAM) || !is_owed(s))) {
			count_add(&forward_stats(s->forward, w->index)->moved, 1);
			die(s);
		} else if (!is_owed(s) || now_of(s) >= last + OWES_MS)
			end(s, SESSION_FINISHED);
	}
}

void udp_sessions_part(struct worker *w)
{
	struct session_view v;
	struct udp_session *s;

	TAILQ_FOREACH(s, &w->udp->sessions, in_worker) {
		const volatile struct udp_flow *f = flow_of(s);

		if (!__atomic_load_n(&f->mirrored, __ATOMIC_RELAXED) ||
		    grafts_have(w->shared->grafts, &f->leg[0].tuple.local))
			continue;
		count_kernel(s);
		view(s, &v);
		session_ended(w, &v, SESSION_MOVED);
		udp_graft_part(grafts_of(s), s->slot);
		die(s);
	}
}

void udp_sessions_after_batch(struct worker *w)
{
	uint64_t lost = atomic_load_explicit(&w->shared->udp_lost, memory_order_relaxed);
	struct udp_session *s;

	if (lost == w->udp->lost_seen)
		return;
	w->udp->lost_seen = lost;
	TAILQ_FOREACH(s, &w->udp->sessions, in_worker)
		if (s->server && atomic_load(&s->server->lost) != s->server_lost)
			end(s, CAUSE_UPSTREAM_LOST);
}

/* --- of a daemon before --- */

/* To which what is sent to A comes; or NULL. */
static struct udp_socket *socket_for(struct worker *w, const struct addr *a)
{
	struct udp_socket *us = w->udp->sockets;

	while (us &&
	       (us->addr.ss.ss_family != a->ss.ss_family || addr_port(&us->addr) != addr_port(a) ||
		(!addr_is_any(&us->addr) && !addr_equal(&us->addr, a))))
		us = us->next;
	return us;
}

int udp_session_adopt(struct worker *w, struct forward *f, uint32_t slot)
{
	struct udp_grafts *gs = grafts_udp(w->shared->grafts);
	volatile struct udp_flow *flow = udp_flow_of(gs, slot);
	struct graft_tuple tuple = flow->leg[CLIENT].tuple;
	struct addr peer = graft_tuple_address(&tuple, false);
	struct addr local = graft_tuple_address(&tuple, true);
	struct addr to = graft_tuple_address(&flow->leg[UPSTREAM].tuple, false);
	struct addr own = graft_tuple_address(&flow->leg[UPSTREAM].tuple, true);
	struct udp_socket *us = socket_for(w, &local);
	struct udp_message m = { 0 };
	struct udp_session *s;
	uint32_t ago;
	int r;

	if (!us)
		return -ENOENT;
	client_addr_set(&m.peer, (struct sockaddr *)&peer.ss);
	client_addr_set(&m.local, (struct sockaddr *)&local.ss);
	s = new_session(us, f, &tuple, &m, &m.peer);
	if (!s)
		return -ENOMEM;
	s->id = flow->id;
	shared_saw_id(w->shared, s->id);
	ago = (uint32_t)(clock_ns() >> UDP_TICK_SHIFT) - flow->born; /* ticks wrap */
	s->born_ms = clock_ms() - ((uint64_t)ago << UDP_TICK_SHIFT) / NS_PER_MS;
	s->adopted = true;
	s->connect_ms = 1; /* how long it took is not known */
	s->server = servers_find(&f->servers, &to);
	if (s->server)
		s->server_lost = atomic_load(&s->server->lost);
	udp_port_take_this(addr_port(&own));
	r = connect_to(s, &to, &own);
	if (r) {
		forget(s);
		return r;
	}
	count_add(&forward_stats(f, w->index)->adopted, 1);
	s->slot = slot;
	udp_graft_adopt(gs, slot);
	flow->idle = udp_graft_idle(f->conf->idle_timeout_ms);
	for (unsigned int dir = 0; dir < 2; dir++)
		s->counted[dir] = grafted(s, dir);
	s->asked = all_datagrams(s, CLIENT);
	if (carries(s, UPSTREAM)) {
		prove(s);
		s->answered = true;
		if (s->server)
			atomic_store(&s->server->answered, true);
	}
	if (hindrance(s) != REASONS)
		leave_slot(s);
	if (f->conf->idle_timeout_ms)
		timer_set(&w->loop, &s->timer, w->loop.now_ms);
	return 0;
}
