// SPDX-License-Identifier: BSD-2-Clause
#include "session_flow.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "carrier.h"
#include "carrier_sockmap.h"
#include "clock.h"
#include "log.h"
#include "session_engine.h"
#include "session_pace.h"
#include "session_slots.h"
#include "syscall_filter.h"

/* Steps of one flow in one go: enough for LEAVING -> DRAINING -> USER and a few retries. */
#define RUN_STEPS 8

/*
 * A flow with a limit has a small turn each time.  Where its thread gets a CPU every few
 * milliseconds, one turn each time is not enough for the limit: so it may have more, but they are
 * shared with those who wait for the same limit.
 */
#define TURNS_AT_ONCE 16
#define BYTES_AT_ONCE (4U << 20)

SYSCALLS_NEEDED(SYSCALL(shutdown));

static struct sockmap_io sockmap_io(struct session *s, unsigned int dir)
{
	struct worker *w = s->worker;

	return (struct sockmap_io){
		.flow = &s->flows[dir],
		.kernel = w->shared->kernel,
		.pool = &w->pool,
		.src = s->sides[dir].fd,
		.dst = s->sides[!dir].fd,
		.slot = s->pair * 2 + dir,
		.dst_connected = dir == CLIENT,
		.buffer_size = forward_of(s)->copy_buffer,
		.header_in = dir == CLIENT ? s->header_in : 0,
		.header_out = dir == CLIENT ? s->header_out : 0,
		.returns = policy_of(s)->engine == ENGINE_SOCKMAP,
		.read_ahead = (uint32_t)forward_of(s)->hard_limit,
		.now_ms = w->loop.now_ms,
	};
}

static void count_read(struct session *s, struct flow *f, enum carrier c, uint64_t bytes)
{
	if (!bytes)
		return;
	if (c == CARRIER_SPLICE)
		f->spliced += bytes;
	count_add(&s->worker->stats.carrier_bytes[c], bytes);
}

static void count_handover(struct session *s, struct flow *f, enum handover h)
{
	f->handovers++;
	count_add(&s->worker->stats.handovers[h], 1);
}

static void log_unproved(const struct session *s, unsigned int dir, const struct flow_books *b)
{
	const struct flow *f = &s->flows[dir];

	log_limited(LOG_WARNING,
		    "session %llu: reset: bytes of %s could not be accounted for (%s: received "
		    "%llu, redirected %llu, read %llu, unread %llu, written %llu, accepted %llu); "
		    "if this comes again, report it, and use --engine splice meanwhile",
		    (unsigned long long)s->id, dir == CLIENT ? "the client" : "the upstream",
		    flow_phase_name(f->phase), (unsigned long long)b->received,
		    (unsigned long long)b->redirected, (unsigned long long)f->user_in,
		    (unsigned long long)b->unread, (unsigned long long)f->user_out,
		    (unsigned long long)b->accepted);
}

/* False: the session has been reset. */
static bool step_ok(struct session *s, unsigned int dir, enum step r, const struct sockmap_io *io)
{
	int error = io->error;

	switch (r) {
	case STEP_SRC_ERROR:
		session_reset(s, session_cause(dir, error));
		return false;
	case STEP_DST_ERROR:
		session_reset(s, session_cause(!dir, error));
		return false;
	case STEP_UNPROVED:
		log_unproved(s, dir, &io->books);
		session_reset(s, CAUSE_HANDOVER_UNPROVED);
		return false;
	default:
		return true;
	}
}

/* --- entering the kernel --- */

static bool kernel_may(const struct session *s, unsigned int dir)
{
	const struct flow *f = &s->flows[dir];

	return s->worker->shared->kernel && s->tcp && !s->pace && !f->no_enter && !f->eof;
}

/* The kernel will not have this flow: remember why, and leave it where it is. */
static void refused(struct session *s, unsigned int dir, int error)
{
	struct flow *f = &s->flows[dir];

	f->no_enter = true;
	switch (error) {
	case -EOPNOTSUPP: /* sock_map_sk_state_allowed(): not ESTABLISHED any more */
		f->reason = REASON_CLOSING;
		break;
	case -ENOSPC:
		f->reason = REASON_NO_SLOT;
		break;
	default:
		f->reason = REASON_REFUSED;
		log_limited(LOG_WARNING, "session %llu: stays in user space, where it is as safe: "
			    "sockmap: %s",
			    (unsigned long long)s->id, strerror(-error));
	}
	count_add(&s->worker->stats.handovers[HANDOVER_FAILED], 1);
}

/* The flow shall leave the kernel, to be carried as D says. */
static void begin_leaving(struct session *s, unsigned int dir, struct decision d)
{
	struct flow *f = &s->flows[dir];

	f->user_carrier = d.carrier;
	f->reason = d.reason;
	count_handover(s, f, d.carrier == CARRIER_SPLICE ? HANDOVER_TO_SPLICE : HANDOVER_TO_COPY);
	flow_set_phase(f, FLOW_LEAVING);
}

/* The program, by KIND, wants the flow out of the kernel. */
static void demote(struct session *s, unsigned int dir, unsigned int kind)
{
	habit_demoted(policy_of(s), &s->habit);
	begin_leaving(s, dir, policy_kernel(policy_of(s), kind));
}

static void try_enter(struct session *s, unsigned int dir, enum reason reason)
{
	const struct policy *p = policy_of(s);
	struct flow *f = &s->flows[dir];
	struct sockmap_io io;
	enum step step;
	int r;

	if (p->engine != ENGINE_AUTO && p->engine != ENGINE_SOCKMAP)
		return; /* since just now */
	if (f->phase != FLOW_USER || f->pending || f->starved || !kernel_may(s, dir))
		return;
	r = session_take_slots(s);
	if (r) {
		refused(s, dir, r);
		return;
	}
	io = sockmap_io(s, dir);
	r = sockmap_enter(&io, forward_of(s), p, s->worker->index);
	if (r == -EAGAIN)
		return; /* bytes are waiting: they are read first, and then it is tried again */
	if (r == -EPROTO) {
		session_reset(s, session_cause(dir, io.error));
		return;
	}
	if (r) {
		refused(s, dir, r);
		return;
	}
	s->engines[dir] = (uint8_t)p->engine;
	f->reason = reason;
	f->untouched = false;
	flow_set_phase(f, FLOW_KERNEL);
	count_handover(s, f, HANDOVER_TO_SOCKMAP);
	step = sockmap_kick(&io);
	if (step_ok(s, dir, step, &io) && step == STEP_WAIT)
		demote(s, dir, CULVERT_EVENT_PASSED); /* the timer goes on from there */
}

/* --- user space carries --- */

static void switch_carrier(struct session *s, struct flow *f, struct decision d)
{
	f->reason = d.reason;
	f->user_carrier = d.carrier;
	count_handover(s, f, d.carrier == CARRIER_SPLICE ? HANDOVER_TO_SPLICE : HANDOVER_TO_COPY);
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

	session_engine_follow(s, dir, p);
	around.kernel_ok = kernel_may(s, dir);
	around.watch_ms = (uint32_t)now - s->watched_ms;
	d = policy_user(p, &s->habit, dir, f, around);
	if (d.carrier == CARRIER_SOCKMAP) {
		if (!empty)
			return;
		try_enter(s, dir, d.reason);
		/* a conversation is promoted as a whole; the other half is quiet just now */
		if (s->state == SESSION_OPEN && d.reason != REASON_SMALL_READS)
			try_enter(s, !dir, d.reason);
	} else if (d.carrier != f->user_carrier && !f->pending) {
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
		session_reset(s, session_cause(!dir, errno));
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
	if (io.read) {
		f->untouched = false;
		if (!s->tcp && s->idle) /* TCP knows itself */
			s->idle->read_ms = clock_ms();
	}
	session_pace_used(s, dir, io.read);
	habit_read(&s->habit, dir, io.read, io.reads);
	count_read(s, f, f->user_carrier, io.read);
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

/* As far as the flow may read now.  False: not at all. */
static bool pump_turns(struct session *s, unsigned int dir, bool fin, enum pump *ret,
		       int *ret_error)
{
	struct flow *f = &s->flows[dir];
	uint64_t begin = f->user_in;
	uint32_t n = 0;
	bool more = true;

	for (; more && session_pace_begin(s, dir); n++) {
		*ret = pump_once(s, dir, fin, ret_error);
		if (f->user_carrier == CARRIER_SPLICE && !f->pending &&
		    (*ret == PUMP_STARVED || *ret == PUMP_UNSUPPORTED))
			*ret = copy_instead(s, dir, fin, *ret, ret_error);
		more = s->pace && *ret == PUMP_MORE && f->user_in - begin < BYTES_AT_ONCE &&
		       (n + 1) * session_pace_queue(s, dir) < TURNS_AT_ONCE;
		session_pace_end(s, dir);
	}
	return n;
}

/* EOF was read: was it a FIN?  Only a session that has been in the kernel need ask. */
static bool has_ended(struct session *s, unsigned int dir)
{
	struct sockmap_io io;

	if (s->pair == NO_PAIR)
		return true;
	io = sockmap_io(s, dir);
	return sockmap_ended(&io);
}

static void run_user(struct session *s, unsigned int dir, bool fin)
{
	struct flow *f = &s->flows[dir];
	int error;
	enum pump r;

	if (!f->pending)
		session_engine_follow(s, dir, policy_of(s));
	/* --engine sockmap: what has come since may go through the kernel again, unread */
	if (f->untouched && !f->pending && !fin)
		judge(s, dir, true);
	if (s->state != SESSION_OPEN || f->phase != FLOW_USER ||
	    !pump_turns(s, dir, fin, &r, &error))
		return;
	switch (r) {
	case PUMP_EOF:
		if (!has_ended(s, dir)) {
			session_reset(s, session_cause(dir, 0));
			return;
		}
		f->eof = true;
		flow_finished(s, dir);
		return;
	case PUMP_SRC_ERROR:
		session_reset(s, session_cause(dir, error));
		return;
	case PUMP_DST_ERROR:
		session_reset(s, session_cause(!dir, error));
		return;
	case PUMP_STARVED:
	case PUMP_UNSUPPORTED:
		starved(s, f);
		return;
	case PUMP_BLOCKED:
		return;
	default:
		judge(s, dir, r == PUMP_EMPTY);
	}
}

/* --- the kernel carries --- */

/* True: the flow is out of rx. */
static bool run_leaving(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_leave(&io);

	count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	s->flows[dir].untouched = r == STEP_DONE && !io.touched;
	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

static bool run_draining(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_drain(&io);

	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

static bool run_finishing(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_finish(&io);

	count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	return step_ok(s, dir, r, &io) && r == STEP_DONE;
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
		else if (run_leaving(s, dir))
			flow_set_phase(f, FLOW_DRAINING);
		else
			return false;
		return true;
	case FLOW_DRAINING:
		if (!run_draining(s, dir))
			return false;
		flow_set_phase(f, FLOW_USER);
		return true;
	case FLOW_FINISHING:
		if (run_finishing(s, dir))
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

void session_flow_event(struct session *s, unsigned int dir, unsigned int kind)
{
	struct flow *f = &s->flows[dir];

	if (kind == CULVERT_EVENT_LOST) {
		session_reset(s, CAUSE_KERNEL_LOST);
		return;
	}
	if (f->phase == FLOW_KERNEL)
		demote(s, dir, kind);
	session_flow_run(s, dir, false);
}

void session_flow_review(struct session *s, unsigned int dir)
{
	if (s->flows[dir].phase != FLOW_KERNEL || policy_of(s)->engine != ENGINE_AUTO)
		return;
	habit_restart(&s->habit);
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	begin_leaving(s, dir, policy_review());
	session_flow_run(s, dir, false);
}

bool session_flow_follow(struct session *s, unsigned int dir)
{
	const struct policy *p = policy_of(s);
	struct flow *f = &s->flows[dir];

	if (s->engines[dir] == p->engine)
		return true;
	if (f->phase == FLOW_KERNEL)
		begin_leaving(s, dir, policy_start(p));
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
