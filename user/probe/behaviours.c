// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a behaviour is a function that drives a session (rig.h) and returns if the
 * kernel did what it must.  Each step fails by itself, by rig_fail(), which jumps back to
 * behaviour_holds(); what is open by then, rig_close() closes.
 */
#include "probe/behaviours.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "datapath/carrier.h"
#include "datapath/tcp.h"

#define KIB 1024
#define MIB (1024 * 1024)

/* What one behaviour may wait for, all in all: a kernel worker has waited 10 s for a busy CPU. */
#define DEADLINE_MS 15000
#define BUFFER_SIZE (64 * KIB)
#define SOFT_LIMIT MIB
#define HARD_LIMIT (4 * MIB)

static unsigned long long kib(uint64_t bytes)
{
	return bytes / KIB;
}

/* --- without sockets, and with sockets alone --- */

static void try_load(struct probe *p)
{
	struct kernel_limits limits = { .pairs = 1, .workers = 1 };
	char err[256] = "";
	int r = kernel_open(&limits, &p->kernel, err, sizeof(err));

	if (r)
		p->kernel = NULL;
	if (r == -EPERM || r == -EACCES)
		rig_fail(p, "%s; for root, a user namespace, seccomp or lockdown may forbid it",
			 err);
	if (r)
		rig_fail(p, "%s", err);
	rig_note(p, "program and maps are there");
}

static void try_loopback(struct probe *p)
{
	rig_open(p, 0);
	rig_note(p, "%s", p->own_net ? "in a network namespace of its own" :
				       "in the current network namespace");
}

static int option(struct probe *p, int name, const char *what)
{
	int value = -1;
	socklen_t len = sizeof(value);

	rig_call(p, getsockopt(p->rig.a, SOL_SOCKET, name, &value, &len), what);
	return value;
}

static bool is_readable(int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

static bool has_received(struct probe *p, uint64_t bytes)
{
	uint64_t received;

	return !tcp_received(p->rig.a, &received) && received == bytes;
}

/* The low-water mark of a removal, behind a lock: the size of the buffer does not change. */
static void try_receive_buffer(struct probe *p)
{
	int size, lock = SOCK_RCVBUF_LOCK, none = 0;
	bool quiet;

	rig_open(p, 0);
	p->rig.streams[UP].rx = p->rig.a;
	size = option(p, SO_RCVBUF, "SO_RCVBUF");
	rig_call(p, setsockopt(p->rig.a, SOL_SOCKET, SO_BUF_LOCK, &lock, sizeof(lock)),
		 "SO_BUF_LOCK");
	rig_step(p, tcp_set_lowat(p->rig.a, INT_MAX), "SO_RCVLOWAT");
	rig_same(p, "SO_RCVBUF under SO_RCVLOWAT",
		 (uint64_t)option(p, SO_RCVBUF, "SO_RCVBUF"), (uint64_t)size);
	rig_push(p, UP, 1000);
	RIG_WAIT(p, has_received(p, 1000), "arrival");
	/* no failure if not: TCP ignores the mark while the machine is short of TCP memory */
	quiet = !is_readable(p->rig.a);
	rig_step(p, tcp_set_lowat(p->rig.a, 1), "SO_RCVLOWAT");
	rig_call(p, setsockopt(p->rig.a, SOL_SOCKET, SO_BUF_LOCK, &none, sizeof(none)),
		 "SO_BUF_LOCK");
	rig_same(p, "SO_RCVBUF afterwards", (uint64_t)option(p, SO_RCVBUF, "SO_RCVBUF"),
		 (uint64_t)size);
	rig_same(p, "SO_BUF_LOCK afterwards", (uint64_t)option(p, SO_BUF_LOCK, "SO_BUF_LOCK"), 0);
	rig_same(p, "readable afterwards", is_readable(p->rig.a), true);
	rig_pull(p, UP, "reading");
	rig_note(p, "%d KiB before, under and after SO_RCVLOWAT%s", size / KIB,
		 quiet ? "" : " (which has no effect now: TCP memory pressure)");
}

/* --- the splice carrier --- */

/* Pump until the carrier says WANT; if that is PUMP_EMPTY, until all is received, too. */
static void splice_until(struct probe *p, unsigned int dir, enum pump want, const char *what)
{
	const struct stream *s = &p->rig.streams[dir];

	for (;;) {
		struct pump_io io = rig_pump(p, dir);
		enum pump r = splice_pump(&io);

		if (r == PUMP_SRC_ERROR || r == PUMP_DST_ERROR || r == PUMP_STARVED)
			rig_step(p, io.error ? -io.error : -EIO, what);
		if (want != PUMP_BLOCKED)
			rig_pull_some(p, dir, SIZE_MAX);
		if (r == want && (want != PUMP_EMPTY || s->got == s->sent))
			return;
		if (r == PUMP_EOF || r == PUMP_UNSUPPORTED)
			rig_step(p, r == PUMP_EOF ? -ENODATA : -EOPNOTSUPP, what);
		rig_patience(p, what);
	}
}

static void try_splice(struct probe *p)
{
	rig_open(p, 0);
	for (unsigned int dir = 0; dir < 2; dir++) {
		splice_until(p, dir, PUMP_EMPTY, "an empty source");
		for (int i = 0; i < 4; i++) {
			rig_push(p, dir, 64 * KIB);
			splice_until(p, dir, PUMP_EMPTY, "bytes through a pipe");
		}
	}
	for (unsigned int dir = 0; dir < 2; dir++) {
		rig_push(p, dir, 1000);
		rig_push_fin(p, dir);
		splice_until(p, dir, PUMP_EOF, "the end of a source");
		rig_call(p, shutdown(rig_pump(p, dir).dst, SHUT_WR), "shutdown of the target");
		rig_pull(p, dir, "the last bytes");
		rig_pull_eof(p, p->rig.streams[dir].rx);
	}
	rig_note(p, "256 KiB each way unchanged in pipes, and both ends of file");
}

static void try_splice_stall(struct probe *p)
{
	uint64_t kept;

	rig_open(p, RIG_SMALL_B);
	rig_push_until_halt(p, UP, 512 * KIB);
	splice_until(p, UP, PUMP_BLOCKED, "a target that is full");
	kept = p->rig.flows[UP].pending;
	if (!kept)
		rig_fail(p, "no bytes are kept in the pipe");
	rig_widen(p, UP, true);
	splice_until(p, UP, PUMP_EMPTY, "what had been kept");
	rig_note(p, "%llu KiB kept and delivered, %llu KiB in all", kib(kept),
		 kib(p->rig.streams[UP].got));
}

static void try_splice_urgent(struct probe *p)
{
	struct stream *s = &p->rig.streams[UP];
	struct pump_io one_byte;
	int one = 1;

	rig_open(p, 0);
	rig_call(p, setsockopt(p->rig.a, SOL_SOCKET, SO_OOBINLINE, &one, sizeof(one)),
		 "SO_OOBINLINE");
	rig_push(p, UP, 1000);
	splice_until(p, UP, PUMP_EMPTY, "bytes before the urgent one");
	rig_call(p, send(s->tx, rig_pattern(s->sent), 1, MSG_OOB | MSG_NOSIGNAL), "an urgent byte");
	s->sent++;
	rig_push(p, UP, 1000);
	splice_until(p, UP, PUMP_UNSUPPORTED, "a halt at the urgent byte");
	one_byte = rig_pump(p, UP);
	one_byte.limit = 1;
	copy_pump(&one_byte);
	rig_same(p, "reading the urgent byte", one_byte.read, 1);
	splice_until(p, UP, PUMP_EMPTY, "bytes after the urgent one");
	rig_note(p, "kept in the stream between 1000 bytes and 1000 more");
}

/* --- entering the kernel --- */

static void try_insert(struct probe *p)
{
	rig_open_entered(p, 0);
	rig_note(p, "both sockets, as source and as target");
}

/* R is the kernel's answer to an insertion that it has to refuse. */
static void refused(struct probe *p, int r, const char *what)
{
	if (r != -EOPNOTSUPP)
		rig_fail(p, "%s: %s instead of %s", what, r ? strerror(-r) : "accepted",
			 strerror(EOPNOTSUPP));
}

static void try_insert_after_fin(struct probe *p)
{
	struct rig *g = &p->rig;

	rig_open(p, 0);
	rig_pair(p);
	g->streams[UP].rx = g->a;
	rig_push(p, UP, 100);
	rig_push_fin(p, UP);
	rig_await_fin(p, g->a);
	refused(p, kernel_admit(p->kernel, g->pair * 2, g->a), "as a target");
	refused(p, kernel_rx_add(p->kernel, g->pair * 2, g->a), "as a source");
	/* and nothing has happened to the socket */
	rig_pull(p, UP, "reading afterwards");
	rig_pull_eof(p, g->a);
	g->streams[DOWN].tx = g->a;
	rig_deliver(p, DOWN, 100, "writing afterwards");
	rig_note(p, "refused with \"%s\", without harm", strerror(EOPNOTSUPP));
}

static void try_counters(struct probe *p)
{
	uint32_t slot;

	rig_open_entered(p, 0);
	slot = p->rig.pair * 2;
	rig_deliver(p, UP, 1000, "1000 bytes through the kernel");
	rig_same(p, "redirected bytes, as mapped", rig_redirected(p, UP), 1000);
	/* written by us, read and copied by the program */
	rig_same(p, "epoch seen by the program", kernel_stat(p->kernel, slot)->epoch,
		 kernel_ctl(p->kernel, slot)->epoch);
	rig_note(p, "read and written without a system call");
}

struct seen {
	uint32_t slot, epoch;
	unsigned int count;
};

static void on_event(void *arg, const struct culvert_event *ev)
{
	struct seen *seen = arg;

	seen->count += ev->slot == seen->slot && ev->kind == CULVERT_EVENT_BULK &&
		       ev->epoch == (uint16_t)seen->epoch;
}

/* A flow that the program takes for bulk at its first look, so that it tells us. */
static void try_events(struct probe *p)
{
	static struct seen seen;
	struct kernel_ring *ring; /* freed with the process, or below */

	p->policy.kernel_bulk = 1;
	p->policy.kernel_bulk_ratio = 0;
	p->policy.kernel_bulk_skb = 0;
	rig_open_admitted(p, 0);
	rig_enter(p, UP);
	seen = (struct seen){ .slot = p->rig.pair * 2 };
	seen.epoch = kernel_ctl(p->kernel, seen.slot)->epoch;
	rig_step(p, kernel_ring_open(p->kernel, 0, on_event, &seen, &ring), "opening the ring");
	rig_deliver(p, UP, 4 * CULVERT_CHECK_BYTES, "bytes through the kernel");
	RIG_WAIT(p, is_readable(kernel_ring_fd(ring)) && kernel_ring_consume(ring) >= 0 &&
			    seen.count, "an event in the ring");
	kernel_ring_close(ring);
	rig_same(p, "events of the same kind", seen.count, 1);
	rig_note(p, "one event, and the descriptor of the ring became readable");
}

static void try_redirect(struct probe *p)
{
	const size_t len = MIB, portion = 64 * KIB;

	rig_open_entered(p, 0);
	for (size_t done = 0; done < len; done += portion) {
		rig_push(p, UP, portion);
		rig_push(p, DOWN, portion);
		/* all of it, so that no backlog comes near the least kernel-memory */
		rig_pull(p, UP, "bytes through the kernel");
		rig_pull(p, DOWN, "bytes through the kernel, the other way");
	}
	for (unsigned int dir = 0; dir < 2; dir++)
		rig_same(p, "bytes redirected", rig_redirected(p, dir), len);
	rig_note(p, "1 MiB each way unchanged");
}

/* Bytes that come between the last look at an empty queue and the insertion. */
static void try_early_bytes(struct probe *p)
{
	struct rig *g = &p->rig;
	struct sockmap_io io;

	rig_open_entered(p, 0);
	rig_step(p, kernel_rx_del(p->kernel, g->pair * 2), "removal");
	rig_push(p, UP, 1000);
	RIG_WAIT(p, is_readable(g->a), "arrival");
	rig_step(p, kernel_rx_add(p->kernel, g->pair * 2, g->a), "insertion");
	io = rig_io(p, UP);
	rig_same(p, "the kick", sockmap_kick(&io), STEP_DONE);
	rig_pull(p, UP, "delivery of bytes that came before the insertion");
	rig_deliver(p, UP, 1000, "delivery of the next bytes");
	rig_note(p, "1000 bytes, then 1000 more, in order");
}

/* --- ends of streams, and what else must not disturb --- */

/* The source of flow DIR has ended: so does its target, with nothing lost. */
static void end_flow(struct probe *p, unsigned int dir)
{
	rig_await_fin(p, rig_pump(p, dir).src);
	rig_until_done(p, dir, sockmap_finish, "every byte at the target after FIN");
	rig_call(p, shutdown(rig_pump(p, dir).dst, SHUT_WR), "shutdown of the target");
	rig_pull(p, dir, "the last bytes");
	rig_pull_eof(p, p->rig.streams[dir].rx);
}

static void try_fin(struct probe *p)
{
	struct rig *g = &p->rig;
	struct pollfd ends[2];

	rig_open_entered(p, RIG_SMALL_A);
	rig_push_until_halt(p, DOWN, 256 * KIB); /* an answer that is stalled when the FIN comes */
	rig_push(p, UP, 1000);
	rig_push_fin(p, UP);
	end_flow(p, UP);
	rig_widen(p, DOWN, true);
	rig_pull(p, DOWN, "the other direction after a FIN");
	rig_deliver(p, DOWN, 64 * KIB, "more of the other direction after a FIN");
	rig_push_fin(p, DOWN);
	end_flow(p, DOWN);
	ends[0] = (struct pollfd){ .fd = g->a };
	ends[1] = (struct pollfd){ .fd = g->b };
	rig_call(p, poll(ends, 2, 0), "poll");
	rig_same(p, "errors of the sockets at the end",
		 (ends[0].revents | ends[1].revents) & POLLERR, 0);
	rig_note(p, "%llu KiB of the other direction arrived", kib(g->streams[DOWN].got));
}

#define MESSAGES 32
/* Switches of a waiting thread that is not woken by messages: start, end, and some for paging. */
#define WAKE_UPS_MAX (MESSAGES / 4)

struct waiter {
	int socket, timeout_ms;
	unsigned int events;
	long switches;
};

static void *wait_for_fin(void *arg)
{
	struct waiter *w = arg;
	struct epoll_event watch = { .events = EPOLLRDHUP }, got = { 0 };
	struct rusage before, after;
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	getrusage(RUSAGE_THREAD, &before);
	if (epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, w->socket, &watch))
		epoll_wait(epoll, &got, 1, w->timeout_ms);
	getrusage(RUSAGE_THREAD, &after);
	w->events = got.events;
	w->switches = after.ru_nvcsw - before.ru_nvcsw;
	if (epoll >= 0)
		close(epoll);
	return NULL;
}

static void try_wake_ups(struct probe *p)
{
	static struct waiter w;

	rig_open_admitted(p, 0);
	rig_enter(p, UP);
	w = (struct waiter){ .socket = p->rig.a, .timeout_ms = DEADLINE_MS };
	rig_help(p, wait_for_fin, &w);
	for (int i = 0; i < MESSAGES; i++) {
		rig_deliver(p, UP, 1, "messages through the kernel");
		rig_patience(p, "messages"); /* time to be woken, once for each message */
	}
	rig_push_fin(p, UP);
	pthread_join(p->rig.helper, NULL);
	p->rig.has_helper = false;
	if (!(w.events & EPOLLRDHUP))
		rig_fail(p, "no EPOLLRDHUP at the FIN");
	if (w.switches > WAKE_UPS_MAX)
		rig_same(p, "wake-ups by redirected messages", (uint64_t)w.switches, 0);
	rig_note(p, "not by %d messages, but by FIN", MESSAGES);
}

/* --- the books --- */

/* Wait until the formula says WANT of a flow that has written all that was sent, and OFF more. */
static void judge(struct probe *p, unsigned int dir, int off, enum step want, const char *what)
{
	struct sockmap_io io = rig_io(p, dir);

	io.flow->user_out = p->rig.streams[dir].sent + (uint64_t)off;
	RIG_WAIT(p, sockmap_drain(&io) == want, what);
}

/* Whatever the target's state, the formula is right to the byte. */
static void exact(struct probe *p, unsigned int dir)
{
	judge(p, dir, 0, STEP_DONE, "as many bytes accepted as sent");
	judge(p, dir, 1, STEP_WAIT, "one byte not accepted yet");
	if (p->rig.streams[dir].sent)
		judge(p, dir, -1, STEP_UNPROVED, "one byte accepted that was not sent");
}

static void try_accounting(struct probe *p)
{
	struct rig *g = &p->rig;

	rig_open(p, 0);
	rig_pair(p);
	g->streams[UP].tx = g->b; /* we are the ones who write, to the connected ... */
	g->streams[DOWN].tx = g->a; /* ... and to the accepted socket */
	for (unsigned int dir = 0; dir < 2; dir++) {
		exact(p, dir);
		rig_push_until_halt(p, dir, 512 * KIB);
		exact(p, dir); /* not read, and perhaps not sent yet */
		rig_pull_some(p, dir, 100000);
		exact(p, dir);
		rig_pull(p, dir, "reading");
		exact(p, dir); /* all of it read, and acknowledged sooner or later */
	}
	rig_note(p, "exact to the byte, for connected and for accepted sockets");
}

static void unread(struct probe *p, uint64_t want, const char *what)
{
	uint64_t n = 0;

	rig_step(p, tcp_unread(p->rig.a, &n), what);
	rig_same(p, what, n, want);
}

static void try_unread(struct probe *p)
{
	const size_t piece = 1049, total = 20 * piece;

	rig_open_admitted(p, 0);
	p->rig.streams[UP].rx = p->rig.a;
	for (size_t sent = 0; sent < total; sent += piece)
		rig_push(p, UP, piece);
	RIG_WAIT(p, has_received(p, total), "arrival");
	unread(p, total, "unread bytes");
	unread(p, total, "unread bytes, counted again");
	rig_same(p, "bytes read", rig_pull_some(p, UP, 1000), 1000);
	unread(p, total - 1000, "unread bytes after reading 1000");
	rig_pull(p, UP, "reading the rest");
	rig_note(p, "counted to the byte, and none taken");
}

/* --- limits --- */

#define TIGHT_LIMIT (32 * KIB)
/* One interval of looks may pass before the program looks again, and each skb costs overhead. */
#define TIGHT_SLACK (256 * KIB)
#define BURSTS 2

/* Passed bytes are waiting for user space. */
static bool owes(struct probe *p)
{
	uint32_t slot = p->rig.pair * 2;

	return kernel_stat(p->kernel, slot)->passed != kernel_ctl(p->kernel, slot)->credit;
}

static void enter_limited(struct probe *p)
{
	p->limits.soft_limit = TIGHT_LIMIT / 2;
	p->limits.hard_limit = TIGHT_LIMIT;
	rig_open_admitted(p, RIG_SMALL_B);
	rig_enter(p, UP);
}

/* Nobody receives, until the program passes, and on until the sender has to stop, or at END. */
static void stall(struct probe *p, uint64_t end)
{
	struct stream *s = &p->rig.streams[UP];

	rig_widen(p, UP, false);
	RIG_WAIT(p, rig_push_some(p, UP, end - s->sent) == SIZE_MAX || owes(p),
		 "passing over the hard limit");
	rig_push_until_halt(p, UP, end - s->sent);
}

/* Everybody works, until END is delivered and nothing passed is outstanding. */
static void catch_up(struct probe *p, uint64_t end)
{
	struct stream *s = &p->rig.streams[UP];
	enum step step;

	rig_widen(p, UP, true);
	do {
		struct sockmap_io io = rig_io(p, UP);

		rig_push_some(p, UP, end - s->sent);
		step = sockmap_settle(&io);
		if (step != STEP_DONE && step != STEP_WAIT)
			rig_fail(p, "bytes that were passed cannot be delivered");
		rig_pull_some(p, UP, SIZE_MAX);
		rig_patience(p, "delivery of all that was sent");
	} while (step != STEP_DONE || s->got != end);
}

static void try_hard_limit(struct probe *p)
{
	const volatile struct culvert_stat *st;
	uint64_t end = 0, base;

	enter_limited(p);
	st = kernel_stat(p->kernel, p->rig.pair * 2);
	base = st->bytes + st->passed;
	for (int i = 0; i < BURSTS; i++) {
		uint64_t bytes = st->bytes, passed = st->passed;

		end += 512 * KIB;
		stall(p, end);
		catch_up(p, end);
		/* in each burst both: what was passed is followed by redirection again */
		if (st->bytes == bytes || st->passed == passed)
			rig_fail(p, "not both redirection and passing in each burst");
	}
	rig_same(p, "bytes redirected and passed", st->bytes + st->passed - base, end);
	if (st->backlog_max > TIGHT_LIMIT + TIGHT_SLACK)
		rig_same(p, "bytes of the largest backlog", st->backlog_max, TIGHT_LIMIT);
	rig_note(p, "%llu KiB redirected, %llu KiB passed, backlog below %llu KiB, in order",
		 kib(st->bytes), kib(st->passed), kib(st->backlog_max) + 1);
}

/* User space carries what is there, and the server receives. */
static void carry(struct probe *p)
{
	struct pump_io io = rig_pump(p, UP);
	enum pump r = copy_pump(&io);

	if (r != PUMP_EMPTY && r != PUMP_MORE && r != PUMP_BLOCKED)
		rig_step(p, io.error ? -io.error : -ENODATA, "carrying by user space");
	rig_pull_some(p, UP, SIZE_MAX);
}

static void carry_rest(struct probe *p)
{
	const struct stream *s = &p->rig.streams[UP];

	RIG_WAIT(p, (carry(p), s->got == s->sent), "delivery of the rest");
}

/* A flow whose target is stalled leaves at once: what was passed is read, not written. */
static void try_read_ahead(struct probe *p)
{
	const struct rig *g = &p->rig;
	struct sockmap_io io;
	enum step step;
	uint64_t got;

	enter_limited(p);
	stall(p, MIB);
	got = g->streams[UP].got;
	io = rig_io(p, UP);
	io.read_ahead = MIB; /* all that can have been passed */
	RIG_WAIT(p, (step = sockmap_leave(&io)) != STEP_WAIT, "removal");
	rig_same(p, "the result of the removal", step, STEP_DONE);
	rig_same(p, "bytes received meanwhile", g->streams[UP].got, got);
	rig_widen(p, UP, true);
	rig_until_done(p, UP, sockmap_drain, "the end of the backlog");
	got = g->flows[UP].pending;
	carry_rest(p);
	rig_note(p, "%llu KiB read before they could be written, in order", kib(got));
}

/* --- leaving --- */

/* A socket filter keeps data out; TCP, which has not acknowledged it, sends it again. */
static void try_gate(struct probe *p)
{
	volatile struct culvert_ctl *ctl;
	int queued = 0;

	rig_open_entered(p, 0);
	ctl = kernel_ctl(p->kernel, p->rig.pair * 2);
	rig_deliver(p, UP, 1000, "bytes through the kernel");
	ctl->fence = 1;
	kernel_barrier();
	rig_push(p, UP, 1000);
	rig_deliver(p, DOWN, 1000, "the other direction, in spite of the gate");
	RIG_WAIT(p, !ioctl(p->rig.a, SIOCOUTQ, &queued) && !queued,
		 "an acknowledgement, in spite of the gate");
	rig_same(p, "bytes redirected, with the gate closed", rig_redirected(p, UP), 1000);
	ctl->fence = 0;
	rig_pull(p, UP, "all bytes, once the gate is open");
	rig_note(p, "data is kept out and comes again, the other direction goes on");
}

/* More is sent until there is a backlog, however much TCP takes. */
static bool has_backlog(struct probe *p)
{
	struct sockmap_io io = rig_io(p, DOWN);

	rig_push_some(p, DOWN, 16 * KIB);
	return rig_redirected(p, DOWN) > 64 * KIB && sockmap_drain(&io) == STEP_WAIT;
}

static void try_backlog(struct probe *p)
{
	rig_open_entered(p, RIG_SMALL_A);
	rig_push_until_halt(p, DOWN, 256 * KIB);
	RIG_WAIT(p, has_backlog(p), "a backlog");
	rig_deliver(p, UP, 1000, "the first direction");
	rig_until_done(p, UP, sockmap_leave, "removal of the backlog's owner from rx");
	rig_until_done(p, UP, sockmap_drain, "the end of the first direction's backlog");
	rig_widen(p, DOWN, true);
	rig_pull(p, DOWN, "the backlog, after its owner has left rx");
	rig_deliver(p, DOWN, 64 * KIB, "more bytes for the same target");
	rig_note(p, "kept when its owner left the map of sources (rx)");
}

#define STAYS 50
#define STAYS_BRIEF 5
/* What the sender may be ahead of the receiver while the flow comes and goes. */
#define AHEAD (64 * KIB)
/* What each stay carries, at least. */
#define REDIRECTED (16 * KIB)

struct sender {
	struct stream *stream;
	atomic_bool stop;
	atomic_bool hurry; /* send as fast as it can; else no further ahead than AHEAD */
};

static void *send_ahead(void *arg)
{
	struct sender *sender = arg;
	struct stream *s = sender->stream;
	ssize_t n = 0;

	while (!sender->stop && n >= 0) {
		n = 0;
		if (sender->hurry || s->sent - s->got < AHEAD)
			n = rig_send(s->tx, s->sent, 3001);
		if (n > 0)
			s->sent += (uint64_t)n;
		else
			sched_yield(); /* a sleep would last longer than a removal */
	}
	return NULL;
}

/* Read until nothing is there, then enter.  The sender cannot be further ahead than AHEAD. */
static void enter_busy(struct probe *p)
{
	int r = -EAGAIN;

	while (r == -EAGAIN) {
		carry(p);
		if (!p->rig.flows[UP].pending)
			r = rig_try_enter(p, UP);
		if (r == -EAGAIN)
			rig_patience(p, "insertion of a busy flow");
	}
	rig_step(p, r, "insertion of a busy flow");
}

/* Over a limit the program passes bytes until those that it has passed are written. */
static bool redirects_beyond(struct probe *p, uint64_t count)
{
	struct sockmap_io io = rig_io(p, UP);

	rig_pull_some(p, UP, SIZE_MAX);
	if (sockmap_settle(&io) >= STEP_UNPROVED)
		rig_fail(p, "passed bytes cannot be written");
	return rig_redirected(p, UP) > count;
}

/* The flow comes and goes amid arriving bytes; user space delivers the rest. */
static void try_leave(struct probe *p)
{
	static struct sender sender;
	struct stream *s = &p->rig.streams[UP];
	int stays = p->brief ? STAYS_BRIEF : STAYS, flowing = 0;

	rig_open_admitted(p, 0);
	sender = (struct sender){ .stream = s };
	rig_help(p, send_ahead, &sender);
	for (int i = 0; i < stays; i++) {
		uint64_t upto = rig_redirected(p, UP) + REDIRECTED, sent;

		enter_busy(p);
		sender.hurry = true;
		RIG_WAIT(p, redirects_beyond(p, upto), "redirecting");
		sent = s->sent;
		rig_until_done(p, UP, sockmap_leave, "removal of a busy flow");
		flowing += s->sent != sent;
		sender.hurry = false;
		rig_until_done(p, UP, sockmap_drain, "the end of the backlog");
	}
	sender.stop = true;
	pthread_join(p->rig.helper, NULL);
	p->rig.has_helper = false;
	carry_rest(p);
	rig_note(p, "%d removals, %d amid arriving bytes; %llu of %llu KiB by the kernel", stays,
		 flowing, kib(rig_redirected(p, UP)), kib(s->got));
}

/* --- without privileges --- */

#define NOBODY 65534

static void give_up_privileges(struct probe *p)
{
	cap_t none = cap_init();

	for (cap_value_t c = 0; CAP_IS_SUPPORTED(c); c++)
		cap_drop_bound(c); /* without CAP_SETPCAP it stays, and cannot be used */
	if (!geteuid())
		rig_call(p, setgroups(0, NULL) ?: setresgid(NOBODY, NOBODY, NOBODY) ?:
				    setresuid(NOBODY, NOBODY, NOBODY), "becoming nobody");
	rig_call(p, cap_set_proc(none), "giving up capabilities");
	rig_call(p, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
	cap_free(none);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user has cleared it */
}

/* True if it can; else p->detail says why not. */
static bool work_as_nobody(struct probe *p)
{
	if (setjmp(p->failed))
		return false;
	give_up_privileges(p);
	try_events(p); /* connections, gate, insertion, redirection, a ring */
	rig_until_done(p, UP, sockmap_leave, "removal");
	rig_until_done(p, UP, sockmap_drain, "the end of the backlog");
	return true;
}

/* In a process of its own, which reports by a pipe what has failed. */
static void try_unprivileged(struct probe *p)
{
	int report[2], status = 0, left = (int)(p->deadline_ms - clock_ms());
	struct pollfd pfd = { .events = POLLIN };
	char said[PROBE_DETAIL] = "";
	ssize_t n = -1;
	pid_t pid;

	rig_call(p, pipe2(report, O_CLOEXEC), "a pipe");
	pid = fork();
	if (!pid) {
		bool works = work_as_nobody(p);

		rig_close(p); /* the maps are those of the process that goes on */
		_exit(!works && write(report[1], p->detail, strlen(p->detail)) > 0);
	}
	close(report[1]);
	pfd.fd = report[0];
	if (pid > 0 && poll(&pfd, 1, left > 0 ? left : 0) == 1)
		n = read(report[0], said, sizeof(said) - 1);
	close(report[0]);
	if (n < 0 && pid > 0)
		kill(pid, SIGKILL);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	rig_call(p, pid, "a process");
	if (n || status)
		rig_fail(p, "%s", n > 0 ? said : "the process without privileges has not ended well");
	rig_note(p, "maps, ring and counters still work as user nobody, without capabilities");
}

/* --- all of them --- */

#define FOR_SOCKMAP PROBE_SOCKMAP
#define FOR_SPLICE PROBE_SPLICE
#define FOR_BOTH (PROBE_SOCKMAP | PROBE_SPLICE)
#define START true /* at each start: together they use all that the carriers use */
#define LATER false

/* Those of splice come early: a crash or hang of a later one does not touch them. */
const struct behaviour behaviours[BEHAVIOURS] = {
	{ "loopback", FOR_BOTH, START, "TCP connections can be made on 127.0.0.1",
	  "nothing else can be tried",
	  NULL, { NULL }, try_loopback },
	{ "splice", FOR_SPLICE, START,
	  "splice(2) carries bytes from socket to socket, and tells empty from ended",
	  "payload would be corrupted, truncated, or hang",
	  NULL, { "loopback" }, try_splice },
	{ "splice-stall", FOR_SPLICE, LATER,
	  "what a full target does not take stays in the pipe, in order",
	  "bytes for a slow receiver would be lost or reordered",
	  NULL, { "splice" }, try_splice_stall },
	{ "splice-urgent", FOR_SPLICE, LATER,
	  "splice(2) stops at an urgent byte, which recv(2) can then read",
	  "urgent data would end a stream, or stop it for ever",
	  NULL, { "splice" }, try_splice_urgent },
	{ "load", FOR_SOCKMAP, START,
	  "the verdict program passes the verifier and attaches to a sockmap",
	  "without it nothing can be redirected",
	  "Linux 5.10, ef5659280eb1: verdict without parser",
	  { NULL }, try_load },
	{ "insert", FOR_SOCKMAP, LATER, "a connection in ESTABLISHED may be put into the maps",
	  "no flow could ever enter the kernel",
	  NULL, { "load", "loopback" }, try_insert },
	{ "insert-after-fin", FOR_SOCKMAP, LATER,
	  "after the peer's FIN it is refused, without harm",
	  "a short request would be torn instead of staying in user space",
	  NULL, { "insert" }, try_insert_after_fin },
	{ "counters", FOR_SOCKMAP, LATER,
	  "counters and limits are shared with the program through mapped memory",
	  "user space could not know what was redirected",
	  "Linux 5.5, fc9702273e2e", { "insert" }, try_counters },
	{ "events", FOR_SOCKMAP, LATER,
	  "the program's events arrive through a ring buffer and wake the reader",
	  "limits would be noticed too late",
	  "Linux 5.8, 457f44363a88", { "counters" }, try_events },
	{ "redirect", FOR_SOCKMAP, START,
	  "redirected bytes arrive unchanged and in order, both ways",
	  "payload would be corrupted",
	  NULL, { "load", "loopback", "counters" }, try_redirect },
	{ "early-bytes", FOR_SOCKMAP, LATER,
	  "a peek makes the program see bytes that came before the insertion",
	  "early bytes would wait until more come, perhaps for ever",
	  NULL, { "redirect" }, try_early_bytes },
	{ "fin", FOR_SOCKMAP, START, "a FIN in one direction does not break the other",
	  "answers would be truncated",
	  NULL, { "redirect" }, try_fin },
	{ "accounting", FOR_SOCKMAP, LATER,
	  "tcpi_bytes_acked and SIOCOUTQ tell what TCP has accepted, to the byte",
	  "a flow would be taken for drained too early or never: truncated, or hung",
	  NULL, { "insert" }, try_accounting },
	{ "backlog", FOR_SOCKMAP, LATER,
	  "a socket keeps its backlog when it leaves one of its two maps",
	  "what is queued for the opposite direction would be lost",
	  NULL, { "redirect", "accounting" }, try_backlog },
	{ "unread", FOR_SOCKMAP, LATER,
	  "MSG_PEEK|MSG_TRUNC counts the unread bytes of a socket in a map",
	  "a removal could not be audited",
	  NULL, { "insert" }, try_unread },
	{ "receive-buffer", FOR_SOCKMAP, START,
	  "SO_BUF_LOCK keeps SO_RCVLOWAT from growing the receive buffer",
	  "each removal would cost kernel memory, or lose bytes without its fence",
	  "Linux 5.15, 04190bf8944d", { "loopback" }, try_receive_buffer },
	{ "hard-limit", FOR_SOCKMAP, START,
	  "over the hard limit bytes are passed to user space, and order is kept",
	  "a receiver that stalls would fill the kernel's memory",
	  NULL, { "redirect", "accounting", "events" }, try_hard_limit },
	{ "gate", FOR_SOCKMAP, LATER,
	  "a socket filter keeps data out for a moment, and nothing is lost",
	  "the program might run during a removal, which then loses bytes",
	  "Linux 3.19, 89aa075832b0", { "redirect" }, try_gate },
	{ "read-ahead", FOR_SOCKMAP, LATER,
	  "a flow with a stalled target can leave: passed bytes can be read at once",
	  "a source that is faster than its target would hold the flow for ever",
	  NULL, { "hard-limit", "unread", "receive-buffer", "gate" }, try_read_ahead },
	{ "leave", FOR_SOCKMAP, START,
	  "a busy flow can be taken out of the kernel without losing a byte",
	  "bulk and slow flows could not be handed back to user space",
	  NULL, { "redirect", "unread", "receive-buffer", "gate" }, try_leave },
	{ "wake-ups", FOR_SOCKMAP, LATER,
	  "redirected data does not wake a thread that waits for EPOLLRDHUP; FIN does",
	  "each segment would cost a switch to user space, which is slower than copying",
	  NULL, { "redirect" }, try_wake_ups },
	{ "unprivileged", FOR_SOCKMAP, START,
	  "all this goes on after every privilege has been given up",
	  "the daemon would have to stay root",
	  "Linux 5.19, c8644cd0efe7: where unprivileged BPF is disabled",
	  { "leave", "events" }, try_unprivileged },
};

size_t behaviour_find(const char *name)
{
	size_t i = 0;

	while (strcmp(behaviours[i].name, name) != 0)
		i++;
	return i;
}

void behaviours_begin(struct probe *p, struct kernel *kernel)
{
	*p = (struct probe){ .kernel = kernel };
	p->rig = (struct rig){ .client = -1, .a = -1, .b = -1, .server = -1 };
	pool_init(&p->pool, BUFFER_SIZE);
}

void behaviours_end(struct probe *p)
{
	kernel_close(p->kernel);
	pool_close(&p->pool);
}

/* A function of its own, for none of its variables may change between setjmp() and longjmp(). */
static bool run(struct probe *p, const struct behaviour *b)
{
	if (setjmp(p->failed))
		return false;
	b->run(p);
	return true;
}

bool behaviour_holds(struct probe *p, const struct behaviour *b)
{
	bool holds;

	p->limits = (struct forward_conf){ .soft_limit = SOFT_LIMIT, .hard_limit = HARD_LIMIT };
	policy_init(&p->policy, ENGINE_SOCKMAP, 0, 0);
	p->deadline_ms = clock_ms() + DEADLINE_MS;
	p->detail[0] = '\0';
	holds = run(p, b);
	rig_close(p);
	return holds;
}
