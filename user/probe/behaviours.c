// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a behaviour is a function that drives a session and both its peers, and
 * returns if the kernel did what it must.
 *
 *	outer[UP] ===== inner[UP] | inner[DOWN] ===== outer[DOWN]
 *	  client           the session's sockets           server
 *
 * Flow and stream UP go from left to right, DOWN from right to left.  A step that fails calls
 * give_up(), which jumps back to behaviour_holds(), as an assertion ends a test.
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
#define HALT_MS 5
#define BUFFER_SIZE (64 * KIB)
/* Stream DOWN begins at this offset, so that bytes that come back are wrong bytes. */
#define DOWN_OFFSET 20011

enum { UP, DOWN };

/* Bytes of one direction.  A second thread may send while the first receives. */
struct stream {
	_Atomic uint64_t sent, got;
};

struct trial {
	struct kernel *kernel;
	bool small;
	struct forward_conf limits; /* of which only soft and hard limit are used */
	struct pool pool;
	int outer[2], inner[2]; /* -1: closed */
	uint32_t pair;
	bool has_pair;
	struct flow flows[2];
	struct stream streams[2];
	bool has_helper; /* a thread, which ends when the client's socket is shut down */
	pthread_t helper;
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

static const char *problem(long r)
{
	switch (r) {
	case -EILSEQ:
		return "a byte is wrong";
	case -EBADE:
		return "bytes cannot be accounted for";
	case -ENODATA:
		return "the stream ended too early";
	default:
		return strerror((int)-r);
	}
}

/* Return R; if it is an error, the behaviour fails, because of WHAT. */
static long step(struct trial *t, long r, const char *what)
{
	if (r < 0)
		give_up(t, "%s: %s", what, problem(r));
	return r;
}

/* The same for the result of a system call: an error is -1, and errno. */
static void call(struct trial *t, long r, const char *what)
{
	step(t, r < 0 ? -errno : r, what);
}

static void same(struct trial *t, const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		give_up(t, "%s: %llu instead of %llu", what, (unsigned long long)got,
			(unsigned long long)want);
}

/* Pause for 0.1 ms; fail because of WHAT at the behaviour's deadline. */
static void have_patience(struct trial *t, const char *what)
{
	usleep(100);
	if (clock_ms() >= t->deadline_ms)
		give_up(t, "%s: did not happen in time", what);
}

#define WAIT(t, cond, what)                                                                        \
	do {                                                                                       \
		while (!(cond))                                                                    \
			have_patience(t, what);                                                    \
	} while (0)

static short poll_now(int fd, short events)
{
	struct pollfd pfd = { .fd = fd, .events = events };

	poll(&pfd, 1, 0);
	return pfd.revents;
}

/* --- a session --- */

/* Connect it; SMALL: with small buffers for flow UP's target, so that a silent server stalls it. */
static void open_session(struct trial *t, bool small)
{
	const char *what = "TCP connections on 127.0.0.1";

	step(t, rig_connect(t->small, &t->outer[UP], &t->inner[UP]), what);
	step(t, rig_connect(t->small || small, &t->inner[DOWN], &t->outer[DOWN]), what);
}

/* The same, and make it known to the program: both sockets become redirect targets. */
static void open_admitted(struct trial *t, bool small)
{
	open_session(t, small);
	step(t, kernel_pair_get(t->kernel, &t->pair), "a pair of slots");
	t->has_pair = true;
	for (unsigned int dir = 0; dir < 2; dir++) {
		uint32_t slot = t->pair * 2 + dir;
		const volatile struct culvert_stat *st = kernel_stat(t->kernel, slot);

		t->flows[dir].base_bytes = st->bytes;
		t->flows[dir].base_dropped = (uint32_t)st->dropped;
		step(t, kernel_admit(t->kernel, slot, t->inner[dir]),
		     "a connection into the map of redirect targets");
	}
}

static void join_helper(struct trial *t)
{
	if (t->has_helper)
		pthread_join(t->helper, NULL);
	t->has_helper = false;
}

static void close_session(struct trial *t)
{
	shutdown(t->outer[UP], SHUT_RDWR);
	join_helper(t);
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

/* Give flow UP's target large buffers, so that it no longer stalls; or small ones again. */
static void widen(struct trial *t, bool wide)
{
	rig_set_buffers(t->inner[DOWN], t->outer[DOWN], wide ? RIG_WIDE : RIG_SMALL);
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
		.read_ahead = (uint32_t)t->limits.hard_limit,
		.now_ms = clock_ms(),
	};
}

static struct pump_io pump_of(struct trial *t, unsigned int dir)
{
	return (struct pump_io){
		.flow = &t->flows[dir],
		.pool = &t->pool,
		.src = t->inner[dir],
		.dst = t->inner[!dir],
		.limit = UINT64_MAX,
	};
}

static int step_error(enum step step, int error)
{
	switch (step) {
	case STEP_UNPROVED:
		return -EBADE;
	case STEP_SRC_ERROR:
	case STEP_DST_ERROR:
		return error ? -error : -EIO;
	default:
		return 0;
	}
}

/* -EAGAIN: bytes are waiting. */
static int try_enter(struct trial *t, unsigned int dir)
{
	struct sockmap_io io = sockmap_of(t, dir);
	int r = sockmap_enter(&io, &t->limits, 0);

	return r ?: step_error(sockmap_kick(&io), io.error);
}

static void enter(struct trial *t, unsigned int dir)
{
	step(t, try_enter(t, dir), dir == UP ? "insertion" : "insertion of the other direction");
}

static uint64_t redirected(const struct trial *t, unsigned int dir)
{
	return sockmap_redirected(t->kernel, t->pair * 2 + dir, &t->flows[dir]);
}

/* --- its streams --- */

static uint64_t offset(unsigned int dir, uint64_t at)
{
	return at + (dir == DOWN ? DOWN_OFFSET : 0);
}

/* Send as many bytes as go now, MOST at the most; return their number. */
static size_t push_some(struct trial *t, unsigned int dir, size_t most)
{
	struct stream *s = &t->streams[dir];
	long n = step(t, rig_send(t->outer[dir], offset(dir, s->sent), most), "sending");

	s->sent += (uint64_t)n;
	return (size_t)n;
}

static void push(struct trial *t, unsigned int dir, size_t len)
{
	WAIT(t, !(len -= push_some(t, dir, len)), "sending");
}

/* Send UP until LEN bytes are sent, or none could be for some milliseconds. */
static void push_until_halt(struct trial *t, size_t len)
{
	uint64_t halt = clock_ms() + HALT_MS;

	while (len && clock_ms() < halt) {
		size_t n = push_some(t, UP, len);

		len -= n;
		if (n)
			halt = clock_ms() + HALT_MS;
		have_patience(t, "sending");
	}
}

/* Receive what is there. */
static void pull_some(struct trial *t, unsigned int dir)
{
	struct stream *s = &t->streams[dir];

	s->got += (uint64_t)step(t, rig_receive(t->outer[!dir], offset(dir, s->got), SIZE_MAX),
				 "delivery");
}

/* Receive all that was sent; WHAT it is. */
static void pull(struct trial *t, unsigned int dir, const char *what)
{
	struct stream *s = &t->streams[dir];

	WAIT(t, s->got >= s->sent || (pull_some(t, dir), s->got >= s->sent), what);
	same(t, what, s->got, s->sent);
}

static void deliver(struct trial *t, unsigned int dir, size_t len, const char *what)
{
	push(t, dir, len);
	pull(t, dir, what);
}

static void push_fin(struct trial *t, unsigned int dir)
{
	call(t, shutdown(t->outer[dir], SHUT_WR), "shutdown");
}

/* Flow DIR's source has ended: end its target, and receive the last bytes and the end of file. */
static void end(struct trial *t, unsigned int dir)
{
	ssize_t n;
	char c;

	call(t, shutdown(t->inner[!dir], SHUT_WR), "shutdown of the target");
	pull(t, dir, "the last bytes");
	WAIT(t, (n = recv(t->outer[!dir], &c, 1, MSG_DONTWAIT)) >= 0 || errno != EAGAIN,
	     "end of file");
	call(t, n, "end of file");
	same(t, "bytes before the end of file", (uint64_t)n, 0);
}

/* Call FN, which is sockmap_leave(), _drain() or _finish(), until it is done, and receive. */
static void until_done(struct trial *t, unsigned int dir, enum step (*fn)(struct sockmap_io *io),
		       const char *what)
{
	for (;;) {
		struct sockmap_io io = sockmap_of(t, dir);
		enum step r = fn(&io);

		step(t, step_error(r, io.error), what);
		if (r == STEP_DONE)
			return;
		pull_some(t, dir);
		have_patience(t, what);
	}
}

/* --- the splice carrier --- */

/* Pump until the carrier says WANT; if that is PUMP_EMPTY, until all is received, too. */
static void splice_until(struct trial *t, unsigned int dir, enum pump want, const char *what)
{
	const struct stream *s = &t->streams[dir];

	for (;;) {
		struct pump_io io = pump_of(t, dir);
		enum pump r = splice_pump(&io);

		if (r == PUMP_SRC_ERROR || r == PUMP_DST_ERROR || r == PUMP_STARVED)
			step(t, io.error ? -io.error : -EIO, what);
		if (want != PUMP_BLOCKED)
			pull_some(t, dir);
		if (r == want && (want != PUMP_EMPTY || s->got == s->sent))
			return;
		if (r == PUMP_EOF || r == PUMP_UNSUPPORTED)
			step(t, r == PUMP_EOF ? -ENODATA : -EOPNOTSUPP, what);
		have_patience(t, what);
	}
}

static void try_splice(struct trial *t)
{
	open_session(t, true);
	splice_until(t, UP, PUMP_EMPTY, "an empty source");
	push_until_halt(t, 512 * KIB);
	splice_until(t, UP, PUMP_BLOCKED, "a target that is full");
	widen(t, true);
	splice_until(t, UP, PUMP_EMPTY, "bytes that waited in the pipe");
	for (unsigned int dir = 0; dir < 2; dir++) {
		push(t, dir, 1000);
		push_fin(t, dir);
		splice_until(t, dir, PUMP_EOF, "the end of a source");
		end(t, dir);
	}
}

/* --- the sockmap carrier --- */

static void try_redirect(struct trial *t)
{
	const size_t len = MIB, portion = 64 * KIB;

	open_admitted(t, false);
	enter(t, UP);
	enter(t, DOWN);
	for (size_t done = 0; done < len; done += portion) {
		push(t, UP, portion);
		push(t, DOWN, portion);
		/* all of it, so that no backlog comes near the least kernel-memory */
		pull(t, UP, "bytes through the kernel");
		pull(t, DOWN, "bytes through the kernel, the other way");
	}
	for (unsigned int dir = 0; dir < 2; dir++)
		same(t, "bytes redirected", redirected(t, dir), len);
}

/* Send the source's FIN; the target ends with nothing lost. */
static void end_in_kernel(struct trial *t, unsigned int dir)
{
	push_fin(t, dir);
	WAIT(t, poll_now(t->inner[dir], POLLRDHUP), "EPOLLRDHUP");
	until_done(t, dir, sockmap_finish, "every byte at the target after FIN");
	end(t, dir);
}

static void try_fin(struct trial *t)
{
	open_admitted(t, true);
	enter(t, UP);
	enter(t, DOWN);
	push_until_halt(t, 256 * KIB); /* stalled when the other direction's FIN comes */
	push(t, DOWN, 1000);
	end_in_kernel(t, DOWN);
	widen(t, true);
	pull(t, UP, "the other direction after a FIN");
	deliver(t, UP, 64 * KIB, "more of the other direction after a FIN");
	end_in_kernel(t, UP);
	same(t, "errors of the sockets at the end",
	     (poll_now(t->inner[UP], 0) | poll_now(t->inner[DOWN], 0)) & POLLERR, 0);
}

/* --- limits --- */

#define TIGHT_LIMIT (32 * KIB)
/* One interval of looks may pass before the program looks again, and each skb costs overhead. */
#define TIGHT_SLACK (256 * KIB)
#define BURST (512 * KIB)
#define BURSTS 2

/*
 * Nobody receives, until the program passes, and on until the sender has to stop.  Then the server
 * receives again, and user space writes what was passed, until all is there.
 */
static void stall_and_catch_up(struct trial *t, uint64_t upto)
{
	const volatile struct culvert_stat *st = kernel_stat(t->kernel, t->pair * 2);
	uint64_t bytes = st->bytes, passed = st->passed;
	struct stream *s = &t->streams[UP];
	enum step r;

	widen(t, false);
	WAIT(t, (push_some(t, UP, upto - s->sent), st->passed != passed),
	     "passing over the hard limit");
	push_until_halt(t, upto - s->sent);
	widen(t, true);
	do {
		struct sockmap_io io = sockmap_of(t, UP);

		push_some(t, UP, upto - s->sent);
		r = sockmap_settle(&io);
		step(t, step_error(r, io.error), "delivery of what was passed");
		pull_some(t, UP);
		have_patience(t, "delivery of all that was sent");
	} while (r != STEP_DONE || s->got != upto);
	if (st->bytes == bytes)
		give_up(t, "what was passed is not followed by redirection again");
}

static void try_hard_limit(struct trial *t)
{
	const volatile struct culvert_stat *st;
	uint64_t base;

	t->limits.soft_limit = TIGHT_LIMIT / 2;
	t->limits.hard_limit = TIGHT_LIMIT;
	open_admitted(t, true);
	enter(t, UP);
	st = kernel_stat(t->kernel, t->pair * 2);
	base = st->bytes + st->passed;
	for (uint64_t i = 1; i <= BURSTS; i++)
		stall_and_catch_up(t, i * BURST);
	same(t, "bytes redirected and passed", st->bytes + st->passed - base, BURSTS * BURST);
	if (st->backlog_max > TIGHT_LIMIT + TIGHT_SLACK)
		same(t, "bytes of the largest backlog", st->backlog_max, TIGHT_LIMIT);
}

/* --- leaving --- */

#define STAYS 5
/* What the sender may be ahead of the receiver while the flow comes and goes. */
#define AHEAD (64 * KIB)
/* What each stay carries, at least. */
#define REDIRECTED (16 * KIB)

struct sender {
	int fd;
	struct stream *stream;
	atomic_bool stop;
};

static void *send_ahead(void *arg)
{
	struct sender *sender = arg;
	struct stream *s = sender->stream;
	ssize_t n = 0;

	while (!sender->stop && n >= 0) {
		n = s->sent - s->got < AHEAD ? rig_send(sender->fd, s->sent, 3001) : 0;
		if (n > 0)
			s->sent += (uint64_t)n;
		else
			sched_yield(); /* a sleep would last longer than a removal */
	}
	return NULL;
}

/* User space carries what is there, and the server receives. */
static void carry(struct trial *t)
{
	struct pump_io io = pump_of(t, UP);
	enum pump r = copy_pump(&io);

	if (r != PUMP_EMPTY && r != PUMP_MORE && r != PUMP_BLOCKED)
		step(t, io.error ? -io.error : -ENODATA, "carrying by user space");
	pull_some(t, UP);
}

/* Read until nothing is there, then enter.  The sender cannot be further ahead than AHEAD. */
static void enter_busy(struct trial *t)
{
	int r;

	WAIT(t, (carry(t), r = t->flows[UP].pending ? -EAGAIN : try_enter(t, UP), r != -EAGAIN),
	     "insertion of a busy flow");
	step(t, r, "insertion of a busy flow");
}

/* Over a limit the program passes bytes until those that it has passed are written. */
static bool redirects_beyond(struct trial *t, uint64_t count)
{
	struct sockmap_io io = sockmap_of(t, UP);

	pull_some(t, UP);
	step(t, step_error(sockmap_settle(&io), io.error), "delivery of what was passed");
	return redirected(t, UP) > count;
}

/* The flow comes and goes amid arriving bytes; user space delivers the rest. */
static void try_leave(struct trial *t)
{
	static struct sender sender;
	struct stream *s = &t->streams[UP];

	open_admitted(t, false);
	sender = (struct sender){ .fd = t->outer[UP], .stream = s };
	step(t, -pthread_create(&t->helper, NULL, send_ahead, &sender), "a thread");
	t->has_helper = true;
	for (int i = 0; i < STAYS; i++) {
		uint64_t upto = redirected(t, UP) + REDIRECTED;

		enter_busy(t);
		WAIT(t, redirects_beyond(t, upto), "redirecting");
		until_done(t, UP, sockmap_leave, "removal of a busy flow");
		until_done(t, UP, sockmap_drain, "the end of the backlog");
	}
	sender.stop = true;
	join_helper(t);
	WAIT(t, (carry(t), s->got == s->sent), "delivery of the rest");
}

/* --- all of them --- */

const struct behaviour behaviours[BEHAVIOURS] = {
	{ "load", PROBE_SOCKMAP, "the verdict program passes the verifier and attaches to a sockmap",
	  "without it nothing can be redirected", NULL },
	{ "splice", PROBE_SPLICE,
	  "splice(2) carries bytes unchanged past a full target, and tells empty from ended",
	  "payload would be corrupted, truncated, or hang", try_splice },
	{ "redirect", PROBE_SOCKMAP, "redirected bytes arrive unchanged and in order, both ways",
	  "payload would be corrupted", try_redirect },
	{ "fin", PROBE_SOCKMAP, "a FIN in one direction does not break the other",
	  "answers would be truncated", try_fin },
	{ "hard-limit", PROBE_SOCKMAP,
	  "over the hard limit bytes are passed to user space, and order is kept",
	  "a receiver that stalls would fill the kernel's memory", try_hard_limit },
	{ "leave", PROBE_SOCKMAP, "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space", try_leave },
};

/* A function of its own, for none of its variables may change between setjmp() and longjmp(). */
static bool run(struct trial *t, const struct behaviour *b)
{
	if (setjmp(t->failed))
		return false;
	b->run(t);
	return true;
}

bool behaviour_holds(const struct behaviour *b, struct kernel *k, bool small, char *ret_detail)
{
	struct trial t = {
		.kernel = k,
		.small = small,
		.limits = { .soft_limit = MIB, .hard_limit = 4 * MIB },
		.outer = { -1, -1 },
		.inner = { -1, -1 },
		.deadline_ms = clock_ms() + DEADLINE_MS,
		.detail = ret_detail,
	};
	bool holds;

	pool_init(&t.pool, BUFFER_SIZE);
	holds = run(&t, b);
	close_session(&t);
	pool_close(&t.pool);
	return holds;
}
