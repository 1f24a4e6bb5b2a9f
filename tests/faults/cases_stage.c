/* SPDX-License-Identifier: BSD-2-Clause */
/* RST and FIN at every stage of a session, and windows of no size. */
#include <stdio.h>

#include "../flow/peer.h"
#include "cases.h"

#define LISTEN "127.0.0.1:9000" /* the first lane's */
#define UPSTREAM "127.0.0.1:9100"
#define TIMEOUT_MS 20000
#define KIB 1024ULL
#define MIB (1024 * KIB)

static uint64_t connections;

/* A pair of ends for the first lane; LISTEN_FD is its upstream. */
static void make_pair(struct peer *client, struct peer *server, int listen_fd,
		      const char *client_script, const char *server_script)
{
	struct sockaddr_storage ss;
	socklen_t len;

	net_addr(LISTEN, &ss, &len);
	peer_init(client, "client", (struct sockaddr *)&ss, len);
	peer_init(server, "server", NULL, 0);
	server->listen_fd = listen_fd;
	pattern_init(&client->tx, 2, ++connections, PATTERN_TO_SERVER);
	pattern_init(&client->rx, 2, connections, PATTERN_TO_CLIENT);
	server->rx = client->tx;
	server->tx = client->rx;
	peer_script(client, client_script);
	peer_script(server, server_script);
}

static int run_pair(struct net_case *c, struct peer *client, struct peer *server)
{
	struct peer *both[] = { client, server };
	char why[1000];

	c->times++;
	c->sum.sessions++;
	if (!peers_run(both, 2, TIMEOUT_MS, NULL, NULL, why, sizeof(why)))
		return 0;
	for (int i = 0; i < 2; i++) {
		enum peer_result r = both[i]->result;

		c->sum.wrong += r == PEER_WRONG || r == PEER_EXTRA;
		c->sum.truncated += r == PEER_TRUNCATED;
		c->sum.resets += r == PEER_RESET;
		c->sum.stuck += r == PEER_STALLED;
		c->sum.failed += r == PEER_FAILED;
	}
	return net_fail(c, "%s", why);
}

/*
 * What both do until one of them resets: a conversation, bulk both ways, and bulk to a slow reader,
 * which takes the flow out of the kernel.
 */
static const struct {
	const char *client, *server;
} courses[] = {
	{ "nd G40:64:64 B1M:1M G40:64:64 R1", "A nd H40:64:64 B1M:1M H40:64:64 R1" },
	{ "nd G40:64:64 S1M R1", "A nd rb16K d8K dp1 H40:64:64 R1M R1" },
	{ "nd rb16K d8K dp1 G40:64:64 R1M R1", "A nd H40:64:64 S1M R1" },
};

/* Bytes after which it happens; not before the first answer, for then both are connected. */
static const uint64_t stages[] = { 65, 640, 1100, 2559, 2560, 2561, 10 * KIB, 100 * KIB, 300 * KIB,
				   700 * KIB, MIB };

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int reset_at(struct net_case *c, size_t course, size_t stage, bool by_server, bool reading,
		    int listen_fd)
{
	static struct peer client, server;
	struct peer *who = by_server ? &server : &client;
	char scripts[2][200];

	snprintf(scripts[0], sizeof(scripts[0]), "%s%s", by_server ? "rst " : "",
		 courses[course].client);
	snprintf(scripts[1], sizeof(scripts[1]), "%s%s", by_server ? "" : "rst ",
		 courses[course].server);
	make_pair(&client, &server, listen_fd, scripts[0], scripts[1]);
	if (reading)
		who->abort_rx = stages[stage];
	else
		who->abort_tx = stages[stage];
	return run_pair(c, &client, &server);
}

/* True if the side gets so far in this course, in this direction. */
static bool happens(size_t course, size_t stage, bool by_server, bool reading)
{
	bool to_server = by_server == reading;

	if (course == 0 || stages[stage] <= 2560)
		return true;
	return course == 1 ? to_server : !to_server;
}

int case_reset_stages(struct net_case *c)
{
	int fd = lanes_listener(0), r = 0;

	for (size_t course = 0; !r && course < LENGTH(courses); course++)
		for (size_t stage = 0; !r && stage < LENGTH(stages); stage++)
			for (int who = 0; !r && who < 4; who++)
				if (happens(course, stage, who & 1, who & 2))
					r = reset_at(c, course, stage, who & 1, who & 2, fd);
	return r;
}

/* FIN after ROUNDS of conversation and BYTES of bulk; the other side then has 100 KiB to say. */
static int fin_at(struct net_case *c, unsigned int rounds, uint64_t bytes, bool by_server,
		  int listen_fd)
{
	static struct peer client, server;
	char talk[2][64] = { "", "" }, scripts[2][200];
	const char *last = bytes ? "L" : "F";

	if (rounds) {
		snprintf(talk[0], sizeof(talk[0]), "G%u:64:64 ", rounds);
		snprintf(talk[1], sizeof(talk[1]), "H%u:64:64 ", rounds);
	}
	if (bytes)
		snprintf(scripts[0], sizeof(scripts[0]), "%s%llu R100K E", last,
			 (unsigned long long)bytes);
	else
		snprintf(scripts[0], sizeof(scripts[0]), "F R100K E");
	snprintf(scripts[1], sizeof(scripts[1]), "R%llu E S100K F", (unsigned long long)bytes);
	for (int i = 0; i < 2; i++) {
		char tail[200];

		snprintf(tail, sizeof(tail), "%s", scripts[i]);
		snprintf(scripts[i], sizeof(scripts[i]), "nd %s%.120s", talk[by_server ? !i : i],
			 tail);
	}
	make_pair(&client, &server, listen_fd, by_server ? scripts[1] : scripts[0], "A");
	peer_script(&server, by_server ? scripts[0] : scripts[1]);
	return run_pair(c, &client, &server);
}

int case_fin_stages(struct net_case *c)
{
	static const unsigned int rounds[] = { 0, 1, 15, 16, 17, 40, 100 };
	static const uint64_t bytes[] = { 0, 1, 64, 4 * KIB, 64 * KIB, 300 * KIB, 2 * MIB };
	int fd = lanes_listener(0), r = 0;

	for (size_t i = 0; !r && i < LENGTH(rounds); i++)
		for (size_t k = 0; !r && k < LENGTH(bytes); k++)
			for (int who = 0; !r && who < 2; who++)
				r = fin_at(c, rounds[i], bytes[k], who, fd);
	return r;
}

static int run_scripts(struct net_case *c, const char *client_script, const char *server_script)
{
	static struct peer client, server;

	make_pair(&client, &server, lanes_listener(0), client_script, server_script);
	return run_pair(c, &client, &server);
}

/* The smallest receive buffer that the kernel gives, and readers that take a byte at a time. */
int case_tiny_windows(struct net_case *c)
{
	int r;

	r = run_scripts(c, "nd rb1 d1 G40:64:64 R8K F E", "A nd H40:64:64 S8K E F");
	r = r ?: run_scripts(c, "nd G40:64:64 S8K F E", "A nd rb1 d1 H40:64:64 R8K E F");
	r = r ?: run_scripts(c, "nd rb1 sb1 d100 w1 B8K:8K F E", "A nd rb1 sb1 d100 w1 B8K:8K E F");
	return r ?: run_scripts(c, "nd rb1 d1000 G40:64:64 R24K F E", "A nd H40:64:64 S24K E F");
}

/* A reader that stops for a second with its window closed, and goes on; twice. */
int case_zero_windows(struct net_case *c)
{
	int r;

	r = run_scripts(c, "nd G40:64:64 S4M F E", "A nd H40:64:64 P1000 R2M P1000 R2M E F");
	r = r ?: run_scripts(c, "nd G40:64:64 P1000 R2M P1000 R2M F E", "A nd H40:64:64 S4M E F");
	r = r ?: run_scripts(c, "nd rb8K G40:64:64 P700 R1M F E", "A nd H40:64:64 S1M E F");
	return r ?: run_scripts(c, "S4M R4M F E", "A P1000 R4M S4M E F");
}
