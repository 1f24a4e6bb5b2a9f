// SPDX-License-Identifier: BSD-2-Clause
/*
 * How connections to the upstream leave: source address, mark, interface, and from
 * the client's own address, which a reload may change while sessions live and clients come.
 *
 * There are a client, the gateway where culvert runs, and a server (netlab.h), with the routes that
 * docs/operations.md asks for.  Each conversation goes on until the engine's carrier has it, and
 * every byte is compared.
 */
#include "forward_rig.h"

#include <err.h>

#include "base/addr.h"
#include "netlab.h"

#define TEST_SECONDS 240

#define GATE4 "10.77.1.2"
#define GATE6 "[fd77:1::2]"
#define SERVER4 "10.77.2.1:9100"
#define SERVER6 "[fd77:2::1]:9100"
#define HIDDEN4 "192.0.2.1:9100" /* of the server, and no route leads there but a mark's */
#define HIDDEN6 "[2001:db8:77::1]:9100"
#define TWICE "198.51.100.1:9100" /* both machines have it */

#define LEAVING(name, listen, upstream, more)                                                      \
	"[forward " name "]\nlisten = " listen "\nupstream = " upstream "\n" more

#define RANGE "/proc/sys/net/ipv4/ip_local_port_range"

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
	if (netlab_run(m, command))
		errx(1, "failed: %s", command);
}

static int listen_at(enum machine m, const char *where)
{
	int fd;

	netlab_enter(m);
	fd = net_listen(where, 1000);
	netlab_enter(GATEWAY);
	if (fd < 0)
		errx(1, "%s: %s", where, strerror(-fd));
	return fd;
}

static void make_network(void)
{
	netlab_up(rig_prog);
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
				getsockname(fd, (struct sockaddr *)&ss, &len),
			 0);
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

	assert_string_equal(host_of(e.server, true), from);
	rig_talk_until(d, forward, rig_carrier(d, engine), e.client, e.server);
	rig_talk_on(e, 50);
}

static void tidy(void)
{
	const int listeners[] = { server4, server6, hidden4, hidden6, twice_server, twice_client };

	netlab_enter(GATEWAY);
	for (size_t i = 0; i < sizeof(listeners) / sizeof(listeners[0]); i++)
		net_drain_listener(listeners[i]);
	must_run(GATEWAY, "echo 32768 60999 >" RANGE); /* ports */
}

/* --- tests --- */

ROW(leaving)
{
	struct daemon *d = rig_start(
		*state,
		LEAVING("source4", GATE4 ":9001", SERVER4, "source = 10.77.2.3\n") LEAVING(
			"source6", GATE6 ":9001", SERVER6, "source = fd77:2::3\n")
			LEAVING("mark4", GATE4 ":9002", HIDDEN4, "mark = 0x4d\n") LEAVING(
				"mark6", GATE6 ":9002", HIDDEN6,
				"mark = 77\n") LEAVING("both", GATE4 ":9003", HIDDEN4,
						       "mark = 77\nsource = 10.77.2.3\n")
				LEAVING("nearest", GATE4 ":9004", TWICE,
					"") LEAVING("c", GATE4 ":9005", TWICE, "interface = c\n")
					LEAVING("all", GATE4 ":9006", HIDDEN4,
						"mark = 77\nsource = 10.77.2.3\ninterface = s\n"));
	/* a packet that comes by one interface does not find a socket that is bound to another */
	const char *bound = strcmp(*state, "graft") != 0 ? *state : "copy";

	converse(d, *state, "source4", GATE4 ":9001", server4, "10.77.2.3");
	converse(d, *state, "source6", GATE6 ":9001", server6, "[fd77:2::3]");
	converse(d, *state, "mark4", GATE4 ":9002", hidden4, "10.77.2.2");
	converse(d, *state, "mark6", GATE6 ":9002", hidden6, "[fd77:2::2]");
	converse(d, *state, "both", GATE4 ":9003", hidden4, "10.77.2.3");
	converse(d, *state, "nearest", GATE4 ":9004", twice_server, "10.77.2.2");
	converse(d, bound, "c", GATE4 ":9005", twice_client, GATE4);
	converse(d, bound, "all", GATE4 ":9006", hidden4, "10.77.2.3");
	rig_stop(d);
}

/* The upstream sees the client's address; where it is intercepted, the client the upstream's. */
ROW(transparent)
{
	struct daemon *d = rig_start(
		*state, "[culvert]\ntransparent = yes\n" LEAVING("four", GATE4 ":9001", SERVER4, "")
				LEAVING("six", GATE6 ":9001", SERVER6,
					"") LEAVING("marked", GATE4 ":9002", HIDDEN4, "mark = 77\n")
					LEAVING("any4", "0.0.0.0:9100", SERVER4, "")
						LEAVING("any6", "[::]:9100", SERVER6, "")
							LEAVING("told", GATE4 ":9003", SERVER4,
								"proxy-protocol = receive\n"));
	static const char header[] = "PROXY TCP4 10.9.8.7 10.77.1.2 1234 9003\r\n";
	int client, server;

	converse(d, *state, "four", GATE4 ":9001", server4, "10.77.1.1");
	converse(d, *state, "six", GATE6 ":9001", server6, "[fd77:1::1]");
	converse(d, *state, "marked", GATE4 ":9002", hidden4, "10.77.1.1");
	converse(d, *state, "any4", SERVER4, server4, "10.77.1.1");
	converse(d, *state, "any6", SERVER6, server6, "[fd77:1::1]");
	/* who a proxy says that it is */
	client = dial(GATE4 ":9003");
	rig_send(client, header, sizeof(header) - 1);
	server = accept_on(server4);
	assert_string_equal(host_of(server, true), "10.9.8.7");
	rig_talk_until(d, "told", rig_carrier(d, *state), client, server);
	client = dial(SERVER4);
	assert_string_equal(host_of(client, true), "10.77.2.1");
	server = accept_on(server4);
	rig_reset(client); /* ends travel as ever */
	assert_int_equal(rig_end(server, RIG_PATIENCE_MS), ECONNRESET);
	rig_stop(d);
}

#define HEADER "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n"

/* What the kernel refuses is said with its reason, and the client is reset. */
ROW_ONCE(refusals)
{
	struct daemon *d = rig_start(
		*state,
		LEAVING("unmarked", GATE4 ":9001", HIDDEN4, "")
			LEAVING("foreign", GATE4 ":9003", SERVER4, "source = 192.0.2.77\n")
				LEAVING("device", GATE4 ":9004", SERVER4, "interface = missing0\n")
					LEAVING("client", GATE6 ":9005", SERVER4,
						"transparent = yes\nproxy-protocol = receive\n"));
	int fd;

	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_status(d, "errors.connect-unreachable"), 1);
	assert_int_equal(rig_end(dial(GATE4 ":9003"), RIG_PATIENCE_MS), ECONNRESET);
	rig_wait_log(d, "Cannot assign requested address");
	assert_int_equal(rig_end(dial(GATE4 ":9004"), RIG_PATIENCE_MS), ECONNRESET);
	rig_wait_log(d, "forward device: cannot connect to " SERVER4 ": No such device");
	/* which of a configuration alone cannot be known */
	fd = dial(GATE6 ":9005");
	assert_int_equal(write(fd, HEADER, strlen(HEADER)), strlen(HEADER));
	assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
	rig_wait_log(d, SERVER4 ": Address family not supported by protocol (skipped: ");
	assert_int_equal(rig_status(d, "errors.connect-failed"), 3);
	rig_stop(d);
}

#define EACH 4 /* ports in all */

/* A source address has a set of ports for each upstream, not one for all. */
ROW_ONCE(ports)
{
	struct daemon *d = rig_start(
		*state, "[culvert]\nsource = 10.77.2.3\n" LEAVING("one", GATE4 ":9001", SERVER4, "")
				LEAVING("two", GATE4 ":9002", TWICE, ""));
	struct ends ends[2 * EACH];

	must_run(GATEWAY, "cat " RANGE " >/dev/null && echo 20000 20003 >" RANGE);
	for (int i = 0; i < 2 * EACH; i++)
		ends[i] = i % 2 ? open_at(GATE4 ":9002", twice_server) :
				  open_at(GATE4 ":9001", server4);
	for (int i = 0; i < 2 * EACH; i++)
		rig_talk_on(ends[i], 10);
	rig_stop(d);
}

/* Clients come to the forward with a mark until one is refused.  How many were served. */
static int until_refused(void)
{
	for (int served = 0;; served++) {
		int fd = dial(GATE4 ":9002");
		struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
				       { .fd = hidden4, .events = POLLIN } };

		assert_true(served <= 64);
		assert_true(poll(p, 2, RIG_PATIENCE_MS) > 0);
		if (!p[1].revents) {
			assert_int_equal(rig_end(fd, 0), ECONNRESET);
			return served;
		}
		forget(accept_on(hidden4));
	}
}

#define MANY 100 /* more than there are in stock */

/*
 * Many at once get their sockets, if not at once.  Without the process that makes them those in
 * stock are still used; then sessions are refused with the reason, and those that run go on.
 */
ROW_ONCE(stock)
{
	struct daemon *d = rig_start(*state,
				     LEAVING("marked", GATE4 ":9002", HIDDEN4, "mark = 0x4d\n")
					     LEAVING("plain", GATE4 ":9003", SERVER4, ""));
	int clients[MANY], server = -1, served = 0;

	for (int i = 0; i < MANY; i++)
		clients[i] = dial(GATE4 ":9002");
	for (int i = 0; i < MANY; i++)
		server = accept_on(hidden4);
	rig_send(server, "x", 1);
	assert_true(daemon_privileged(d) > 0);
	assert_int_equal(kill(daemon_privileged(d), SIGKILL), 0);
	for (int i = 0; i < 3; i++)
		served += until_refused();
	assert_true(served <= 32);
	rig_wait_log(d, "the privileged process, which makes sockets with a mark or for "
			"transparent forwarding, has ended");
	assert_int_equal(rig_status(d, "errors.connect-failed"), 3);
	for (int i = 0, heard = 0; i < MANY && !heard; i++) {
		struct pollfd p = { .fd = clients[i], .events = POLLIN };

		heard = poll(&p, 1, 0) == 1;
		assert_true(heard || i < MANY - 1);
	}
	rig_talk_on(open_at(GATE4 ":9003", server4), 10);
	rig_stop(d);
}

/* While that process hangs, who has waited in vain is told of: the upstream was never asked. */
ROW_ONCE(hung)
{
	struct daemon *d = rig_start(*state, LEAVING("marked", GATE4 ":9002", HIDDEN4,
						     "mark = 0x4d\nconnect-timeout = 0.5\n"));

	assert_int_equal(kill(daemon_privileged(d), SIGSTOP), 0);
	until_refused();
	rig_wait_log(d, "cannot connect to " HIDDEN4
			": Out of streams resources (no socket with a mark");
	assert_true(rig_status(d, "errors.no-socket") > 0);
	assert_int_equal(rig_status(d, "errors.connect-timeout"), 0);
	assert_int_equal(kill(daemon_privileged(d), SIGCONT), 0);
	rig_stop(d);
}

/* --- after a reload --- */

#define LISTENS LEAVING("one", GATE4 ":9001", HIDDEN4, "")
#define LOW LEAVING("low", GATE4 ":443", SERVER4, "")

/* What it takes privileges for a reload brings, too: a mark, a low port, the client's address. */
ROW_ONCE(reloaded)
{
	static const char changed[] = LISTENS "mark = 77\n" LOW "transparent = yes\n";
	struct daemon *d = rig_start(*state, LISTENS);
	struct ends before, e;

	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	rig_reload_good(d, LISTENS "mark = 77\n" LOW);
	converse(d, *state, "one", GATE4 ":9001", hidden4, "10.77.2.2");
	converse(d, *state, "low", GATE4 ":443", server4, "10.77.2.2");
	/* it stays what it was for longer than what is in stock */
	for (int i = 0; i < 3; i++)
		rig_reload_good(d, i % 2 ? LISTENS "mark = 77\n" LOW : LOW LISTENS "mark = 0x4d\n");
	for (int i = 0; i < 40; i++)
		rig_hang_up(open_at(GATE4 ":9001", hidden4));
	/* sockets that listen do not become transparent */
	before = open_at(GATE4 ":443", server4);
	assert_non_null(strstr(rig_reload(d, changed), "transparent: cannot change while"));
	ask(d, "{\"command\":\"drain\",\"forward\":\"low\"}");
	rig_reload_good(d, changed);
	rig_talk_on(before, 10);
	e = open_at(GATE4 ":443", server4);
	assert_string_equal(host_of(e.server, true), "10.77.1.1");
	rig_talk_on(e, 10);
	/* and goes again */
	ask(d, "{\"command\":\"drain\",\"forward\":\"low\"}");
	rig_reload_good(d, LISTENS LOW);
	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	e = open_at(GATE4 ":443", server4);
	assert_string_equal(host_of(e.server, true), "10.77.2.2");
	rig_talk_on(e, 10);
	/* nothing of all that is kept once the last sessions have ended */
	rig_reload_good(d, LISTENS);
	rig_stop(d);
}

int main(void)
{
	env_need_ipv6("test_source");
	rig_prepare = make_network;
	rig_tidy = tidy;
	return rig_run("test_source", TEST_SECONDS);
}
