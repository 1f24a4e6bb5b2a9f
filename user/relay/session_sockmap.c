// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a session in the kernel.  A session takes two slots of the sockmap's maps
 * when one of its flows first enters, and keeps the slots to its end.  carrier_sockmap.h has the
 * steps in which a flow enters and leaves; each step is tried until it is done.
 */
#include "relay/session_sockmap.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"

/* --- slots: places in the kernel's maps, one for each side --- */

void session_sockmap_give_slots(struct session *s)
{
	struct worker *w = s->worker;

	if (s->pair == NO_PAIR)
		return;
	w->owners[s->pair] = NULL;
	sockmap_pair_put(w->shared->kernel, s->pair);
	s->pair = NO_PAIR;
}

/* Give S slots, unless it has some.  -errno of the map update, -ENOSPC if all are taken. */
static int take_slots(struct session *s)
{
	struct worker *w = s->worker;
	struct sockmap *k = w->shared->kernel;
	int r;

	if (s->pair != NO_PAIR)
		return 0;
	r = sockmap_pair_get(k, &s->pair);
	if (r)
		return r;
	w->owners[s->pair] = s;
	if (!w->sweep.prev) /* not set */
		timer_set(&w->loop, &w->sweep, w->loop.now_ms + WORKER_SWEEP_MS);
	for (unsigned int side = 0; !r && side < 2; side++)
		r = sockmap_admit(k, s->pair * 2 + side, s->sides[side].fd);
	if (r)
		session_sockmap_give_slots(s);
	return r;
}

/* --- a stay in the kernel --- */

static struct sockmap_io sockmap_io(struct session *s, unsigned int dir)
{
	struct worker *w = s->worker;

	return (struct sockmap_io){
		.pump = { .flow = &s->flows[dir],
			  .pool = &w->pool,
			  .src = s->sides[dir].fd,
			  .dst = s->sides[!dir].fd,
			  .buffer_size = s->forward->conf->copy_buffer },
		.kernel = w->shared->kernel,
		.slot = s->pair * 2 + dir,
		.dst_connected = dir == CLIENT,
		.header_in = dir == CLIENT ? s->header_in : s->answers_in,
		.header_out = dir == CLIENT ? s->header_out : s->answers_out,
		.returns = s->forward->engine == ENGINE_SOCKMAP,
		.bulk_bytes = s->forward->engine == ENGINE_AUTO ? KERNEL_BULK : 0,
		.read_ahead = (uint32_t)s->forward->conf->hard_limit,
		.now_ms = w->loop.now_ms,
	};
}

static void log_unproved(const struct session *s, unsigned int dir, const struct flow_books *b)
{
	const struct flow *f = &s->flows[dir];

	log_cause(CAUSE_HANDOVER_UNPROVED, LOG_WARNING,
		  "session %llu: reset: bytes of %s could not be accounted for (%s: received "
		  "%llu, redirected %llu, read %llu, unread %llu, written %llu, accepted %llu); "
		  "if this comes again, report it, and use --engine splice meanwhile",
		  (unsigned long long)s->id, dir == CLIENT ? "the client" : "the upstream",
		  flow_phase_names[f->phase], (unsigned long long)b->received,
		  (unsigned long long)b->redirected, (unsigned long long)f->user_in,
		  (unsigned long long)b->unread, (unsigned long long)f->user_out,
		  (unsigned long long)b->accepted);
}

/* Step R of flow DIR has been tried.  False: the session ends. */
static bool step_ok(struct session *s, unsigned int dir, enum step r, const struct sockmap_io *io)
{
	if (r == STEP_SRC_ERROR || r == STEP_DST_ERROR)
		return session_lose_side(s, r == STEP_SRC_ERROR ? dir : !dir, io->pump.error);
	if (r != STEP_UNPROVED)
		return true;
	log_unproved(s, dir, &io->books);
	return session_reset(s, CAUSE_HANDOVER_UNPROVED);
}

bool session_sockmap_try(struct session *s, unsigned int dir,
			 enum step (*step)(struct sockmap_io *io))
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = step(&io);

	session_count_carried(s, dir, CARRIER_COPY, io.pump.read);
	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

bool session_sockmap_may_enter(const struct session *s, unsigned int dir)
{
	const struct shared *shared = s->worker->shared;

	return shared->kernel && s->tcp && !s->pace && s->graft == NO_GRAFT &&
	       !s->flows[dir].no_enter && !shared->hands_over &&
	       !probe_hindrance(shared->probe, ENGINE_SOCKMAP);
}

/* The kernel has refused flow DIR: remember why.  User space goes on. */
static void refused(struct session *s, unsigned int dir, int error)
{
	struct flow *f = &s->flows[dir];

	f->no_enter = true;
	/* EOPNOTSUPP is of sock_map_sk_state_allowed(): not ESTABLISHED any more */
	f->reason = error == -EOPNOTSUPP ? REASON_CLOSING :
		    error == -ENOSPC     ? REASON_NO_SLOT :
					   REASON_REFUSED;
	if (f->reason == REASON_REFUSED)
		log_limited(LOG_WARNING,
			    "session %llu, forward %s: sockmap refused a flow, which stays in "
			    "user space: %s",
			    (unsigned long long)s->id, forward_name(s->forward->conf),
			    strerror(-error));
	count_add(&s->worker->stats.handovers[HANDOVER_FAILED][f->reason], 1);
}

void session_sockmap_leave(struct session *s, unsigned int dir, struct decision d)
{
	session_hand_over(s, dir, d);
	flow_set_phase(&s->flows[dir], FLOW_LEAVING);
}

/* Make flow DIR leave because of an event of KIND from the program. */
static void demote(struct session *s, unsigned int dir, unsigned int kind)
{
	habit_demoted(&s->habit);
	s->since_ms = (uint32_t)s->worker->loop.now_ms;
	session_sockmap_leave(s, dir, policy_kernel(kind));
}

void session_sockmap_enter(struct session *s, unsigned int dir, enum engine engine,
			   enum reason reason)
{
	struct flow *f = &s->flows[dir];
	struct sockmap_io io = { 0 };
	enum step step;
	int r;

	if (f->phase != FLOW_USER || f->pending || f->starved || !session_sockmap_may_enter(s, dir))
		return;
	r = take_slots(s);
	if (!r) {
		io = sockmap_io(s, dir);
		r = sockmap_enter(&io, s->forward->conf, s->worker->index);
	}
	/* EAGAIN: bytes are waiting, and are read first; the turn after that tries again */
	if (r == -EPROTO)
		session_lose_side(s, dir, io.pump.error);
	else if (r && r != -EAGAIN)
		refused(s, dir, r);
	if (r)
		return;
	if (dir == CLIENT)
		session_set_nodelay(s);
	f->engine = engine;
	s->since_ms = (uint32_t)s->worker->loop.now_ms;
	session_hand_over(s, dir, (struct decision){ CARRIER_SOCKMAP, reason });
	flow_set_phase(f, FLOW_KERNEL);
	step = sockmap_kick(&io);
	if (step_ok(s, dir, step, &io) && step == STEP_WAIT)
		demote(s, dir, CULVERT_EVENT_PASSED); /* the timer goes on from there */
}

bool session_sockmap_is_fin(struct session *s, unsigned int dir)
{
	struct sockmap_io io;

	if (s->pair == NO_PAIR)
		return true;
	io = sockmap_io(s, dir);
	return sockmap_ended(&io);
}

enum step session_sockmap_rest(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_take_rest(&io);

	session_count_carried(s, dir, CARRIER_COPY, io.pump.read);
	return r;
}

/* --- events of the program --- */

bool session_sockmap_event(struct session *s, unsigned int dir, unsigned int kind)
{
	if (kind == CULVERT_EVENT_LOST)
		return session_reset(s, CAUSE_KERNEL_LOST);
	if (s->flows[dir].phase != FLOW_KERNEL)
		return false;
	demote(s, dir, kind);
	/* user space can count changes of direction only if it carries both flows: both leave */
	if (s->forward->engine != ENGINE_AUTO || s->flows[!dir].phase != FLOW_KERNEL)
		return false;
	session_sockmap_leave(s, !dir, (struct decision){ CARRIER_COPY, REASON_REVIEW });
	return true;
}

unsigned int session_sockmap_missed(const struct session *s, unsigned int dir)
{
	struct sockmap *k = s->worker->shared->kernel;
	uint32_t slot = s->pair * 2 + dir;
	const volatile struct culvert_stat *st;

	if (s->flows[dir].phase != FLOW_KERNEL)
		return 0;
	st = &k->stats[slot];
	if (st->dropped)
		return CULVERT_EVENT_LOST;
	if (st->passed != k->ctls[slot].credit)
		return CULVERT_EVENT_PASSED;
	if (st->closed == k->ctls[slot].epoch) /* the gate is closed: the flow must leave */
		return CULVERT_EVENT_SOFT;
	return sockmap_is_charged(k, slot) && sockmap_memory_short(k) ? CULVERT_EVENT_MEMORY : 0;
}

uint64_t session_sockmap_bytes(const struct session *s, unsigned int dir)
{
	return s->pair == NO_PAIR ? 0 : s->worker->shared->kernel->stats[s->pair * 2 + dir].bytes;
}
