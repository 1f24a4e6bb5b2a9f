// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_graft.h"

#include <errno.h>

#include "base/clock.h"
#include "base/syscalls_allowed.h"
#include "datapath/graft/graft_tuple.h"
#include "datapath/tcp.h"
#include "relay/handshake_options.h"
#include "relay/session_syn.h"

SYSCALLS_ALLOWED(SYSCALL(getsockname));

static struct graft_table *graft_table_of(const struct session *s)
{
	return s->worker->shared->grafts;
}

/* User space carries flow DIR, and has none of its bytes. */
static bool session_graft_flow_is_empty(const struct session *s, unsigned int dir)
{
	const struct flow *f = &s->flows[dir];

	return f->phase == FLOW_USER && !f->pending;
}

/* enum graft_mirrored of S, which is grafted, or has returned to its sockets. */
static uint32_t session_graft_mirrored(const struct session *s)
{
	const struct graft_table *gs = graft_table_of(s);

	return s->graft != NO_GRAFT && (graft_carries(gs, s->graft) ||
					graft_state(gs, s->graft) == GRAFT_RETURNED) ?
		       graft_of(gs, s->graft)->head.mirrored :
		       (uint32_t)GRAFT_UNKNOWN;
}

bool session_is_grafted(const struct session *s)
{
	return s->graft != NO_GRAFT && graft_carries(graft_table_of(s), s->graft);
}

enum carrier session_carrier(const struct session *s, unsigned int dir)
{
	return session_is_grafted(s) ? CARRIER_GRAFT : flow_carrier(&s->flows[dir]);
}

enum reason session_graft_bulk(const struct session *s)
{
	return s->graft_refusal == GRAFT_FAR  ? REASON_FAR_BULK :
	       s->graft_refusal == GRAFT_LOSS ? REASON_LOSSY_BULK :
						REASON_BULK;
}

/* --- offers --- */

/* The addresses of both sockets of S, whose addrs is not NULL. */
static int session_graft_set_tuples(const struct session *s, struct graft_tuple tuples[2])
{
	struct addr to = session_address(s, s->upstream), local;
	const struct sockaddr *remote[2] = { &session_peer(s)->sa, &to.sa };

	for (unsigned int side = 0; side < 2; side++) {
		local.len = sizeof(local.ss);
		if (getsockname(s->sides[side].fd, &local.sa, &local.len))
			return -errno;
		graft_tuple_set(&tuples[side], remote[side], &local.sa);
	}
	return 0;
}

/*
 * S was refused because its way is long (GRAFT_FAR) or loses packets (GRAFT_LOSS).  True: try
 * again.  FAR_TOO: S converses or was silent, so that a long way does no harm.  Otherwise S is
 * tried once at the beginning of bulk, because a busy machine measures long round trips at first.
 */
static bool session_graft_may_be_near(struct session *s, bool far_too)
{
	bool bulk = s->habit.run >= BULK_RUN && !s->far_asked;

	s->far_asked = s->habit.run >= BULK_RUN;
	return far_too || bulk;
}

static void session_graft_try(struct session *s, bool far_too)
{
	struct graft_table *gs = graft_table_of(s);
	bool any = s->forward->engine == ENGINE_GRAFT;
	struct graft_request q = {
		.id = s->id,
		.worker = s->worker->index,
		.forward = graft_tag(forward_name(s->forward->conf)),
		.near_us = any ? 0 : s->forward->conf->graft_rtt_us,
		.far_too = far_too,
	};

	if (!gs || probe_hindrance(s->worker->shared->probe, ENGINE_GRAFT) || !s->tcp ||
	    s->pair != NO_PAIR || !forward_grafts(s->forward) || s->pace ||
	    !session_graft_flow_is_empty(s, CLIENT) || !session_graft_flow_is_empty(s, UPSTREAM))
		return;
	if (s->graft_refusal && s->graft_refusal != GRAFT_WAY &&
	    (session_graft_bulk(s) == REASON_BULK || !session_graft_may_be_near(s, far_too)))
		return;
	if (s->graft != NO_GRAFT) {
		if (graft_state(gs, s->graft) == GRAFT_RETURNED)
			s->graft_refusal = (uint8_t)graft_try_again(gs, s->graft, &q);
		return;
	}
	s->graft_refusal = !s->addrs || session_graft_set_tuples(s, q.tuples) ?
				   GRAFT_NO_SOCKET :
				   (uint8_t)graft_try(gs, &q);
	if (s->graft_refusal == GRAFT_OK || s->graft_refusal >= GRAFT_TIMESTAMPS)
		session_syn_learn(s, &q.tuples[UPSTREAM]);
	if (s->graft_refusal) {
		handshake_refused(s, (enum graft_refusal)s->graft_refusal);
		return;
	}
	s->graft = q.slot;
	graft_of(gs, q.slot)->shaped = s->shaped;
	s->worker->grafted[q.slot] = s;
}

static uint64_t session_graft_silent_ms(const struct session *s)
{
	return (uint32_t)s->worker->loop.now_ms - s->spoke_ms;
}

void session_graft_offer(struct session *s)
{
	session_graft_try(s, policy_graft_far(&s->habit, session_graft_silent_ms(s)));
}

uint64_t session_graft_due(const struct session *s)
{
	uint64_t silent = session_graft_silent_ms(s), needed = policy_far_idle_ms(&s->habit);

	if (session_graft_bulk(s) == REASON_BULK)
		return NEVER;
	return s->worker->loop.now_ms + (silent < needed ? needed - silent : 0);
}

void session_graft_timer(struct session *s)
{
	if (!session_runs(s) || session_graft_due(s) > s->worker->loop.now_ms)
		return;
	session_graft_offer(s);
	/* the answer to a probe may graft S */
	for (unsigned int side = 0; side < 2 && !s->graft_refusal; side++)
		tcp_probe_now(s->sides[side].fd);
	s->probe_at_ms = s->worker->loop.now_ms + 1000;
	s->spoke_ms = (uint32_t)s->worker->loop.now_ms;
}

/* S has no slot any more.  Returns true. */
static bool session_graft_forget(struct session *s)
{
	s->worker->grafted[s->graft] = NULL;
	s->graft = NO_GRAFT;
	return true;
}

static void session_graft_put(struct session *s)
{
	graft_put(graft_table_of(s), s->graft);
	session_graft_forget(s);
}

bool session_graft_withdraw(struct session *s)
{
	if (s->graft == NO_GRAFT || graft_state(graft_table_of(s), s->graft) == GRAFT_RETURNED)
		return true;
	if (!graft_withdraw(graft_table_of(s), s->graft))
		return false;
	s->graft_refusal = GRAFT_CLOSING;
	if (graft_state(graft_table_of(s), s->graft) != GRAFT_RETURNED)
		session_graft_put(s);
	return true;
}

void session_graft_hurry(struct session *s)
{
	const volatile struct graft_entry *e;
	uint32_t now = (uint32_t)s->worker->loop.now_ms;

	if (s->graft == NO_GRAFT || graft_state(graft_table_of(s), s->graft) != GRAFT_OFFERED)
		return;
	e = graft_of(graft_table_of(s), s->graft);
	if (e->far >= GRAFT_LONG) { /* far: bulk is not grafted; a conversation needs no hold */
		if (s->habit.run >= BULK_RUN && session_graft_withdraw(s))
			s->graft_refusal = e->far == GRAFT_LONG ? GRAFT_FAR : GRAFT_LOSS;
		return;
	}
	if (!e->hold)
		graft_hold(graft_table_of(s), s->graft);
	else if (now - e->held_ms >= GRAFT_HOLD_MS && session_graft_withdraw(s))
		s->graft_refusal = GRAFT_IN_HAND;
}

bool session_graft_detach(struct session *s)
{
	struct graft_table *gs = graft_table_of(s);

	if (s->graft == NO_GRAFT || forward_grafts(s->forward)) {
		if (s->graft != NO_GRAFT && s->sent_back) /* the order was taken back */
			graft_return(gs, s->graft, false);
		s->sent_back = false;
		return true;
	}
	if (session_graft_mirrored(s) == GRAFT_HELPED) /* its sockets would not get all packets */
		return false;
	if (graft_state(gs, s->graft) == GRAFT_OFFERED && session_graft_withdraw(s)) {
		s->graft_refusal = GRAFT_OK; /* it may be offered again */
		return true;
	}
	if (graft_return(gs, s->graft, true)) /* a packet may have begun the graft meanwhile */
		s->sent_back = true;
	return graft_state(gs, s->graft) != GRAFT_RETURNING;
}

/* --- its end --- */

bool session_graft_end(struct session *s, bool reset)
{
	bool grafted = !session_graft_withdraw(s);

	if (grafted && reset)
		graft_kill(graft_table_of(s), s->graft);
	if (s->graft != NO_GRAFT)
		session_graft_put(s);
	return grafted;
}

bool session_graft_awaits_sockets(struct session *s)
{
	struct shared *shared = s->worker->shared;

	/* DONE: the ends know, since one of them has ended S */
	if (!session_is_grafted(s) || graft_state(shared->grafts, s->graft) == GRAFT_DONE ||
	    s->sides[CLIENT].fd >= 0 || !atomic_load(&shared->revives))
		return false;
	graft_want_sockets(shared->grafts, s->graft);
	shared_want_sockets(shared);
	return true;
}

const char *session_graft_hindrance(const struct session *s)
{
	const struct graft_table *gs = graft_table_of(s);

	if (s->graft != NO_GRAFT && graft_state(gs, s->graft) == GRAFT_OFFERED)
		return graft_refusal_name((enum graft_refusal)graft_of(gs, s->graft)->why_not);
	if (!forward_grafts(s->forward))
		return "";
	if (s->pace)
		return reason_names[REASON_BANDWIDTH];
	return s->graft_refusal ? graft_refusal_name((enum graft_refusal)s->graft_refusal) : "";
}

/* An import may write meanwhile. */
__attribute__((no_sanitize("thread"))) uint64_t session_graft_active_ms(const struct session *s,
									bool *ret_half)
{
	const volatile struct graft_entry *e = graft_of(graft_table_of(s), s->graft);
	uint64_t client = e->side[CLIENT].data_ns, upstream = e->side[UPSTREAM].data_ns;

	*ret_half = e->side[CLIENT].fin || e->side[UPSTREAM].fin;
	return (client > upstream ? client : upstream) / 1000000;
}

/* --- events --- */

/* The packet programs have seen the end of S. */
static void session_graft_finish(struct session *s)
{
	const volatile struct graft_entry *e = graft_of(graft_table_of(s), s->graft);

	if (e->side[CLIENT].reset)
		session_reset(s, CAUSE_CLIENT_RESET);
	else if (e->side[UPSTREAM].reset)
		session_reset(s, CAUSE_UPSTREAM_RESET);
	else if (e->side[CLIENT].fin == GRAFT_FIN_ACKED && e->side[UPSTREAM].fin == GRAFT_FIN_ACKED)
		session_finish(s);
	else
		session_reset(s, CAUSE_UNTRANSLATABLE);
}

/* S has returned to its sockets: for another engine, or because of `why_back`. */
static void session_graft_come_back(struct session *s)
{
	uint32_t why = graft_of(graft_table_of(s), s->graft)->why_back;

	if (why)
		s->graft_refusal = (uint8_t)why;
	if (session_graft_bulk(s) != REASON_BULK) {
		habit_demoted(&s->habit);
		s->habit.small_turns = 0;
		s->flows[CLIENT].reason = s->flows[UPSTREAM].reason = session_graft_bulk(s);
	}
	if (graft_forget_doubt(graft_table_of(s), s->graft))
		for (unsigned int side = 0; side < 2; side++)
			tcp_set_keepalive(s->sides[side].fd, s->forward->conf->keepalive_ms, 0);
}

/* Another relay knows S, and may go on with S. */
static bool session_graft_is_known(const struct session *s)
{
	return session_is_grafted(s) && session_graft_mirrored(s) != GRAFT_UNKNOWN &&
	       session_graft_mirrored(s) != GRAFT_OVER;
}

bool session_graft_is_shared(const struct session *s)
{
	return session_graft_is_known(s) &&
	       !atomic_load_explicit(&s->worker->shared->standbys, memory_order_relaxed);
}

bool session_graft_is_told(const struct session *s)
{
	return session_graft_is_known(s) && !session_graft_is_shared(s);
}

bool session_graft_is_away(const struct session *s)
{
	struct graft_table *gs = graft_table_of(s);

	return session_runs(s) && session_graft_mirrored(s) &&
	       (session_graft_mirrored(s) == GRAFT_YIELD ||
		!graft_table_has_address(gs, &graft_of(gs, s->graft)->side[CLIENT].tuple.local));
}

bool session_graft_holds_bytes(const struct session *s)
{
	return graft_state(graft_table_of(s), s->graft) == GRAFT_RETURNED &&
	       (!session_graft_flow_is_empty(s, CLIENT) ||
		!session_graft_flow_is_empty(s, UPSTREAM) || tcp_holds_bytes(s->sides[CLIENT].fd) ||
		tcp_holds_bytes(s->sides[UPSTREAM].fd));
}

bool session_graft_is_unheard(const struct session *s)
{
	return session_is_grafted(s) && graft_is_unheard(graft_table_of(s), s->graft);
}

#define APART_MS 15000 /* after the return of a relay probes that went unanswered may still count */

bool session_graft_is_apart(const struct session *s)
{
	return (s->end_cause == CAUSE_CLIENT_LOST || s->end_cause == CAUSE_UPSTREAM_LOST) &&
	       session_graft_is_told(s) &&
	       clock_ms() < atomic_load(&s->worker->shared->missing_ms) + APART_MS +
				    s->forward->conf->keepalive_ms / 4;
}

bool session_graft_hand_over(struct session *s)
{
	bool goes_on = session_graft_is_away(s) || session_graft_is_apart(s);
	uint32_t alone_ms = goes_on ? ALONE_NEVER : ALONE_EXPIRED;

	return graft_part(graft_table_of(s), s->graft, alone_ms) && session_graft_forget(s);
}

/* If the ways (struct graft_way) of the sockets of S may have changed, ask the sockets. */
static void session_graft_follow_ways(struct session *s)
{
	struct graft_table *gs = graft_table_of(s);
	enum graft_doubt doubt = graft_doubt(gs, s->graft);

	if (doubt == GRAFT_DOUBT_ASK) /* keepalive is set below, when the sockets have answered */
		s->probe_at_ms = NEVER;
	/* both calls make a socket probe at once */
	for (unsigned int side = 0; side < 2; side++) {
		if (doubt == GRAFT_DOUBT_ASK)
			tcp_probe_now(s->sides[side].fd);
		else if (doubt != GRAFT_DOUBT_NONE)
			tcp_set_keepalive(s->sides[side].fd, s->forward->conf->keepalive_ms,
					  2 * graft_asked(gs, s->graft));
	}
	if (doubt == GRAFT_DOUBT_LOST) {
		session_reset(s, CAUSE_NO_ROUTE);
	} else if (doubt == GRAFT_DOUBT_UNUSED || doubt == GRAFT_DOUBT_REFUSED) {
		if (doubt == GRAFT_DOUBT_UNUSED)
			s->graft_refusal = GRAFT_INTERFACE;
		graft_return(gs, s->graft, true);
	}
}

bool session_graft_follow_state(struct session *s)
{
	enum graft_state state = graft_state(graft_table_of(s), s->graft);

	if (state == GRAFT_DONE)
		session_graft_finish(s);
	else if (session_graft_mirrored(s) == GRAFT_CONDEMNED && session_runs(s))
		session_reset(s, CAUSE_KILLED);
	else if (state == GRAFT_ACTIVE || state == GRAFT_RETURNING)
		session_graft_follow_ways(s);
	else if (state == GRAFT_RETURNED)
		session_graft_come_back(s);
	return state == GRAFT_RETURNED;
}

/* --- sessions that outlive a daemon --- */

bool session_graft_leave_behind(struct session *s)
{
	if (!session_runs(s))
		return false;
	session_graft_try(s, true); /* slower is better than ended */
	if (s->graft == NO_GRAFT)
		return false;
	graft_hold(graft_table_of(s), s->graft);
	return graft_state(graft_table_of(s), s->graft) == GRAFT_ACTIVE && session_graft_forget(s);
}

void session_graft_take_sockets(struct session *s)
{
	const struct forward_conf *fc = s->forward->conf;
	int fds[2];

	graft_take_sockets(graft_table_of(s), s->graft, fds);
	for (unsigned int side = 0; side < 2; side++) {
		s->sides[side].fd = fds[side];
		if (fds[side] >= 0)
			tcp_set_session_options(fds[side], fc->nodelay, fc->keepalive_ms);
	}
}

void session_graft_adopt(struct session *s, uint32_t slot, enum reason reason)
{
	struct worker *w = s->worker;
	struct graft_table *gs = graft_table_of(s);
	volatile struct graft_entry *e = graft_of(gs, slot);
	struct addr upstream = graft_tuple_address(&e->side[UPSTREAM].tuple, false);

	s->id = e->head.id;
	shared_saw_id(w->shared, s->id);
	s->born_ms = e->offered_ns / 1000000;
	s->connect_ms = 1; /* how long it took is not known */
	if (reason == REASON_FROM_SYN)
		s->connect_ms += (uint32_t)(e->stuck_ns / NS_PER_MS);
	s->shaped = e->shaped;
	s->addrs = addr_list_new(&upstream, 1);
	if (s->addrs && !s->server)
		s->server = servers_find(&s->forward->servers, &s->addrs->addrs[0]);
	s->graft = slot;
	session_graft_take_sockets(s);
	for (unsigned int dir = 0; dir < 2; dir++) {
		s->flows[dir].user_in = s->flows[dir].user_out = e->before[dir];
		s->flows[dir].reason = reason;
		s->flows[dir].engine = forward_grafts(s->forward) ? s->forward->engine :
								    ENGINE_AUTO;
	}
	w->grafted[slot] = s;
	__atomic_store_n(&e->head.worker, w->index, __ATOMIC_RELAXED);
}
