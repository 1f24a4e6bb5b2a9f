// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A flow is moved by run_step(), one step for each phase.  In USER the session reads and writes
 * itself (pump_once()), and after each turn asks the policy whether another carrier would be better
 * (judge()).  If that is sockmap, both flows enter the kernel as soon as their sources were found
 * empty (enter()), and the session does nothing until the program's event makes a flow
 * leave.  LEAVING, DRAINING and FINISHING are steps of carrier_sockmap.h that are tried until each
 * is done; the caller waits for what flow_wants() says meanwhile.
 *
 * The engine of a forward may change while its sessions run.  A flow remembers which engine it
 * follows (f->engine), and begins anew with the other one when nothing of it is pending.
 *
 * PARTING: one end has sent RST, or TCP has given it up.  What it had said before is in its receive
 * queue, in the kernel's backlog or in buffers here, and without culvert in between the other end
 * would have got it ahead of the RST: a server that answers "too large" and closes with the request
 * unread, say.  So the other end gets it, and then RST.  Neither socket is watched meanwhile, since
 * the dead one would raise EPOLLHUP all the time: a timer is enough for what is at most a receive
 * buffer.  RST follows when the other end's TCP has sent all of it (SIOCOUTQNSD), because close(2)
 * would throw away what is not yet sent.
 */
#include "relay/session_flow.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"
#include "datapath/carrier.h"
#include "datapath/carrier_sockmap.h"
#include "datapath/tcp.h"
#include "relay/session_graft.h"

/* Steps of one flow in one go: enough for LEAVING -> DRAINING -> USER and a few retries. */
#define RUN_STEPS 8

/* PARTING lasts no longer: nobody waits for a slow end to take what a dead one has said. */
#define PARTING_MS 5000

/*
 * Flows that leave for want of kernel memory in one sweep.  To leave takes some 6 system calls and a fence.
 * The program tells of those that run; the sweep finds the quiet ones.
 */
#define SWEEP_LEAVES 256

SYSCALLS_NEEDED(
	SYSCALL(shutdown),
	SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQNSD)));

/* --- counting --- */

/* Count BYTES of flow DIR that carrier C has read. */
static void count_carried(struct session *s, unsigned int dir, enum carrier c, uint64_t bytes)
{
	count_add(&s->worker->stats.carrier_bytes[c], bytes);
	count_add(&forward_stats(s->forward, s->worker->index)->carried[dir][c], bytes);
}

/* The same of flow F, which user space has read. */
static void count_read(struct session *s, struct flow *f, enum carrier c, uint64_t bytes)
{
	if (!bytes)
		return;
	if (c == CARRIER_SPLICE)
		f->spliced += bytes;
	count_carried(s, (unsigned int)(f - s->flows), c, bytes);
}

/* Count that flow F has got carrier C, or is about to, for the reason that it has. */
static void count_handover(struct session *s, struct flow *f, enum carrier c)
{
	f->handovers++;
	count_add(&s->worker->stats.handovers[c][f->reason], 1);
}

enum carrier session_kernel_carrier(const struct session *s)
{
	return s->graft != NO_GRAFT ? CARRIER_GRAFT : CARRIER_SOCKMAP;
}

uint64_t session_kernel_bytes(const struct session *s, unsigned int dir)
{
	if (s->graft != NO_GRAFT)
		return graft_bytes(s->worker->shared->grafts, s->graft, dir);
	if (s->pair == NO_PAIR)
		return 0;
	return sockmap_redirected(s->worker->shared->kernel, s->pair * 2 + dir, &s->flows[dir]);
}

/* How much of that the counters have; NULL: S has no place in the kernel. */
static volatile uint64_t *counted_of(struct session *s, unsigned int dir)
{
	struct shared *shared = s->worker->shared;

	if (s->graft != NO_GRAFT)
		return graft_counted(shared->grafts, s->graft, dir);
	return s->pair == NO_PAIR ? NULL : (volatile uint64_t *)
		&kernel_ctl(shared->kernel, s->pair * 2 + dir)->counted;
}

void session_count_kernel(struct session *s)
{
	bool grafted = !s->graft_counted && session_is_grafted(s);

	for (unsigned int dir = 0; dir < 2; dir++) {
		volatile uint64_t *counted = counted_of(s, dir);
		uint64_t bytes = session_kernel_bytes(s, dir);

		if (counted && bytes > *counted) { /* what packets write is read without a lock */
			count_carried(s, dir, session_kernel_carrier(s), bytes - *counted);
			*counted = bytes;
		}
		if (grafted)
			count_add(&s->worker->stats.handovers[CARRIER_GRAFT]
						  [flow_graft_reason(&s->flows[dir])], 1);
	}
	s->graft_counted = s->graft_counted || grafted;
}

/* --- the engine that a flow follows --- */

static bool may_be_in_kernel(enum engine engine)
{
	return engine == ENGINE_AUTO || engine == ENGINE_SOCKMAP;
}

/* Give flow DIR what ENGINE begins with. */
static void begin_by(struct session *s, unsigned int dir, enum engine engine)
{
	struct decision d = policy_start(engine);
	struct flow *f = &s->flows[dir];

	s->flows[dir].engine = engine;
	f->user_carrier = d.carrier;
	f->reason = d.reason;
	if (may_be_in_kernel(engine)) {
		if (!s->tcp)
			f->reason = REASON_NOT_TCP;
		else if (!s->worker->shared->kernel)
			f->reason = REASON_NO_KERNEL;
	}
}

/* User space carries flow DIR, and nothing of it is pending: let it follow ENGINE. */
static void follow_engine(struct session *s, unsigned int dir, enum engine engine)
{
	struct flow *f = &s->flows[dir];
	uint8_t before = f->user_carrier;

	if (s->flows[dir].engine == engine)
		return;
	begin_by(s, dir, engine);
	s->graft_refusal = GRAFT_OK;
	f->no_enter = false;
	if (s->pair != NO_PAIR && engine != ENGINE_SOCKMAP) /* see sockmap_io.returns */
		tcp_free_buffer(s->sides[dir].fd);
	if (f->user_carrier != before)
		count_handover(s, f, f->user_carrier);
	habit_restart(&s->habit);
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
}

/* --- slots: places in the kernel's maps, one for each side --- */

/*
 * S takes its slots when a flow first enters the kernel, and keeps them to its end.  -errno of the
 * map update, -ENOSPC if all are taken.
 */
static int take_slots(struct session *s)
{
	struct worker *w = s->worker;
	struct kernel *k = w->shared->kernel;
	uint32_t pair;
	int r;

	if (s->pair != NO_PAIR)
		return 0;
	r = kernel_pair_get(k, &pair);
	if (r)
		return r;
	for (unsigned int side = 0; side < 2; side++) {
		r = kernel_admit(k, pair * 2 + side, s->sides[side].fd);
		if (!r)
			continue;
		if (side)
			kernel_forget(k, pair * 2, false);
		kernel_pair_put(k, pair);
		return r;
	}
	s->pair = pair;
	for (unsigned int dir = 0; dir < 2; dir++) {
		const volatile struct culvert_stat *st = kernel_stat(k, pair * 2 + dir);

		s->flows[dir].base_bytes = st->bytes;
		kernel_ctl(k, s->pair * 2 + dir)->counted = 0;
		s->flows[dir].base_dropped = (uint32_t)st->dropped;
	}
	w->owners[pair] = s;
	if (!w->in_kernel++)
		timer_set(&w->loop, &w->sweep, w->loop.now_ms + WORKER_SWEEP_MS);
	return 0;
}

void session_give_slots(struct session *s)
{
	struct worker *w = s->worker;
	struct kernel *k = w->shared->kernel;

	if (s->pair == NO_PAIR)
		return;
	w->owners[s->pair] = NULL;
	if (!--w->in_kernel)
		timer_cancel(&w->loop, &w->sweep);
	for (unsigned int side = 0; side < 2; side++)
		kernel_forget(k, s->pair * 2 + side, true);
	kernel_pair_put(k, s->pair);
	s->pair = NO_PAIR;
}

/* --- a stay in the kernel --- */

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
		.returns = engine_of(s) == ENGINE_SOCKMAP,
		.bulk_bytes = engine_of(s) == ENGINE_AUTO ? KERNEL_BULK : 0,
		.bulk_ratio = KERNEL_BULK_RATIO,
		.bulk_skb = KERNEL_BULK_SKB,
		.read_ahead = (uint32_t)forward_of(s)->hard_limit,
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
		  flow_phase_name(f->phase), (unsigned long long)b->received,
		  (unsigned long long)b->redirected, (unsigned long long)f->user_in,
		  (unsigned long long)b->unread, (unsigned long long)f->user_out,
		  (unsigned long long)b->accepted);
}

/* Step R of flow DIR has been tried.  False: the session has been reset, or parts. */
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

/* Try STEP of flow DIR.  True: it is done; false: it goes on, or the session has ended. */
static bool try_step(struct session *s, unsigned int dir, enum step (*step)(struct sockmap_io *io))
{
	struct sockmap_io io = sockmap_io(s, dir);
	enum step r = step(&io);

	count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	return step_ok(s, dir, r, &io) && r == STEP_DONE;
}

/* Nothing is known that speaks against carrying flow DIR in the kernel. */
static bool may_enter(const struct session *s, unsigned int dir)
{
	const struct flow *f = &s->flows[dir];

	return s->worker->shared->kernel && s->tcp && !s->pace && s->graft == NO_GRAFT &&
	       !f->no_enter && !f->eof;
}

/* The kernel has refused flow DIR: remember why.  User space goes on. */
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
			    "sockmap: %s", (unsigned long long)s->id, strerror(-error));
	}
	count_add(&s->worker->stats.handovers[HANDOVER_FAILED][f->reason], 1);
}

/* Flow DIR, which is in the kernel, begins to leave it, to be carried as D says. */
static void leave(struct session *s, unsigned int dir, struct decision d)
{
	struct flow *f = &s->flows[dir];

	f->user_carrier = d.carrier;
	f->reason = d.reason;
	count_handover(s, f, d.carrier);
	flow_set_phase(f, FLOW_LEAVING);
}

/* Make flow DIR leave because of an event of KIND from the program. */
static void demote(struct session *s, unsigned int dir, unsigned int kind)
{
	habit_demoted(&s->habit);
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	leave(s, dir, policy_kernel(kind));
}

/*
 * Flow DIR enters the kernel for REASON if it can.  If not, it stays where it is, and either keeps
 * why, or tries again after the next turn of reads.
 */
static void enter(struct session *s, unsigned int dir, enum reason reason)
{
	enum engine engine = engine_of(s);
	struct flow *f = &s->flows[dir];
	struct sockmap_io io;
	enum step step;
	int r;

	if (!may_be_in_kernel(engine))
		return; /* since just now */
	if (f->phase != FLOW_USER || f->pending || f->starved || !may_enter(s, dir))
		return;
	r = take_slots(s);
	if (r) {
		refused(s, dir, r);
		return;
	}
	io = sockmap_io(s, dir);
	r = sockmap_enter(&io, forward_of(s), s->worker->index);
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
	s->flows[dir].engine = engine;
	f->reason = reason;
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	flow_set_phase(f, FLOW_KERNEL);
	count_handover(s, f, CARRIER_SOCKMAP);
	step = sockmap_kick(&io);
	if (step_ok(s, dir, step, &io) && step == STEP_WAIT)
		demote(s, dir, CULVERT_EVENT_PASSED); /* the timer goes on from there */
}

/* Was it a FIN, where flow DIR has read EOF?  In doubt only if the kernel has had the sockets. */
static bool is_fin(struct session *s, unsigned int dir)
{
	struct sockmap_io io;

	if (s->pair == NO_PAIR)
		return true;
	io = sockmap_io(s, dir);
	return sockmap_ended(&io);
}

/* --- user space carries --- */

static void switch_carrier(struct session *s, struct flow *f, struct decision d)
{
	f->reason = d.reason;
	f->user_carrier = d.carrier;
	count_handover(s, f, d.carrier);
	habit_restart(&s->habit);
}

/* Is another carrier better for flow DIR?  EMPTY: its source was just found to have no more. */
static void judge(struct session *s, unsigned int dir, bool empty)
{
	enum engine engine = engine_of(s);
	struct flow *f = &s->flows[dir];
	struct setting around = { .limited = s->pace };
	struct decision d;

	if (f->pending && s->flows[dir].engine != engine)
		return; /* it follows once nothing is pending: a pipe is not for copy */
	follow_engine(s, dir, engine);
	around.kernel_ok = may_enter(s, dir);
	around.memory_short = around.kernel_ok && kernel_memory_short(s->worker->shared->kernel);
	around.watch_ms = (uint32_t)s->worker->loop.now_ms - s->watched_ms;
	d = policy_user(engine, &s->habit, dir, f, around);
	if (s->habit.turns >= PROMOTE_TURNS || s->habit.run >= BULK_RUN)
		session_graft_hurry(s);
	else if (empty)
		session_graft_offer(s);
	if (d.carrier == CARRIER_SOCKMAP) {
		if (!empty)
			return;
		enter(s, dir, d.reason);
		/* a session is promoted as a whole; the other half is quiet just now */
		if (s->state == SESSION_OPEN)
			enter(s, !dir, d.reason);
	} else if (d.carrier != f->user_carrier &&
		   (!f->pending || (f->head && d.carrier == CARRIER_SPLICE))) {
		/* what is pending in buffers is written first, whatever the carrier */
		switch_carrier(s, f, d);
	} else {
		if (d.carrier == f->user_carrier)
			f->reason = d.reason;
		if (habit_full(&s->habit))
			habit_restart(&s->habit);
	}
}

/*
 * To follow another engine nothing may be pending, and a target that is full all the time would
 * never let it come to that: so nothing more is read before.
 */
static uint64_t may_read(struct session *s, unsigned int dir)
{
	if (s->flows[dir].pending && s->flows[dir].engine != engine_of(s))
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
	count_read(s, f, f->user_carrier, io.read);
	*ret_error = io.error;
	return r;
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

/* Flow DIR has delivered all of a stream that has ended. */
static void flow_finished(struct session *s, unsigned int dir)
{
	struct flow *f = &s->flows[dir];
	bool last = s->flows[!dir].phase == FLOW_DONE;

	if (!session_graft_withdraw(s)) {
		session_reset(s, CAUSE_INTERNAL);
		return;
	}
	/* of the last one, close(2) sends the FIN */
	if (!last && shutdown(s->sides[!dir].fd, SHUT_WR)) {
		session_part(s, !dir, session_cause(!dir, errno));
		return;
	}
	flow_set_phase(f, FLOW_DONE);
	if (last)
		session_finish(s);
}

static void run_user(struct session *s, unsigned int dir, bool fin)
{
	struct flow *f = &s->flows[dir];
	int error;
	enum pump r;

	if (!f->pending)
		follow_engine(s, dir, engine_of(s));
	if (!pump_turn(s, dir, fin, &r, &error))
		return;
	/* a short splice(2) may leave bytes: it ends when the pipe's slots are full */
	f->quiet = r == PUMP_EMPTY && !fin && f->user_carrier == CARRIER_COPY;
	switch (r) {
	case PUMP_EOF:
		if (!is_fin(s, dir)) {
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
		f->starved = true;
		flow_look_later(f, s->worker->loop.now_ms);
		count_add(&s->worker->stats.errors[CAUSE_NO_MEMORY], 1);
		log_cause(CAUSE_NO_MEMORY, LOG_WARNING, "session %llu, forward %s: waits",
			  (unsigned long long)s->id, forward_name(forward_of(s)));
		return;
	default:
		judge(s, dir, r == PUMP_EMPTY);
	}
}

/* --- from phase to phase --- */

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
		else if (try_step(s, dir, sockmap_leave))
			flow_set_phase(f, FLOW_DRAINING);
		else
			return false;
		return true;
	case FLOW_DRAINING:
		if (!try_step(s, dir, sockmap_drain))
			return false;
		flow_set_phase(f, FLOW_USER);
		return true;
	case FLOW_FINISHING:
		if (try_step(s, dir, sockmap_finish))
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

void session_flows_start(struct session *s)
{
	enum engine engine = engine_of(s);

	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
	s->connect_ms = s->watched_ms - (uint32_t)s->born_ms + 1;
	session_pace_start(s);
	for (unsigned int dir = 0; dir < 2; dir++)
		begin_by(s, dir, engine);
	for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++)
		judge(s, dir, true);
}

/* --- PARTING --- */

/* Unix sockets do not know SIOCOUTQNSD: what is written there is the other end's already. */
static bool is_sent(int fd)
{
	int unsent = 0;

	return ioctl(fd, SIOCOUTQNSD, &unsent) || !unsent;
}

/*
 * Read and write what is left of flow DIR, of which the kernel has nothing any more.  False: there
 * is more, or it may not be read yet.
 */
static bool take_rest(struct session *s, unsigned int dir)
{
	enum pump r = PUMP_MORE;
	int error;

	for (int i = 0; r == PUMP_MORE && i < RUN_STEPS; i++)
		if (!pump_turn(s, dir, true, &r, &error))
			return false;
	return r != PUMP_MORE && r != PUMP_BLOCKED && r != PUMP_STARVED && r != PUMP_UNSUPPORTED;
}

/* True: the other end's TCP has all that it can get. */
static bool take_what_was_said(struct session *s)
{
	unsigned int dir = s->parted;
	struct sockmap_io io;
	enum step r;

	if (s->flows[dir].phase == FLOW_USER)
		return take_rest(s, dir);
	io = sockmap_io(s, dir);
	r = sockmap_rest(&io);
	count_read(s, &s->flows[dir], CARRIER_COPY, io.read);
	return r == STEP_DONE ? take_rest(s, dir) : r != STEP_WAIT;
}

static void go_on_parting(struct session *s)
{
	struct flow *f = &s->flows[s->parted];
	uint64_t before = f->user_in + f->user_out;
	bool taken = take_what_was_said(s);

	if (f->user_in + f->user_out != before)
		flow_look_reset(f);
	if ((taken && is_sent(s->sides[!s->parted].fd)) ||
	    (uint32_t)s->worker->loop.now_ms - s->parted_ms >= PARTING_MS) {
		session_reset(s, (enum cause)s->end_cause);
		return;
	}
	flow_look_later(f, s->worker->loop.now_ms);
}

void session_part(struct session *s, unsigned int side, enum cause cause)
{
	struct flow *f = &s->flows[side];

	if (s->state == SESSION_OPEN && !session_graft_withdraw(s)) {
		session_reset(s, cause);
		return;
	}
	if (s->state == SESSION_PARTING && s->parted == side)
		return; /* a write has found it out, and epoll says so as well */
	if (s->state != SESSION_OPEN || f->phase == FLOW_DONE) {
		session_reset(s, cause);
		return;
	}
	session_set_state(s, SESSION_PARTING);
	s->end_cause = (uint8_t)cause;
	s->parted = side;
	s->parted_ms = (uint32_t)s->worker->loop.now_ms;
	flow_look_reset(f);
	go_on_parting(s);
}

void session_part_timer(struct session *s)
{
	if (s->flows[s->parted].due_ms <= s->worker->loop.now_ms)
		go_on_parting(s);
}

/* --- what a worker asks of all its sessions --- */

/* The program has reported KIND (enum culvert_event_kind) for flow DIR, or would have. */
static void kernel_event(struct session *s, unsigned int dir, unsigned int kind)
{
	if (kind == CULVERT_EVENT_LOST) {
		session_reset(s, CAUSE_KERNEL_LOST);
		return;
	}
	if (s->flows[dir].phase == FLOW_KERNEL) {
		demote(s, dir, kind);
		/* with half a session user space would see no turns: it is judged as a whole */
		if (engine_of(s) == ENGINE_AUTO && s->flows[!dir].phase == FLOW_KERNEL) {
			leave(s, !dir, (struct decision){ CARRIER_COPY, REASON_REVIEW });
			session_flow_run(s, !dir, false);
		}
	}
	if (s->state == SESSION_OPEN)
		session_flow_run(s, dir, false);
}

void session_kernel_event(void *worker, const void *event)
{
	const struct culvert_event *ev = event;
	struct worker *w = worker;
	struct session *s = w->owners[ev->slot / 2];

	if (ev->kind == CULVERT_EVENT_MEMORY)
		kernel_memory_told(w->shared->kernel);
	if (!s || s->state != SESSION_OPEN)
		return;
	if ((uint16_t)kernel_ctl(w->shared->kernel, ev->slot)->epoch != ev->epoch)
		return;
	kernel_event(s, ev->slot % 2, ev->kind);
	session_update(s);
}

/* Look at flow DIR, which is in the kernel; of LEAVES it may take one. */
static void sweep_flow(struct session *s, unsigned int dir, unsigned int *leaves)
{
	struct kernel *k = s->worker->shared->kernel;
	uint32_t slot = s->pair * 2 + dir;
	const volatile struct culvert_stat *st = kernel_stat(k, slot);

	if ((uint32_t)st->dropped != s->flows[dir].base_dropped) {
		kernel_event(s, dir, CULVERT_EVENT_LOST);
	} else if (st->passed != s->flows[dir].credit) {
		kernel_event(s, dir, CULVERT_EVENT_PASSED);
	} else if (sockmap_closed(k, slot)) {
		kernel_event(s, dir, CULVERT_EVENT_SOFT);
	} else if (*leaves && kernel_is_charged(k, slot) && kernel_memory_short(k)) {
		--*leaves;
		kernel_event(s, dir, CULVERT_EVENT_MEMORY);
	}
}

void session_sweep(struct worker *w)
{
	unsigned int leaves = SWEEP_LEAVES;
	struct session *s = w->sessions, *next;

	for (; s; s = next) {
		next = s->next;
		for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++)
			if (s->flows[dir].phase == FLOW_KERNEL)
				sweep_flow(s, dir, &leaves);
		session_update(s);
	}
}

/* False: flow DIR will follow the engine, but bytes are still on the way by the old one. */
static bool has_followed(struct session *s, unsigned int dir)
{
	enum engine engine = engine_of(s);
	struct flow *f = &s->flows[dir];

	if (s->flows[dir].engine == engine)
		return true;
	if (!session_graft_leave(s))
		return false;
	if (f->phase == FLOW_KERNEL)
		leave(s, dir, policy_start(engine));
	session_flow_run(s, dir, false);
	return s->state != SESSION_OPEN || f->phase == FLOW_DONE || f->phase == FLOW_FINISHING ||
	       s->flows[dir].engine == engine;
}

unsigned int session_follow_engines(struct worker *w)
{
	struct session *s = w->sessions, *next;
	unsigned int n = 0;

	for (; s; s = next) {
		next = s->next;
		for (unsigned int dir = 0; dir < 2 && s->state == SESSION_OPEN; dir++)
			n += !has_followed(s, dir);
		session_update(s);
	}
	return n;
}
