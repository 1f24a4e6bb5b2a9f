/* SPDX-License-Identifier: BSD-2-Clause */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "env.h"
#include "pairs.h"

static const struct {
	const char *client, *server;
} scripts[HABITS] = {
	[IDLE] = { "P" ENDLESS, "P" ENDLESS },
	[BIG_TURNS] = { "wp2 G" ENDLESS ":64K:64K", "H" ENDLESS ":64K:64K" },
	[TURNS] = { "wp2 G" ENDLESS ":64:64", "H" ENDLESS ":64:64" },
	[STREAM] = { "w4K wp2 B4096M:4096M", "w4K wp3 B4096M:4096M" },
	[BULK] = { "w256K S4096M", "d256K R4096M" },
};

struct pair pairs[PAIRS_MOST];
unsigned int n_pairs;
void (*pairs_failed)(const char *why);

__attribute__((format(printf, 1, 2))) static void broken(const char *fmt, ...)
{
	char why[1200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	pairs_failed(why);
}

void pairs_forget(void)
{
	for (unsigned int i = 0; i < n_pairs; i++) {
		peer_close(&pairs[i].client);
		peer_close(&pairs[i].server);
	}
	n_pairs = 0;
}

static void check_peer(struct peer *p)
{
	char why[1000];

	if (p->result == PEER_RUNNING || p->result == PEER_DONE)
		return;
	peer_describe(p, why, sizeof(why));
	broken("%s", why);
}

bool pairs_run(void)
{
	struct pollfd pfd[2 * PAIRS_MOST];
	int64_t now = now_ms();
	bool running = false;

	for (unsigned int i = 0; i < 2 * n_pairs; i++) {
		struct peer *p = i % 2 ? &pairs[i / 2].server : &pairs[i / 2].client;

		running |= peer_run(p, now) == PEER_RUNNING;
		check_peer(p);
		pfd[i].events = peer_events(p, now, &pfd[i].fd);
		if (!pfd[i].events)
			pfd[i].fd = -1;
	}
	poll(pfd, 2 * n_pairs, 2);
	return running;
}

int64_t deadline_after(int64_t ms)
{
	return now_ms() + ms * env_slow();
}

static bool talks(const struct pair *p)
{
	return p->client.pos >= p->client.n_steps - 1 && p->server.pos >= p->server.n_steps - 1;
}

void pair_open(enum habit habit, const char *listen, int upstream_fd)
{
	struct pair *p = &pairs[n_pairs];
	int64_t deadline = deadline_after(PAIRS_PATIENCE_MS);

	if (n_pairs == PAIRS_MOST)
		broken("too many pairs");
	memset(p, 0, sizeof(*p));
	p->habit = habit;
	if (peer_pair(&p->client, &p->server, listen, upstream_fd, 5, n_pairs))
		broken("no socket for a client");
	peer_script(&p->client, "nd G3:64:64");
	peer_script(&p->server, "A H3:64:64");
	peer_script(&p->client, scripts[habit].client);
	peer_script(&p->server, scripts[habit].server);
	n_pairs++;
	while (!talks(p)) {
		if (now_ms() > deadline)
			broken("pair %u: no answer", n_pairs - 1);
		pairs_run();
	}
}

/* The habit of P ends; what was sent arrives, and then it says some more. */
static void end_habit(struct pair *p)
{
	struct peer *c = &p->client, *s = &p->server;

	if (p->habit == IDLE) {
		c->step_wake = s->step_wake = 0;
	} else if (p->habit == TURNS || p->habit == BIG_TURNS) {
		/* the server may be one round ahead */
		s->rounds_left = 2 + s->rounds_left - c->rounds_left;
		c->rounds_left = 2;
	} else {
		c->tx_goal = s->rx_goal = c->tx_off;
		s->tx_goal = c->rx_goal = s->tx_off;
	}
	peer_script(c, "wp0 G3:100:100 F E");
	peer_script(s, "wp0 H3:100:100 E F");
}

void pairs_end(void)
{
	int64_t deadline = deadline_after(PAIRS_PATIENCE_MS);

	for (unsigned int i = 0; i < n_pairs; i++)
		end_habit(&pairs[i]);
	while (pairs_run())
		if (now_ms() > deadline)
			broken("the sessions do not end");
}
