// SPDX-License-Identifier: BSD-2-Clause
/* All of this runs on the thread of the session's worker. */
#include "relay/udp/udp_server.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/tcp.h"
#include "relay/upstream_socket.h"

/* An error of ICMP does not count if the server was heard within this time. */
#define ALIVE_MS 1000

/* --- the choice --- */

/* A socket for S that is connected to TO, from OWN (NULL: from a port of ours).  -errno. */
static int udp_connect(struct udp_session *s, const struct addr *to, const struct addr *own)
{
	return udp_upstream_open(&s->worker->udp->upstreams, s, s->forward, &s->client, to, own,
				 &s->upstream);
}

/* Connect S to an address of LIST that this machine has a route to.  -errno. */
static int udp_connect_any(struct udp_session *s, const struct addr_list *list)
{
	uint16_t first = (uint16_t)(atomic_load(&s->server->first) % list->n);
	uint16_t offset = forward_port_offset(s->forward, s->tuple.local_port);
	int r = -ENETUNREACH;

	s->n_addresses = (uint16_t)list->n;
	for (size_t i = 0; i < list->n; i++) {
		struct addr a;

		s->address = (uint16_t)((first + i) % list->n);
		a = addr_plus_offset(&list->addrs[s->address], offset);
		r = udp_connect(s, &a, NULL);
		if (!r && i)
			atomic_store(&s->server->first, s->address);
		if (!r || upstream_cause(-r) != CAUSE_CONNECT_UNREACHABLE)
			return r;
	}
	return r;
}

enum cause udp_server_choose(struct udp_session *s)
{
	struct servers *ss = &s->forward->servers;
	struct addr_list *list;
	uint64_t seen = 0, now = udp_now(s);
	int r = servers_pick(ss, &s->client, NULL, 0, NULL, &seen, now, &s->server, &list);

	if (r <= 0)
		return r == -EHOSTDOWN ? CAUSE_NO_SERVER :
		       r == -EBUSY     ? CAUSE_QUEUE_FULL :
					 CAUSE_NO_ADDRESS;
	s->server_lost = atomic_load(&s->server->lost);
	r = udp_connect_any(s, list);
	addr_list_put(list);
	if (!r)
		return CAUSE_NONE;
	if (upstream_cause(-r) == CAUSE_CONNECT_UNREACHABLE)
		servers_refused(ss, s->server, -r, &seen, now);
	return r == -EADDRNOTAVAIL ? CAUSE_NO_PORT : upstream_cause(-r);
}

int udp_server_adopt(struct udp_session *s, const volatile struct udp_flow *flow)
{
	struct graft_tuple tuple = flow->leg[UPSTREAM].tuple;
	struct addr to = graft_tuple_address(&tuple, false),
		    own = graft_tuple_address(&tuple, true);

	s->server = servers_find(&s->forward->servers, &to);
	if (s->server)
		s->server_lost = atomic_load(&s->server->lost);
	return udp_connect(s, &to, &own);
}

void udp_server_succeed(struct udp_session *s, const struct udp_session *before)
{
	s->answered = before->answered;
	s->tried = before->connect_ms ? 0 : (uint16_t)(before->tried + 1);
}

/* --- answers --- */

void udp_server_answered(struct udp_session *s)
{
	struct forward_stats *fs = forward_stats(s->forward, s->worker->index);
	uint64_t took = udp_now(s) - s->born_ms;

	if (s->state != UDP_ASKED)
		return;
	udp_session_set_state(s, UDP_ANSWERED);
	s->connect_ms = (uint32_t)took + 1;
	s->asked = udp_all_datagrams(s, CLIENT);
	histogram_add(&fs->connects, took * 1000);
	if (s->server) {
		atomic_store(&s->server->answered, true);
		if (s->n_addresses > 1)
			atomic_store(&s->server->first, s->address);
		servers_connected(&s->forward->servers, s->server, took, udp_now(s));
	}
}

/* --- failure --- */

/* True if any session here has had an answer of the server of S within MS. */
static bool udp_is_heard(const struct udp_session *s, uint64_t ms)
{
	const struct udp_session *o;

	TAILQ_FOREACH(o, &s->worker->udp->sessions, in_worker)
		if (o->server == s->server && udp_heard_ms(o, UPSTREAM) + ms > udp_now(s))
			return true;
	return false;
}

/* servers_move_on() from the address that S has. */
static bool udp_move_on(struct udp_session *s, bool refused)
{
	return servers_move_on(&s->forward->servers, s->server, s->address, refused, udp_now(s));
}

/* S has had no answer, and its server has an address that the client has not asked. */
static bool udp_may_move_on(const struct udp_session *s)
{
	return s->state == UDP_ASKED && s->tried + 1 < s->n_addresses;
}

/* True if F has several servers: as written, or each address of a name (each-address). */
static bool udp_has_others(const struct udp_session *s)
{
	return s->forward->conf->upstream.n > 1 || s->forward->conf->each_address;
}

bool udp_server_is_lost(const struct udp_session *s)
{
	return s->server && atomic_load(&s->server->lost) != s->server_lost;
}

/* The server of S has failed with ERROR.  All workers end the sessions of that server. */
static void udp_blame(struct udp_session *s, int error)
{
	uint64_t seen = 0;

	if (!s->server)
		return;
	servers_refused(&s->forward->servers, s->server, error, &seen, udp_now(s));
	if (!udp_has_others(s) || udp_server_is_lost(s))
		return;
	atomic_fetch_add(&s->server->lost, 1);
	shared_tell_news(s->worker->shared);
}

void udp_server_unreachable(struct udp_session *s, int error)
{
	char text[ADDR_STRLEN];
	bool moved;

	if (udp_heard_ms(s, UPSTREAM) >= udp_heard_ms(s, CLIENT))
		return;
	moved = s->n_addresses > 1 && udp_move_on(s, true);
	if (moved && udp_may_move_on(s)) { /* the client's next datagram goes there */
		s->unanswered_ms = udp_heard_ms(s, CLIENT);
		s->stale = true;
		return;
	}
	log_cause(upstream_cause(error), LOG_WARNING,
		  "session %llu, forward %s: its server %s cannot be reached: %s",
		  (unsigned long long)s->id, forward_name(s->forward->conf),
		  client_addr_text(&s->upstream->to, text, sizeof(text)), strerror(error));
	/* no blame if another address may work; if S is ASKED, all addresses were tried */
	if (!(moved && s->state != UDP_ASKED) && (!udp_has_others(s) || !udp_is_heard(s, ALIVE_MS)))
		udp_blame(s, error);
	udp_session_end(s, upstream_cause(error));
	s->end_error = error;
}

/* --- silence --- */

bool udp_server_is_awaited(const struct udp_session *s)
{
	return s->forward->conf->replies && udp_may_move_on(s);
}

/*
 * True if the client of S has gone on asking for idle-timeout, without an answer.  Packet programs
 * keep only the time of the last question.  So the first call notes that time as the beginning, and
 * a later call compares.
 */
static bool udp_is_unanswered(struct udp_session *s)
{
	uint64_t asked = udp_heard_ms(s, CLIENT);
	uint64_t idle = s->forward->conf->idle_timeout_ms;

	if (s->unanswered_ms <= udp_heard_ms(s, UPSTREAM))
		s->unanswered_ms = asked;
	return asked > s->unanswered_ms && udp_now(s) >= s->unanswered_ms + idle;
}

/*
 * If the server has answered this client before, the path to the server may be lost: S begins anew
 * with the client's next datagram.  S stays until then, since the server may speak first.  A server
 * has failed if it has owed answers for idle-timeout, and no session here has heard it meanwhile.
 * A server that has never answered, such as a log server, is not judged.
 */
void udp_server_doubt(struct udp_session *s)
{
	uint64_t idle = s->forward->conf->idle_timeout_ms;
	uint64_t owes = s->server ? atomic_load(&s->server->owes_ms) : 0;

	if (!s->forward->conf->replies || !udp_is_unanswered(s))
		return;
	s->answered = s->answered || udp_all_datagrams(s, UPSTREAM);
	s->stale = s->answered;
	if (s->server && s->stale)
		udp_move_on(s, false);
	if (owes && udp_now(s) >= owes + idle && atomic_load(&s->server->answered) &&
	    !udp_is_heard(s, idle)) {
		udp_blame(s, ETIMEDOUT);
		s->stale = true;
	}
	if (!s->answered) /* go round the addresses again */
		s->tried = 0;
	/* the client's next datagram is to come to user space */
	if ((s->stale || udp_may_move_on(s)) && s->slot != NO_SLOT)
		udp_graft_pass(udp_table_of(s), s->slot, CLIENT);
}

bool udp_server_is_given_up(struct udp_session *s)
{
	bool stale = s->stale && udp_heard_ms(s, UPSTREAM) < s->unanswered_ms;

	s->stale = false;
	return stale || (udp_server_is_awaited(s) && udp_now(s) >= s->born_ms + ASK_AGAIN_MS &&
			 udp_move_on(s, false));
}
