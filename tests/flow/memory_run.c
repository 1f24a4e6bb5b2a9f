/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A conversation first, so that the engine has reason to use the kernel; then every end that sends
 * writes whatever its socket takes, for some seconds; then the figures; then all of it is read and
 * compared.
 *
 * One-byte writes begin only when the session's buffers are full: before that, the sending side of
 * the upstream socket would merge them.  For the copy engine they begin at once, so that its figure
 * shows what single bytes take in a receive queue, where TCP bounds them.
 */
#include "memory_run.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon.h"
#include "env.h"
#include "peer.h"

#define LISTEN "127.0.0.1:9000"
#define LISTEN_PORT 9000
#define FILL_MS 10000 /* at most, before the one-byte writes */
#define SETTLE_MS 500
#define FILL_HIDDEN (128 << 10) /* ... below the soft limit, yet too much to drain again */
#define SOCKET_BUFFER "256K" /* of our own ends, so that they weigh the same under every engine */
#define READ_MS 30000

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
	const struct memory_conf *conf;
	const struct memory_variant *variant;
	struct daemon *d;
	struct end senders[MEMORY_PAIRS], receivers[MEMORY_PAIRS];
	/* far ends of the daemon's two sockets */
	int client_port[MEMORY_PAIRS], upstream_port[MEMORY_PAIRS];
	int64_t hidden[MEMORY_PAIRS];
	int64_t start, next_look;
	bool stopped;
	int64_t slab_before;
	struct memory_result *ret;
};

static int start_daemon(struct run *run)
{
	const struct memory_conf *conf = run->conf;
	const char *const args[] = {
		"--hard-limit", MEMORY_HARD_LIMIT, "--soft-limit", "256K",
		LISTEN,         MEMORY_UPSTREAM,   NULL,
	};
	struct daemon_conf d = { .engine = conf->engine, .args = args };

	return daemon_start(&d, &run->d, run->ret->why, sizeof(run->ret->why));
}

/* Connections one by one, so that it is known which receiver belongs to which sender. */
static int connect_pair(struct run *run, int i)
{
	struct peer *s = &run->senders[i].peer, *r = &run->receivers[i].peer;

	if (peer_pair(s, r, LISTEN, run->conf->listen_fd, 7, (uint64_t)i))
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
	struct peer *s = &run->senders[i].peer, *r = &run->receivers[i].peer;
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
	peer_describe(s->result == PEER_RUNNING ? r : s, run->ret->why, sizeof(run->ret->why));
	return -1;
}

/* Payload of each session that is in no queue of TCP. */
static void find_hidden(struct run *run)
{
	int64_t held[MEMORY_PAIRS], unread[MEMORY_PAIRS];
	int64_t given[MEMORY_PAIRS], not_ours[MEMORY_PAIRS];

	kmem_queued(run->upstream_port, MEMORY_UPSTREAM_PORT, MEMORY_PAIRS, given, not_ours);
	kmem_queued(run->client_port, LISTEN_PORT, MEMORY_PAIRS, held, unread);
	for (int i = 0; i < MEMORY_PAIRS; i++) {
		const struct peer *s = &run->senders[i].peer, *r = &run->receivers[i].peer;

		run->hidden[i] = (int64_t)(s->tx_off - r->rx_off + r->tx_off - s->rx_off) -
				 held[i] - given[i];
		if (unread[i] > run->ret->figures.queue_max)
			run->ret->figures.queue_max = unread[i];
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

static bool turn_end_tiny(const struct run *run, struct end *e, int64_t hidden, int64_t now)
{
	if (!e->tiny && is_full(run, e, hidden, now)) {
		e->tiny = true;
		e->peer.write_size = 1;
		e->peer.write_pause = 0;
	}
	return e->tiny;
}

/* Returns true once all who send have gone over to single bytes. */
static bool turn_tiny(struct run *run, int64_t now)
{
	bool all = true;

	if (now < run->next_look)
		return false;
	run->next_look = now + 50; /* /proc/net/tcp is slow to read */
	find_hidden(run);
	for (int i = 0; i < MEMORY_PAIRS; i++) {
		all &= turn_end_tiny(run, &run->senders[i], run->hidden[i], now);
		if (run->variant->both)
			all &= turn_end_tiny(run, &run->receivers[i], run->hidden[i], now);
	}
	return all;
}

static int run_ends(struct run *run, struct end *ends, int64_t now, struct pollfd *ret)
{
	for (int i = 0; i < MEMORY_PAIRS; i++) {
		struct peer *p = &ends[i].peer;

		if (peer_run(p, now) != PEER_RUNNING) {
			peer_describe(p, run->ret->why, sizeof(run->ret->why));
			return -1;
		}
		ret[i].events = peer_events(p, now, &ret[i].fd);
		if (!ret[i].events)
			ret[i].fd = -1;
	}
	return 0;
}

static int run_peers(struct run *run, int64_t now)
{
	struct pollfd pfd[2 * MEMORY_PAIRS];
	bool receivers = run->variant->slow || run->variant->both;

	if (run_ends(run, run->senders, now, pfd) ||
	    (receivers && run_ends(run, run->receivers, now, pfd + MEMORY_PAIRS)))
		return -1;
	poll(pfd, receivers ? 2 * MEMORY_PAIRS : MEMORY_PAIRS, 2);
	return 0;
}

static void stop_daemon(struct run *run, bool middle)
{
	const struct memory_variant *v = run->variant;

	if (run->stopped || !(v->stop_first || (v->stop && (v->one_byte || middle))))
		return;
	daemon_signal(run->d, SIGSTOP);
	run->stopped = true;
}

/* Everybody who sends writes whatever his socket takes, for the given time. */
static int send_all(struct run *run)
{
	const struct memory_variant *v = run->variant;
	int64_t middle = (int64_t)(run->conf->seconds * 500), now;
	bool filling = v->one_byte && strcmp(run->conf->engine, "copy") != 0;

	while ((now = now_ms()) < run->start + 2 * middle || filling) {
		stop_daemon(run, now - run->start > middle);
		if (filling && turn_tiny(run, now)) {
			filling = false;
			run->start = now;
		}
		if (run_peers(run, now))
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
	struct peer *all[2 * MEMORY_PAIRS];

	daemon_signal(run->d, SIGCONT);
	for (int i = 0; i < MEMORY_PAIRS; i++) {
		struct peer *s = &run->senders[i].peer, *r = &run->receivers[i].peer;

		run->ret->sent += s->tx_off + r->tx_off;
		finish_end(s, r);
		finish_end(r, s);
		all[2 * i] = s;
		all[2 * i + 1] = r;
	}
	return peers_run(all, 2 * MEMORY_PAIRS, READ_MS, NULL, NULL, run->ret->why,
			 sizeof(run->ret->why));
}

/*
 * While acknowledgements are under way, bytes count in the queues of both ends.  Nobody sends now:
 * for each session the largest of a few looks is the right one.
 */
static void settle_hidden(struct run *run)
{
	int64_t *most = &run->ret->figures.hidden_max;

	for (int look = 0; look < 6; look++) {
		find_hidden(run);
		for (int i = 0; i < MEMORY_PAIRS; i++)
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
	} else if (strcmp(run->conf->engine, "copy") != 0) {
		p->write_size = 16 << 10;
		p->write_pause = 4; /* slowly, so as not to overshoot */
	} else {
		p->write_size = 1;
	}
}

static void begin(struct run *run)
{
	run->start = now_ms();
	for (int i = 0; i < MEMORY_PAIRS; i++) {
		begin_sending(run, &run->senders[i].peer);
		if (run->variant->both)
			begin_sending(run, &run->receivers[i].peer);
		else if (run->variant->slow)
			run->receivers[i].peer.step_wake = 0;
	}
}

static int measure(struct run *run)
{
	struct memory_result *ret = run->ret;

	for (int i = 0; i < MEMORY_PAIRS; i++)
		if (connect_pair(run, i) || talk(run, i))
			return -1;
	run->slab_before = slab_read();
	begin(run);
	if (send_all(run))
		return -1;
	ret->figures.slab = slab_read() - run->slab_before;
	settle_hidden(run);
	if (read_all(run) || daemon_check(run->d, ret->why, sizeof(ret->why)))
		return -1;
	return daemon_wait_idle(run->d, 5000, ret->why, sizeof(ret->why));
}

int memory_run(const struct memory_conf *conf, struct memory_result *ret)
{
	static struct run run;
	int r;

	memset(ret, 0, sizeof(*ret));
	memset(&run, 0, sizeof(run));
	run.conf = conf;
	run.variant = conf->variant;
	run.ret = ret;
	r = start_daemon(&run);
	if (r < 0)
		return r == -ENOTSUP ? r : -1;
	r = measure(&run) ? -1 : 0;
	for (int i = 0; i < MEMORY_PAIRS; i++) {
		peer_close(&run.senders[i].peer);
		peer_close(&run.receivers[i].peer);
	}
	if (r)
		daemon_kill(run.d);
	else
		r = daemon_stop(run.d, 10000, ret->why, sizeof(ret->why)) ? -1 : 0;
	return r;
}
