/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Kernel memory under receivers that never read, or slowly, with the daemon running and with it
 * stopped.
 *
 * Theory of operation: data that sits in TCP's queues is charged to sockets and bounded by TCP.
 * Data that was redirected sits on a list that nobody is charged for; that is what must be bounded.
 * Three figures show it, and a fourth that TCP's own bound is a small one:
 *  - hidden payload: what a sender has sent, less what the queues of the four sockets of its
 *    session hold (from /proc/net/tcp of our namespace).  Exact, and immune to other programs.
 *    A flow may have one hard limit of it in the kernel and read ahead as much in user space.
 *  - unreclaimable slab: where small packets are; a limit in bytes of payload does not hold them.
 *  - used memory less what TCP accounts for.  Other programs disturb it, so a measurement above the
 *    bound is repeated and the smallest counts.
 *  - receive queue, of the daemon's source: the kernel takes bytes however slow the target is, and
 *    TCP gives whoever takes fast a larger receive buffer, up to tcp_rmem[2].  With the sockmap
 *    engine it must stay below one hard limit; for the others it is TCP's affair.
 * The bounds of slab and unaccounted memory are the figures of the copy engine, plus one hard limit
 * per flow, plus a slack.
 *
 * One-byte writes begin only when the session's buffers are full: before that, the sending side of
 * the upstream socket would merge them.  For the copy engine they begin at once, so that its figure
 * shows what single bytes take in a receive queue, where TCP bounds them.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon.h"
#include "env.h"
#include "kmem.h"
#include "peer.h"

#define LISTEN "127.0.0.1:9000"
#define UPSTREAM "127.0.0.1:9100"
#define PAIRS 32
#define ATTEMPTS 3
#define FILL_MS 10000 /* at most, before the one-byte writes */
#define SETTLE_MS 500
#define FILL_HIDDEN (128 << 10) /* ... below the soft limit, yet too much to drain again */
#define FLOW_SLACK (1 << 20) /* bytes: a pipe or buffer, and one interval of the limit's check */
#define SOCKET_BUFFER "256K" /* of our own ends, so that they weigh the same under every engine */

static struct options {
	const char *culvert, *engine, *hard_limit, *soft_limit;
	double seconds;
	uint64_t slack;
} opt = { .hard_limit = "1M", .soft_limit = "256K", .seconds = 3, .slack = 64 << 20 };

static const char *const engines[] = { "auto", "sockmap", "splice", "copy" };

static const struct variant {
	const char *name;
	bool one_byte;
	bool stop; /* SIGSTOP in the middle; with one_byte before the one-byte writes begin */
	bool slow; /* the receivers read, 1 MB/s each */
} variants[] = {
	{ .name = "bulk" },
	{ .name = "bulk, daemon stopped", .stop = true },
	{ .name = "bulk, slow readers", .slow = true },
	{ .name = "1-byte writes", .one_byte = true },
	{ .name = "1-byte writes, daemon stopped", .one_byte = true, .stop = true },
};

#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

static struct totals {
	int passed, failed, skipped;
} totals;

/* Bytes. */
struct figures {
	int64_t unaccounted, slab;
	int64_t queue_max; /* of the sources' receive queues, seen at the end */
	int64_t hidden;     /* payload, of all flows */
	int64_t hidden_max; /* ... of the flow with most */
};

struct run {
	const struct variant *variant;
	const char *engine;
	struct daemon *d;
	int listen_fd;
	struct peer senders[PAIRS], receivers[PAIRS];
	int client_port[PAIRS], upstream_port[PAIRS]; /* far ends of the daemon's two sockets */
	int64_t waiting[PAIRS]; /* since when, to see whether its payload goes away */
	bool tiny[PAIRS];       /* has gone over to one-byte writes */
	int64_t hidden[PAIRS];
	struct kmem grown;
	struct figures figures;
	uint64_t sent;
	int64_t start, next_look;
	bool stopped;
	char why[1500];
};

static int start_daemon(struct run *run, const char *culvert)
{
	const char *const args[] = {
		"--hard-limit", opt.hard_limit, "--soft-limit", opt.soft_limit,
		LISTEN, UPSTREAM, NULL,
	};
	struct daemon_conf conf = { .culvert = culvert, .engine = run->engine, .args = args };

	return daemon_start(&conf, &run->d, run->why, sizeof(run->why));
}

/* Connections one by one, so that it is known which receiver belongs to which sender. */
static int connect_pair(struct run *run, int i)
{
	struct peer *s = &run->senders[i], *r = &run->receivers[i];
	struct sockaddr_storage ss;
	socklen_t len;

	net_addr(LISTEN, &ss, &len);
	if (peer_init(s, "sender", (struct sockaddr *)&ss, len) < 0)
		return -1;
	peer_init(r, "receiver", NULL, 0);
	r->listen_fd = run->listen_fd;
	pattern_init(&s->tx, 7, (uint64_t)i, PATTERN_TO_SERVER);
	pattern_init(&s->rx, 7, (uint64_t)i, PATTERN_TO_CLIENT);
	r->rx = s->tx;
	r->tx = s->rx;
	/* A conversation first, so that the engine has reason to use the kernel. */
	peer_script(s, "sb" SOCKET_BUFFER " nd G200:64:64 P100000 S4096M");
	peer_script(r, "A rb" SOCKET_BUFFER " nd H200:64:64 P100000");
	if (run->variant->slow)
		peer_script(r, "d16K dp16 R4096M");
	return 0;
}

static bool is_pausing(const struct peer *p)
{
	return p->entered && p->steps[p->pos].op == STEP_PAUSE;
}

/* Until both ends pause.  They are left open, so this is not for peers_run(). */
static int talk(struct run *run, int i)
{
	struct peer *s = &run->senders[i], *r = &run->receivers[i];
	int64_t deadline = now_ms() + 20000, now;

	while ((now = now_ms()) < deadline) {
		struct pollfd pfd[2];

		peer_run(s, now);
		peer_run(r, now);
		if (s->result != PEER_RUNNING || r->result != PEER_RUNNING)
			break;
		if (is_pausing(s) && is_pausing(r)) {
			run->client_port[i] = net_port(s->fd, false);
			run->upstream_port[i] = net_port(r->fd, true);
			return 0;
		}
		pfd[0].events = peer_events(s, now, &pfd[0].fd);
		pfd[1].events = peer_events(r, now, &pfd[1].fd);
		poll(pfd, 2, 1);
	}
	peer_describe(s->result == PEER_RUNNING ? r : s, run->why, sizeof(run->why));
	return -1;
}

/* Payload of each flow that is in no queue of TCP. */
static void find_hidden(struct run *run)
{
	int64_t held[PAIRS], unread[PAIRS];

	kmem_queued(run->client_port, run->upstream_port, PAIRS, held, unread);
	for (int i = 0; i < PAIRS; i++) {
		run->hidden[i] = (int64_t)run->senders[i].tx_off -
				 (int64_t)run->receivers[i].rx_off - held[i];
		if (unread[i] > run->figures.queue_max)
			run->figures.queue_max = unread[i];
	}
}

/*
 * A session's buffers are full if payload stays outside of them while the sender waits, or if the
 * sender cannot write any more.
 */
static bool is_full(struct run *run, int i, int64_t now)
{
	struct peer *s = &run->senders[i];

	if (run->hidden[i] < FILL_HIDDEN) {
		run->waiting[i] = 0;
	} else if (!run->waiting[i]) {
		run->waiting[i] = now;
		s->tx_wake = now + SETTLE_MS + 50;
	} else if (now - run->waiting[i] > SETTLE_MS) {
		return true;
	}
	return now - s->last_progress > SETTLE_MS + 200 || now - run->start > FILL_MS;
}

/* Returns true once all senders have gone over to single bytes. */
static bool turn_tiny(struct run *run, int64_t now)
{
	bool all = true;

	if (now < run->next_look)
		return false;
	run->next_look = now + 50; /* /proc/net/tcp is slow to read */
	find_hidden(run);
	for (int i = 0; i < PAIRS; i++) {
		if (!run->tiny[i] && is_full(run, i, now)) {
			run->tiny[i] = true;
			run->senders[i].write_size = 1;
			run->senders[i].write_pause = 0;
		}
		all &= run->tiny[i];
	}
	return all;
}

static int run_peers(struct run *run, struct peer *peers, int64_t now, struct pollfd *ret)
{
	for (int i = 0; i < PAIRS; i++) {
		if (peer_run(&peers[i], now) != PEER_RUNNING) {
			peer_describe(&peers[i], run->why, sizeof(run->why));
			return -1;
		}
		ret[i].events = peer_events(&peers[i], now, &ret[i].fd);
		if (!ret[i].events)
			ret[i].fd = -1;
	}
	return 0;
}

static int run_both(struct run *run, int64_t now)
{
	struct pollfd pfd[2 * PAIRS];
	bool slow = run->variant->slow;

	if (run_peers(run, run->senders, now, pfd) ||
	    (slow && run_peers(run, run->receivers, now, pfd + PAIRS)))
		return -1;
	poll(pfd, slow ? 2 * PAIRS : PAIRS, 2);
	return 0;
}

/* Every sender writes whatever its socket takes, for the given time. */
static int send_all(struct run *run)
{
	const struct variant *v = run->variant;
	int64_t middle = (int64_t)(opt.seconds * 500), now;
	bool filling = v->one_byte && strcmp(run->engine, "copy") != 0;

	while ((now = now_ms()) < run->start + 2 * middle || filling) {
		if (v->stop && !run->stopped && (v->one_byte || now - run->start > middle)) {
			daemon_signal(run->d, SIGSTOP);
			run->stopped = true;
		}
		if (filling && turn_tiny(run, now)) {
			filling = false;
			run->start = now;
		}
		if (run_both(run, now))
			return -1;
	}
	return 0;
}

/* The senders have sent what they have sent; now all of it must arrive. */
static int read_all(struct run *run)
{
	struct peer *all[2 * PAIRS];

	daemon_signal(run->d, SIGCONT);
	for (int i = 0; i < PAIRS; i++) {
		struct peer *s = &run->senders[i], *r = &run->receivers[i];
		char script[80];

		run->sent += s->tx_off;
		s->tx_goal = s->tx_off; /* ends the endless step */
		peer_script(s, "F E");
		if (run->variant->slow)
			r->rx_goal = r->rx_off; /* ends its endless step as well */
		snprintf(script, sizeof(script), "d256K dp0 R%llu E F",
			 (unsigned long long)(s->tx_off - r->rx_off));
		peer_script(r, script);
		r->step_wake = 0; /* ends the pause */
		all[2 * i] = s;
		all[2 * i + 1] = r;
	}
	return peers_run(all, 2 * PAIRS, 30000, NULL, NULL, run->why, sizeof(run->why));
}

/*
 * While acknowledgements are under way, bytes count in the queues of both ends.  Nobody sends now:
 * for each flow the largest of a few looks is the right one.
 */
static void settle_hidden(struct run *run)
{
	int64_t most[PAIRS] = { 0 };

	for (int look = 0; look < 6; look++) {
		find_hidden(run);
		for (int i = 0; i < PAIRS; i++)
			if (!look || run->hidden[i] > most[i])
				most[i] = run->hidden[i];
		poll(NULL, 0, 50);
	}
	memcpy(run->hidden, most, sizeof(most));
}

static void begin_sending(const struct run *run, struct peer *s)
{
	s->step_wake = 0; /* ends the pause */
	s->last_progress = run->start;
	if (!run->variant->one_byte) {
		s->write_size = 256 << 10;
	} else if (strcmp(run->engine, "copy") != 0) {
		s->write_size = 16 << 10;
		s->write_pause = 4; /* slowly, so as not to overshoot */
	} else {
		s->write_size = 1;
	}
}

static int measure(struct run *run)
{
	struct kmem before, after;

	for (int i = 0; i < PAIRS; i++)
		if (connect_pair(run, i) || talk(run, i))
			return -1;
	before = kmem_read();
	run->start = now_ms();
	for (int i = 0; i < PAIRS; i++) {
		begin_sending(run, &run->senders[i]);
		if (run->variant->slow)
			run->receivers[i].step_wake = 0;
	}
	if (send_all(run))
		return -1;
	after = kmem_read();
	settle_hidden(run);
	run->grown.used = after.used - before.used;
	run->grown.slab = after.slab - before.slab;
	run->grown.accounted = after.accounted - before.accounted;
	run->figures.slab = run->grown.slab;
	run->figures.unaccounted = run->grown.used - run->grown.accounted;
	for (int i = 0; i < PAIRS; i++) {
		run->figures.hidden += run->hidden[i];
		if (run->hidden[i] > run->figures.hidden_max)
			run->figures.hidden_max = run->hidden[i];
	}
	if (read_all(run) || daemon_check(run->d, run->why, sizeof(run->why)))
		return -1;
	return daemon_wait_idle(run->d, 5000, run->why, sizeof(run->why));
}

/* One daemon, one measurement.  0, -1 (why in run->why) or -ENOTSUP. */
static int run_once(struct run *run)
{
	int r = start_daemon(run, opt.culvert);

	if (r < 0)
		return r == -ENOTSUP ? r : -1;
	r = measure(run) ? -1 : 0;
	for (int i = 0; i < PAIRS; i++) {
		peer_close(&run->senders[i]);
		peer_close(&run->receivers[i]);
	}
	if (r)
		daemon_kill(run->d);
	else
		r = daemon_stop(run->d, 10000, run->why, sizeof(run->why)) ? -1 : 0;
	return r;
}

#define kib(bytes) ((long long)((bytes) / 1024))
#define mib(bytes) ((long long)((bytes) / (1 << 20)))

static void print_run(const struct run *run, const char *verdict, const struct figures *bound)
{
	const struct figures *f = &run->figures;

	printf("%-4s %-8s %-30s hidden payload %lld KiB (most of one flow %lld", verdict,
	       run->engine, run->variant->name, kib(f->hidden), kib(f->hidden_max));
	if (bound)
		printf(", bound %lld", kib(bound->hidden_max));
	printf("), slab %lld MiB", mib(f->slab));
	if (bound)
		printf(" (bound %lld)", mib(bound->slab));
	printf(", unaccounted %lld MiB", mib(f->unaccounted));
	if (bound)
		printf(" (bound %lld)", mib(bound->unaccounted));
	printf(", longest receive queue %lld KiB", kib(f->queue_max));
	if (bound && bound->queue_max != INT64_MAX)
		printf(" (bound %lld)", kib(bound->queue_max));
	printf(", TCP mem %lld MiB, used %lld MiB; %lld KiB sent and verified\n",
	       mib(run->grown.accounted), mib(run->grown.used), kib((int64_t)run->sent));
}

static bool within(const struct figures *f, const struct figures *bound)
{
	return f->hidden_max <= bound->hidden_max && f->slab <= bound->slab &&
	       f->unaccounted <= bound->unaccounted && f->queue_max <= bound->queue_max;
}

static void take_least(struct figures *least, const struct figures *f, bool first)
{
	if (first || f->unaccounted < least->unaccounted)
		least->unaccounted = f->unaccounted;
	if (first || f->slab < least->slab)
		least->slab = f->slab;
	/* Nobody else disturbs these: the worst counts. */
	if (first || f->queue_max > least->queue_max)
		least->queue_max = f->queue_max;
	if (first || f->hidden_max > least->hidden_max)
		least->hidden_max = f->hidden_max;
	if (first || f->hidden > least->hidden)
		least->hidden = f->hidden;
}

/*
 * Run one engine; BOUND NULL: the copy engine, which sets the mark (two measurements, the smaller
 * ones count: that is stricter).  Returns 0, or -1 if there is no figure.
 */
static int run_engine(const char *engine, const struct variant *v, int listen_fd,
		      const struct figures *bound, struct figures *ret)
{
	static struct run run;
	int attempts = bound ? ATTEMPTS : 2, r = 0;
	bool ok = !bound;

	for (int attempt = 0; attempt < attempts && !r; attempt++) {
		memset(&run, 0, sizeof(run));
		run.variant = v;
		run.engine = engine;
		run.listen_fd = listen_fd;
		r = run_once(&run);
		take_least(ret, &run.figures, attempt == 0);
		ok = !bound || within(ret, bound);
		if (bound && (ok || r))
			break;
		if (bound)
			print_run(&run, "note", bound);
	}
	if (r == -ENOTSUP) {
		printf("skip %-8s %-30s %s\n", engine, v->name, run.why);
		totals.skipped++;
		return -1;
	}
	if (r) {
		printf("FAIL %-8s %-30s %s\n", engine, v->name, run.why);
		totals.failed++;
		return -1;
	}
	run.figures = *ret;
	print_run(&run, ok ? "ok" : "FAIL", bound);
	totals.passed += ok;
	totals.failed += !ok;
	return 0;
}

static void run_variant(const struct variant *v, int listen_fd)
{
	int64_t hard = (int64_t)parse_bytes(opt.hard_limit);
	int64_t slack = PAIRS * hard + (int64_t)opt.slack;
	struct figures copy, bound, got;

	if (run_engine("copy", v, listen_fd, NULL, &copy))
		return;
	bound.slab = (copy.slab > 0 ? copy.slab : 0) + slack;
	bound.unaccounted = (copy.unaccounted > 0 ? copy.unaccounted : 0) + slack;
	bound.hidden_max = 2 * hard + FLOW_SLACK;
	for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
		if (strcmp(engines[i], "copy") &&
		    (!opt.engine || !strcmp(opt.engine, engines[i]))) {
			bound.queue_max = strcmp(engines[i], "sockmap") ? INT64_MAX : hard;
			run_engine(engines[i], v, listen_fd, &bound, &got);
		}
}

static const char help[] =
	"test_memory [options]\n"
	"  --culvert PATH     the daemon (default: the one built together with this program)\n"
	"  --engine E         only this engine (and copy, which sets the mark)\n"
	"  --seconds S        of sending (default 3)\n"
	"  --hard-limit SIZE  passed on (default 1M); --soft-limit SIZE (default 256K)\n"
	"  --slack SIZE       allowed above copy + 32 hard limits (default 64M)\n";

static const struct option long_options[] = {
	{ "culvert", required_argument, NULL, 'c' },
	{ "engine", required_argument, NULL, 'e' },
	{ "seconds", required_argument, NULL, 's' },
	{ "hard-limit", required_argument, NULL, 'H' },
	{ "soft-limit", required_argument, NULL, 'S' },
	{ "slack", required_argument, NULL, 'k' },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

int main(int argc, char **argv)
{
	int c, fd;

	while ((c = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
		switch (c) {
		case 'c': opt.culvert = optarg; break;
		case 'e': opt.engine = optarg; break;
		case 's': opt.seconds = atof(optarg); break;
		case 'H': opt.hard_limit = optarg; break;
		case 'S': opt.soft_limit = optarg; break;
		case 'k': opt.slack = parse_bytes(optarg); break;
		default:
			fputs(help, c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
	}
	env_enter("test_memory", 1200);
	fd = net_listen(UPSTREAM, 4096);
	if (fd < 0) {
		fprintf(stderr, "FAIL: %s: %s\n", UPSTREAM, strerror(-fd));
		return 1;
	}
	for (size_t i = 0; i < N_VARIANTS; i++)
		run_variant(&variants[i], fd);
	printf("%d passed, %d failed, %d skipped\n", totals.passed, totals.failed, totals.skipped);
	return totals.failed || !totals.passed ? 1 : 0;
}
