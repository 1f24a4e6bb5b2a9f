/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernel memory under receivers that never read, or slowly, with the daemon running and with it
 * stopped.
 *
 * Theory of operation: data that sits in TCP's queues is charged to sockets and bounded by TCP.
 * Data that was redirected sits on a list that nobody is charged for; that is what must be bounded.
 * Three figures show it:
 *  - hidden payload: what a sender has sent, less what the queues of the four sockets of its
 *    session hold (from /proc/net/tcp of our namespace).  Exact, and immune to other programs.
 *    A flow may have one hard limit of it in the kernel and read ahead as much in user space; or
 *    half as much again, if the gate was closed for want of a reader: then what TCP held already
 *    is redirected.
 *  - unreclaimable slab: where small packets are; a limit in bytes of payload does not hold them.
 *    Other programs disturb it, so a measurement above the bound is repeated.
 *  - receive queue, of the daemon's source: the kernel takes bytes however slow the target is, and
 *    TCP gives whoever takes fast a larger receive buffer, up to tcp_rmem[2].  With the sockmap
 *    engine it must stay below one hard limit; for the others it is TCP's affair.
 *
 * A conversation first, so that the engine has reason to use the kernel; then every end that sends
 * writes whatever its socket takes, for some seconds; then the figures; then all of it is read and
 * compared.
 *
 * One-byte writes begin only when the session's buffers are full: before that, the sending side of
 * the upstream socket would merge them.  For the copy engine they begin at once, so that its figure
 * shows what single bytes take in a receive queue, where TCP bounds them.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon.h"
#include "env.h"
#include "options.h"
#include "peer.h"

#define PAIRS 32
#define HARD_LIMIT "1M"
#define HARD (1 << 20)
#define UPSTREAM "127.0.0.1:9100"
#define UPSTREAM_PORT 9100
#define LISTEN "127.0.0.1:9000"
#define LISTEN_PORT 9000
#define FILL_MS 10000 /* at most, before the one-byte writes */
#define SETTLE_MS 500
#define FILL_HIDDEN (128 << 10) /* ... below the soft limit, yet too much to drain again */
#define SOCKET_BUFFER "256K" /* of our own ends, so that they weigh the same under every engine */
#define READ_MS 30000

#define ATTEMPTS 3
#define SLACK (64 << 20)     /* of slab, above a hard limit for each flow */
#define FLOW_SLACK (1 << 20) /* bytes: a pipe or buffer, and one interval of the limit's check */

struct variant {
	const char *name;
	bool one_byte;
	bool stop;       /* SIGSTOP in the middle; with one_byte before the one-byte writes begin */
	bool stop_first; /* SIGSTOP before anything is sent but the conversation */
	bool slow;       /* the receivers read, 1 MB/s each */
	bool both;       /* the receivers send as well, and nobody reads */
};

static const struct variant variants[] = {
	{ .name = "bulk" },
	{ .name = "bulk, daemon stopped", .stop = true },
	{ .name = "bulk, slow readers", .slow = true },
	{ .name = "1-byte writes", .one_byte = true },
	{ .name = "1-byte writes, daemon stopped", .one_byte = true, .stop = true },
	{ .name = "both ways", .both = true },
	{ .name = "both ways, daemon stopped", .both = true, .stop = true },
	{ .name = "both ways, daemon stopped first", .both = true, .stop_first = true },
	{ .name = "both ways, 1-byte writes, daemon stopped",
	  .both = true,
	  .one_byte = true,
	  .stop = true },
};

/* Bytes. */
struct figures {
	int64_t slab;
	int64_t queue_max;  /* of the sources' receive queues, seen at the end */
	int64_t hidden_max; /* payload of the session with most */
};

/* Unreclaimable slab of the whole machine, in bytes. */
static int64_t slab_read(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	long long kib = 0;
	char line[128];

	while (f && fgets(line, sizeof(line), f) && sscanf(line, "SUnreclaim: %lld", &kib) != 1)
		;
	if (f)
		fclose(f);
	return kib * 1024;
}

/*
 * Payload in the send and receive queues of both sockets of N IPv4 connections of this network
 * namespace: connection i was made from PORT[i] to port TO.  The other side's port alone may be
 * that of another connection, to another port.  RET_UNREAD: of it, what TO's side has not read.
 */
static void kmem_queued(const int *port, int to, int n, int64_t *ret_bytes, int64_t *ret_unread)
{
	FILE *f = fopen("/proc/net/tcp", "re");
	unsigned int local, far, tx, rx;
	char line[300];

	memset(ret_bytes, 0, (size_t)n * sizeof(*ret_bytes));
	memset(ret_unread, 0, (size_t)n * sizeof(*ret_unread));
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, " %*d: %*x:%x %*x:%x %*x %x:%x", &local, &far, &tx, &rx) != 4)
			continue;
		for (int i = 0; i < n; i++) {
			bool theirs = (int)local == port[i] && (int)far == to;
			bool ours = (int)local == to && (int)far == port[i];

			if (theirs || ours)
				ret_bytes[i] += (int64_t)tx + rx;
			if (ours)
				ret_unread[i] = rx;
		}
	}
	if (f)
		fclose(f);
}

/* One end of a session, and how far it is in filling it. */
struct end {
	struct peer peer;
	int64_t waiting; /* since when, to see whether its payload goes away */
	bool tiny;       /* has gone over to one-byte writes */
};

struct run {
	const char *engine;
	const struct variant *variant;
	struct daemon *d;
	struct end ends[2 * PAIRS];    /* the senders, then the receivers in the same order */
	struct peer *peers[2 * PAIRS]; /* theirs */
	/* far ends of the daemon's two sockets */
	int client_port[PAIRS], upstream_port[PAIRS];
	int64_t hidden[PAIRS];
	int64_t start, next_look;
	bool stopped;
	struct figures figures;
	uint64_t sent; /* and received, and verified */
	char why[1500];
};

/* How many ends send, from the first one on. */
static int senders(const struct run *run)
{
	return run->variant->both ? 2 * PAIRS : PAIRS;
}

static double seconds = 3; /* of sending */
static int listen_fd;      /* at UPSTREAM */

static int start_daemon(struct run *run)
{
	const char *const args[] = {
		"--hard-limit", HARD_LIMIT, "--soft-limit", "256K", LISTEN, UPSTREAM, NULL,
	};
	struct daemon_conf d = { .engine = run->engine, .args = args };

	return daemon_start(&d, &run->d, run->why, sizeof(run->why));
}

/* Connections one by one, so that it is known which receiver belongs to which sender. */
static int connect_pair(struct run *run, int i)
{
	struct peer *s = &run->ends[i].peer, *r = &run->ends[PAIRS + i].peer;

	run->peers[i] = s;
	run->peers[PAIRS + i] = r;
	if (peer_pair(s, r, LISTEN, listen_fd, 7, (uint64_t)i))
		return -1;
	peer_script(s, "sb" SOCKET_BUFFER " nd G100:64:64 P100000 S4096M");
	peer_script(r, "A rb" SOCKET_BUFFER);
	peer_script(r, "nd H100:64:64 P100000");
	if (run->variant->slow)
		peer_script(r, "d16K dp16 R4096M");
	if (run->variant->both)
		peer_script(r, "S4096M");
	return 0;
}

static bool is_pausing(const struct peer *p)
{
	return p->entered && p->steps[p->pos].op == STEP_PAUSE;
}

/* Until both ends pause.  They are left open, so this is not for peers_run(). */
static int talk(struct run *run, int i)
{
	struct peer *s = &run->ends[i].peer, *r = &run->ends[PAIRS + i].peer;
	struct peer *both[] = { s, r };
	int64_t deadline = now_ms() + 20000;

	while (!is_pausing(s) || !is_pausing(r)) {
		if (peers_round(both, 2, now_ms() + 1, run->why, sizeof(run->why)) < 2)
			return -1;
		if (now_ms() > deadline) {
			peer_describe(s, run->why, sizeof(run->why));
			return -1;
		}
	}
	run->client_port[i] = net_port(s->fd, false);
	run->upstream_port[i] = net_port(r->fd, true);
	return 0;
}

/* Payload of each session that is in no queue of TCP. */
static void find_hidden(struct run *run)
{
	int64_t held[PAIRS], unread[PAIRS];
	int64_t given[PAIRS], not_ours[PAIRS];

	kmem_queued(run->upstream_port, UPSTREAM_PORT, PAIRS, given, not_ours);
	kmem_queued(run->client_port, LISTEN_PORT, PAIRS, held, unread);
	for (int i = 0; i < PAIRS; i++) {
		const struct peer *s = &run->ends[i].peer, *r = &run->ends[PAIRS + i].peer;

		run->hidden[i] = (int64_t)(s->tx_off - r->rx_off + r->tx_off - s->rx_off) -
				 held[i] - given[i];
		if (unread[i] > run->figures.queue_max)
			run->figures.queue_max = unread[i];
	}
}

/*
 * A session's buffers are full if payload stays outside of them while the sender waits, or if the
 * sender cannot write any more.
 */
static bool is_full(const struct run *run, struct end *e, int64_t hidden, int64_t now)
{
	if (hidden < FILL_HIDDEN) {
		e->waiting = 0;
	} else if (!e->waiting) {
		e->waiting = now;
		e->peer.tx_wake = now + SETTLE_MS + 50;
	} else if (now - e->waiting > SETTLE_MS) {
		return true;
	}
	return now - e->peer.last_progress > SETTLE_MS + 200 || now - run->start > FILL_MS;
}

/* Returns true once all who send have gone over to single bytes. */
static bool turn_tiny(struct run *run, int64_t now)
{
	bool all = true;

	if (now < run->next_look)
		return false;
	run->next_look = now + 50; /* /proc/net/tcp is slow to read */
	find_hidden(run);
	for (int i = 0; i < senders(run); i++) {
		struct end *e = &run->ends[i];

		if (!e->tiny && is_full(run, e, run->hidden[i % PAIRS], now)) {
			e->tiny = true;
			e->peer.write_size = 1;
			e->peer.write_pause = 0;
		}
		all &= e->tiny;
	}
	return all;
}

/* Receivers that only pause are left alone: what they do not read stays unread. */
static int run_peers(struct run *run)
{
	int n = run->variant->slow ? 2 * PAIRS : senders(run);

	return peers_round(run->peers, (size_t)n, now_ms() + 2, run->why, sizeof(run->why)) == n ?
		       0 :
		       -1;
}

static void stop_daemon(struct run *run, bool middle)
{
	const struct variant *v = run->variant;

	if (run->stopped || !(v->stop_first || (v->stop && (v->one_byte || middle))))
		return;
	daemon_signal(run->d, SIGSTOP);
	run->stopped = true;
}

/* Everybody who sends writes whatever his socket takes, for the given time. */
static int send_all(struct run *run)
{
	const struct variant *v = run->variant;
	int64_t middle = (int64_t)(seconds * 500), now;
	bool filling = v->one_byte && strcmp(run->engine, "copy") != 0;

	while ((now = now_ms()) < run->start + 2 * middle || filling) {
		stop_daemon(run, now - run->start > middle);
		if (filling && turn_tiny(run, now)) {
			filling = false;
			run->start = now;
		}
		if (run_peers(run))
			return -1;
	}
	return 0;
}

/* P is to read what FAR has sent, and its end; and to end its own stream where it is. */
static void finish_end(struct peer *p, const struct peer *far)
{
	char script[80];

	p->tx_goal = p->tx_off; /* ends an endless step of sending */
	p->rx_goal = p->rx_off; /* ... of reading */
	p->step_wake = 0;       /* ... a pause */
	snprintf(script, sizeof(script), "d256K dp0 F R%llu E",
		 (unsigned long long)(far->tx_off - p->rx_off));
	peer_script(p, script);
}

/* The senders have sent what they have sent; now all of it must arrive. */
static int read_all(struct run *run)
{
	daemon_signal(run->d, SIGCONT);
	for (int i = 0; i < PAIRS; i++) {
		struct peer *s = &run->ends[i].peer, *r = &run->ends[PAIRS + i].peer;

		run->sent += s->tx_off + r->tx_off;
		finish_end(s, r);
		finish_end(r, s);
	}
	return peers_run(run->peers, 2 * PAIRS, READ_MS, NULL, NULL, run->why, sizeof(run->why));
}

/*
 * While acknowledgements are under way, bytes count in the queues of both ends.  Nobody sends now:
 * for each session the largest of a few looks is the right one.
 */
static void settle_hidden(struct run *run)
{
	int64_t *most = &run->figures.hidden_max;

	for (int look = 0; look < 6; look++) {
		find_hidden(run);
		for (int i = 0; i < PAIRS; i++)
			if (run->hidden[i] > *most)
				*most = run->hidden[i];
		poll(NULL, 0, 50);
	}
}

static void begin_sending(const struct run *run, struct peer *p)
{
	p->step_wake = 0; /* ends the pause */
	p->last_progress = run->start;
	if (!run->variant->one_byte) {
		p->write_size = 256 << 10;
	} else if (strcmp(run->engine, "copy") != 0) {
		p->write_size = 16 << 10;
		p->write_pause = 4; /* slowly, so as not to overshoot */
	} else {
		p->write_size = 1;
	}
}

static void begin(struct run *run)
{
	run->start = now_ms();
	for (int i = 0; i < senders(run); i++)
		begin_sending(run, &run->ends[i].peer);
	for (int i = 0; run->variant->slow && i < PAIRS; i++)
		run->ends[PAIRS + i].peer.step_wake = 0;
}

static int measure(struct run *run)
{
	int64_t slab;

	for (int i = 0; i < PAIRS; i++)
		if (connect_pair(run, i) || talk(run, i))
			return -1;
	slab = slab_read();
	begin(run);
	if (send_all(run))
		return -1;
	run->figures.slab = slab_read() - slab;
	settle_hidden(run);
	if (read_all(run) || daemon_check(run->d, run->why, sizeof(run->why)))
		return -1;
	return daemon_wait_idle(run->d, 5000, run->why, sizeof(run->why));
}

/* 0, -1 (RUN->why says why) or -ENOTSUP (the kernel cannot; RUN->why). */
static int run_once(struct run *run)
{
	int r = start_daemon(run);

	if (r < 0)
		return r == -ENOTSUP ? r : -1;
	r = measure(run) ? -1 : 0;
	for (int i = 0; i < 2 * PAIRS; i++)
		peer_close(&run->ends[i].peer);
	if (r)
		daemon_kill(run->d);
	else
		r = daemon_stop(run->d, 10000, run->why, sizeof(run->why)) ? -1 : 0;
	return r;
}

static int passed, failed, skipped;

#define kib(bytes) ((long long)((bytes) / 1024))

static void run_engine(const char *engine, const struct variant *variant)
{
	static struct run run;
	const struct figures *f = &run.figures;
	int flows = variant->both ? 2 : 1; /* of a session, that are filled */
	const struct figures bound = {
		.slab = (int64_t)PAIRS * flows * HARD + SLACK,
		.queue_max = strcmp(engine, "sockmap") ? INT64_MAX : HARD,
		.hidden_max = flows * (2 * HARD + FLOW_SLACK),
	};
	bool ok = false;
	int r = 0;

	for (int attempt = 0; attempt < ATTEMPTS && !ok && !r; attempt++) {
		memset(&run, 0, sizeof(run));
		run.engine = engine;
		run.variant = variant;
		r = run_once(&run);
		ok = !r && f->hidden_max <= bound.hidden_max && f->slab <= bound.slab &&
		     f->queue_max <= bound.queue_max;
		if (f->hidden_max > bound.hidden_max || f->queue_max > bound.queue_max)
			break; /* nobody else disturbs these */
	}
	printf("%-4s %-8s %-42s ",
	       r == -ENOTSUP ? "skip" :
	       ok            ? "ok" :
			       "FAIL",
	       engine, variant->name);
	if (r)
		printf("%s\n", run.why);
	else
		printf("hidden payload of a session %lld KiB (bound %lld), slab %lld (%lld), "
		       "receive queue %lld; %lld KiB sent and verified\n",
		       kib(f->hidden_max), kib(bound.hidden_max), kib(f->slab), kib(bound.slab),
		       kib(f->queue_max), kib((int64_t)run.sent));
	passed += ok;
	skipped += r == -ENOTSUP;
	failed += !ok && r != -ENOTSUP;
}

static const char *only_engine;

static const struct test_option options[] = {
	{ "engine", "E", "only this one", TEXT, &only_engine },
	{ "seconds", "S", "of sending (default 3)", SECONDS, &seconds },
};

int main(int argc, char **argv)
{
	static const char *const engines[] = { "auto", "graft", "sockmap", "splice", "copy" };

	options_parse(argc, argv, options, sizeof(options) / sizeof(options[0]));
	env_enter("test_memory", 1200);
	listen_fd = net_listen(UPSTREAM, 4096);
	if (listen_fd < 0) {
		fprintf(stderr, "FAIL: %s: %s\n", UPSTREAM, strerror(-listen_fd));
		return 1;
	}
	for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
		for (size_t e = 0; e < sizeof(engines) / sizeof(engines[0]); e++)
			if (!only_engine || !strcmp(only_engine, engines[e]))
				run_engine(engines[e], &variants[i]);
	printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
	return failed || !passed ? 1 : 0;
}
