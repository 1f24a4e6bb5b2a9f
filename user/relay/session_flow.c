// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_flow.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/syscalls_needed.h"
#include "datapath/carrier.h"
#include "relay/session_count.h"
#include "relay/session_engine.h"
#include "relay/session_part.h"
#include "relay/session_stay.h"

/* Steps of one flow in one go: enough for LEAVING -> DRAINING -> USER and a few retries. */
#define RUN_STEPS 8

SYSCALLS_NEEDED(SYSCALL(shutdown));

/* --- user space carries --- */

static void switch_carrier(struct session *s, struct flow *f, struct decision d)
{
	f->reason = d.reason;
	f->user_carrier = d.carrier;
	session_count_handover(s, f, d.carrier);
	habit_restart(&s->habit);
}

/* Is another carrier better?  EMPTY: the source was just found to have no more. */
static void judge(struct session *s, unsigned int dir, bool empty)
{
	const struct policy *p = policy_of(s);
	struct flow *f = &s->flows[dir];
	uint64_t now = s->worker->loop.now_ms;
	struct setting around = {
		.busy = load_busy(p, &s->worker->load, now),
		.limited = s->pace,
	};
	struct decision d;

	if (f->pending && s->engines[dir] != p->engine)
		return; /* it follows once nothing is pending: a pipe is not for copy */
	session_engine_follow(s, dir, p);
	around.kernel_ok = session_stay_may(s, dir);
	around.memory_short = around.kernel_ok && kernel_memory_short(s->worker->shared->kernel);
	around.watch_ms = (uint32_t)now - s->watched_ms;
	d = policy_user(p, &s->habit, dir, f, around);
	if (d.carrier == CARRIER_SOCKMAP) {
		if (!empty)
			return;
		session_stay_enter(s, dir, d.reason);
		/* a session is promoted as a whole; the other half is quiet just now */
		if (s->state == SESSION_OPEN)
			session_stay_enter(s, !dir, d.reason);
	} else if (d.carrier != f->user_carrier &&
		   (!f->pending || (f->head && d.carrier == CARRIER_SPLICE))) {
		/* what is pending in buffers is written first, whatever the carrier */
		switch_carrier(s, f, d);
	} else {
		if (d.carrier == f->user_carrier)
			f->reason = d.reason;
		if (habit_full(p, &s->habit))
			habit_restart(&s->habit);
	}
}

static void flow_finished(struct session *s, unsigned int dir)
{
	struct flow *f = &s->flows[dir];
	bool last = s->flows[!dir].phase == FLOW_DONE;

	/* of the last one, close(2) sends the FIN */
	if (!last && shutdown(s->sides[!dir].fd, SHUT_WR)) {
		session_part(s, !dir, session_cause(!dir, errno));
		return;
	}
	flow_set_phase(f, FLOW_DONE);
	if (last)
		session_finish(s);
}

/*
 * To follow another engine nothing may be pending, and a target that is full all the time would
 * never let it come to that: so nothing more is read before.
 */
static uint64_t may_read(struct session *s, unsigned int dir)
{
	if (s->flows[dir].pending && s->engines[dir] != policy_of(s)->engine)
		return 0;
	return session_pace_left(s, dir);
}

static enum pump pump_once(struct session *s, unsigned int dir, bool fin, int *ret_error)
{
	struct flow *f = &s->flows[dir];
	struct pump_io io = {
		.flow = f,
		.pool = &s->worker->pool,
		.src = s->sides[dir].fd,
		.dst = s->sides[!dir].fd,
		.buffer_size = forward_of(s)->copy_buffer,
		.limit = may_read(s, dir),
		.until_eof = fin,
	};
	uint64_t before = f->user_out;
	enum pump r;

	f->starved = false;
	/* what was read ahead while leaving the kernel goes first, whatever the carrier */
	if (f->head && f->user_carrier == CARRIER_SPLICE) {
		io.limit = 0;
		r = copy_pump(&io);
		*ret_error = io.error;
		if (r != PUMP_MORE)
			return r;
		io.limit = may_read(s, dir);
	}
	r = f->user_carrier == CARRIER_SPLICE ? splice_pump(&io) : copy_pump(&io);
	if (io.read && !s->tcp && s->idle) /* TCP knows itself */
		s->idle->read_ms = clock_ms();
	if (dir == CLIENT && f->user_out != before &&
	    (before || s->header_out || io.reads > 1 || f->pending))
		session_set_nodelay(s);
	session_pace_used(s, dir, io.read);
	habit_read(&s->habit, dir, io.read, io.reads);
	load_read(&s->worker->policy, &s->worker->load, io.read);
	session_count_read(s, f, f->user_carrier, io.read);
	*ret_error = io.error;
	return r;
}

static void starved(struct session *s, struct flow *f)
{
	f->starved = true;
	flow_look_later(f, s->worker->loop.now_ms);
	count_add(&s->worker->stats.errors[CAUSE_NO_MEMORY], 1);
}

/* Splice cannot go on here: an urgent byte is next, or there is no pipe.  Copy can. */
static enum pump copy_instead(struct session *s, unsigned int dir, bool fin, enum pump why,
			      int *ret_error)
{
	struct flow *f = &s->flows[dir];
	enum pump r;

	if (why == PUMP_STARVED) {
		switch_carrier(s, f, (struct decision){ CARRIER_COPY, REASON_NO_PIPE });
		return pump_once(s, dir, fin, ret_error);
	}
	f->user_carrier = CARRIER_COPY;
	r = pump_once(s, dir, fin, ret_error);
	f->user_carrier = CARRIER_SPLICE;
	return r;
}

/*
 * Pump as much as the flow's bandwidth allows now.  False: nothing, the flow waits for its turn.
 *
 * A flow with more to read reserves its next turn at once, and has that turn after the other events
 * of this batch even if all its tokens have come.
 */
static bool pump_turn(struct session *s, unsigned int dir, bool fin, enum pump *ret, int *ret_error)
{
	struct flow *f = &s->flows[dir];

	if (!session_pace_begin(s, dir))
		return false;
	*ret = pump_once(s, dir, fin, ret_error);
	if (f->user_carrier == CARRIER_SPLICE && !f->pending &&
	    (*ret == PUMP_STARVED || *ret == PUMP_UNSUPPORTED))
		*ret = copy_instead(s, dir, fin, *ret, ret_error);
	session_pace_end(s, dir);
	if (*ret == PUMP_MORE)
		session_pace_begin(s, dir);
	return true;
}

bool session_flow_rest(struct session *s, unsigned int dir)
{
	enum pump r = PUMP_MORE;
	int error;

	for (int i = 0; r == PUMP_MORE && i < RUN_STEPS; i++)
		if (!pump_turn(s, dir, true, &r, &error))
			return false;
	return r != PUMP_MORE && r != PUMP_BLOCKED && r != PUMP_STARVED && r != PUMP_UNSUPPORTED;
}

static void run_user(struct session *s, unsigned int dir, bool fin)
{
	struct flow *f = &s->flows[dir];
	int error;
	enum pump r;

	if (!f->pending)
		session_engine_follow(s, dir, policy_of(s));
	if (!pump_turn(s, dir, fin, &r, &error))
		return;
	/* a short splice(2) may leave bytes: it ends when the pipe's slots are full */
	f->quiet = r == PUMP_EMPTY && !fin && f->user_carrier == CARRIER_COPY;
	switch (r) {
	case PUMP_EOF:
		if (!session_stay_ended(s, dir)) {
			session_part(s, dir, session_cause(dir, 0));
			return;
		}
		f->eof = true;
		flow_finished(s, dir);
		return;
	case PUMP_SRC_ERROR:
		session_part(s, dir, session_cause(dir, error));
		return;
	case PUMP_DST_ERROR:
		session_part(s, !dir, session_cause(!dir, error));
		return;
	case PUMP_STARVED:
	case PUMP_UNSUPPORTED:
		starved(s, f);
		return;
	default:
		judge(s, dir, r == PUMP_EMPTY);
	}
}

/* One step.  True: the phase has changed, go on. */
static bool run_step(struct session *s, unsigned int dir, bool fin)
{
	struct flow *f = &s->flows[dir];

	switch ((enum flow_phase)f->phase) {
	case FLOW_USER:
		run_user(s, dir, fin);
		return false;
	case FLOW_KERNEL:
		if (fin)
			flow_set_phase(f, FLOW_FINISHING);
		return fin;
	case FLOW_LEAVING:
		if (fin)
			flow_set_phase(f, FLOW_FINISHING);
		else if (session_stay_has_left(s, dir))
			flow_set_phase(f, FLOW_DRAINING);
		else
			return false;
		return true;
	case FLOW_DRAINING:
		if (!session_stay_has_drained(s, dir))
			return false;
		flow_set_phase(f, FLOW_USER);
		return true;
	case FLOW_FINISHING:
		if (session_stay_has_finished(s, dir))
			flow_finished(s, dir);
		return false;
	default:
		return false;
	}
}

void session_flow_run(struct session *s, unsigned int dir, bool fin)
{
	for (int i = 0; i < RUN_STEPS && s->state == SESSION_OPEN; i++)
		if (!run_step(s, dir, fin))
			return;
}

static void leave_for_review(struct session *s, unsigned int dir)
{
	if (s->flows[dir].phase != FLOW_KERNEL)
		return;
	session_stay_leave(s, dir, policy_review());
	session_flow_run(s, dir, false);
}

void session_flow_event(struct session *s, unsigned int dir, unsigned int kind)
{
	struct flow *f = &s->flows[dir];

	if (kind == CULVERT_EVENT_LOST) {
		session_reset(s, CAUSE_KERNEL_LOST);
		return;
	}
	if (f->phase == FLOW_KERNEL) {
		session_stay_demote(s, dir, kind);
		/* with half a session user space would see no turns: it is judged as a whole */
		if (policy_of(s)->engine == ENGINE_AUTO)
			leave_for_review(s, !dir);
	}
	if (s->state == SESSION_OPEN)
		session_flow_run(s, dir, false);
}

bool session_flow_is_due(const struct session *s)
{
	const struct policy *p = policy_of(s);

	if (p->engine != ENGINE_AUTO ||
	    (uint32_t)s->worker->loop.now_ms - s->watched_ms < p->review_ms)
		return false;
	for (unsigned int dir = 0; dir < 2; dir++)
		if (s->flows[dir].phase == FLOW_KERNEL &&
		    session_stay_packets(s, dir) >= p->review_packets)
			return true;
	return false;
}

void session_flow_review(struct session *s)
{
	habit_restart(&s->habit);
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++)
		leave_for_review(s, dir);
}

bool session_flow_follow(struct session *s, unsigned int dir)
{
	const struct policy *p = policy_of(s);
	struct flow *f = &s->flows[dir];

	if (s->engines[dir] == p->engine)
		return true;
	if (f->phase == FLOW_KERNEL)
		session_stay_leave(s, dir, policy_start(p));
	session_flow_run(s, dir, false);
	return s->state != SESSION_OPEN || f->phase == FLOW_DONE || f->phase == FLOW_FINISHING ||
	       s->engines[dir] == p->engine;
}

void session_flows_start(struct session *s)
{
	const struct policy *p = policy_of(s);

	s->connected_ms = s->worker->loop.now_ms;
	s->watched_ms = (uint32_t)s->connected_ms;
	session_pace_start(s);
	for (unsigned int dir = 0; dir < 2; dir++)
		session_engine_begin(s, dir, p);
	for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++)
		judge(s, dir, true);
}
