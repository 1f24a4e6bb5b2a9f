// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * A flow is moved by session_flow_run(), from phase to phase.  In USER the session reads and writes
 * itself (pump_once()), and after each turn asks the policy whether another carrier would be better
 * (judge()).  If that is sockmap, both flows enter the kernel as soon as their sources were found
 * empty (session_sockmap_enter()), and the session does nothing until the program's event makes a
 * flow leave.  LEAVING, DRAINING and FINISHING are steps of carrier_sockmap.h that are tried until
 * each is done; the caller waits for what flow_wants() says meanwhile.
 *
 * The engine of a forward may change while its sessions run.  A flow remembers which engine it
 * follows (f->engine), and begins anew with the other one when nothing of it is pending.
 */
#include "relay/session_flow.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/syscalls_allowed.h"
#include "datapath/carrier_copy.h"
#include "datapath/sockmap/carrier_sockmap.h"
#include "datapath/tcp.h"
#include "relay/session_graft.h"
#include "relay/session_idle_keepalive.h"
#include "relay/session_json.h"
#include "relay/session_sockmap.h"

SYSCALLS_ALLOWED(SYSCALL(shutdown));

/* --- the engine that a flow follows --- */

/* Give flow DIR the first carrier of ENGINE, and the reason. */
static void begin_by(struct session *s, unsigned int dir, enum engine engine)
{
	const struct shared *shared = s->worker->shared;
	struct decision d = policy_start(engine);
	struct flow *f = &s->flows[dir];

	f->engine = engine;
	f->user_carrier = d.carrier;
	f->reason = d.reason;
	if (engine != ENGINE_AUTO && engine != ENGINE_SOCKMAP)
		return;
	if (!s->tcp)
		f->reason = REASON_NOT_TCP;
	else if (!shared->kernel || probe_has_failed(shared->probe, ENGINE_SOCKMAP))
		f->reason = REASON_NO_KERNEL;
}

/* User space carries flow DIR, and nothing of it is pending: let it follow ENGINE. */
static void follow_engine(struct session *s, unsigned int dir, enum engine engine)
{
	struct flow *f = &s->flows[dir];
	uint8_t before = f->user_carrier;

	if (f->engine == engine)
		return;
	begin_by(s, dir, engine);
	s->graft_refusal = GRAFT_OK;
	f->no_enter = false;
	if (s->pair != NO_PAIR && engine != ENGINE_SOCKMAP) /* see sockmap_io.returns */
		tcp_unfix_buffer(s->sides[dir].fd);
	if (f->user_carrier != before)
		session_hand_over(s, dir, (struct decision){ f->user_carrier, f->reason });
	habit_restart(&s->habit);
	s->since_ms = (uint32_t)s->worker->loop.now_ms;
}

/* --- user space carries --- */

/* Is another carrier better for flow DIR?  EMPTY: its source was just found to have no more. */
static void judge(struct session *s, unsigned int dir, bool empty)
{
	enum engine engine = s->forward->engine;
	struct flow *f = &s->flows[dir];
	struct setting around = { .limited = s->pace, .bulk = session_graft_bulk(s) };
	bool far = around.bulk != REASON_BULK, foreign = s->graft_refusal == GRAFT_FOREIGN;
	struct decision d;

	s->spoke_ms = (uint32_t)s->worker->loop.now_ms;
	/* run_user() will follow the engine, once nothing is pending */
	if (f->engine != engine)
		return;
	around.kernel_ok = !far && !foreign && session_sockmap_may_enter(s, dir);
	around.memory_short = around.kernel_ok && sockmap_memory_short(s->worker->shared->kernel);
	around.watch_ms = (uint32_t)s->worker->loop.now_ms - s->since_ms;
	d = policy_user(engine, &s->habit, dir, f, around);
	if (foreign) /* splice(2) does not see bytes that a sockmap of others has put in */
		d = (struct decision){ CARRIER_COPY, f->reason };
	if (s->habit.turns >= PROMOTE_TURNS || s->habit.run >= BULK_RUN)
		session_graft_hurry(s);
	if (empty && (far || (s->habit.turns < PROMOTE_TURNS && s->habit.run < BULK_RUN)))
		session_graft_offer(s);
	if (d.carrier == CARRIER_SOCKMAP) {
		if (!empty)
			return;
		session_sockmap_enter(s, dir, engine, d.reason);
		/* a session is promoted as a whole; the other flow is quiet now */
		if (session_runs(s))
			session_sockmap_enter(s, !dir, engine, d.reason);
	} else if (d.carrier != f->user_carrier &&
		   (!f->pending || (f->head && d.carrier == CARRIER_SPLICE))) {
		/* both carriers write pending buffers first */
		session_hand_over(s, dir, d);
		habit_restart(&s->habit);
	} else {
		if (d.carrier == f->user_carrier)
			f->reason = d.reason;
		if (habit_full(&s->habit))
			habit_restart(&s->habit);
	}
}

/*
 * A flow follows another engine when nothing is pending.  If the target is always full, some bytes
 * always are pending.  So a flow reads nothing more before it follows the other engine.
 */
static uint64_t may_read(struct session *s, unsigned int dir)
{
	if (s->flows[dir].pending && s->flows[dir].engine != s->forward->engine)
		return 0;
	return pace_left(s->pace, dir);
}

static enum pump pump_once(struct session *s, unsigned int dir, bool fin, enum carrier by,
			   int *ret_error)
{
	struct flow *f = &s->flows[dir];
	struct pump_io io = {
		.flow = f,
		.pool = &s->worker->pool,
		.src = s->sides[dir].fd,
		.dst = s->sides[!dir].fd,
		.buffer_size = s->forward->conf->copy_buffer,
		.limit = may_read(s, dir),
		.until_eof = fin,
	};
	uint64_t before = f->user_out;
	enum pump r;

	f->starved = false;
	r = carrier_pump(&io, by);
	if (!s->tcp && s->idle && (io.read || f->user_out != before)) /* TCP keeps its own times */
		s->idle->since_ms = clock_ms();
	if (dir == CLIENT && f->user_out != before &&
	    (before || s->header_out || io.reads > 1 || f->pending))
		session_set_nodelay(s);
	pace_used(s->pace, dir, io.read);
	habit_read(&s->habit, dir, io.read, io.reads);
	session_count_copied(s, dir, by, io.read);
	if (by == CARRIER_SPLICE)
		f->spliced += io.read;
	*ret_error = io.error;
	return r;
}

/* True if a turn of flow DIR may begin.  False: it is `paced`, and waits until due_ms. */
static bool begin_turn(struct session *s, unsigned int dir)
{
	struct flow *f = &s->flows[dir];
	uint64_t due_ms;

	/* pending bytes were read in an earlier turn, and are written before more is read */
	if (!s->pace || f->pending)
		return true;
	f->paced = !pace_begin(s->pace, dir, &due_ms);
	if (f->paced)
		f->due_ms = due_ms;
	return !f->paced;
}

bool session_flow_pump(struct session *s, unsigned int dir, bool fin, enum pump *ret,
		       int *ret_error)
{
	struct flow *f = &s->flows[dir];
	bool no_pipe;

	if (!begin_turn(s, dir))
		return false;
	*ret = pump_once(s, dir, fin, f->user_carrier, ret_error);
	no_pipe = *ret == PUMP_STARVED && f->user_carrier == CARRIER_SPLICE && !f->pending;
	if (no_pipe)
		session_hand_over(s, dir, (struct decision){ CARRIER_COPY, REASON_NO_PIPE });
	if (no_pipe || *ret == PUMP_UNSUPPORTED) /* an urgent byte is next */
		*ret = pump_once(s, dir, fin, CARRIER_COPY, ret_error);
	pace_end(s->pace, dir);
	if (*ret == PUMP_MORE)
		begin_turn(s, dir);
	return true;
}

/* Flow DIR has delivered all of a stream that has ended. */
static void flow_finished(struct session *s, unsigned int dir)
{
	bool last = s->flows[!dir].phase == FLOW_DONE;

	if (!session_graft_withdraw(s)) {
		session_reset(s, CAUSE_INTERNAL);
	} else if (!last && shutdown(s->sides[!dir].fd, SHUT_WR)) {
		session_lose_side(s, !dir, errno);
	} else {
		flow_set_phase(&s->flows[dir], FLOW_DONE);
		if (last) /* close(2) sends the FIN */
			session_finish(s);
	}
}

static void run_user(struct session *s, unsigned int dir, bool fin)
{
	struct flow *f = &s->flows[dir];
	int error;
	enum pump r;

	if (!f->pending)
		follow_engine(s, dir, s->forward->engine);
	if (!session_flow_pump(s, dir, fin, &r, &error))
		return;
	/* a short splice(2) may leave bytes: it ends when the pipe's slots are full */
	f->quiet = r == PUMP_EMPTY && !fin && f->user_carrier == CARRIER_COPY;
	if (r == PUMP_EOF && session_sockmap_is_fin(s, dir)) {
		flow_finished(s, dir);
	} else if (r == PUMP_EOF || r == PUMP_SRC_ERROR) {
		session_lose_side(s, dir, error); /* 0: EOF without FIN was RST */
	} else if (r == PUMP_DST_ERROR) {
		session_lose_side(s, !dir, error);
	} else if (r == PUMP_STARVED) {
		f->starved = true;
		flow_look_later(f, s->worker->loop.now_ms);
		count_add(&s->worker->stats.errors[CAUSE_NO_MEMORY], 1);
		log_cause(CAUSE_NO_MEMORY, LOG_WARNING,
			  "session %llu, forward %s: waits for memory", (unsigned long long)s->id,
			  forward_name(s->forward->conf));
	} else {
		judge(s, dir, r == PUMP_EMPTY);
	}
}

/* --- from phase to phase --- */

void session_flow_run(struct session *s, unsigned int dir, bool fin)
{
	struct flow *f = &s->flows[dir];

	if (!session_runs(s))
		return;
	if (fin && (f->phase == FLOW_KERNEL || f->phase == FLOW_LEAVING))
		flow_set_phase(f, FLOW_FINISHING);
	if (f->phase == FLOW_LEAVING && session_sockmap_try(s, dir, sockmap_leave))
		flow_set_phase(f, FLOW_DRAINING);
	if (f->phase == FLOW_DRAINING && session_sockmap_try(s, dir, sockmap_drain))
		flow_set_phase(f, FLOW_USER);
	if (f->phase == FLOW_USER)
		run_user(s, dir, fin);
	else if (f->phase == FLOW_FINISHING && session_sockmap_try(s, dir, sockmap_finish))
		flow_finished(s, dir);
}

void session_flows_start(struct session *s)
{
	enum engine engine = s->forward->engine;

	s->since_ms = (uint32_t)s->worker->loop.now_ms;
	s->connect_ms = s->since_ms - (uint32_t)s->born_ms + 1;
	if (forward_pace(s->forward, &s->client.sa, &s->pace))
		session_reset(s, CAUSE_NO_MEMORY);
	for (unsigned int dir = 0; dir < 2; dir++)
		begin_by(s, dir, engine);
	for (unsigned int dir = 0; dir < 2 && session_runs(s); dir++)
		judge(s, dir, true);
}

int session_flows_take(struct session *s)
{
	s->since_ms = s->spoke_ms = (uint32_t)s->worker->loop.now_ms;
	for (unsigned int dir = 0; dir < 2; dir++)
		begin_by(s, dir, s->forward->engine);
	return forward_pace(s->forward, &s->client.sa, &s->pace);
}

/* --- another engine --- */

bool session_flow_follow(struct session *s, unsigned int dir)
{
	enum engine engine = s->forward->engine;
	struct flow *f = &s->flows[dir];

	if (!session_graft_detach(s))
		return false;
	if (f->engine == engine)
		return true;
	if (f->phase == FLOW_KERNEL)
		session_sockmap_leave(s, dir, policy_start(engine));
	session_flow_run(s, dir, false);
	return !session_runs(s) || f->phase >= FLOW_FINISHING || f->engine == engine;
}
