// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a behaviour is a session that must go as its plan says.
 *
 *	outer[UP] ===== inner[UP] | inner[DOWN] ===== outer[DOWN]
 *	  client           the session's sockets           server
 *
 * Flow and stream UP go from left to right, DOWN from right to left.  A thread sends each stream,
 * and then FIN.  One loop moves both flows from phase to phase, with the daemon's hand-overs, and
 * receives at both ends, until both streams have ended.  A step that fails calls give_up(), which
 * jumps back to behaviour_holds(), as an assertion ends a test.
 */
#include "probe/behaviours.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "datapath/carrier_sockmap.h"
#include "probe/rig.h"

#define KIB 1024
#define MIB (1024 * 1024)

/* What one behaviour may wait for, all in all: a kernel worker has waited 10 s for a busy CPU. */
#define DEADLINE_MS 15000
#define BUFFER_SIZE (64 * KIB)
/* Stream DOWN begins at this offset, so that bytes that come back are wrong bytes. */
#define DOWN_OFFSET 20011
/* An odd size, so that bytes of one skb end anywhere. */
#define PIECE 3001
/* What each stay in the kernel carries, at least, of a flow that comes and goes. */
#define REDIRECTED (16 * KIB)
/* A sender that may not send sleeps after so long, to leave CPUs to the kernel's workers. */
#define BUSY_MS 1
/* One interval of looks may pass before the program looks again, and each skb costs overhead. */
#define BACKLOG_SLACK (256 * KIB)

enum { UP, DOWN };

/* What a session does. */
struct plan {
	uint64_t len[2];     /* bytes of the streams; with STAYS: more than it takes */
	uint64_t ahead;      /* what a sender may be ahead of its receiver */
	unsigned int stays;  /* so often flow UP enters the kernel and leaves it, then all ends */
	enum probe_carrier by; /* 0: sockmap */
	uint64_t hard_limit; /* bytes */
	enum { AT_ONCE, BLOCKED, PASSED, OTHER_ENDS } until; /* then the server receives */
};

/* Bytes of one direction.  A thread sends while the loop receives. */
struct stream {
	int fd;
	uint64_t offset, ahead, sent;
	_Atomic uint64_t len, got;
	bool eof; /* received */
	bool has_sender;
	pthread_t sender; /* ends when the socket is shut down, or at len */
};

struct trial {
	const struct plan *plan;
	struct kernel *kernel;
	struct grafts *grafts;
	bool small;
	struct pool pool;
	int outer[2], inner[2]; /* -1: closed */
	uint32_t pair;
	bool has_pair;
	uint32_t graft; /* slot */
	bool has_graft;
	struct flow flows[2];
	struct stream streams[2];
	uint64_t base[2];    /* bytes redirected and passed by the slots' earlier owners */
	uint64_t base_passed; /* of flow UP */
	uint64_t upto;       /* redirected bytes of flow UP at which it leaves the kernel */
	unsigned int stays;  /* still to be made */
	bool blocked;        /* flow UP's target was full */
	bool stalled;        /* the server does not receive yet */
	uint64_t deadline_ms;
	char *detail; /* what failed */
	jmp_buf failed;
};

/* --- steps --- */

__attribute__((format(printf, 2, 3)))
static _Noreturn void give_up(struct trial *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(t->detail, PROBE_DETAIL, fmt, ap);
	va_end(ap);
	longjmp(t->failed, 1);
}

/* Return R; if it is an error, the behaviour fails, because of WHAT. */
static long step(struct trial *t, long r, const char *what)
{
	if (r < 0)
		give_up(t, "%s: %s", what, r == -EILSEQ ? "a byte is wrong" :
			r == -EBADE ? "bytes cannot be accounted for" : strerror((int)-r));
	return r;
}

static void same(struct trial *t, const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		give_up(t, "%s: %llu instead of %llu", what, (unsigned long long)got,
			(unsigned long long)want);
}

static short poll_now(int fd, short events)
{
	struct pollfd pfd = { .fd = fd, .events = events };

	poll(&pfd, 1, 0);
	return pfd.revents;
}

/* --- a session --- */

static const volatile struct culvert_stat *stat_of(const struct trial *t, unsigned int dir)
{
	return kernel_stat(t->kernel, t->pair * 2 + dir);
}

/* Make it known to the program: both sockets become redirect targets. */
static void admit(struct trial *t)
{
	step(t, kernel_pair_get(t->kernel, &t->pair), "a pair of slots");
	t->has_pair = true;
	for (unsigned int dir = 0; dir < 2; dir++) {
		const volatile struct culvert_stat *st = stat_of(t, dir);

		t->flows[dir].base_bytes = st->bytes;
		t->flows[dir].base_dropped = (uint32_t)st->dropped;
		t->base[dir] = st->bytes + st->passed;
		step(t, kernel_admit(t->kernel, t->pair * 2 + dir, t->inner[dir]),
		     "a connection into the map of redirect targets");
	}
	t->base_passed = stat_of(t, UP)->passed;
}

/* Flow UP's target has small buffers if the server is to stall it. */
static void open_session(struct trial *t)
{
	bool small = t->small || t->plan->until != AT_ONCE;
	const char *what = "TCP connections on 127.0.0.1";

	step(t, rig_connect(t->small, &t->outer[UP], &t->inner[UP]), what);
	step(t, rig_connect(small, &t->inner[DOWN], &t->outer[DOWN]), what);
	if (!t->plan->by)
		admit(t);
}

static void join_senders(struct trial *t)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		if (t->streams[dir].has_sender)
			pthread_join(t->streams[dir].sender, NULL);
		t->streams[dir].has_sender = false;
	}
}

/* Its sockets are closed with RST. */
static void close_graft(struct trial *t)
{
	const struct linger now = { .l_onoff = 1 };

	if (!t->has_graft)
		return;
	if (!graft_withdraw(t->grafts, t->graft))
		graft_kill(t->grafts, t->graft);
	graft_put(t->grafts, t->graft);
	for (unsigned int dir = 0; dir < 2; dir++)
		setsockopt(t->inner[dir], SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

static void close_session(struct trial *t)
{
	close_graft(t);
	for (unsigned int dir = 0; dir < 2; dir++) {
		t->streams[dir].len = 0; /* a sender that is ahead enough sees no error */
		shutdown(t->outer[dir], SHUT_RDWR);
	}
	join_senders(t);
	for (unsigned int dir = 0; dir < 2; dir++) {
		carrier_release(&t->flows[dir], &t->pool);
		close(t->outer[dir]);
		close(t->inner[dir]);
	}
	if (t->has_pair) {
		kernel_forget(t->kernel, t->pair * 2, true);
		kernel_forget(t->kernel, t->pair * 2 + 1, true);
		kernel_pair_put(t->kernel, t->pair);
	}
}

/* --- its streams --- */

static void *send_all(void *arg)
{
	struct stream *s = arg;
	uint64_t sent_ms = 0; /* when the last piece was */
	ssize_t n = 0;

	while (s->sent < s->len && n >= 0) {
		size_t most = s->len - s->sent < PIECE ? s->len - s->sent : PIECE;

		n = s->sent - s->got < s->ahead ? rig_send(s->fd, s->offset + s->sent, most) : 0;
		if (n > 0) {
			s->sent += (uint64_t)n;
			sent_ms = clock_ms();
		} else if (s->ahead == UINT64_MAX || clock_ms() > sent_ms + BUSY_MS) {
			usleep(50);
		} else {
			sched_yield(); /* a sleep would last longer than a removal */
		}
	}
	shutdown(s->fd, SHUT_WR);
	return NULL;
}

static void start_senders(struct trial *t)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct stream *s = &t->streams[dir];

		s->fd = t->outer[dir];
		s->offset = dir == DOWN ? DOWN_OFFSET : 0;
		s->ahead = t->plan->ahead;
		s->len = t->plan->len[dir];
		step(t, -pthread_create(&s->sender, NULL, send_all, s), "a thread");
		s->has_sender = true;
	}
}

/* Receive what is there of stream DIR. */
static void receive(struct trial *t, unsigned int dir)
{
	struct stream *s = &t->streams[dir];
	ssize_t n = s->eof ? 0 : rig_receive(t->outer[!dir], s->offset + s->got, SIZE_MAX);

	s->eof = s->eof || n == -ENODATA;
	if (n != -ENODATA)
		s->got += (uint64_t)step(t, n, "delivery");
}

/* True until what the plan waits for; then the server has large buffers, too. */
static bool is_stalled(struct trial *t)
{
	bool over = t->plan->until == BLOCKED ? t->blocked :
		    t->plan->until == PASSED  ? stat_of(t, UP)->passed != t->base_passed :
						t->streams[DOWN].eof;

	if (t->stalled && over) {
		rig_set_buffers(t->inner[DOWN], t->outer[DOWN], RIG_WIDE);
		t->stalled = false;
	}
	/* SO_BUF_LOCK, with which a carrier fixes a receive buffer, sets the send buffer free */
	if (t->stalled)
		rig_set_buffers(t->inner[DOWN], t->outer[DOWN], RIG_SMALL);
	return t->stalled;
}

/* --- its flows --- */

static struct sockmap_io sockmap_of(struct trial *t, unsigned int dir)
{
	return (struct sockmap_io){
		.flow = &t->flows[dir],
		.kernel = t->kernel,
		.pool = &t->pool,
		.src = t->inner[dir],
		.dst = t->inner[!dir],
		.slot = t->pair * 2 + dir,
		.dst_connected = dir == UP,
		.read_ahead = (uint32_t)t->plan->hard_limit,
		.now_ms = clock_ms(),
	};
}

/* True if R, what a hand-over has returned, is that it is done. */
static bool is_done(struct trial *t, enum step r, const struct sockmap_io *io, const char *what)
{
	if (r == STEP_UNPROVED)
		step(t, -EBADE, what);
	if (r == STEP_SRC_ERROR || r == STEP_DST_ERROR)
		step(t, io->error ? -io->error : -EIO, what);
	return r == STEP_DONE;
}

/* Enter the kernel, unless bytes are waiting. */
static void try_enter(struct trial *t, unsigned int dir)
{
	const struct forward_conf limits = { .soft_limit = t->plan->hard_limit / 2,
					     .hard_limit = t->plan->hard_limit };
	struct sockmap_io io = sockmap_of(t, dir);
	int r = sockmap_enter(&io, &limits, 0);

	if (r == -EAGAIN)
		return;
	step(t, r, "insertion");
	flow_set_phase(&t->flows[dir], FLOW_KERNEL);
	is_done(t, sockmap_kick(&io), &io, "insertion");
	if (dir == UP)
		t->upto = sockmap_redirected(t->kernel, io.slot, io.flow) + REDIRECTED;
}

/* Flow DIR has delivered all of its stream. */
static void end_flow(struct trial *t, unsigned int dir)
{
	step(t, shutdown(t->inner[!dir], SHUT_WR) ? -errno : 0, "shutdown of the target");
	flow_set_phase(&t->flows[dir], FLOW_DONE);
}

static void run_user(struct trial *t, unsigned int dir)
{
	struct flow *f = &t->flows[dir];
	struct pump_io io = { .flow = f, .pool = &t->pool, .src = t->inner[dir],
			      .dst = t->inner[!dir], .limit = UINT64_MAX };
	enum pump r = t->plan->by == PROBE_SPLICE ? splice_pump(&io) : copy_pump(&io);

	/* bytes have come between splice(2), which found none, and the look for the reason */
	if (r == PUMP_UNSUPPORTED)
		r = splice_pump(&io);
	if (r >= PUMP_STARVED)
		step(t, io.error ? -io.error : -EIO, "carrying by user space");
	if (dir == UP && r == PUMP_BLOCKED)
		t->blocked = true;
	if (r == PUMP_EOF)
		end_flow(t, dir);
	else if (!f->pending && !t->plan->by && (!t->plan->stays || t->stays))
		try_enter(t, dir);
}

/* Move flow DIR on, from phase to phase if it can. */
static void run_flow(struct trial *t, unsigned int dir)
{
	static const struct {
		enum step (*fn)(struct sockmap_io *io);
		enum flow_phase next;
		const char *what;
	} steps[FLOW_PHASES] = {
		[FLOW_KERNEL] = { sockmap_settle, FLOW_KERNEL, "delivery of what was passed" },
		[FLOW_LEAVING] = { sockmap_leave, FLOW_DRAINING, "removal of a busy flow" },
		[FLOW_DRAINING] = { sockmap_drain, FLOW_USER, "the end of the backlog" },
		[FLOW_FINISHING] = { sockmap_finish, FLOW_DONE, "every byte at the target" },
	};
	struct sockmap_io io = sockmap_of(t, dir);
	struct flow *f = &t->flows[dir];
	enum flow_phase phase = f->phase;

	if (phase == FLOW_USER)
		run_user(t, dir);
	if (!steps[phase].fn || !is_done(t, steps[phase].fn(&io), &io, steps[phase].what))
		return;
	if (phase == FLOW_FINISHING)
		end_flow(t, dir);
	else if (phase != FLOW_KERNEL)
		flow_set_phase(f, steps[phase].next);
	else if (poll_now(io.src, POLLRDHUP))
		flow_set_phase(f, FLOW_FINISHING);
	else if (dir == UP && t->stays && sockmap_redirected(t->kernel, io.slot, f) > t->upto)
		flow_set_phase(f, FLOW_LEAVING);
	if (phase == FLOW_DRAINING && !--t->stays) /* the last one ends the streams */
		t->streams[UP].len = t->streams[DOWN].len = 0;
}

/* --- graft --- */

static void offer(struct trial *t)
{
	struct sockaddr_storage addrs[2][2];
	struct graft_offer o = { 0 };

	if (t->flows[UP].pending || t->flows[DOWN].pending)
		return;
	for (unsigned int side = 0; side < 2; side++) {
		socklen_t len[2] = { sizeof(addrs[0][0]), sizeof(addrs[0][0]) };

		o.remote[side] = (struct sockaddr *)&addrs[side][0];
		o.local[side] = (struct sockaddr *)&addrs[side][1];
		step(t, getpeername(t->inner[side], (struct sockaddr *)&addrs[side][0], &len[0]) ||
			getsockname(t->inner[side], (struct sockaddr *)&addrs[side][1], &len[1]) ?
			-errno : 0, "addresses");
	}
	enum graft_refusal r = graft_try(t->grafts, &o, &t->graft);

	if (r)
		give_up(t, "a session that is offered: %s", graft_refusal_name(r));
	t->has_graft = true;
	graft_hold(t->grafts, t->graft);
}

/* True if packet programs carry the session, or have until it ended.  Both ends stop after a while. */
static bool is_grafted(struct trial *t)
{
	if (t->plan->by != PROBE_GRAFT)
		return false;
	if (!t->has_graft)
		offer(t);
	if (!t->has_graft || graft_state(t->grafts, t->graft) == GRAFT_OFFERED)
		return false;
	if (graft_bytes(t->grafts, t->graft, UP) > REDIRECTED)
		t->streams[UP].len = t->streams[DOWN].len = 0;
	return true;
}

/* Both ends have both FINs by now; the ACK of the last one may still be on its way. */
static void check_graft(struct trial *t)
{
	while (t->has_graft && graft_state(t->grafts, t->graft) == GRAFT_ACTIVE &&
	       clock_ms() < t->deadline_ms)
		poll(NULL, 0, 1);
	if (!t->has_graft || graft_state(t->grafts, t->graft) != GRAFT_DONE)
		give_up(t, "the session was not grafted to its end: %s", !t->has_graft ? "no offer" :
			graft_refusal_name((enum graft_refusal)graft_of(t->grafts, t->graft)->why_not));
}

/* --- all of it --- */

static void run_session(struct trial *t)
{
	while (!t->streams[UP].eof || !t->streams[DOWN].eof) {
		bool grafted = is_grafted(t);

		for (unsigned int dir = 0; dir < 2; dir++) {
			if (!grafted)
				run_flow(t, dir);
			if (dir == DOWN || !is_stalled(t))
				receive(t, dir);
		}
		usleep(100);
		if (clock_ms() >= t->deadline_ms)
			give_up(t, "no end in time: flow up %s, flow down %s, %llu and %llu bytes "
				"delivered", flow_phase_name(t->flows[UP].phase),
				flow_phase_name(t->flows[DOWN].phase),
				(unsigned long long)t->streams[UP].got,
				(unsigned long long)t->streams[DOWN].got);
	}
}

static void check_counters(struct trial *t)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		const volatile struct culvert_stat *st = stat_of(t, dir);

		if (!t->plan->stays)
			same(t, "bytes redirected and passed", st->bytes + st->passed - t->base[dir],
			     t->plan->len[dir]);
		if (st->backlog_max > t->plan->hard_limit + BACKLOG_SLACK)
			same(t, "bytes of the largest backlog", st->backlog_max,
			     t->plan->hard_limit);
	}
}

static void try_session(struct trial *t)
{
	open_session(t);
	for (unsigned int dir = 0; dir < 2 && !t->plan->by; dir++)
		try_enter(t, dir);
	start_senders(t);
	run_session(t);
	join_senders(t);
	for (unsigned int dir = 0; dir < 2; dir++)
		same(t, "bytes delivered", t->streams[dir].got, t->streams[dir].sent);
	if (!t->plan->by)
		check_counters(t);
	if (t->plan->by == PROBE_GRAFT)
		check_graft(t);
}

/* --- the table --- */

#define WIDE .ahead = UINT64_MAX, .hard_limit = 4 * MIB

const struct behaviour behaviours[BEHAVIOURS] = {
	{ "load", PROBE_SOCKMAP, "the verdict program passes the verifier and attaches to a sockmap",
	  "without it nothing can be redirected", NULL },
	{ "splice", PROBE_SPLICE,
	  "splice(2) carries bytes unchanged past a full target, and tells empty from ended",
	  "payload would be corrupted, truncated, or hang",
	  &(const struct plan){ { 512 * KIB, 1000 }, WIDE, .by = PROBE_SPLICE, .until = BLOCKED } },
	{ "redirect", PROBE_SOCKMAP, "redirected bytes arrive unchanged and in order, both ways",
	  "payload would be corrupted", &(const struct plan){ { MIB, MIB }, WIDE } },
	{ "fin", PROBE_SOCKMAP, "a FIN in one direction does not break the other",
	  "answers would be truncated",
	  &(const struct plan){ { 320 * KIB, 1000 }, WIDE, .until = OTHER_ENDS } },
	{ "hard-limit", PROBE_SOCKMAP,
	  "over the hard limit bytes are passed to user space, and order is kept",
	  "a receiver that stalls would fill the kernel's memory",
	  &(const struct plan){ { MIB, 0 }, .ahead = UINT64_MAX, .hard_limit = 32 * KIB,
				.until = PASSED } },
	{ "leave", PROBE_SOCKMAP, "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space",
	  &(const struct plan){ { UINT64_MAX, UINT64_MAX }, 64 * KIB, .stays = 5,
				.hard_limit = 4 * MIB } },
	{ "packet-programs", PROBE_GRAFT,
	  "the packet programs pass the verifier and attach to network interfaces",
	  "without them nothing can be grafted", NULL },
	{ "graft", PROBE_GRAFT,
	  "two busy connections are joined without losing a byte, and end with their FINs",
	  "payload would be corrupted, or lost",
	  &(const struct plan){ { UINT64_MAX, UINT64_MAX }, 64 * KIB, .by = PROBE_GRAFT } },
};

/* A function of its own, for none of its variables may change between setjmp() and longjmp(). */
static bool run(struct trial *t)
{
	if (setjmp(t->failed))
		return false;
	try_session(t);
	return true;
}

bool behaviour_holds(const struct behaviour *b, struct kernel *k, struct grafts *gs, bool small,
		     char *ret_detail)
{
	struct trial t = {
		.plan = b->plan,
		.kernel = k,
		.grafts = gs,
		.small = small,
		.outer = { -1, -1 },
		.inner = { -1, -1 },
		.stays = b->plan->stays,
		.stalled = b->plan->until != AT_ONCE,
		.deadline_ms = clock_ms() + DEADLINE_MS,
		.detail = ret_detail,
	};
	bool holds;

	pool_init(&t.pool, BUFFER_SIZE);
	holds = run(&t);
	close_session(&t);
	pool_close(&t.pool);
	return holds;
}
