// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a behaviour is a session that must go as its plan says.
 *
 *	outer[UP] ===== inner[UP] | inner[DOWN] ===== outer[DOWN]
 *	  client           the session's sockets           server
 *
 * Flow and stream UP go from left to right, DOWN from right to left.  A thread sends both streams,
 * each with its FIN.  One loop moves both flows from phase to phase, with the daemon's hand-overs,
 * and receives at both ends, until both streams have ended.  A step that fails calls give_up(),
 * which jumps back to run(), as an assertion ends a test.
 */
#include "probe/behaviours.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/minmax.h"
#include "base/socket_set.h"
#include "datapath/sockmap/carrier_sockmap.h"
#include "datapath/tcp.h"

#define KIB 1024
#define MIB (1024 * 1024)

/* Time for the next byte of a behaviour: a kernel worker has waited 10 s for a busy CPU. */
#define DEADLINE_MS 15000
#define BUFFER_SIZE (64 * KIB)
/* Stream DOWN begins at this offset, so that bytes that come back are wrong bytes. */
#define DOWN_OFFSET 20011
/* An odd size, so that bytes of one skb end anywhere. */
#define PIECE 3001
/* The sender of a stream without end may be ahead of its receiver by so many bytes. */
#define AHEAD (64 * KIB)
/* Each stay in the kernel carries at least so many bytes of a flow that comes and goes. */
#define REDIRECTED (16 * KIB)
/*
 * Once a sender has sent nothing for so long, the sender sleeps between its tries, to leave CPUs to
 * the kernel's workers.
 */
#define BUSY_MS 1
/* The backlog may exceed its limit by the bytes between two looks, and by each skb's overhead. */
#define BACKLOG_SLACK (256 * KIB)
#define NO_SLOT UINT32_MAX

enum { UP, DOWN };

/* The course of a session. */
struct plan {
	uint64_t len[2];     /* bytes of the streams; UINT64_MAX: until stays, or graft, are done */
	uint64_t hard_limit; /* bytes */
	unsigned int stays;  /* times that flow UP enters and leaves the kernel; then streams end */
	enum { AT_ONCE, PASSED, OTHER_ENDS } until; /* when the server begins to receive */
};

struct trial {
	const struct plan *plan;
	enum probe_carrier by;
	struct sockmap *kernel;
	struct graft_table *grafts;
	bool small;
	struct pool pool;
	int outer[2], inner[2]; /* -1: closed */
	uint32_t pair, graft;   /* slots, or NO_SLOT */
	struct flow flows[2];
	struct sockmap_io io[2];
	uint64_t upto;      /* redirected bytes of flow UP at which it leaves the kernel */
	unsigned int stays; /* still to be made */
	bool stalled;       /* the server does not receive yet */
	bool pressed;       /* kernel-memory was short: a flow that has left the kernel stays out */
	uint64_t deadline_ms;
	uint64_t delivered; /* bytes, when deadline_ms was set */

	/* the streams */
	_Atomic uint64_t len[2], got[2], sent[2];
	bool eof[2]; /* received */
	bool has_sender;
	pthread_t sender; /* ends when the sockets are shut down, or at len */

	char *detail; /* the failed step */
	jmp_buf failed;
};

/* --- steps --- */

__attribute__((format(printf, 2, 3))) static _Noreturn void give_up(struct trial *t,
								    const char *fmt, ...)
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
		give_up(t, "%s: %s", what,
			r == -EILSEQ ? "a byte is wrong" :
			r == -EBADE  ? "bytes cannot be accounted for" :
				       strerror((int)-r));
	return r;
}

static void same(struct trial *t, const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		give_up(t, "%s: %llu instead of %llu", what, (unsigned long long)got,
			(unsigned long long)want);
}

/* --- a session --- */

static const volatile struct culvert_stat *stat_of(const struct trial *t, unsigned int dir)
{
	return &t->kernel->stats[t->pair * 2 + dir];
}

/*
 * Flow UP's target has small buffers if the server is to stall it.  For sockmap both sockets become
 * redirect targets.
 */
static void open_session(struct trial *t)
{
	const char *what = "TCP connections on 127.0.0.1";
	/* a window of the host's tcp_rmem may not hold a segment of lo */
	unsigned int mss = t->by == PROBE_GRAFT ? 1460 : 0;

	step(t, rig_connect(t->small, mss, &t->outer[UP], &t->inner[UP]), what);
	step(t, rig_connect(t->small || t->stalled, mss, &t->inner[DOWN], &t->outer[DOWN]), what);
	if (t->by == PROBE_SOCKMAP)
		step(t, sockmap_pair_get(t->kernel, &t->pair), "a pair of slots");
	for (unsigned int dir = 0; dir < 2; dir++) {
		t->io[dir] = (struct sockmap_io){
			.pump = { .flow = &t->flows[dir],
				  .pool = &t->pool,
				  .src = t->inner[dir],
				  .dst = t->inner[!dir],
				  .buffer_size = BUFFER_SIZE },
			.kernel = t->kernel,
			.slot = t->pair * 2 + dir,
			.dst_connected = dir == UP,
			.read_ahead = (uint32_t)t->plan->hard_limit,
		};
		if (t->by == PROBE_SOCKMAP)
			step(t, sockmap_admit(t->kernel, t->io[dir].slot, t->inner[dir]),
			     "a connection into the map of redirect targets");
	}
}

/* The sockets of a graft are closed with RST. */
static void close_session(struct trial *t)
{
	if (t->graft != NO_SLOT) {
		if (!graft_withdraw(t->grafts, t->graft))
			graft_kill(t->grafts, t->graft);
		graft_put(t->grafts, t->graft);
	}
	for (unsigned int dir = 0; dir < 2; dir++) {
		if (t->graft != NO_SLOT)
			tcp_arm_reset(t->inner[dir]);
		t->len[dir] = 0; /* a sender that waits for its receiver sees no error */
		shutdown(t->outer[dir], SHUT_RDWR);
	}
	if (t->has_sender)
		pthread_join(t->sender, NULL);
	for (unsigned int dir = 0; dir < 2; dir++) {
		carrier_release(&t->flows[dir], &t->pool);
		close(t->outer[dir]);
		close(t->inner[dir]);
	}
	if (t->pair != NO_SLOT)
		sockmap_pair_put(t->kernel, t->pair);
}

/* --- its streams --- */

static uint64_t offset(unsigned int dir, uint64_t bytes)
{
	return bytes + (dir == DOWN ? DOWN_OFFSET : 0);
}

static void *send_streams(void *arg)
{
	struct trial *t = arg;
	bool ended[2] = { false, false };
	uint64_t sent_ms = 0; /* when the last piece was sent */

	for (unsigned int dir = UP; !ended[UP] || !ended[DOWN]; dir = !dir) {
		uint64_t len = t->len[dir], left = len - smaller(len, t->sent[dir]);
		bool ahead = t->plan->len[dir] == UINT64_MAX && t->sent[dir] - t->got[dir] >= AHEAD;
		ssize_t n = 0;

		if (!ended[dir] && !ahead)
			n = rig_send(t->outer[dir], offset(dir, t->sent[dir]),
				     smaller(left, PIECE));
		if (n > 0) {
			t->sent[dir] += (uint64_t)n;
			sent_ms = clock_ms();
		} else if (!ended[dir] && (n < 0 || !left)) {
			ended[dir] = true;
			shutdown(t->outer[dir], SHUT_WR);
		} else if (clock_ms() > sent_ms + BUSY_MS) {
			usleep(50);
		} else {
			sched_yield(); /* a sleep would last longer than a removal */
		}
	}
	return NULL;
}

/* Receive the bytes of stream DIR that have come. */
static void receive(struct trial *t, unsigned int dir)
{
	ssize_t n = t->eof[dir] ? 0 :
				  rig_receive(t->outer[!dir], offset(dir, t->got[dir]), SIZE_MAX);

	if (n == -ENODATA)
		t->eof[dir] = true;
	else
		t->got[dir] += (uint64_t)step(t, n, "delivery");
}

/* True until the event that the plan waits for.  Then the server gets large buffers, too. */
static bool is_stalled(struct trial *t)
{
	bool over = t->plan->until == PASSED ? stat_of(t, UP)->passed : t->eof[DOWN];

	if (!t->stalled)
		return false;
	t->stalled = !over;
	/* SO_BUF_LOCK, with which a carrier fixes a receive buffer, sets the send buffer free */
	rig_set_buffers(t->inner[DOWN], t->outer[DOWN], over ? RIG_WIDE : RIG_SMALL);
	return t->stalled;
}

/* --- its flows --- */

/*
 * True if R, the result of a hand-over of IO's flow, is STEP_DONE.  An error fails the behaviour.
 */
static bool is_done(struct trial *t, enum step r, const struct sockmap_io *io, const char *what)
{
	if (r >= STEP_UNPROVED)
		step(t, r == STEP_UNPROVED ? -EBADE : -(io->pump.error ?: EIO), what);
	return r == STEP_DONE;
}

/* Enter the kernel, unless bytes are waiting. */
static void try_enter(struct trial *t, unsigned int dir)
{
	const struct forward_conf limits = { .soft_limit = t->plan->hard_limit / 2,
					     .hard_limit = t->plan->hard_limit };
	struct sockmap_io *io = &t->io[dir];
	int r = sockmap_enter(io, &limits, 0);

	if (r == -EAGAIN)
		return;
	step(t, r, "insertion");
	flow_set_phase(io->pump.flow, FLOW_KERNEL);
	is_done(t, sockmap_kick(io), io, "insertion");
	if (dir == UP)
		t->upto = stat_of(t, dir)->bytes + REDIRECTED;
}

/* Flow DIR has delivered all of its stream. */
static void end_flow(struct trial *t, unsigned int dir)
{
	step(t, shutdown(t->inner[!dir], SHUT_WR) ? -errno : 0, "shutdown of the target");
	flow_set_phase(&t->flows[dir], FLOW_DONE);
}

static void run_user(struct trial *t, unsigned int dir)
{
	struct pump_io *io = &t->io[dir].pump;
	enum carrier by = t->by == PROBE_SPLICE ? CARRIER_SPLICE : CARRIER_COPY;
	enum pump r;

	io->limit = UINT64_MAX; /* a hand-over may have left another limit */
	r = carrier_pump(io, by);
	/* bytes have come between splice(2), which found none, and the look for the reason */
	if (r == PUMP_UNSUPPORTED)
		r = carrier_pump(io, by);
	if (r >= PUMP_STARVED)
		step(t, -(io->error ?: EIO), "carrying by user space");
	if (r == PUMP_EOF)
		end_flow(t, dir);
	else if (!io->flow->pending && t->by == PROBE_SOCKMAP && !t->pressed &&
		 (!t->plan->stays || t->stays))
		try_enter(t, dir);
}

/* In the kernel: is it time for another phase? */
static void run_kernel(struct trial *t, unsigned int dir)
{
	const struct sockmap_io *io = &t->io[dir];
	struct pollfd fin = { .fd = io->pump.src, .events = POLLRDHUP };

	bool closed = stat_of(t, dir)->closed == t->kernel->ctls[io->slot].epoch;

	t->pressed = t->pressed || closed;
	if (poll(&fin, 1, 0))
		flow_set_phase(io->pump.flow, FLOW_FINISHING);
	else if (closed || (dir == UP && t->stays && stat_of(t, dir)->bytes > t->upto))
		flow_set_phase(io->pump.flow, FLOW_LEAVING);
}

/* Move flow DIR on, to its next phase if it can. */
static void run_flow(struct trial *t, unsigned int dir)
{
	struct sockmap_io *io = &t->io[dir];
	enum flow_phase phase = t->flows[dir].phase;

	io->now_ms = clock_ms();
	if (phase == FLOW_USER) {
		run_user(t, dir);
	} else if (phase == FLOW_KERNEL) {
		if (is_done(t, sockmap_settle(io), io, "delivery of what was passed"))
			run_kernel(t, dir);
	} else if (phase == FLOW_LEAVING) {
		if (is_done(t, sockmap_leave(io), io, "removal of a busy flow"))
			flow_set_phase(io->pump.flow, FLOW_DRAINING);
	} else if (phase == FLOW_DRAINING) {
		if (is_done(t, sockmap_drain(io), io, "the end of the backlog")) {
			flow_set_phase(io->pump.flow, FLOW_USER);
			if (t->stays &&
			    (!--t->stays || t->pressed)) /* the last one ends the streams */
				t->len[UP] = t->len[DOWN] = 0;
		}
	} else if (phase == FLOW_FINISHING) {
		if (is_done(t, sockmap_finish(io), io, "every byte at the target"))
			end_flow(t, dir);
	}
}

/* --- graft --- */

static void offer(struct trial *t)
{
	struct sockaddr_in ends[2] = { 0 };
	struct graft_request q = { 0 };
	enum graft_refusal r;

	for (unsigned int side = 0; side < 2; side++) {
		socklen_t len = sizeof(ends[0]);

		getpeername(t->inner[side], (struct sockaddr *)&ends[0], &len);
		getsockname(t->inner[side], (struct sockaddr *)&ends[1], &len);
		graft_tuple_set(&q.tuples[side], (const struct sockaddr *)&ends[0],
				(const struct sockaddr *)&ends[1]);
	}
	r = graft_try(t->grafts, &q);
	if (r)
		give_up(t, "a session that is offered: %s", graft_refusal_name(r));
	t->graft = q.slot;
	graft_hold(t->grafts, t->graft);
}

/*
 * True if packet programs carry the session, or have carried it to its end.  After enough bytes
 * both ends are made to stop.
 */
static bool is_grafted(struct trial *t)
{
	if (t->by != PROBE_GRAFT)
		return false;
	if (t->graft == NO_SLOT && !t->flows[UP].pending && !t->flows[DOWN].pending)
		offer(t);
	if (t->graft == NO_SLOT || graft_state(t->grafts, t->graft) == GRAFT_OFFERED)
		return false;
	if (graft_bytes(t->grafts, t->graft, UP) > REDIRECTED)
		t->len[UP] = t->len[DOWN] = 0;
	return true;
}

/* Both ends have both FINs by now; the ACK of the last one may still be on its way. */
static void check_graft(struct trial *t)
{
	while (graft_state(t->grafts, t->graft) == GRAFT_ACTIVE && clock_ms() < t->deadline_ms)
		poll(NULL, 0, 1);
	if (graft_state(t->grafts, t->graft) != GRAFT_DONE)
		give_up(t, "the session was not grafted to its end: %s",
			graft_refusal_name(
				(enum graft_refusal)graft_of(t->grafts, t->graft)->why_not));
}

/* --- all of it --- */

static void run_session(struct trial *t)
{
	while (!t->eof[UP] || !t->eof[DOWN]) {
		bool grafted = is_grafted(t);

		for (unsigned int dir = 0; dir < 2; dir++) {
			if (!grafted)
				run_flow(t, dir);
			if (dir == DOWN || !is_stalled(t))
				receive(t, dir);
		}
		usleep(100);
		if (t->got[UP] + t->got[DOWN] != t->delivered) {
			t->delivered = t->got[UP] + t->got[DOWN];
			t->deadline_ms = clock_ms() + DEADLINE_MS;
		}
		if (clock_ms() >= t->deadline_ms)
			give_up(t,
				"no end in time: flow up %s, flow down %s, %llu and %llu bytes "
				"delivered",
				flow_phase_names[t->flows[UP].phase],
				flow_phase_names[t->flows[DOWN].phase],
				(unsigned long long)t->got[UP], (unsigned long long)t->got[DOWN]);
	}
}

static void check_counters(struct trial *t)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		const volatile struct culvert_stat *st = stat_of(t, dir);

		if (!t->plan->stays)
			same(t, "bytes redirected and read", st->bytes + t->flows[dir].user_in,
			     t->plan->len[dir]);
		if (st->backlog_max > t->plan->hard_limit + BACKLOG_SLACK)
			same(t, "bytes of the largest backlog", st->backlog_max,
			     t->plan->hard_limit);
	}
}

static void try_session(struct trial *t)
{
	open_session(t);
	if (t->by == PROBE_SOCKMAP) {
		try_enter(t, UP);
		try_enter(t, DOWN);
	}
	step(t, -pthread_create(&t->sender, NULL, send_streams, t), "a thread");
	t->has_sender = true;
	run_session(t);
	for (unsigned int dir = 0; dir < 2; dir++)
		same(t, "bytes delivered", t->got[dir], t->sent[dir]);
	if (t->by == PROBE_SOCKMAP)
		check_counters(t);
	if (t->by == PROBE_GRAFT)
		check_graft(t);
}

/* --- the table --- */

const struct behaviour behaviours[BEHAVIOURS] = {
	{ "load", PROBE_SOCKMAP, "the verdict program passes the verifier and attaches to a sockmap",
	  "without it nothing can be redirected", NULL },
	{ "splice", PROBE_SPLICE,
	  "splice(2) carries bytes unchanged past a full target, and tells empty from ended",
	  "payload would be corrupted, truncated, or hang",
	  &(const struct plan){ { 512 * KIB, 512 * KIB }, 0, 0, OTHER_ENDS } },
	{ "redirect", PROBE_SOCKMAP, "redirected bytes arrive unchanged and in order, both ways",
	  "payload would be corrupted", &(const struct plan){ { MIB, MIB }, 4 * MIB, 0, AT_ONCE } },
	{ "fin", PROBE_SOCKMAP, "a FIN in one direction does not break the other",
	  "answers would be truncated",
	  &(const struct plan){ { 320 * KIB, 1000 }, 4 * MIB, .until = OTHER_ENDS } },
	{ "hard-limit", PROBE_SOCKMAP,
	  "over the hard limit bytes are passed to user space, and order is kept",
	  "a receiver that stalls would fill the kernel's memory",
	  &(const struct plan){ { MIB, 0 }, 32 * KIB, .until = PASSED } },
	{ "leave", PROBE_SOCKMAP, "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space",
	  &(const struct plan){ { UINT64_MAX, UINT64_MAX }, 4 * MIB, .stays = 5 } },
	{ "packet-programs", PROBE_GRAFT,
	  "the packet programs pass the verifier and attach to network interfaces",
	  "without them nothing can be grafted", NULL },
	{ "graft", PROBE_GRAFT,
	  "two busy connections are joined without losing a byte, and end with their FINs",
	  "payload would be corrupted, or lost",
	  &(const struct plan){ .len = { UINT64_MAX, UINT64_MAX } } },
};

/* A function of its own: no variable of it may change between setjmp() and longjmp(). */
static bool run(struct trial *t)
{
	if (setjmp(t->failed))
		return false;
	try_session(t);
	return true;
}

bool behaviour_holds(const struct behaviour *b, struct sockmap *k, struct graft_table *gs,
		     bool small, char *ret_detail)
{
	struct trial t = {
		.plan = b->plan,
		.by = b->carrier,
		.kernel = k,
		.grafts = gs,
		.small = small,
		.outer = { -1, -1 },
		.inner = { -1, -1 },
		.pair = NO_SLOT,
		.graft = NO_SLOT,
		.len = { b->plan->len[UP], b->plan->len[DOWN] },
		.stays = b->plan->stays,
		.stalled = b->plan->until != AT_ONCE,
		.deadline_ms = clock_ms() + DEADLINE_MS,
		.detail = ret_detail,
	};
	bool holds = run(&t);

	close_session(&t);
	pool_close(&t.pool);
	return holds;
}

/* --- streams of known bytes --- */

/* The first call is rig_connect()'s, before there is a second thread. */
const unsigned char *rig_pattern(uint64_t off)
{
	static unsigned char table[2 * RIG_PATTERN];
	static bool ready;
	unsigned short seed[3] = { 0 };

	for (size_t i = 0; !ready && i < RIG_PATTERN; i++)
		table[i] = table[RIG_PATTERN + i] = (unsigned char)(nrand48(seed) >> 11);
	if (!ready)
		ready = true;
	return table + off % RIG_PATTERN;
}

ssize_t rig_send(int fd, uint64_t off, size_t len)
{
	ssize_t n = send(fd, rig_pattern(off), smaller(len, RIG_PATTERN),
			 MSG_DONTWAIT | MSG_NOSIGNAL);

	return n >= 0 ? n : errno == EAGAIN ? 0 : -errno;
}

ssize_t rig_receive(int fd, uint64_t off, size_t most)
{
	unsigned char buf[RIG_PATTERN];
	ssize_t n = recv(fd, buf, smaller(most, sizeof(buf)), MSG_DONTWAIT);

	if (n < 0)
		return errno == EAGAIN ? 0 : -errno;
	if (!n && most)
		return -ENODATA;
	return memcmp(buf, rig_pattern(off), (size_t)n) ? -EILSEQ : n;
}

/* --- connected sockets --- */

void rig_set_buffers(int snd, int rcv, int size)
{
	setsockopt(snd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	setsockopt(rcv, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

static int new_socket(bool small, unsigned int mss)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);

	if (fd >= 0)
		socket_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (fd >= 0 && small)
		rig_set_buffers(fd, fd, RIG_SMALL);
	if (fd >= 0 && mss)
		socket_set(fd, IPPROTO_TCP, TCP_MAXSEG, (int)mss);
	return fd;
}

int rig_connect(bool small, unsigned int mss, int *ret_connected, int *ret_accepted)
{
	struct sockaddr_in addr = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(addr);
	int listener = new_socket(small, mss), conn = listener < 0 ? -1 : new_socket(small, mss);
	int acc = -1, r = 0;

	rig_pattern(0);
	if (conn >= 0 && !bind(listener, (struct sockaddr *)&addr, len) && !listen(listener, 1) &&
	    !getsockname(listener, (struct sockaddr *)&addr, &len) &&
	    !connect(conn, (struct sockaddr *)&addr, len) && !fcntl(conn, F_SETFL, O_NONBLOCK))
		acc = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (acc < 0) {
		r = -errno;
		close(conn);
		conn = -1;
	}
	close(listener);
	*ret_connected = conn;
	*ret_accepted = acc;
	return r;
}
