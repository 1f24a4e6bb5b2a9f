/* SPDX-License-Identifier: BSD-2-Clause */
/* What all rows share: the daemon with its forwards, the upstream listeners, one session. */
#include <err.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "env.h"

static struct forward {
	char listen[100], upstream[100];
	int fd; /* of the upstream side; -1: nobody listens */
} forwards[N_VIAS];

const char *cases_listen_addr(enum via via)
{
	return forwards[via].listen;
}

int cases_listener(enum via via)
{
	return forwards[via].fd;
}

int cases_fail(struct cases *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(c->why, sizeof(c->why), fmt, ap);
	va_end(ap);
	return -1;
}

/* At its upstream's address. */
static void listen_one(enum via via)
{
	struct forward *f = &forwards[via];
	int r;

	if (via == VIA_BLACKHOLE)
		r = net_black_hole(f->upstream);
	else
		r = f->fd = net_listen(f->upstream, 4096);
	if (r < 0)
		errx(1, "%s: %s", f->upstream, strerror(-r));
}

void cases_listen(void)
{
	static const char *const fixed[N_VIAS][2] = {
		[VIA_PLAIN] = { "127.0.0.1:9000", PLAIN_UPSTREAM },
		[VIA_IPV6] = { "[::1]:9000", "[::1]:9100" },
		[VIA_MAPPED] = { "[::ffff:127.0.0.1]:9005", "[::ffff:127.0.0.1]:9100" },
		[VIA_UNIX_UPSTREAM] = { "127.0.0.1:9001", NULL },
		[VIA_UNIX_LISTENER] = { NULL, PLAIN_UPSTREAM },
		[VIA_REFUSED] = { "127.0.0.1:9002", "127.0.0.1:9102" },
		[VIA_BLACKHOLE] = { "127.0.0.1:9003", "127.0.0.1:9103" },
		[VIA_UNREACHABLE] = { "127.0.0.1:9004", "203.0.113.1:9104" },
	};

	for (int i = 0; i < N_VIAS; i++) {
		struct forward *f = &forwards[i];

		f->fd = -1;
		if (fixed[i][0])
			snprintf(f->listen, sizeof(f->listen), "%s", fixed[i][0]);
		else
			snprintf(f->listen, sizeof(f->listen), "unix:%s/in.sock", env_dir());
		if (fixed[i][1])
			snprintf(f->upstream, sizeof(f->upstream), "%s", fixed[i][1]);
		else
			snprintf(f->upstream, sizeof(f->upstream), "unix:%s/up.sock", env_dir());
	}
	listen_one(VIA_PLAIN);
	listen_one(VIA_UNIX_UPSTREAM);
	listen_one(VIA_BLACKHOLE);
	if (env_has_ipv6())
		listen_one(VIA_IPV6);
	forwards[VIA_UNIX_LISTENER].fd = forwards[VIA_MAPPED].fd = forwards[VIA_PLAIN].fd;
}

int cases_start(struct cases *c)
{
	const char *args[2 * N_VIAS + 5] = {
		"--connect-timeout",
		CASES_CONNECT_TIMEOUT,
	};
	struct daemon_conf conf = { .culvert = c->culvert, .engine = c->engine, .args = args };
	struct json_object *o = NULL;
	int n = 2, r;

	if (c->probe) {
		args[n++] = "--probe";
		args[n++] = c->probe;
	}

	/* Perhaps left by one that was killed. */
	unlink(forwards[VIA_UNIX_LISTENER].listen + 5);
	for (int i = 0; i < N_VIAS; i++) {
		if (i == VIA_IPV6 && !env_has_ipv6())
			continue;
		args[n++] = forwards[i].listen;
		args[n++] = forwards[i].upstream;
	}
	args[n] = NULL;
	r = daemon_start(&conf, &c->d, c->why, sizeof(c->why));
	if (r < 0)
		return r;
	if (!daemon_query(c->d, "status", 5000, &o))
		c->kernel = json_object_get_boolean(json_at(o, "kernel.available"));
	json_object_put(o);
	return 0;
}

int cases_start_own(struct cases *c, const char *const *options, const char *upstream,
		    struct daemon **ret)
{
	const char *args[16];
	struct daemon_conf conf = { .culvert = c->culvert, .engine = c->engine, .args = args };
	char why[1000];
	int n = 0;

	while (options && options[n] && n < 12) {
		args[n] = options[n];
		n++;
	}
	args[n++] = OWN_LISTEN;
	args[n++] = upstream;
	args[n] = NULL;
	if (daemon_start(&conf, ret, why, sizeof(why)) < 0)
		return cases_fail(c, "a daemon for this row does not start: %s", why);
	return 0;
}

/* True if both flows of SESSION are carried as the engine promises. */
static bool is_carried(const struct cases *c, struct json_object *session)
{
	struct json_object *flows = json_at(session, "flows");
	const char *want = strcmp(c->engine, "auto") ? c->engine : "sockmap";
	bool is = flows && json_object_array_length(flows) == 2;

	for (size_t i = 0; is && i < 2; i++)
		is = !strcmp(json_text(json_object_array_get_idx(flows, i), "carrier"), want);
	return is;
}

/* How long it may take until a conversation has the carrier that it shall have. */
#define CARRIER_MS 5000

/* The hook of a conversation: it must be carried as the engine promises. */
static int expect_carrier(struct peer *p, void *arg)
{
	struct cases *c = arg;
	struct json_object *o = NULL, *list, *session = NULL;
	bool is_right;

	if (!c->kernel && (!strcmp(c->engine, "auto") || !strcmp(c->engine, "sockmap"))) {
		printf("skip %-8s carrier assertion: status: kernel.available is false\n",
		       c->engine);
		return 1;
	}
	daemon_query(c->d, "sessions", 3000, &o);
	list = json_at(o, "sessions");
	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		struct json_object *one = json_object_array_get_idx(list, i);
		const char *colon = strrchr(json_text(one, "client"), ':');

		if (colon && atoi(colon + 1) == net_port(p->fd, false))
			session = one;
	}
	is_right = is_carried(c, session);
	snprintf(p->why, sizeof(p->why), "%s%s",
		 is_right ? "" : "carrier is not what it should be: ",
		 is_right ? "" : json_object_to_json_string(session));
	json_object_put(o);
	if (is_right)
		return 1;
	return now_ms() - p->last_progress > CARRIER_MS * env_slow() ? -1 : 0;
}

void cases_pair(struct cases *c, const char *listen, enum via upstream, const char *client_script,
		const char *server_script, struct peer *client, struct peer *server)
{
	int r = peer_pair(client, server, listen, forwards[upstream].fd, 1, ++c->sessions);

	client->hook = server->hook = expect_carrier;
	client->hook_arg = server->hook_arg = c;
	peer_script(client, client_script);
	peer_script(server, server_script);
	if (r < 0)
		peer_fail(client, PEER_FAILED, "socket: %s", strerror(-r));
}

int cases_session(struct cases *c, enum via via, const char *client_script,
		  const char *server_script, int timeout_ms)
{
	static struct peer client, server;
	struct peer *both[] = { &client, &server };

	cases_pair(c, forwards[via].listen, via, client_script, server_script ? server_script : "",
		   &client, &server);
	return peers_run(both, server_script ? 2 : 1, timeout_ms, NULL, NULL, c->why,
			 sizeof(c->why));
}

void cases_drain(void)
{
	net_drain_listener(forwards[VIA_PLAIN].fd);
	net_drain_listener(forwards[VIA_IPV6].fd);
	net_drain_listener(forwards[VIA_UNIX_UPSTREAM].fd);
}

int cases_idle(struct cases *c, struct daemon *d)
{
	int64_t deadline = now_ms() + 5000;
	char why[400];

	do { /* a connection that no script accepted would keep its session alive */
		cases_drain();
		if (!daemon_wait_idle(d, 200, why, sizeof(why)))
			return 0;
	} while (now_ms() < deadline);
	return cases_fail(c, "afterwards: %s", why);
}
