// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_stay.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "relay/session_count.h"
#include "relay/session_part.h"
#include "relay/session_slots.h"

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
		session_part(s, dir, session_cause(dir, error));
		return false;
	case STEP_DST_ERROR:
		session_part(s, !dir, session_cause(!dir, error));
		return false;
	case STEP_UNPROVED:
		log_unproved(s, dir, &io->books);
		session_reset(s, CAUSE_HANDOVER_UNPROVED);
		return false;
	default:
		return true;
	}
}

static uint32_t packets(const struct session *s, unsigned int dir)
{
	return (uint32_t)kernel_stat(s->worker->shared->kernel, s->pair * 2 + dir)->packets;
}

uint32_t session_stay_packets(const struct session *s, unsigned int dir)
{
	return packets(s, dir) - s->flows[dir].entered_packets;
}

/* --- in --- */

bool session_stay_may(const struct session *s, unsigned int dir)
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

void session_stay_enter(struct session *s, unsigned int dir, enum reason reason)
{
	const struct policy *p = policy_of(s);
	struct flow *f = &s->flows[dir];
	struct sockmap_io io;
	enum step step;
	int r;

	if (p->engine != ENGINE_AUTO && p->engine != ENGINE_SOCKMAP)
		return; /* since just now */
	if (f->phase != FLOW_USER || f->pending || f->starved || !session_stay_may(s, dir))
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
		session_part(s, dir, session_cause(dir, io.error));
		return;
	}
	if (r) {
		refused(s, dir, r);
		return;
	}
	if (dir == CLIENT)
		session_set_nodelay(s);
	s->engines[dir] = (uint8_t)p->engine;
	f->reason = reason;
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	f->entered_packets = packets(s, dir);
	flow_set_phase(f, FLOW_KERNEL);
	session_count_handover(s, f, CARRIER_SOCKMAP);
	step = sockmap_kick(&io);
	if (step_ok(s, dir, step, &io) && step == STEP_WAIT)
		session_stay_demote(s, dir, CULVERT_EVENT_PASSED); /* the timer goes on from there */
}

/* --- out --- */

void session_stay_leave(struct session *s, unsigned int dir, struct decision d)
{
	struct flow *f = &s->flows[dir];

	f->user_carrier = d.carrier;
	f->reason = d.reason;
	session_count_handover(s, f, d.carrier);
	flow_set_phase(f, FLOW_LEAVING);
}

void session_stay_demote(struct session *s, unsigned int dir, unsigned int kind)
{
	habit_demoted(policy_of(s), &s->habit);
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	session_stay_leave(s, dir, policy_kernel(policy_of(s), kind));
}

bool session_stay_has_left(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_leave(&io);

	session_count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

bool session_stay_has_drained(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_drain(&io);

	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

bool session_stay_has_finished(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_finish(&io);

	session_count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

enum step session_stay_rest(struct session *s, unsigned int dir)
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = sockmap_rest(&io);

	session_count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	return r;
}

bool session_stay_ended(struct session *s, unsigned int dir)
{
	struct sockmap_io io;

	if (s->pair == NO_PAIR)
		return true;
	io = sockmap_io(s, dir);
	return sockmap_ended(&io);
}
