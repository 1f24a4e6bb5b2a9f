// SPDX-License-Identifier: BSD-2-Clause
/*
 * What becomes of listening sockets while culvert runs: those of a reload that has to wait, those
 * that stay and are to have other options, those that drain closes and opens again.  Every test
 * runs with every engine.
 */
#include "reload_rig.h"

#include <signal.h>
#include <sys/syscall.h>

#include "borrow.h"
#include "hold.h"

#define TEST_SECONDS 120

/* While a reload waits for the privileged process, whoever asks the daemon is answered. */
static void asked_meanwhile(void **state)
{
	struct daemon *d = rig_start(*state, ONE_OF(""));
	pid_t pid = daemon_privileged(d);
	int64_t before = reloads(d);
	int client = rig_dial(NULL, ONE), server = rig_accept();

	assert_int_equal(hold_begin(pid), 0);
	rig_write(ONE_OF("") TWO_OF(""));
	daemon_signal(d, SIGHUP);
	assert_int_equal(hold_before(pid, SYS_bind, RIG_PATIENCE_MS), 0);
	assert_int_equal(rig_sessions(d, "one", NULL), 1);
	json_object_put(query(d, "forwards"));
	rig_talk(client, server, 20);
	is_served(ONE);
	is_closed(TWO);
	assert_int_equal(reloads(d), before); /* it still waits */
	hold_end(pid);
	rig_wait_status(d, "reload.finished", before + 1);
	is_served(TWO);
	rig_talk(client, server, 20);
	rig_reload_good(d, ONE_OF(""));
	is_closed(TWO);
	rig_stop(d);
}

/*
 * A new listener that takes connections away from one that there is, is opened when hardly anything
 * can fail any more: while others are, and if one of those cannot be, nobody is reset.
 */
static void refused_narrowing(void **state)
{
	struct daemon *d = rig_start(*state, "[culvert]\nworkers = 1\n"
				     "[forward one]\nlisten = " ANY_ONE "\n" TO_UPSTREAM);
	pid_t pid = daemon_privileged(d);
	int64_t before = reloads(d);

	assert_int_equal(hold_begin(pid), 0);
	rig_write("[culvert]\nworkers = 1\n" ONE_OF("") TWO_OF("")
		   "[forward taken]\nlisten = " RIG_UPSTREAM "\nupstream = " ECHO "\n");
	daemon_signal(d, SIGHUP);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(hold_before(pid, SYS_bind, RIG_PATIENCE_MS), 0);
		is_served(ONE);
	}
	hold_end(pid);
	rig_wait_status(d, "reload.finished", before + 1);
	is_served(ONE);
	is_served("127.0.0.2:9001");
	is_closed(TWO);
	rig_stop(d);
}

/* --- options --- */

/* The socket that culvert accepts from now on. */
static void accepted_has(struct daemon *d, int nodelay, int keepalive)
{
	int client = rig_dial(NULL, ONE), server = rig_accept();
	int fd = borrow_socket((pid_t)rig_status(d, "pid"), net_port(client, true),
			       net_port(client, false));

	if (fd < 0)
		fail_msg("the daemon's socket: %s", strerror(-fd));
	assert_int_equal(rig_option(fd, IPPROTO_TCP, TCP_NODELAY), nodelay);
	assert_int_equal(rig_option(fd, SOL_SOCKET, SO_KEEPALIVE), keepalive > 0);
	if (keepalive)
		assert_int_equal(rig_option(fd, IPPROTO_TCP, TCP_KEEPIDLE), keepalive);
	close(fd);
	rig_talk(client, server, 5);
	rig_reset(client);
	rig_reset(server);
}

/* Options are inherited from a listener, which stays; also none is one. */
static void options_change(void **state)
{
	struct daemon *d = rig_start(*state, ONE_OF("keepalive = 50\n"));

	accepted_has(d, 1, 50);
	rig_reload_good(d, ONE_OF("keepalive = 0\nnodelay = no\n"));
	accepted_has(d, 0, 0);
	rig_reload_good(d, ONE_OF("keepalive = 20\n"));
	accepted_has(d, 1, 20);
	rig_stop(d);
}

/* --- drain --- */

static void ask(struct daemon *d, const char *line)
{
	struct json_object *o = NULL;
	int r = daemon_ask(d, line, RIG_PATIENCE_MS, &o);

	if (r)
		fail_msg("%s: %s", line, strerror(-r));
	if (json_at(o, "error"))
		fail_msg("%s: %s", line, json_object_to_json_string(o));
	json_object_put(o);
}

/* A unix socket has no group of sockets to join, and its file may still be there. */
static void drain_unix(void **state)
{
	char text[512], to[160];
	struct daemon *d;
	int client, server;

	snprintf(to, sizeof(to), "unix:%s/drained", env_dir());
	snprintf(text, sizeof(text), ONE_OF("") "[forward file]\nlisten = %s\n" TO_UPSTREAM, to);
	d = rig_start(*state, text);
	client = rig_dial(NULL, to);
	server = rig_accept();
	for (int i = 0; i < 2; i++) {
		ask(d, "{\"command\":\"drain\",\"forward\":\"file\"}");
		is_closed(to);
		rig_talk(client, server, 10);
		ask(d, "{\"command\":\"drain\",\"forward\":\"file\",\"undo\":true}");
		is_served(to);
	}
	rig_talk(client, server, 10);
	rig_reload_good(d, text); /* for which the privileged process is needed */
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "asked-meanwhile", asked_meanwhile },
	{ "refused-narrowing", refused_narrowing },
	{ "options-change", options_change },
	{ "drain-unix", drain_unix },
};

int main(void)
{
	return rig_run("test_reload_sockets", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
