/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_SOURCE_RIG_H
#define CULVERT_TEST_SOURCE_RIG_H

/*
 * A client, the gateway where culvert runs, and a server (netlab.h), with the routes that
 * docs/operations.md asks for.
 */
#include "forward_rig.h"

#include "base/addr.h"
#include "netlab.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

#define GATE4 "10.77.1.2"
#define GATE6 "[fd77:1::2]"
#define SERVER4 "10.77.2.1:9100"
#define SERVER6 "[fd77:2::1]:9100"
#define HIDDEN4 "192.0.2.1:9100" /* of the server, and no route leads there but a mark's */
#define HIDDEN6 "[2001:db8:77::1]:9100"
#define TWICE "198.51.100.1:9100" /* both machines have it */

/* Listeners of the two machines. */
static int server4, server6, hidden4, hidden6, twice_server, twice_client;

/* --- the network --- */

static const char *const routes[] = {
	"ip addr add 10.77.2.3/24 dev s",
	"ip addr add fd77:2::3/64 dev s nodad preferred_lft 0", /* not by default */
	/* a mark leads where no other packet gets */
	"ip rule add fwmark 0x4d lookup 77 && ip -6 rule add fwmark 0x4d lookup 77",
	"ip route add 192.0.2.1 via 10.77.2.1 table 77",
	"ip -6 route add 2001:db8:77::1 via fd77:2::1 table 77",
	/* the same address by two interfaces */
	"ip route add 198.51.100.1 via 10.77.2.1 dev s metric 50",
	"ip route add 198.51.100.1 via 10.77.1.1 dev c metric 100",
	/* docs/operations.md: what the upstream answers to a client comes to this machine */
	"ip route add local default dev lo table 78",
	"ip -6 route add local default dev lo table 78",
	"ip rule add iif s ipproto tcp sport 9100 lookup 78",
	"ip -6 rule add iif s ipproto tcp sport 9100 lookup 78",
	/* and what clients say to the upstream */
	"ip rule add iif c ipproto tcp dport 9100 lookup 78",
	"ip -6 rule add iif c ipproto tcp dport 9100 lookup 78",
};

static void must_run(enum machine m, const char *command)
{
	if (netlab_run(m, command)) {
		fprintf(stderr, "failed: %s\n", command);
		exit(1);
	}
}

static int listen_at(enum machine m, const char *where)
{
	int fd;

	netlab_enter(m);
	fd = net_listen(where, 1000);
	netlab_enter(GATEWAY);
	if (fd < 0) {
		fprintf(stderr, "%s: %s\n", where, strerror(-fd));
		exit(1);
	}
	return fd;
}

static void make_network(void)
{
	netlab_up(rig_rows->prog);
	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++)
		must_run(GATEWAY, routes[i]);
	must_run(SERVER_MACHINE, "ip addr add 192.0.2.1/32 dev lo && "
				 "ip addr add 198.51.100.1/32 dev lo && "
				 "ip addr add 2001:db8:77::1/128 dev lo nodad");
	must_run(CLIENT_MACHINE, "ip addr add 198.51.100.1/32 dev lo");
	server4 = listen_at(SERVER_MACHINE, SERVER4);
	server6 = listen_at(SERVER_MACHINE, SERVER6);
	hidden4 = listen_at(SERVER_MACHINE, HIDDEN4);
	hidden6 = listen_at(SERVER_MACHINE, HIDDEN6);
	twice_server = listen_at(SERVER_MACHINE, TWICE);
	twice_client = listen_at(CLIENT_MACHINE, TWICE);
	upstream_fd = server4;
}

/* --- sessions --- */

static int dial(const char *to)
{
	int fd;

	netlab_enter(CLIENT_MACHINE);
	fd = rig_dial(NULL, to);
	netlab_enter(GATEWAY);
	return fd;
}

static int accept_on(int listener)
{
	upstream_fd = listener;
	return rig_accept();
}

/* One end of FD, without the port. */
static const char *host_of(int fd, bool peer)
{
	static char text[ADDR_STRLEN];
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	assert_int_equal(peer ? getpeername(fd, (struct sockaddr *)&ss, &len) :
				getsockname(fd, (struct sockaddr *)&ss, &len), 0);
	addr_format((struct sockaddr *)&ss, len, text, sizeof(text));
	*strrchr(text, ':') = '\0';
	return text;
}

static struct ends open_at(const char *to, int listener)
{
	struct ends e = { dial(to), accept_on(listener) };

	return e;
}

/* A conversation through FORWARD at TO that LISTENER gets, from FROM. */
static void converse(struct daemon *d, const char *engine, const char *forward, const char *to,
		     int listener, const char *from)
{
	struct ends e = open_at(to, listener);

	if (strcmp(host_of(e.server, true), from) != 0)
		fail_msg("%s: from %s, not from %s", forward, host_of(e.server, true), from);
	rig_talk_until(d, forward, rig_carrier(d, engine), e.client, e.server);
	rig_talk_on(e, 50);
}

/* --- every row with every engine --- */

static void tidy(void)
{
	const int listeners[] = { server4, server6, hidden4, hidden6, twice_server, twice_client };

	netlab_enter(GATEWAY);
	for (size_t i = 0; i < sizeof(listeners) / sizeof(listeners[0]); i++)
		net_drain_listener(listeners[i]);
}

/* rig_run() in that network. */
static int source_run(const char *prog, unsigned int seconds, const struct rig_row *rows, size_t n)
{
	env_need_ipv6(prog);
	rig_prepare = make_network;
	rig_tidy = tidy;
	return rig_run(prog, seconds, rows, n);
}

#pragma GCC diagnostic pop

#endif
