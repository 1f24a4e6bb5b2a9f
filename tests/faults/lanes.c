/* SPDX-License-Identifier: BSD-2-Clause */
#include <err.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../flow/env.h"
#include "../flow/name_server.h"
#include "../flow/peer.h"
#include "lanes.h"

/* Longer than the daemon takes to give up on a FIN whose bytes do not add up (8 s). */
#define STUCK_MS 15000
/* A client that is gone for so long without its connection upstream will never have one. */
#define LOST_MS 300
#define TICK_MS 5

enum kind {
	TCP,
	UNIX_UPSTREAM,
	UNIX_LISTENER,
	REFUSED, /* nobody listens upstream */
	PROXY,   /* through the daemon twice: one forward sends the header that the other reads */
	RACE,    /* a name: its first address drops every SYN, the second one is served */
	MARKED,  /* the socket to the upstream is made by the privileged process */
};

static const struct script {
	const char *client, *server;
	unsigned int repeat;
	enum kind kind;
} scripts[] = {
	/*
	 * a conversation, in the kernel where the engine knows one; the last byte travels with FIN
	 */
	{ "nd G60:64:64 L64 E", "A nd H60:64:64 R64 E F", 2, TCP },
	/* the server ends it */
	{ "nd G60:64:64 R10 E F", "A nd H60:64:64 L10 E", 1, TCP },
	/* conversation, bulk, conversation: hand-overs there and back */
	{ "nd G40:64:64 S2M G40:64:64 F E", "A nd H40:64:64 R2M H40:64:64 E F", 1, TCP },
	{ "nd G40:64:64 R2M F E", "A nd H40:64:64 S2M E F", 1, TCP },
	/* bulk */
	{ "B2M:2M F E", "A B2M:2M F E", 1, TCP },
	/* a slow reader behind a small buffer: limits, backlog, leaving the kernel */
	{ "nd G40:64:64 S1M F E", "A nd d32K dp2 H40:64:64 R1M E F", 1, TCP },
	{ "nd rb16K d16K dp1 G40:64:64 R512K F E", "A nd H40:64:64 S512K E F", 1, TCP },
	/* half-closes, both ways round */
	{ "S100 F R512K E", "A R100 E S512K F", 1, TCP },
	{ "nd G40:64:64 F R512K E", "A nd H40:64:64 E S512K F", 1, TCP },
	/* urgent bytes, in bulk and in the kernel */
	{ "S300K O S300K O F E", "A R614402 E F", 1, TCP },
	/* the server speaks first */
	{ "R200 S100 F E", "A S200 R100 E F", 1, TCP },
	/* short sessions */
	{ "L64 R512 E", "A R64 E L512", 12, TCP },
	/* resets by the peers */
	{ "nd G40:64:64 Z", "A nd rst H41:64:64", 1, TCP },
	{ "nd G40:64:64 S1 rst R1", "A nd H40:64:64 R1 Z", 1, TCP },
	/* resets while the session is about to enter the kernel */
	{ "nd G8:64:64 Z", "A nd rst H9:64:64", 4, TCP },
	{ "nd G8:64:64 S1 rst R1", "A nd H8:64:64 R1 Z", 4, TCP },
	{ "S100K R100K E F", "A R100K S100K F E", 1, UNIX_UPSTREAM },
	{ "S100K R100K E F", "A R100K S100K F E", 1, UNIX_LISTENER },
	{ "end R1", NULL, 1, REFUSED },
	{ "nd G40:64:64 S1M G40:64:64 L64 E", "A nd d32K dp1 H40:64:64 R1M H40:64:64 R64 E F", 1,
	  PROXY },
	{ "L64 R512 E", "A R64 E L512", 4, PROXY },
	{ "nd G20:64:64 L64 E", "A nd H20:64:64 R64 E F", 1, RACE },
	{ "L64 R512 E", "A R64 E L512", 6, MARKED },
};

#define LANES (sizeof(scripts) / sizeof(scripts[0]))

static struct lane {
	char listen[100], upstream[100];
	char between[100]; /* PROXY: where the first forward leads to; RACE: a black hole */
	char name[100];    /* RACE: of the upstream */
	int listen_fd;
	struct peer client, server;
	bool running;
	unsigned int left;
	const struct peer *culprit;
	int64_t client_gone; /* when the client's end was over */
} lanes[LANES];

#define MANY_MARKED 40 /* more than there are sockets in stock */

static bool many_marked;
static uint64_t connections; /* every session has bytes of its own */

static void name_addresses(struct lane *l, size_t i, enum kind kind)
{
	snprintf(l->listen, sizeof(l->listen), "127.0.0.1:%zu", 9000 + i);
	snprintf(l->upstream, sizeof(l->upstream), "127.0.0.1:%zu", 9100 + i);
	snprintf(l->between, sizeof(l->between), "127.0.0.1:%zu", 9200 + i);
	snprintf(l->name, sizeof(l->name), "race.test:%zu", 9100 + i);
	if (kind == RACE)
		snprintf(l->between, sizeof(l->between), "[::1]:%zu", 9100 + i);
	if (kind == UNIX_LISTENER)
		snprintf(l->listen, sizeof(l->listen), "unix:%s/in-%zu.sock", env_dir(), i);
	if (kind == UNIX_UPSTREAM)
		snprintf(l->upstream, sizeof(l->upstream), "unix:%s/up-%zu.sock", env_dir(), i);
}

/*
 * An RST is sent once.  Who waits for one that got lost hears of it in this way alone, whatever is
 * between.  Accepted sockets inherit it; a unix socket has no need of it.
 */
static void keep_alive(int fd)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 2 },
		{ IPPROTO_TCP, TCP_KEEPINTVL, 1 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 9 },
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		(void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
				 sizeof(options[i].value));
}

void lanes_open(void)
{
	name_server_start();
	name_server_set("race.test", "::1 127.0.0.1");
	for (size_t i = 0; i < LANES; i++) {
		struct lane *l = &lanes[i];

		name_addresses(l, i, scripts[i].kind);
		l->listen_fd = -1;
		if (scripts[i].kind == REFUSED)
			continue;
		/* without IPv6 there is no race, and the second address is served at once */
		if (scripts[i].kind == RACE && env_has_ipv6() && net_black_hole(l->between))
			errx(1, "%s: no black hole", l->between);
		l->listen_fd = net_listen(l->upstream, 1024);
		if (l->listen_fd < 0)
			errx(1, "%s: %s", l->upstream, strerror(-l->listen_fd));
		keep_alive(l->listen_fd);
	}
}

void lanes_configuration(FILE *f)
{
	for (size_t i = 0; i < LANES; i++) {
		const struct lane *l = &lanes[i];
		enum kind kind = scripts[i].kind;

		fprintf(f, "[forward lane-%zu]\nlisten = %s\nupstream = %s\n%s", i, l->listen,
			kind == PROXY ? l->between :
			kind == RACE  ? l->name :
					l->upstream,
			kind == PROXY  ? "proxy-protocol = send-v2\n" :
			kind == MARKED ? "mark = 77\n" :
					 "");
		if (kind == PROXY)
			fprintf(f,
				"[forward in-%zu]\nlisten = %s\nupstream = %s\n"
				"proxy-protocol = receive\n",
				i, l->between, l->upstream);
		if (kind == UNIX_LISTENER) /* perhaps left by a daemon that was killed */
			unlink(l->listen + strlen("unix:"));
	}
}

void lanes_many_marked(bool many)
{
	many_marked = many;
}

static unsigned int repetitions(const struct script *s)
{
	return s->kind == MARKED && many_marked ? MANY_MARKED : s->repeat;
}

int lanes_listener(int i)
{
	return lanes[i].listen_fd;
}

void lanes_drain(void)
{
	for (size_t i = 0; i < LANES; i++)
		if (lanes[i].listen_fd >= 0)
			net_drain_listener(lanes[i].listen_fd);
}

/* --- one session --- */

static void start_session(struct lane *l, const struct script *s)
{
	int r = peer_pair(&l->client, &l->server, l->listen, l->listen_fd, 1, ++connections);

	keep_alive(l->client.fd);
	peer_script(&l->client, s->client);
	if (r < 0)
		peer_fail(&l->client, PEER_FAILED, "%s: %s", l->listen, strerror(-r));
	if (s->server)
		peer_script(&l->server, s->server);
	else
		l->server.result = PEER_DONE;
	l->running = true;
	l->client_gone = 0;
	l->culprit = NULL;
	l->left--;
}

static bool never_connected(const struct peer *server)
{
	return server->result == PEER_RUNNING && server->fd < 0;
}

static void give_up_stuck(struct peer *p, int64_t now)
{
	if (p->result == PEER_RUNNING && now - p->last_progress > STUCK_MS)
		peer_fail(p, PEER_STALLED, "no progress for %d ms", STUCK_MS);
}

/*
 * Which end tells what happened: the one that failed first, for it then closes, and the other sees
 * the consequence.  A wrong byte counts whenever it comes.
 */
static void note_end(struct lane *l, const struct peer *p)
{
	bool bad = p->result != PEER_RUNNING && p->result != PEER_DONE;

	if (bad && (!l->culprit || p->result == PEER_WRONG))
		l->culprit = p;
}

/* A unix socket knows no reset: a session that the daemon resets ends there with EOF. */
static void excuse_unix(struct lane *l, enum kind kind)
{
	struct peer *p = kind == UNIX_LISTENER ? &l->client : &l->server;

	if ((kind == UNIX_LISTENER || kind == UNIX_UPSTREAM) && p->result == PEER_TRUNCATED)
		p->result = PEER_RESET;
}

static void judge(struct lane *l, enum kind kind, struct batch *b)
{
	const struct peer *worse = l->culprit;

	l->running = false;
	b->sessions++;
	if (!worse)
		return;
	b->results[worse->result]++;
	b->resets_marked += worse->result == PEER_RESET && kind == MARKED;
	if (worse->result != PEER_RESET || !b->why[0])
		peer_describe(worse, b->why, sizeof(b->why));
}

static void run_lane(struct lane *l, const struct script *s, int64_t now, struct batch *b)
{
	if (!l->running && !l->left)
		return;
	if (!l->running)
		start_session(l, s);
	peer_run(&l->client, now);
	note_end(l, &l->client);
	peer_run(&l->server, now);
	note_end(l, &l->server);
	if (l->client.result != PEER_RUNNING && !l->client_gone)
		l->client_gone = now;
	if (l->client_gone && never_connected(&l->server) && now - l->client_gone > LOST_MS) {
		/* a client that is content must not have been cut off from its upstream */
		bool content = l->client.result == PEER_DONE && !l->client.ended_by_reset;

		peer_fail(&l->server, content ? PEER_FAILED : PEER_RESET, "never connected");
	}
	give_up_stuck(&l->client, now);
	give_up_stuck(&l->server, now);
	note_end(l, &l->client);
	note_end(l, &l->server);
	if (l->client.result != PEER_RUNNING && l->server.result != PEER_RUNNING) {
		excuse_unix(l, s->kind);
		judge(l, s->kind, b);
	}
}

/* --- all of them --- */

enum peer_result lanes_fault(const struct batch *b)
{
	static const enum peer_result faults[] = {
		PEER_WRONG, PEER_EXTRA, PEER_TRUNCATED, PEER_STALLED, PEER_FAILED,
	};

	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		if (b->results[faults[i]])
			return faults[i];
	return PEER_DONE;
}

static void wait_for_any(int64_t now)
{
	struct pollfd fds[2 * LANES];
	int64_t at = now + TICK_MS;
	int n = 0;

	for (size_t i = 0; i < LANES; i++) {
		struct peer *ends[] = { &lanes[i].client, &lanes[i].server };

		if (!lanes[i].running && lanes[i].left)
			at = now;
		for (int k = 0; lanes[i].running && k < 2; k++) {
			int64_t wake = peer_wake(ends[k], now);

			fds[n].events = peer_events(ends[k], now, &fds[n].fd);
			n += fds[n].events != 0;
			if (wake < at)
				at = wake;
		}
	}
	poll(fds, (nfds_t)n, at > now ? (int)(at - now) : 0);
}

bool lanes_run(void (*tick)(void *arg), void *arg, struct batch *ret)
{
	bool running = true;

	memset(ret, 0, sizeof(*ret));
	for (size_t i = 0; i < LANES; i++)
		lanes[i].left = repetitions(&scripts[i]);
	while (running) {
		int64_t now = now_ms();

		running = false;
		for (size_t i = 0; i < LANES; i++) {
			run_lane(&lanes[i], &scripts[i], now, ret);
			running = running || lanes[i].running || lanes[i].left;
		}
		if (tick)
			tick(arg);
		if (running)
			wait_for_any(now);
	}
	return lanes_fault(ret) == PEER_DONE;
}
