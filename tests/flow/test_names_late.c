// SPDX-License-Identifier: BSD-2-Clause
/* Names for which there is no answer, on every engine: not yet, or because a name server fails. */
#include "names_rig.h"

#include <limits.h>
#include <sys/wait.h>

#define TEST_SECONDS 280

/* --- upstreams --- */

#define LATE "[culvert]\nprobe = no\nconnect-timeout = 60\n" \
	     "[forward late]\nlisten = " ONE "\nupstream = late.test:9100\n" \
	     "[forward short]\nlisten = " TWO "\nupstream = late.test:9100\n" \
	     "connect-timeout = 0.1\n" \
	     "[forward number]\nlisten = " THREE "\nupstream = " RIG_UPSTREAM "\n"

/*
 * A name server that does not answer holds up neither the start, nor a reload, nor a forward that
 * does not need it; sessions of the others wait for it.
 */
static void answers_late(void **state)
{
	struct json_object *s;
	struct daemon *d;
	int waiting, gone, server;

	prepare();
	name_server_set("late.test", "127.0.0.1");
	name_server_set("new.test", "127.0.0.1");
	name_server_mode(NAMES_HOLD);
	d = rig_start(*state, LATE);
	is_reached(THREE);
	waiting = rig_dial(NULL, ONE);
	gone = rig_dial(NULL, ONE);
	is_turned_away(NULL, TWO);
	rig_wait_status(d, "errors.no-address", 1);
	rig_wait_status(d, "resources.sessions", 2);
	rig_reset(gone);
	rig_wait_status(d, "errors.client-reset", 2); /* is_reached() has reset one, too */
	rig_reload_good(d, LATE "[forward new]\nlisten = " FOUR "\nupstream = new.test:9100\n");
	assert_int_equal(lookup_int(d, 0, "lookup.lookups"), 0);
	assert_int_equal(rig_sessions(d, "late", &s), 1);
	assert_string_equal(json_text(s, "state"), "connecting");
	assert_string_equal(json_text(s, "upstream"), "late.test:9100");
	json_object_put(s);

	name_server_mode(NAMES_ANSWER);
	server = accept_at(upstream_fd);
	rig_talk_until(d, "late", rig_carrier(d, *state), waiting, server);
	expect_upstream(d, "late", "127.0.0.1:9100");
	is_reached(FOUR);
	wait_known(d, 2);
	is_reached(TWO);
	rig_reload_good(d, LATE); /* rig_stop() counts descriptors */
	rig_stop(d);
}

/* It does not exist at first; then it has one family, and then the other. */
static void exists_later(void **state)
{
	int listeners[2] = { six_fd, four_fd }, client, server;
	static const char *const addresses[2][2] = {
		{ "::1", SIX_UPSTREAM }, { "127.0.0.1", FOUR_UPSTREAM }
	};
	struct daemon *d;

	prepare();
	name_server_set("later.test", NULL);
	d = rig_start(*state, "[culvert]\nprobe = no\nresolve-interval = 0.1\n"
			      "[forward later]\nlisten = " ONE "\nupstream = later.test:9103\n");
	is_turned_away(NULL, ONE);
	rig_wait_status(d, "errors.no-address", 1);
	for (size_t i = 0; i < 2; i++) {
		name_server_set("later.test", addresses[i][0]);
		wait_address(d, 0, addresses[i][1]);
		client = rig_dial(NULL, ONE);
		server = accept_at(listeners[i]);
		rig_talk_until(d, "later", rig_carrier(d, *state), client, server);
		rig_reset(client);
		assert_int_equal(rig_end(server, RIG_PATIENCE_MS), ECONNRESET);
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_wait_log(d, "upstream later.test:9103 has no address yet, so its clients are reset: "
			"host name lookup failed: ");
	rig_wait_log(d, "upstream later.test:9103 has no address: host name lookup failed: ");
	rig_wait_log(d, "upstream later.test:9103 is " SIX_UPSTREAM "\n");
	rig_stop(d);
}

/* --- names to listen at --- */

#define HERE "[culvert]\nprobe = no\n[forward here]\nlisten = here.test:9001\n" TO_UPSTREAM

/* One to listen at is needed at the start. */
static void listens(void **state)
{
	struct daemon *d;

	prepare();
	name_server_set("here.test", NULL);
	rig_refuses(*state, HERE, "forward here: listen \"here.test:9001\": host name lookup "
				  "failed: ");
	name_server_set("here.test", "127.0.0.1");
	d = rig_start(*state, HERE);
	is_reached(ONE);
	rig_stop(d);
}

/* Whoever wants culvert to end does not wait for the name server; it is no failure. */
static void start_hangs(void **state)
{
	static const int signals[] = { SIGTERM, SIGINT };
	char program[PATH_MAX];

	prepare();
	beside_test(BUILT_CULVERT, program, sizeof(program));
	for (size_t i = 0; i < 2; i++) {
		unsigned int asked = name_server_asked();
		int status = -1;
		pid_t pid;

		name_server_mode(NAMES_SILENT);
		pid = fork();
		if (!pid) {
			execl(program, "culvert", "run", "--engine", (const char *)*state, "--probe",
			      "no", "hangs.test:9002", RIG_UPSTREAM, NULL);
			_exit(127);
		}
		while (name_server_asked() == asked)
			poll(NULL, 0, 5);
		kill(pid, signals[i]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

/*
 * A name to listen at is waited for, as it must be bound: by the reload, which holds up neither
 * sessions nor the end.
 */
static void reload_hangs(void **state)
{
	struct daemon *d;
	unsigned int asked;

	prepare();
	name_server_set("moves.test", "127.0.0.1");
	d = rig_start(*state, MOVING);
	wait_known(d, 1);
	name_server_mode(NAMES_SILENT);
	asked = name_server_asked();
	rig_write(MOVING "[forward new]\nlisten = hangs.test:9002\nupstream = " RIG_UPSTREAM "\n");
	daemon_signal(d, SIGHUP);
	while (name_server_asked() == asked)
		poll(NULL, 0, 5);
	is_reached(ONE);
	assert_int_equal(rig_status(d, "reload.finished"), 0);
	rig_end_daemon(d);
}

/* --- name servers that are silent --- */

/* Many names hang; those that are answered are found at once all the same. */
#define HANGING 150

static int add_hanging(char *text, size_t size, int n)
{
	int at = 0;

	for (int i = 0; i < n; i++)
		at += snprintf(text + at, size - (size_t)at,
			       "[forward f%d]\nlisten = 127.0.0.2:%d\nupstream = f%d"
			       NAMES_HANGS ":80\n", i, 10000 + i, i);
	return at;
}

static void others_hang(void **state)
{
	static char text[HANGING * 100 + 1000];
	int at = snprintf(text, sizeof(text), "[culvert]\nprobe = no\nconnect-timeout = 60\n"
			  "[forward good]\nlisten = " ONE "\nupstream = good.test:9100\n"
			  "[forward number]\nlisten = " TWO "\nupstream = " RIG_UPSTREAM "\n");
	struct daemon *d;

	at += add_hanging(text + at, sizeof(text) - (size_t)at, HANGING);
	prepare();
	name_server_set("good.test", "127.0.0.1");
	d = rig_start(*state, text);
	is_served_by(d, *state, "good", ONE, "127.0.0.1:9100");
	assert_int_equal(lookup_int(d, 0, "lookup.failures"), 0);
	/* a name that a reload brings, and one of a service, which is no name */
	name_server_set("new.test", "127.0.0.1");
	snprintf(text + at, sizeof(text) - (size_t)at,
		 "[forward new]\nlisten = " THREE "\nupstream = new.test:9100\n"
		 "[forward service]\nlisten = " FOUR "\nupstream = 127.0.0.1:http\n");
	rig_reload_good(d, text);
	is_reached(THREE);
	is_turned_away(NULL, FOUR);
	is_reached(TWO);
	rig_reload_good(d, "[culvert]\nprobe = no\nconnect-timeout = 60\n"
			   "[forward good]\nlisten = " ONE "\nupstream = good.test:9100\n"
			   "[forward number]\nlisten = " TWO "\nupstream = " RIG_UPSTREAM "\n");
	rig_stop(d);
}

/* What /etc/hosts says needs no name server. */
static void in_hosts(void **state)
{
	struct daemon *d;

	prepare();
	name_server_mode(NAMES_SILENT);
	d = rig_start(*state, "[culvert]\nprobe = no\n"
			      "[forward hosts]\nlisten = " ONE "\nupstream = LocalHost:9100\n");
	is_served_by(d, *state, "hosts", ONE, "127.0.0.1:9100");
	rig_stop(d);
}

/* It is asked again long before resolv.conf says so; for one family, if it must be. */
static void not_all_answered(void **state)
{
	static const struct {
		unsigned int a, aaaa;
		const char *address;
	} rows[] = {
		{ 1, 1, NULL },
		{ 1, 0, NULL },
		{ 0, 1, NULL },
		{ UINT32_MAX, 0, SIX_UPSTREAM },
		{ 0, UINT32_MAX, FOUR_UPSTREAM },
	};

	prepare();
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int client, listener = rows[i].address && rows[i].aaaa ? four_fd : six_fd;
		struct daemon *d;

		name_server_set("lossy.test", "::1 127.0.0.1");
		name_server_mute("lossy.test", rows[i].a, rows[i].aaaa);
		d = rig_start(*state, "[culvert]\nprobe = no\nconnect-timeout = 60\n"
				      "[forward lossy]\nlisten = " ONE "\n"
				      "upstream = lossy.test:9103\n");
		client = rig_dial(NULL, ONE);
		rig_talk(client, accept_at(listener), 20);
		if (rows[i].address)
			wait_address(d, 0, rows[i].address);
		assert_int_equal(lookup_int(d, 0, "lookup.lookups"), 1);
		assert_int_equal(lookup_int(d, 0, "lookup.failures"), 0);
		rig_stop(d);
	}
}

static const struct rig_row rows[] = {
	{ "answers-late", answers_late },
	{ "exists-later", exists_later },
	{ "listens", listens },
	{ "start-hangs", start_hangs },
	{ "reload-hangs", reload_hangs },
	{ "others-hang", others_hang },
	{ "in-hosts", in_hosts },
	{ "not-all-answered", not_all_answered },
};

int main(void)
{
	env_need_ipv6("test_names_late");
	return rig_run("test_names_late", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
