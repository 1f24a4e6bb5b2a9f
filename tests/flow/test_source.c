/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How connections to the upstream leave, on each engine: source address, mark, interface, and from
 * the client's own address, between three machines (netlab.h).  Each conversation goes on until
 * the engine's carrier has it, and every byte is compared.
 */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function" /* this needs not all of the rig */
#endif
#include "forward_rig.h"
#include "netlab.h"

#include <arpa/inet.h>
#include <signal.h>

#include "addr.h"

#define TEST_SECONDS 240
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
	/* docs/transparent.md: what the upstream answers to a client comes to this machine */
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
	netlab_up("test_source");
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

/* A conversation through FORWARD at TO that LISTENER gets, from FROM. */
static void converse(struct daemon *d, const char *engine, const char *forward, const char *to,
		     int listener, const char *from)
{
	int client = dial(to), server = accept_on(listener);

	if (strcmp(host_of(server, true), from) != 0)
		fail_msg("%s: from %s, not from %s", forward, host_of(server, true), from);
	rig_talk_until(d, forward, rig_carrier(d, engine), client, server);
	rig_talk(client, server, 50);
}

static void log_has(struct daemon *d, const char *text)
{
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;

	for (;;) {
		char *log = daemon_stderr(d);
		bool there = strstr(log, text);

		free(log);
		if (there)
			return;
		if (now_ms() >= deadline)
			fail_msg("not logged: %s", text);
		poll(NULL, 0, 5);
	}
}

/* --- tests --- */

static void leaving(void **state)
{
	struct daemon *d = rig_start(
		*state,
		"[forward source4]\nlisten = " GATE4 ":9001\nupstream = " SERVER4 "\n"
		"source = 10.77.2.3\n"
		"[forward source6]\nlisten = " GATE6 ":9001\nupstream = " SERVER6 "\n"
		"source = fd77:2::3\n"
		"[forward mark4]\nlisten = " GATE4 ":9002\nupstream = " HIDDEN4 "\nmark = 0x4d\n"
		"[forward mark6]\nlisten = " GATE6 ":9002\nupstream = " HIDDEN6 "\nmark = 77\n"
		"[forward both]\nlisten = " GATE4 ":9003\nupstream = " HIDDEN4 "\nmark = 77\n"
		"source = 10.77.2.3\n"
		"[forward nearest]\nlisten = " GATE4 ":9004\nupstream = " TWICE "\n"
		"[forward c]\nlisten = " GATE4 ":9005\nupstream = " TWICE "\ninterface = c\n"
		"[forward all]\nlisten = " GATE4 ":9006\nupstream = " HIDDEN4 "\nmark = 77\n"
		"source = 10.77.2.3\ninterface = s\n");

	converse(d, *state, "source4", GATE4 ":9001", server4, "10.77.2.3");
	converse(d, *state, "source6", GATE6 ":9001", server6, "[fd77:2::3]");
	converse(d, *state, "mark4", GATE4 ":9002", hidden4, "10.77.2.2");
	converse(d, *state, "mark6", GATE6 ":9002", hidden6, "[fd77:2::2]");
	converse(d, *state, "both", GATE4 ":9003", hidden4, "10.77.2.3");
	converse(d, *state, "nearest", GATE4 ":9004", twice_server, "10.77.2.2");
	converse(d, *state, "c", GATE4 ":9005", twice_client, GATE4);
	converse(d, *state, "all", GATE4 ":9006", hidden4, "10.77.2.3");
	rig_stop(d);
}

/* The upstream sees the client's address; where it is intercepted, the client the upstream's. */
static void transparent(void **state)
{
	struct daemon *d = rig_start(
		*state,
		"[culvert]\ntransparent = yes\n"
		"[forward four]\nlisten = " GATE4 ":9001\nupstream = " SERVER4 "\n"
		"[forward six]\nlisten = " GATE6 ":9001\nupstream = " SERVER6 "\n"
		"[forward marked]\nlisten = " GATE4 ":9002\nupstream = " HIDDEN4 "\nmark = 77\n"
		"[forward any4]\nlisten = 0.0.0.0:9100\nupstream = " SERVER4 "\n"
		"[forward any6]\nlisten = [::]:9100\nupstream = " SERVER6 "\n"
		"[forward told]\nlisten = " GATE4 ":9003\nupstream = " SERVER4 "\n"
		"proxy-protocol = receive\n");
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

/* What the kernel refuses is said with its reason, and the client is reset. */
static void refusals(void **state)
{
	struct daemon *d = rig_start(
		*state,
		"[forward unmarked]\nlisten = " GATE4 ":9001\nupstream = " HIDDEN4 "\n"
		"[forward family]\nlisten = " GATE4 ":9002\nupstream = " SERVER6 "\n"
		"source = 10.77.2.3\n"
		"[forward foreign]\nlisten = " GATE4 ":9003\nupstream = " SERVER4 "\n"
		"source = 192.0.2.77\n"
		"[forward device]\nlisten = " GATE4 ":9004\nupstream = " SERVER4 "\n"
		"interface = missing0\n"
		"[forward client]\nlisten = " GATE6 ":9005\nupstream = " SERVER4 "\n"
		"transparent = yes\n");

	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_status(d, "errors.connect-unreachable"), 1);
	assert_int_equal(rig_end(dial(GATE4 ":9002"), RIG_PATIENCE_MS), ECONNRESET);
	log_has(d, SERVER6 ": skipped, it is of another address family");
	assert_int_equal(rig_end(dial(GATE4 ":9003"), RIG_PATIENCE_MS), ECONNRESET);
	log_has(d, "Cannot assign requested address");
	assert_int_equal(rig_end(dial(GATE4 ":9004"), RIG_PATIENCE_MS), ECONNRESET);
	log_has(d, "No such device");
	assert_int_equal(rig_end(dial(GATE6 ":9005"), RIG_PATIENCE_MS), ECONNRESET);
	log_has(d, SERVER4 ": skipped, it is of another address family");
	assert_int_equal(rig_status(d, "errors.connect-failed"), 4);
	rig_stop(d);
}

#define RANGE "/proc/sys/net/ipv4/ip_local_port_range"
#define EACH 4 /* ports in all */

/* A source address has a set of ports for each upstream, not one for all. */
static void ports(void **state)
{
	struct daemon *d = rig_start(
		*state,
		"[culvert]\nsource = 10.77.2.3\n"
		"[forward one]\nlisten = " GATE4 ":9001\nupstream = " SERVER4 "\n"
		"[forward two]\nlisten = " GATE4 ":9002\nupstream = " TWICE "\n");
	int clients[2][EACH], servers[2][EACH];

	must_run(GATEWAY, "cat " RANGE " >/dev/null && echo 41000 41003 >" RANGE);
	for (int i = 0; i < EACH; i++) {
		clients[0][i] = dial(GATE4 ":9001");
		servers[0][i] = accept_on(server4);
		clients[1][i] = dial(GATE4 ":9002");
		servers[1][i] = accept_on(twice_server);
	}
	must_run(GATEWAY, "echo 32768 60999 >" RANGE);
	for (int i = 0; i < 2 * EACH; i++)
		rig_talk(clients[i % 2][i / 2], servers[i % 2][i / 2], 10);
	rig_stop(d);
}

#define MANY 100 /* more than there are in stock */

static pid_t privileged_pid_of(struct daemon *d)
{
	static const char said[] = "the privileged process is ";
	char *log = daemon_stderr(d), *at = strstr(log, said);
	pid_t pid = at ? (pid_t)strtol(at + strlen(said), NULL, 10) : 0;

	free(log);
	assert_true(pid > 0);
	return pid;
}

/*
 * Many at once get their sockets, if not at once.  Without the process that makes them those in
 * stock are still used; then sessions are refused with the reason, and those that run go on.
 */
static void stock(void **state)
{
	struct daemon *d = rig_start(
		*state, "[forward marked]\nlisten = " GATE4 ":9002\nupstream = " HIDDEN4 "\n"
			"mark = 0x4d\n"
			"[forward plain]\nlisten = " GATE4 ":9003\nupstream = " SERVER4 "\n");
	int clients[MANY], server = -1, served = 0, refused = 0;

	for (int i = 0; i < MANY; i++)
		clients[i] = dial(GATE4 ":9002");
	for (int i = 0; i < MANY; i++)
		server = accept_on(hidden4);
	rig_send(server, "x", 1);
	assert_int_equal(kill(privileged_pid_of(d), SIGKILL), 0);
	while (refused < 3 && served < 40) {
		int fd = dial(GATE4 ":9002");
		struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
				       { .fd = hidden4, .events = POLLIN } };

		assert_true(poll(p, 2, RIG_PATIENCE_MS) > 0);
		if (p[1].revents) {
			forget(accept_on(hidden4));
			served++;
		} else {
			assert_int_equal(rig_end(fd, 0), ECONNRESET);
			refused++;
		}
	}
	assert_int_equal(refused, 3);
	assert_true(served <= 32);
	log_has(d, "the privileged process, which makes sockets with a mark or for transparent "
		   "forwarding, has ended");
	assert_int_equal(rig_status(d, "errors.connect-failed"), 3);
	for (int i = 0, heard = 0; i < MANY && !heard; i++) {
		struct pollfd p = { .fd = clients[i], .events = POLLIN };

		heard = poll(&p, 1, 0) == 1;
		assert_true(heard || i < MANY - 1);
	}
	clients[0] = dial(GATE4 ":9003");
	rig_talk(clients[0], accept_on(server4), 10);
	rig_stop(d);
}

/* --- after a reload --- */

static void reload(struct daemon *d, const char *text)
{
	int64_t before = rig_status(d, "reload.finished");
	struct json_object *o;
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/forwards.conf", env_dir());
	f = fopen(path, "we");
	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	daemon_signal(d, SIGHUP);
	rig_wait_status(d, "reload.finished", before + 1);
	o = query(d, "status");
	assert_string_equal(json_text(o, "reload.error"), "");
	json_object_put(o);
}

#define LISTENS "[forward one]\nlisten = " GATE4 ":9001\nupstream = " HIDDEN4 "\n"
#define LOW "[forward low]\nlisten = " GATE4 ":443\nupstream = " SERVER4 "\n"

/* What it takes privileges for a reload brings, too: a mark, a low port, the client's address. */
static void reloaded(void **state)
{
	struct daemon *d = rig_start(*state, LISTENS);
	int ends[2];

	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	reload(d, LISTENS "mark = 77\n" LOW);
	converse(d, *state, "one", GATE4 ":9001", hidden4, "10.77.2.2");
	converse(d, *state, "low", GATE4 ":443", server4, "10.77.2.2");
	/* it stays what it was for longer than what is in stock */
	for (int i = 0; i < 3; i++)
		reload(d, i % 2 ? LISTENS "mark = 77\n" LOW : LOW LISTENS "mark = 0x4d\n");
	for (int i = 0; i < 40; i++) {
		ends[0] = dial(GATE4 ":9001");
		ends[1] = accept_on(hidden4);
		rig_reset(ends[0]);
		assert_int_equal(rig_end(ends[1], RIG_PATIENCE_MS), ECONNRESET);
		forget(ends[1]);
	}
	reload(d, LISTENS "mark = 77\n" LOW "transparent = yes\n");
	ends[0] = dial(GATE4 ":443");
	ends[1] = accept_on(server4);
	assert_string_equal(host_of(ends[1], true), "10.77.1.1");
	rig_talk(ends[0], ends[1], 10);
	/* and goes again */
	reload(d, LISTENS LOW);
	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	ends[0] = dial(GATE4 ":443");
	ends[1] = accept_on(server4);
	assert_string_equal(host_of(ends[1], true), "10.77.2.2");
	rig_talk(ends[0], ends[1], 10);
	/* nothing of all that is kept once the last sessions have ended */
	reload(d, LISTENS);
	rig_stop(d);
}

/* not const: they are the states of the tests */
static char engines[][8] = { "auto", "sockmap", "splice", "copy" };

static int clean(void **state)
{
	int r = rig_clean(state);
	const int listeners[] = { server4, server6, hidden4, hidden6, twice_server, twice_client };

	netlab_enter(GATEWAY);
	for (size_t i = 0; i < sizeof(listeners) / sizeof(listeners[0]); i++)
		net_drain_listener(listeners[i]);
	return r;
}

static const struct {
	const char *name;
	void (*run)(void **state);
	size_t n; /* engines */
} rows[] = {
	{ "leaving", leaving, 4 },
	{ "transparent", transparent, 4 },
	/* before anything is carried */
	{ "refusals", refusals, 1 },
	{ "ports", ports, 1 },
	{ "stock", stock, 1 },
	{ "reloaded", reloaded, 1 },
};

int main(void)
{
	static struct CMUnitTest tests[16];
	static char names[16][48];
	size_t n = 0;

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		for (size_t k = 0; k < rows[i].n; k++, n++) {
			snprintf(names[n], sizeof(names[n]), "%s_%s", engines[k], rows[i].name);
			tests[n] = (struct CMUnitTest){
				.name = names[n], .test_func = rows[i].run,
				.teardown_func = clean, .initial_state = engines[k],
			};
		}
	}
	env_enter("test_source", TEST_SECONDS);
	/* the directory of a configuration file must be root's */
	if (chown(env_dir(), 0, 0))
		perror(env_dir());
	make_network();
	upstream_fd = server4;
	/* the unused places of the table are not run */
	return _cmocka_run_group_tests("test_source", tests, n, NULL, NULL);
}
