// SPDX-License-Identifier: BSD-2-Clause
/* The checks of entering the kernel and staying there, and of the books. */
#include "probe/probe_checks.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

#define KIB 1024
#define MIB (1024 * 1024)

/* Each rig takes a pair for good; there are some to spare. */
#define PAIRS 64
/* Sent before the receiver looks. */
#define PORTION (64 * KIB)
#define MESSAGES 32
/* Switches of a waiting thread that is not woken by messages: start, end, and some for paging. */
#define WAKE_UPS_MAX (MESSAGES / 4)

/* --- without sockets --- */

/* The capabilities that loading needs and this process has not, as text; "" if it has all. */
static void lacking(char *buf, size_t len)
{
	static const struct {
		cap_value_t cap;
		const char *name;
		bool or_admin; /* CAP_SYS_ADMIN stands in for it on every kernel */
	} needed[] = {
		{ CAP_BPF, "CAP_BPF", true },
		{ CAP_PERFMON, "CAP_PERFMON", true }, /* to read struct tcp_sock */
		{ CAP_NET_ADMIN, "CAP_NET_ADMIN", false },
	};
	cap_flag_value_t has, admin = CAP_CLEAR;
	cap_t caps = cap_get_proc();
	size_t at = 0;

	buf[0] = '\0';
	if (!caps)
		return;
	cap_get_flag(caps, CAP_SYS_ADMIN, CAP_EFFECTIVE, &admin);
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]) && at < len; i++) {
		if (cap_get_flag(caps, needed[i].cap, CAP_EFFECTIVE, &has))
			has = CAP_CLEAR; /* not known to this kernel */
		if (has != CAP_SET && !(needed[i].or_admin && admin == CAP_SET))
			at += (size_t)snprintf(buf + at, len - at, "%s%s", at ? ", " : "",
					       needed[i].name);
	}
	cap_free(caps);
}

int probe_check_load(struct probe *p)
{
	struct kernel_limits limits = { .pairs = PAIRS, .workers = 1 };
	char err[256] = "", missing[64];
	int r = kernel_open(&limits, &p->kernel, err, sizeof(err));

	if (!r) {
		rig_note(p, "program and maps are there");
		return 0;
	}
	p->kernel = NULL;
	lacking(missing, sizeof(missing));
	if (missing[0])
		rig_note(p, "missing %s (start as root): %s", missing, err);
	else if (r == -EPERM || r == -EACCES)
		rig_note(p, "%s; the capabilities are there, but perhaps in a user namespace, or "
			 "seccomp or lockdown forbids it", err);
	else
		rig_note(p, "%s", err);
	return r;
}

int probe_check_loopback(struct probe *p)
{
	int r = rig_open(p, 0);

	if (!r)
		rig_note(p, "%s", p->own_net ? "in a network namespace of its own" :
					       "in the current network namespace");
	return r;
}

/* --- entering --- */

int probe_check_insert(struct probe *p)
{
	int r = rig_open_entered(p, 0);

	if (!r)
		rig_note(p, "both sockets, as source and as target");
	return r;
}

/* The kernel's answer to an insertion that it has to refuse. */
static int refused(struct probe *p, int r, const char *what)
{
	if (r == -EOPNOTSUPP)
		return 0;
	rig_note(p, "%s: %s instead of %s", what, r ? strerror(-r) : "accepted",
		 strerror(EOPNOTSUPP));
	return -EPROTO;
}

int probe_check_insert_after_fin(struct probe *p)
{
	struct rig *g = &p->rig;
	int r = rig_open(p, 0);

	g->streams[UP].rx = g->a;
	r = r ?: rig_step(p, rig_push(p, UP, 100), "sending");
	r = r ?: rig_step(p, shutdown(g->client, SHUT_WR) ? -errno : 0, "shutdown");
	r = r ?: rig_step(p, rig_await_fin(p, g->a), "EPOLLRDHUP");
	r = r ?: rig_pair(p);
	if (r)
		return r;
	r = refused(p, kernel_admit(p->kernel, g->pair * 2, g->a, &g->cookies[UP]), "as a target");
	r = r ?: refused(p, kernel_rx_add(p->kernel, g->pair * 2, g->a), "as a source");
	/* and nothing has happened to the socket */
	r = r ?: rig_step(p, rig_pull(p, UP), "reading afterwards");
	r = r ?: rig_step(p, rig_pull_eof(p, g->a), "end of file afterwards");
	g->streams[DOWN].tx = g->a;
	r = r ?: rig_deliver(p, DOWN, 100, "writing afterwards");
	if (!r)
		rig_note(p, "refused with \"%s\", without harm", strerror(EOPNOTSUPP));
	return r;
}

int probe_check_counters(struct probe *p)
{
	const volatile struct culvert_stat *st;
	int r = rig_open_entered(p, 0);

	r = r ?: rig_deliver(p, UP, 1000, "1000 bytes through the kernel");
	if (r)
		return r;
	st = kernel_stat(p->kernel, p->rig.pair * 2);
	r = rig_same(p, "redirected bytes, as mapped", rig_redirected(p, UP), 1000);
	/* written by us, read and copied by the program */
	r = r ?: rig_same(p, "epoch seen by the program", st->epoch,
			  kernel_ctl(p->kernel, p->rig.pair * 2)->epoch);
	if (!r)
		rig_note(p, "read and written without a system call");
	return r;
}

/* --- events --- */

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

/* A flow that the program takes for bulk at its first check, so that it tells us. */
static int be_told(struct probe *p)
{
	struct seen seen = { 0 };
	struct kernel_ring *ring = NULL;
	int r;

	p->policy.kernel_bulk = 1;
	p->policy.kernel_bulk_ratio = 0;
	p->policy.kernel_bulk_skb = 0;
	r = rig_open_admitted(p, 0);
	seen.slot = p->rig.pair * 2;
	r = r ?: rig_step(p, rig_enter(p, UP), "insertion");
	if (r)
		return r;
	seen.epoch = kernel_ctl(p->kernel, seen.slot)->epoch;
	r = rig_step(p, kernel_ring_open(p->kernel, 0, on_event, &seen, &ring), "opening the ring");
	r = r ?: rig_deliver(p, UP, 4 * CULVERT_CHECK_BYTES, "bytes through the kernel");
	if (!r) {
		struct pollfd pfd = { .fd = kernel_ring_fd(ring), .events = POLLIN };

		r = RIG_WAIT(p, poll(&pfd, 1, 0) == 1 && kernel_ring_consume(ring) >= 0 &&
					seen.count);
		r = rig_step(p, r, "an event in the ring");
	}
	kernel_ring_close(ring);
	return r ?: rig_same(p, "events of the same kind", seen.count, 1);
}

int probe_check_events(struct probe *p)
{
	int r = be_told(p);

	if (!r)
		rig_note(p, "one event, and the descriptor of the ring became readable");
	return r;
}

/* --- redirecting --- */

static int both_ways(struct probe *p, size_t len)
{
	int r = 0;

	for (size_t done = 0; !r && done < len; done += PORTION) {
		r = rig_push(p, UP, PORTION);
		r = r ?: rig_push(p, DOWN, PORTION);
		for (unsigned int dir = 0; !r && dir < 2; dir++) {
			ssize_t n = rig_pull_some(p, dir, SIZE_MAX);

			r = n < 0 ? (int)n : 0;
		}
	}
	r = r ?: rig_pull(p, UP);
	return r ?: rig_pull(p, DOWN);
}

int probe_check_redirect(struct probe *p)
{
	const size_t len = 2 * MIB;
	uint64_t start;
	int r = rig_open_entered(p, 0);

	start = clock_ms();
	r = r ?: rig_step(p, both_ways(p, len), "2 MiB each way");
	r = r ?: rig_same(p, "bytes redirected up", rig_redirected(p, UP), len);
	r = r ?: rig_same(p, "bytes redirected down", rig_redirected(p, DOWN), len);
	if (!r)
		rig_note(p, "2 MiB each way unchanged in %u ms",
			 (unsigned int)(clock_ms() - start));
	return r;
}

/* What comes between the last look at an empty queue and the insertion. */
int probe_check_early_bytes(struct probe *p)
{
	struct rig *g = &p->rig;
	struct pollfd pfd = { .events = POLLIN };
	int r = rig_open_entered(p, 0);

	if (r)
		return r;
	pfd.fd = g->a;
	r = rig_step(p, kernel_rx_del(p->kernel, g->pair * 2), "removal");
	r = r ?: rig_step(p, rig_push(p, UP, 1000), "sending");
	r = r ?: rig_step(p, RIG_WAIT(p, poll(&pfd, 1, 0) == 1), "arrival");
	r = r ?: rig_step(p, kernel_rx_add(p->kernel, g->pair * 2, g->a), "insertion");
	if (!r) {
		struct sockmap_io io = rig_io(p, UP);

		r = rig_step(p, sockmap_kick(&io) == STEP_DONE ? 0 : -EPROTO, "the kick");
	}
	r = r ?: rig_step(p, rig_pull(p, UP), "delivery of bytes that came before the insertion");
	r = r ?: rig_deliver(p, UP, 1000, "delivery of the next bytes");
	if (!r)
		rig_note(p, "1000 bytes, then 1000 more, in order");
	return r;
}

/* --- ends of streams --- */

/* The source of flow DIR has ended: so does its target, with nothing lost. */
static int end_flow(struct probe *p, unsigned int dir)
{
	struct sockmap_io io = rig_io(p, dir);
	int r = rig_step(p, rig_await_fin(p, io.src), "EPOLLRDHUP");

	r = r ?: rig_step(p, rig_finish(p, dir), "every byte at the target after FIN");
	r = r ?: rig_step(p, shutdown(io.dst, SHUT_WR) ? -errno : 0, "shutdown of the target");
	r = r ?: rig_step(p, rig_pull(p, dir), "the last bytes");
	return r ?: rig_step(p, rig_pull_eof(p, p->rig.streams[dir].rx), "end of file");
}

int probe_check_fin(struct probe *p)
{
	struct rig *g = &p->rig;
	int r = rig_open_entered(p, RIG_SMALL_A);

	/* an answer is still on its way when the FIN comes */
	r = r ?: rig_step(p, rig_push_until_halt(p, DOWN, 256 * KIB), "a stalled answer");
	r = r ?: rig_step(p, rig_push(p, UP, 1000), "sending");
	r = r ?: rig_step(p, shutdown(g->client, SHUT_WR) ? -errno : 0, "shutdown");
	r = r ?: end_flow(p, UP);
	if (r)
		return r;
	rig_widen(p, DOWN, true);
	r = rig_step(p, rig_pull(p, DOWN), "the other direction after a FIN");
	r = r ?: rig_deliver(p, DOWN, 64 * KIB, "more of the other direction after a FIN");
	r = r ?: rig_step(p, shutdown(g->server, SHUT_WR) ? -errno : 0, "shutdown");
	r = r ?: end_flow(p, DOWN);
	for (unsigned int i = 0; !r && i < 2; i++) {
		struct pollfd pfd = { .fd = i ? g->b : g->a };

		r = rig_step(p, poll(&pfd, 1, 0) >= 0 && !(pfd.revents & POLLERR) ? 0 : -EPIPE,
			     "state of the sockets at the end");
	}
	if (!r)
		rig_note(p, "%llu KiB of the other direction arrived",
			 (unsigned long long)g->streams[DOWN].got / KIB);
	return r;
}

/* --- books --- */

/* What user space believes to have written is SENT + OFF: what does the formula say? */
static int judge(struct probe *p, unsigned int dir, int off, enum step want, const char *what)
{
	struct sockmap_io io = rig_io(p, dir);
	enum step step;
	int r;

	io.flow->user_out = p->rig.streams[dir].sent + (uint64_t)off;
	r = RIG_WAIT(p, (step = sockmap_drain(&io)) == want);
	return rig_step(p, r ? -EPROTO : 0, what);
}

/* Whatever the target's state, the formula is right to the byte. */
static int exact(struct probe *p, unsigned int dir)
{
	int r = judge(p, dir, 0, STEP_DONE, "as many bytes accepted as sent");

	r = r ?: judge(p, dir, 1, STEP_WAIT, "one byte not accepted yet");
	if (p->rig.streams[dir].sent)
		r = r ?: judge(p, dir, -1, STEP_UNPROVED, "one byte accepted that was not sent");
	return r;
}

int probe_check_accounting(struct probe *p)
{
	struct rig *g = &p->rig;
	int r = rig_open(p, 0);

	r = r ?: rig_pair(p);
	g->streams[UP].tx = g->b; /* we are the ones who write, to the connected ... */
	g->streams[DOWN].tx = g->a; /* ... and to the accepted socket */
	for (unsigned int dir = 0; !r && dir < 2; dir++) {
		r = exact(p, dir);
		r = r ?: rig_step(p, rig_push_until_halt(p, dir, 512 * KIB), "writing");
		r = r ?: exact(p, dir); /* not read, and perhaps not sent yet */
		r = r ?: rig_step(p, rig_pull_some(p, dir, 100000) < 0 ? -EILSEQ : 0, "reading");
		r = r ?: exact(p, dir);
		r = r ?: rig_step(p, rig_pull(p, dir), "reading the rest");
		r = r ?: exact(p, dir); /* all of it read, and acknowledged sooner or later */
	}
	if (!r)
		rig_note(p, "exact to the byte, for connected and for accepted sockets");
	return r;
}

/*
 * However long each step takes: what was pushed when the pushing halted may be less than TCP takes.
 */
static bool has_backlog(struct probe *p, struct sockmap_io *io)
{
	return rig_push_some(p, DOWN, 16 * KIB) >= 0 && rig_redirected(p, DOWN) > 64 * KIB &&
	       sockmap_drain(io) == STEP_WAIT;
}

static int backlog_stays(struct probe *p)
{
	struct sockmap_io io = rig_io(p, DOWN);
	int r;

	r = rig_step(p, rig_push_until_halt(p, DOWN, 256 * KIB), "a stalled answer");
	r = r ?: rig_step(p, RIG_WAIT(p, has_backlog(p, &io)), "a backlog");
	r = r ?: rig_deliver(p, UP, 1000, "the first direction");
	r = r ?: rig_step(p, rig_leave(p, UP), "removal of the backlog's owner from rx");
	return r ?: rig_step(p, rig_drain(p, UP), "the end of the first direction's backlog");
}

int probe_check_backlog(struct probe *p)
{
	int r = rig_open_entered(p, RIG_SMALL_A);

	r = r ?: backlog_stays(p);
	if (r)
		return r;
	rig_widen(p, DOWN, true);
	r = rig_step(p, rig_pull(p, DOWN), "the backlog, after its owner has left rx");
	r = r ?: rig_deliver(p, DOWN, 64 * KIB, "more bytes for the same target");
	if (!r)
		rig_note(p, "kept when its owner left the map of sources (rx)");
	return r;
}

/* As the audit does it.  A plain system call: sanitizers think that MSG_TRUNC fills the buffer. */
static int unread(struct probe *p, uint64_t want, const char *what)
{
	long n = syscall(SYS_recvfrom, p->rig.a, NULL, 1 << 30,
			 MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT, NULL, NULL);

	return n < 0 ? rig_step(p, -errno, what) : rig_same(p, what, (uint64_t)n, want);
}

int probe_check_unread(struct probe *p)
{
	const size_t piece = 1049, total = 20 * piece;
	struct rig *g = &p->rig;
	int r = rig_open_admitted(p, 0);

	g->streams[UP].rx = g->a;
	for (size_t sent = 0; !r && sent < total; sent += piece)
		r = rig_step(p, rig_push(p, UP, piece), "sending");
	/* the last byte has come once all can be read: loopback keeps the order */
	r = r ?: RIG_WAIT(p, unread(p, total, "unread bytes") == 0);
	r = r ?: unread(p, total, "unread bytes, counted again");
	r = r ?: rig_step(p, rig_pull_some(p, UP, 1000) == 1000 ? 0 : -EILSEQ, "reading some");
	r = r ?: unread(p, total - 1000, "unread bytes after reading 1000");
	r = r ?: rig_step(p, rig_pull(p, UP), "reading the rest");
	if (!r)
		rig_note(p, "counted to the byte, and none taken");
	return r;
}

/* --- being left alone --- */

struct waiter {
	int epoll, timeout_ms;
	struct epoll_event event;
	int n;
	long switches;
};

static void *wait_for_fin(void *arg)
{
	struct waiter *w = arg;
	struct rusage before, after;

	getrusage(RUSAGE_THREAD, &before);
	w->n = epoll_wait(w->epoll, &w->event, 1, w->timeout_ms);
	getrusage(RUSAGE_THREAD, &after);
	w->switches = after.ru_nvcsw - before.ru_nvcsw;
	return NULL;
}

/* Messages pass through the kernel while the waiter sleeps; then comes FIN. */
static int pass_messages(struct probe *p, struct waiter *w)
{
	pthread_t thread;
	int end, r = -pthread_create(&thread, NULL, wait_for_fin, w);

	if (r)
		return r;
	for (int i = 0; !r && i < MESSAGES; i++) {
		r = rig_push(p, UP, 1) ?: rig_pull(p, UP);
		rig_patience(p); /* time to be woken, once for each message */
	}
	end = shutdown(p->rig.client, SHUT_WR) ? -errno : 0;
	pthread_join(thread, NULL);
	return r ?: end;
}

int probe_check_wake_ups(struct probe *p)
{
	struct epoll_event watch = { .events = EPOLLRDHUP };
	struct waiter w = { .timeout_ms = (int)(p->deadline_ms - clock_ms()) };
	int r = rig_open_admitted(p, 0);

	r = r ?: rig_step(p, rig_enter(p, UP), "insertion");
	if (r)
		return r;
	w.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (w.epoll < 0 || epoll_ctl(w.epoll, EPOLL_CTL_ADD, p->rig.a, &watch))
		r = rig_step(p, -errno, "epoll");
	r = r ?: rig_step(p, pass_messages(p, &w), "messages through the kernel");
	if (w.epoll >= 0)
		close(w.epoll);
	if (!r && (w.n != 1 || !(w.event.events & EPOLLRDHUP)))
		r = rig_step(p, -EPROTO, "EPOLLRDHUP at the FIN");
	if (!r && w.switches > WAKE_UPS_MAX)
		r = rig_same(p, "wake-ups by redirected messages", (uint64_t)w.switches, 0);
	if (!r)
		rig_note(p, "not by %d messages, but by FIN", MESSAGES);
	return r;
}
