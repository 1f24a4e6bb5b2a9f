// SPDX-License-Identifier: BSD-2-Clause
/* The checks of limits and of leaving the kernel. */
#include "probe/probe_checks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/sandbox.h"
#include "datapath/carrier_sockmap.h"
#include "datapath/tcp.h"

#define KIB 1024
#define MIB (1024 * 1024)

#define HARD_LIMIT (32 * KIB)
/* One interval of checks may pass before the program looks again, and each skb costs overhead. */
#define HARD_LIMIT_SLACK (256 * KIB)
#define BURSTS 3

#define STAYS 50
/* What the sender may be ahead of the receiver while the flow comes and goes. */
#define AHEAD (64 * KIB)
/* What each stay carries, at least. */
#define REDIRECTED (16 * KIB)
#define NOBODY 65534

/* --- the hard limit --- */

static bool owes(struct probe *p)
{
	uint32_t slot = p->rig.pair * 2;

	return kernel_stat(p->kernel, slot)->passed != kernel_ctl(p->kernel, slot)->credit;
}

/* Nobody receives, until the program passes, and on until the sender has to stop. */
static int stall(struct probe *p, uint64_t end)
{
	struct stream *s = &p->rig.streams[UP];

	rig_widen(p, UP, false);
	do {
		ssize_t n = rig_push_some(p, UP, end - s->sent);

		if (n < 0)
			return (int)n;
		if (owes(p))
			return rig_push_until_halt(p, UP, end - s->sent);
	} while (rig_patience(p));
	return -ETIMEDOUT;
}

/* Everybody works, until all is delivered and nothing passed is outstanding. */
static int catch_up(struct probe *p, uint64_t end)
{
	struct stream *s = &p->rig.streams[UP];

	rig_widen(p, UP, true);
	do {
		struct sockmap_io io = rig_io(p, UP);
		ssize_t n = rig_push_some(p, UP, end - s->sent);
		enum step step = n < 0 ? STEP_WAIT : sockmap_settle(&io);

		if (n >= 0)
			n = rig_pull_some(p, UP, SIZE_MAX);
		if (n < 0)
			return (int)n;
		if (step == STEP_SRC_ERROR || step == STEP_DST_ERROR)
			return -io.error;
		if (step == STEP_UNPROVED)
			return -EBADE;
		if (step == STEP_DONE && s->got == end)
			return 0;
	} while (rig_patience(p));
	return -ETIMEDOUT;
}

static int open_limited(struct probe *p)
{
	int r;

	p->limits.soft_limit = HARD_LIMIT / 2;
	p->limits.hard_limit = HARD_LIMIT;
	r = rig_open_admitted(p, RIG_SMALL_B);
	return r ?: rig_step(p, rig_enter(p, UP), "insertion");
}

int probe_check_hard_limit(struct probe *p)
{
	const volatile struct culvert_stat *st;
	uint64_t end = 0, base;
	int r;

	r = open_limited(p);
	if (r)
		return r;
	st = kernel_stat(p->kernel, p->rig.pair * 2);
	base = st->bytes + st->passed;
	for (int i = 0; !r && i < BURSTS; i++) {
		uint64_t bytes = st->bytes, passed = st->passed;

		end += MIB;
		r = rig_step(p, stall(p, end), "passing over the hard limit");
		r = r ?: rig_step(p, catch_up(p, end), "delivery of all that was sent");
		/* in each burst both: what was passed is followed by redirection again */
		if (!r && (st->bytes == bytes || st->passed == passed))
			r = rig_step(p, -EPROTO, "redirection, then passing, in each burst");
	}
	r = r ?: rig_same(p, "bytes redirected and passed", st->bytes + st->passed - base, end);
	if (!r && st->backlog_max > HARD_LIMIT + HARD_LIMIT_SLACK)
		r = rig_same(p, "bytes of the largest backlog", st->backlog_max, HARD_LIMIT);
	if (!r)
		rig_note(p,
			 "%llu KiB redirected, %llu KiB passed, backlog below %llu KiB, in order",
			 (unsigned long long)st->bytes / KIB, (unsigned long long)st->passed / KIB,
			 (unsigned long long)st->backlog_max / KIB + 1);
	return r;
}

/* --- reading ahead --- */

/* User space carries what is there: 0, or -errno. */
static int carry(struct probe *p)
{
	const struct rig *g = &p->rig;
	struct pump_io io = {
		.flow = &p->rig.flows[UP],
		.pool = &p->pool,
		.src = g->a,
		.dst = g->b,
		.limit = UINT64_MAX,
	};

	switch (copy_pump(&io)) {
	case PUMP_EMPTY:
	case PUMP_MORE:
	case PUMP_BLOCKED:
		return 0;
	case PUMP_SRC_ERROR:
	case PUMP_DST_ERROR:
		return -io.error;
	case PUMP_STARVED:
		return -ENOMEM;
	default:
		return -ENODATA;
	}
}

/* The rest, by user space: what was read ahead first. */
static int carry_all(struct probe *p)
{
	const struct stream *s = &p->rig.streams[UP];
	ssize_t n = 0;
	int r;

	r = RIG_WAIT(p, (n = carry(p)) < 0 || (n = rig_pull_some(p, UP, SIZE_MAX)) < 0 ||
				s->got == s->sent);
	return n < 0 ? (int)n : r;
}

/* A flow whose target is stalled leaves at once: what was passed is read, not written. */
int probe_check_read_ahead(struct probe *p)
{
	struct rig *g = &p->rig;
	uint64_t got;
	int r = open_limited(p);

	r = r ?: rig_step(p, stall(p, MIB), "passing over the hard limit");
	got = g->streams[UP].got;
	if (!r) {
		struct sockmap_io io = rig_io(p, UP);
		enum step step = STEP_WAIT;

		io.read_ahead = MIB; /* all that can have been passed */
		/* not rig_leave(), which receives */
		r = RIG_WAIT(p, (step = sockmap_leave(&io)) != STEP_WAIT);
		r = rig_step(p, r ?: step == STEP_DONE ? 0 : -EBADE, "removal");
	}
	r = r ?: rig_same(p, "bytes received meanwhile", g->streams[UP].got, got);
	rig_widen(p, UP, true);
	r = r ?: rig_step(p, rig_drain(p, UP), "the end of the backlog");
	got = g->flows[UP].pending;
	r = r ?: rig_step(p, carry_all(p), "delivery of all that was sent");
	if (!r)
		rig_note(p, "%llu KiB read before they could be written, in order",
			 (unsigned long long)got / KIB);
	return r;
}

/* --- the fence --- */

static int option(struct probe *p, int name, int value, const char *what)
{
	int r = setsockopt(p->rig.a, SOL_SOCKET, name, &value, sizeof(value)) ? -errno : 0;

	return rig_step(p, r, what);
}

static int option_is(struct probe *p, int name, int want, const char *what)
{
	int value = -1;
	socklen_t len = sizeof(value);

	if (getsockopt(p->rig.a, SOL_SOCKET, name, &value, &len))
		return rig_step(p, -errno, what);
	return rig_same(p, what, (uint64_t)value, (uint64_t)want);
}

static bool readable(struct probe *p)
{
	struct pollfd pfd = { .fd = p->rig.a, .events = POLLIN };

	return poll(&pfd, 1, 0) == 1;
}

/* The low-water mark of a removal: the buffer does not change. */
static int raise_lowat(struct probe *p, int size)
{
	int inq = 0, r;

	r = option(p, SO_BUF_LOCK, SOCK_RCVBUF_LOCK, "SO_BUF_LOCK");
	r = r ?: option(p, SO_RCVLOWAT, INT_MAX, "SO_RCVLOWAT");
	r = r ?: option_is(p, SO_RCVBUF, size, "SO_RCVBUF under SO_RCVLOWAT");
	r = r ?: rig_step(p, rig_push(p, UP, 1000), "sending");
	return r ?: rig_step(p, RIG_WAIT(p, !ioctl(p->rig.a, SIOCINQ, &inq) && inq == 1000),
			     "arrival");
}

int probe_check_receive_buffer(struct probe *p)
{
	int size = 0, r = rig_open(p, 0);
	socklen_t len = sizeof(size);
	bool quiet = false;

	if (r)
		return r;
	p->rig.streams[UP].rx = p->rig.a;
	r = getsockopt(p->rig.a, SOL_SOCKET, SO_RCVBUF, &size, &len) ? -errno : 0;
	r = rig_step(p, r, "SO_RCVBUF");
	r = r ?: raise_lowat(p, size);
	/* no failure if not: TCP ignores the mark while the machine is short of TCP memory */
	quiet = !r && !readable(p);
	r = r ?: option(p, SO_RCVLOWAT, 1, "SO_RCVLOWAT");
	r = r ?: option(p, SO_BUF_LOCK, 0, "SO_BUF_LOCK");
	r = r ?: option_is(p, SO_RCVBUF, size, "SO_RCVBUF afterwards");
	r = r ?: option_is(p, SO_BUF_LOCK, 0, "SO_BUF_LOCK afterwards");
	r = r ?: rig_step(p, readable(p) ? 0 : -EPROTO, "readable afterwards");
	r = r ?: rig_step(p, rig_pull(p, UP), "reading");
	if (!r)
		rig_note(p, "%d KiB before, under and after SO_RCVLOWAT%s", size / KIB,
			 quiet ? "" : " (which has no effect now: TCP memory pressure)");
	return r;
}

/* The other half of the fence: a socket filter, and TCP that sends again what it has dropped. */
int probe_check_gate(struct probe *p)
{
	int a, queued = 0, r = rig_open_entered(p, 0);

	r = r ?: rig_deliver(p, UP, 1000, "bytes through the kernel");
	if (r)
		return r;
	a = p->rig.a;
	kernel_ctl(p->kernel, p->rig.pair * 2)->fence = 1;
	kernel_barrier();
	r = rig_step(p, rig_push(p, UP, 1000), "sending against the closed gate");
	r = r ?: rig_deliver(p, DOWN, 1000, "the other direction, in spite of the gate");
	r = r ?: rig_step(p, RIG_WAIT(p, !ioctl(a, SIOCOUTQ, &queued) && !queued),
			  "an acknowledgement, in spite of the gate");
	r = r ?: rig_same(p, "bytes redirected, with the gate closed", rig_redirected(p, UP), 1000);
	kernel_ctl(p->kernel, p->rig.pair * 2)->fence = 0;
	r = r ?: rig_deliver(p, UP, 1000, "all bytes, once the gate is open");
	if (!r)
		rig_note(p, "data is kept out and comes again, the other direction goes on");
	return r;
}

/* --- leaving --- */

struct sender {
	struct probe *p;
	cpu_set_t cpus; /* of the process; empty if unknown */
	pthread_t thread;
	atomic_bool stop;
	atomic_bool free; /* to send as fast as it can; else no further ahead than AHEAD */
	int error;        /* to be read after the thread has ended */
};

/* Keep this thread on the Nth of the CPUs, so that it runs at the same time as another one. */
static void keep_to(const cpu_set_t *cpus, int nth)
{
	cpu_set_t one;

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, cpus) || nth--)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static void *send_ahead(void *arg)
{
	struct sender *sender = arg;
	struct stream *s = &sender->p->rig.streams[UP];

	keep_to(&sender->cpus, 1);
	while (!sender->stop && !sender->error) {
		ssize_t n = 0;

		if (sender->free || s->sent - s->got < AHEAD)
			n = rig_push_some(sender->p, UP, 3001);
		if (n < 0)
			sender->error = (int)n;
		if (!n)
			sched_yield(); /* a sleep would last longer than a removal */
	}
	return NULL;
}

/* Read until nothing is there, then enter.  The sender cannot be further ahead than AHEAD. */
static int enter_busy(struct probe *p)
{
	do {
		int r = carry(p);

		if (r)
			return r;
		if (p->rig.flows[UP].pending) {
			ssize_t n = rig_pull_some(p, UP, SIZE_MAX);

			if (n < 0)
				return (int)n;
			continue;
		}
		r = rig_enter(p, UP);
		if (r != -EAGAIN)
			return r;
	} while (rig_patience(p));
	return -ETIMEDOUT;
}

/* RET_FLOWING is raised if bytes were sent while the flow was being removed. */
static int one_stay(struct probe *p, struct sender *sender, unsigned int *ret_flowing)
{
	struct stream *s = &p->rig.streams[UP];
	uint64_t before = rig_redirected(p, UP) + REDIRECTED, sent;
	int r = rig_step(p, enter_busy(p), "insertion of a busy flow");
	ssize_t n = 0;

	sender->free = true;
	r = r ?: rig_step(p, RIG_WAIT(p, (n = rig_pull_some(p, UP, SIZE_MAX)) < 0 ||
					     rig_redirected(p, UP) > before), "redirecting");
	r = r ?: rig_step(p, n < 0 ? (int)n : 0, "delivery");
	sent = s->sent;
	r = r ?: rig_step(p, rig_leave(p, UP), "removal of a busy flow");
	*ret_flowing += s->sent != sent;
	sender->free = false;
	return r ?: rig_step(p, rig_drain(p, UP), "the end of the backlog");
}

/* The flow comes and goes; at the end user space delivers the rest. */
static int come_and_go(struct probe *p, struct sender *sender, unsigned int *ret_flowing)
{
	int r = -pthread_create(&sender->thread, NULL, send_ahead, sender);

	if (r)
		return rig_step(p, r, "a thread");
	keep_to(&sender->cpus, 0);
	for (int i = 0; !r && i < STAYS; i++)
		r = one_stay(p, sender, ret_flowing);
	sender->stop = true;
	pthread_join(sender->thread, NULL);
	if (CPU_COUNT(&sender->cpus))
		sched_setaffinity(0, sizeof(sender->cpus), &sender->cpus);
	r = r ?: rig_step(p, sender->error, "sending");
	return r ?: rig_step(p, carry_all(p), "delivery of the rest");
}

int probe_check_leave(struct probe *p)
{
	struct sender sender = { .p = p };
	unsigned int flowing = 0;
	int r = rig_open_admitted(p, 0);

	if (sched_getaffinity(0, sizeof(sender.cpus), &sender.cpus))
		CPU_ZERO(&sender.cpus);
	r = r ?: come_and_go(p, &sender, &flowing);
	if (!r)
		rig_note(p, "%d removals, %u amid arriving bytes; %llu of %llu KiB by the kernel",
			 STAYS, flowing, (unsigned long long)rig_redirected(p, UP) / KIB,
			 (unsigned long long)p->rig.streams[UP].got / KIB);
	return r;
}

/* --- without privileges --- */

/* In a process of its own. */
static int work_as(struct probe *p, const struct account *account)
{
	char err[PROBE_DETAIL];
	int r = sandbox_enter(account, err, sizeof(err));

	if (r) {
		rig_note(p, "%s", err);
		return r;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of user has cleared it */
	r = probe_check_events(p); /* connections, gate, insertion, redirection, a ring */
	r = r ?: rig_step(p, rig_leave(p, UP), "removal");
	return r ?: rig_step(p, rig_drain(p, UP), "the end of the backlog");
}

static void child(struct probe *p, const struct account *account, int report)
{
	int r = work_as(p, account);

	if (r && write(report, p->detail, strlen(p->detail)) < 0)
		_exit(2);
	_exit(r ? 1 : 0);
}

/* What the child says until it ends; killed if it does not. */
static int hear(struct probe *p, pid_t pid, int report)
{
	char said[PROBE_DETAIL] = "";
	int status = 0, r;
	struct pollfd pfd = { .fd = report, .events = POLLIN };
	ssize_t n = 0;

	r = RIG_WAIT(p, poll(&pfd, 1, 1) == 1);
	if (r)
		kill(pid, SIGKILL);
	else
		n = read(report, said, sizeof(said) - 1);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (r)
		return rig_step(p, r, "the end of the process without privileges");
	if (n > 0)
		rig_note(p, "%s", said);
	else if (status)
		rig_note(p, "the process without privileges has ended with status %#x", status);
	return status ? -EPERM : 0;
}

int probe_check_unprivileged(struct probe *p)
{
	struct account account = { .name = "65534", .uid = NOBODY, .gid = NOBODY };
	char err[PROBE_DETAIL];
	int report[2], r;
	pid_t pid;

	/* another account may be given to the daemon: it is not a failure if this one is missing */
	(void)account_find(NULL, &account, err, sizeof(err));
	if (pipe2(report, O_CLOEXEC))
		return rig_step(p, -errno, "a pipe");
	pid = fork();
	if (!pid)
		child(p, &account, report[1]);
	r = pid < 0 ? rig_step(p, -errno, "a process") : 0;
	close(report[1]);
	r = r ?: hear(p, pid, report[0]);
	close(report[0]);
	if (!r)
		rig_note(p, "maps, ring and counters still work as user %s", account.name);
	return r;
}
