// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A session gets its slot before its first datagram is sent on, so that the packet programs see the
 * way of that datagram.  Datagrams that arrive on a leg pass to the socket, and are counted.  The
 * daemon activates the leg when a look has emptied the socket, and no datagram has passed since the
 * look began.  So no datagram is overtaken, except one between the program and its socket at that
 * moment.  If each look within FORCE_MS has found more, the leg is activated all the same; some
 * datagrams may be overtaken then, once.
 *
 * The leg of the server is activated only if the address of the client has proven itself.
 */
#include "relay/udp/udp_activate.h"

#include <sys/socket.h>

#include "base/syscalls_allowed.h"
#include "relay/udp/udp_proof.h"
#include "relay/udp/udp_server.h"

#define FORCE_MS 20

SYSCALLS_ALLOWED(SYSCALL(getsockname));

/* --- slots --- */

void udp_activate_enter(struct udp_session *s)
{
	struct addr local = { .len = sizeof(local.ss) };
	struct udp_flow f = {
		.head = { .id = s->id, .forward = s->forward->tag },
		.leg[CLIENT].tuple = s->tuple,
		.idle = udp_graft_idle(s->forward->conf->idle_timeout_ms),
	};

	if (s->slot != NO_SLOT || udp_session_hindrance(s) != REASONS ||
	    probe_hindrance(s->worker->shared->probe, ENGINE_GRAFT) ||
	    getsockname(s->upstream->source.fd, (void *)&local.ss, &local.len))
		return;
	graft_tuple_set(&f.leg[UPSTREAM].tuple, &s->upstream->to.sa, &local.sa);
	for (unsigned int dir = 0; dir < 2; dir++) { /* a slot before this one has counted these */
		f.at[dir].packets = s->counted[dir].datagrams;
		f.at[dir].bytes = s->counted[dir].bytes;
	}
	s->slot = udp_graft_enter(udp_table_of(s), &f);
	s->behind_ms[CLIENT] = s->behind_ms[UPSTREAM] = 0;
	s->entry = s->slot == NO_SLOT ? UDP_ENTRY_FULL : UDP_ENTRY_HELD;
}

void udp_activate_adopt(struct udp_session *s, uint32_t slot)
{
	struct udp_table *gs = udp_table_of(s);

	s->slot = slot;
	s->entry = UDP_ENTRY_HELD;
	udp_graft_adopt(gs, slot);
	udp_flow_of(gs, slot)->idle = udp_graft_idle(s->forward->conf->idle_timeout_ms);
	for (unsigned int dir = 0; dir < 2; dir++)
		s->counted[dir] = udp_grafted(s, dir);
	s->asked = udp_all_datagrams(s, CLIENT);
	if (udp_carries(s, UPSTREAM)) {
		udp_proof_give(s);
		s->answered = true;
		if (s->server)
			atomic_store(&s->server->answered, true);
	}
	udp_activate_follow_engine(s);
}

void udp_activate_leave(struct udp_session *s)
{
	struct udp_table *gs = udp_table_of(s);

	if (s->slot == NO_SLOT)
		return;
	/*
	 * First: else many datagrams might be translated after the count.  A packet program that
	 * read the leg's word earlier still translates one datagram, which the count may lack.
	 */
	udp_graft_pass(gs, s->slot, CLIENT);
	udp_graft_pass(gs, s->slot, UPSTREAM);
	udp_session_count_kernel(s);
	for (unsigned int dir = 0; dir < 2; dir++)
		s->heard_ms[dir] = udp_heard_ms(s, dir);
	udp_graft_put(gs, s->slot);
	s->slot = NO_SLOT;
	udp_activate_wait_no_more(s);
	s->entry = UDP_ENTRY_NONE;
}

/* After a change to an engine that grafts, S gets a slot with the client's next datagram. */
void udp_activate_follow_engine(struct udp_session *s)
{
	if (s->entry == UDP_ENTRY_FULL)
		s->entry = UDP_ENTRY_NONE;
	if (udp_session_hindrance(s) != REASONS)
		udp_activate_leave(s);
}

/*
 * For packet programs a flow that was silent for idle-timeout has ended, and is not translated
 * again.  So such a session gives its slot back, and gets a new one.
 */
void udp_activate_wake(struct udp_session *s)
{
	uint64_t idle = s->forward->conf->idle_timeout_ms;

	if (s->slot == NO_SLOT)
		return;
	udp_graft_take_gone(udp_table_of(s), s->slot);
	if (idle && udp_now(s) >= udp_last_ms(s) + idle)
		udp_activate_leave(s);
}

/* --- legs --- */

/*
 * Translate the datagrams that arrive on LEG from now on, if its word is still WORD.  LEVEL: all
 * datagrams that have passed to the socket were sent on.
 */
static void udp_activate_leg(struct udp_session *s, unsigned int leg, uint32_t word, bool level)
{
	enum reason why = s->forward->engine == ENGINE_GRAFT ? REASON_ENGINE : REASON_ELIGIBLE;
	bool first = !s->counted[CLIENT].datagrams && !udp_carries(s, !leg);
	uint64_t now = udp_now(s);

	if (!level && !s->behind_ms[leg])
		s->behind_ms[leg] = now;
	if (!level && now < s->behind_ms[leg] + FORCE_MS)
		return;
	s->behind_ms[leg] = 0;
	if ((leg == CLIENT || udp_proof_of_address(s)) &&
	    udp_graft_activate(udp_table_of(s), s->slot, leg, word) && first)
		count_add(&s->worker->stats.handovers[CARRIER_GRAFT][why], 1);
}

void udp_activate_wait(struct udp_session *s)
{
	if (s->entry != UDP_ENTRY_HELD || udp_carries(s, CLIENT) || udp_server_is_awaited(s))
		return;
	s->entry = UDP_ENTRY_WAITS;
	LIST_INSERT_HEAD(&s->socket->waiting, s, in_waiting);
	s->word = UDP_ACTIVE; /* no look has begun */
}

void udp_activate_wait_no_more(struct udp_session *s)
{
	if (s->entry != UDP_ENTRY_WAITS)
		return;
	LIST_REMOVE(s, in_waiting);
	s->entry = UDP_ENTRY_HELD;
}

void udp_activate_before_read(const struct udp_listen_socket *us)
{
	struct udp_session *s;

	LIST_FOREACH(s, &us->waiting, in_waiting)
		s->word = udp_word(s, CLIENT);
}

bool udp_activate_after_read(const struct udp_listen_socket *us, bool quiet)
{
	struct udp_session *next;

	for (struct udp_session *s = LIST_FIRST(&us->waiting); s; s = next) {
		uint32_t now = udp_word(s, CLIENT);

		next = LIST_NEXT(s, in_waiting);
		udp_activate_leg(s, CLIENT, now, quiet && now == s->word);
		if (!s->behind_ms[CLIENT]) /* if it is not active, the next datagram tries */
			udp_activate_wait_no_more(s);
	}
	return !LIST_EMPTY(&us->waiting);
}

void udp_activate_server(struct udp_session *s, uint32_t word, bool quiet)
{
	uint32_t now = udp_word(s, UPSTREAM);

	if (s->slot != NO_SLOT)
		udp_activate_leg(s, UPSTREAM, now, quiet && now == word);
}
