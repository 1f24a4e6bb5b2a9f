// SPDX-License-Identifier: BSD-2-Clause
/*
 * How connections to the upstream leave, on each engine: source address, mark, interface, and from
 * the client's own address, between three machines.  Each conversation goes on until the engine's
 * carrier has it, and every byte is compared.
 */
#include "source_rig.h"

#define TEST_SECONDS 240
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

#define HEADER "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n"

/* What the kernel refuses is said with its reason, and the client is reset. */
static void refusals(void **state)
{
	struct daemon *d = rig_start(
		*state,
		"[forward unmarked]\nlisten = " GATE4 ":9001\nupstream = " HIDDEN4 "\n"
		"[forward foreign]\nlisten = " GATE4 ":9003\nupstream = " SERVER4 "\n"
		"source = 192.0.2.77\n"
		"[forward device]\nlisten = " GATE4 ":9004\nupstream = " SERVER4 "\n"
		"interface = missing0\n"
		"[forward client]\nlisten = " GATE6 ":9005\nupstream = " SERVER4 "\n"
		"transparent = yes\nproxy-protocol = receive\n");
	int fd;

	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	assert_int_equal(rig_status(d, "errors.connect-unreachable"), 1);
	assert_int_equal(rig_end(dial(GATE4 ":9003"), RIG_PATIENCE_MS), ECONNRESET);
	rig_wait_log(d, "Cannot assign requested address");
	assert_int_equal(rig_end(dial(GATE4 ":9004"), RIG_PATIENCE_MS), ECONNRESET);
	rig_wait_log(d, "forward device: cannot connect to " SERVER4 ": the network interface "
			"that the forward's `interface` names, or its `source` behind %, does not "
			"exist (see `ip link`)");
	/* which of a configuration alone cannot be known */
	fd = dial(GATE6 ":9005");
	assert_int_equal(write(fd, HEADER, strlen(HEADER)), strlen(HEADER));
	assert_int_equal(rig_end(fd, RIG_PATIENCE_MS), ECONNRESET);
	rig_wait_log(d, SERVER4 ": skipped, it is of another address family");
	assert_int_equal(rig_status(d, "errors.connect-failed"), 3);
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
	struct ends ends[2 * EACH];

	must_run(GATEWAY, "cat " RANGE " >/dev/null && echo 41000 41003 >" RANGE);
	for (int i = 0; i < 2 * EACH; i++)
		ends[i] = i % 2 ? open_at(GATE4 ":9002", twice_server) :
				  open_at(GATE4 ":9001", server4);
	must_run(GATEWAY, "echo 32768 60999 >" RANGE);
	for (int i = 0; i < 2 * EACH; i++)
		rig_talk_on(ends[i], 10);
	rig_stop(d);
}

#define MANY 100 /* more than there are in stock */

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
	assert_true(daemon_privileged(d) > 0);
	assert_int_equal(kill(daemon_privileged(d), SIGKILL), 0);
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
static void hung(void **state)
{
	struct daemon *d = rig_start(
		*state, "[forward marked]\nlisten = " GATE4 ":9002\nupstream = " HIDDEN4 "\n"
			"mark = 0x4d\nconnect-timeout = 0.5\n");
	bool refused = false;

	assert_int_equal(kill(daemon_privileged(d), SIGSTOP), 0);
	for (int served = 0; !refused; served++) {
		int fd = dial(GATE4 ":9002");
		struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
				       { .fd = hidden4, .events = POLLIN } };

		assert_true(served <= 64);
		assert_true(poll(p, 2, RIG_PATIENCE_MS) > 0);
		if (p[1].revents)
			forget(accept_on(hidden4));
		else
			refused = rig_end(fd, 0) == ECONNRESET;
	}
	rig_wait_log(d, "cannot connect to " HIDDEN4 ": no socket with a mark");
	assert_true(rig_status(d, "errors.no-socket") > 0);
	assert_int_equal(rig_status(d, "errors.connect-timeout"), 0);
	assert_int_equal(kill(daemon_privileged(d), SIGCONT), 0);
	rig_stop(d);
}

/* --- after a reload --- */

#define LISTENS "[forward one]\nlisten = " GATE4 ":9001\nupstream = " HIDDEN4 "\n"
#define LOW "[forward low]\nlisten = " GATE4 ":443\nupstream = " SERVER4 "\n"

/* What it takes privileges for a reload brings, too: a mark, a low port, the client's address. */
static void reloaded(void **state)
{
	struct daemon *d = rig_start(*state, LISTENS);
	struct ends e;

	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	rig_reload_good(d, LISTENS "mark = 77\n" LOW);
	converse(d, *state, "one", GATE4 ":9001", hidden4, "10.77.2.2");
	converse(d, *state, "low", GATE4 ":443", server4, "10.77.2.2");
	/* it stays what it was for longer than what is in stock */
	for (int i = 0; i < 3; i++)
		rig_reload_good(d, i % 2 ? LISTENS "mark = 77\n" LOW : LOW LISTENS "mark = 0x4d\n");
	for (int i = 0; i < 40; i++)
		rig_hang_up(open_at(GATE4 ":9001", hidden4));
	rig_reload_good(d, LISTENS "mark = 77\n" LOW "transparent = yes\n");
	e = open_at(GATE4 ":443", server4);
	assert_string_equal(host_of(e.server, true), "10.77.1.1");
	rig_talk_on(e, 10);
	/* and goes again */
	rig_reload_good(d, LISTENS LOW);
	assert_int_equal(rig_end(dial(GATE4 ":9001"), RIG_PATIENCE_MS), ECONNRESET);
	e = open_at(GATE4 ":443", server4);
	assert_string_equal(host_of(e.server, true), "10.77.2.2");
	rig_talk_on(e, 10);
	/* nothing of all that is kept once the last sessions have ended */
	rig_reload_good(d, LISTENS);
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "leaving", leaving },
	{ "transparent", transparent },
	/* before anything is carried */
	{ "refusals", refusals, true },
	{ "ports", ports, true },
	{ "stock", stock, true },
	{ "hung", hung, true },
	{ "reloaded", reloaded, true },
};

int main(void)
{
	return source_run("test_source", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
