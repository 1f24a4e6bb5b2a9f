// SPDX-License-Identifier: BSD-2-Clause
/*
 * Upstreams that are names, on every engine: which of their addresses is connected to, and what
 * becomes of sessions when the name moves.
 */
#include "names_rig.h"

#define TEST_SECONDS 280
#define ATTEMPT_DELAY_MS 250 /* RFC 8305, section 8 */

/* --- several addresses --- */

/* RFC 8305: a dead family costs a quarter of a second, and that once. */
static void families(void **state)
{
	struct daemon *d;
	int64_t start, took;

	prepare();
	name_server_set("both.test", "::1 127.0.0.1");
	name_server_set("four.test", "127.0.0.1");
	d = rig_start(*state, "[culvert]\nprobe = no\nconnect-timeout = 60\nworkers = 1\n"
			      "[forward both]\nlisten = " ONE "\nupstream = both.test:9100\n"
			      "[forward four]\nlisten = " TWO "\nupstream = four.test:9100\n"
			      "[forward silent]\nlisten = " THREE "\nupstream = both.test:9101\n"
			      "connect-timeout = 0.3\n"
			      "[forward refused]\nlisten = " FOUR "\nupstream = both.test:9102\n");
	wait_known(d, 4);
	start = now_ms();
	is_served_by(d, *state, "both", ONE, "127.0.0.1:9100");
	took = now_ms() - start;
	assert_true(took >= ATTEMPT_DELAY_MS);
	assert_true(took < SOON_MS);
	/* from now on the address that answered comes first */
	for (int i = 0; i < 3; i++)
		is_reached(ONE);
	is_reached(TWO);
	start = now_ms();
	is_turned_away(NULL, THREE);
	assert_true(now_ms() - start >= 300 + ATTEMPT_DELAY_MS);
	assert_int_equal(rig_status(d, "errors.connect-timeout"), 1);
	is_turned_away(NULL, FOUR);
	assert_int_equal(rig_status(d, "errors.connect-refused"), 1);
	rig_stop(d);
}

#define MANY 20

/* The only one that is served is among some that are silent, and many that refuse. */
static void many_addresses(void **state)
{
	char addresses[512] = "::1 127.0.0.3";
	size_t at = strlen(addresses);
	struct daemon *d;

	for (int i = 3; i < MANY; i++)
		at += (size_t)snprintf(addresses + at, sizeof(addresses) - at, " 127.0.0.%d",
				       i + 10);
	snprintf(addresses + at, sizeof(addresses) - at, " 127.0.0.1");
	prepare();
	name_server_set("many.test", addresses);
	d = rig_start(*state, "[culvert]\nprobe = no\nconnect-timeout = 60\nworkers = 1\n"
			      "[forward many]\nlisten = " ONE "\nupstream = many.test:9100\n"
			      "[forward gone]\nlisten = " TWO "\nupstream = many.test:9102\n");
	is_served_by(d, *state, "many", ONE, "127.0.0.1:9100");
	is_turned_away(NULL, TWO);
	assert_int_equal(rig_status(d, "errors.connect-refused"), 1);
	rig_stop(d);
}

/* While attempts overlap, the client goes away: nothing is left of them. */
static void client_leaves(void **state)
{
	struct daemon *d;
	int clients[8];

	prepare();
	name_server_set("both.test", "::1 127.0.0.1");
	d = rig_start(*state, "[culvert]\nprobe = no\nconnect-timeout = 60\n"
			      "[forward silent]\nlisten = " ONE "\nupstream = both.test:9101\n");
	wait_known(d, 1);
	for (size_t i = 0; i < 8; i++)
		clients[i] = rig_dial(NULL, ONE);
	rig_wait_status(d, "resources.sessions", 8);
	poll(NULL, 0, ATTEMPT_DELAY_MS + 50); /* both addresses of each are being tried, or soon */
	for (size_t i = 0; i < 4; i++)
		rig_reset(clients[i]);
	rig_wait_status(d, "resources.sessions", 4);
	assert_int_equal(rig_status(d, "errors.client-reset"), 4);
	rig_stop(d); /* the others, too */
}

/* --- names that move --- */

/* Sessions stay where they are; new ones go where the name is. */
static void moves(void **state)
{
	struct daemon *d;
	struct ends old, new;

	prepare();
	name_server_set("moves.test", "127.0.0.1");
	d = rig_start(*state, MOVING "resolve-interval = 0.1\n");
	old = rig_open_carried(d, *state, "moves", ONE);
	name_server_set("moves.test", "127.0.0.2");
	wait_address(d, 0, OTHER_UPSTREAM);
	new.client = rig_dial(NULL, ONE);
	new.server = accept_at(other_fd);
	rig_talk_on(new, 100);
	rig_talk_on(old, 100);
	rig_expect_sessions(d, "moves", 2);
	/* the name server fails, and then the name is gone: what is known stays */
	name_server_mode(NAMES_FAIL);
	wait_at_least(d, 0, "lookup.failures", 1);
	name_server_set("moves.test", NULL);
	name_server_mode(NAMES_ANSWER);
	wait_at_least(d, 0, "lookup.failures", lookup_int(d, 0, "lookup.failures") + 1);
	wait_address(d, 0, OTHER_UPSTREAM);
	name_server_set("moves.test", "127.0.0.1");
	wait_address(d, 0, "127.0.0.1:9100");
	rig_talk_on(new, 10);
	rig_talk_on(old, 10);
	rig_wait_log(d, "upstream moves.test:9100 is now " OTHER_UPSTREAM
			" (it was 127.0.0.1:9100)");
	rig_wait_log(d, "upstream moves.test:9100 keeps its last addresses: ");
	rig_stop(d);
}

/* Where nothing answers, the name is looked up long before its time. */
static void moves_after_failure(void **state)
{
	int64_t deadline = now_ms() + SOON_MS;
	struct json_object *o, *number;
	bool served = false;
	struct daemon *d;

	prepare();
	name_server_set("moves.test", "127.0.0.9"); /* refuses */
	d = rig_start(*state, MOVING "resolve-interval = 3600\n"
			      "[forward number]\nlisten = " TWO "\nupstream = " RIG_UPSTREAM "\n");
	wait_address(d, 0, "127.0.0.9:9100");
	name_server_set("moves.test", "127.0.0.1");
	while (!served && now_ms() < deadline) {
		int client = rig_dial(NULL, ONE);
		struct pollfd p[] = { { .fd = client, .events = POLLIN },
				      { .fd = upstream_fd, .events = POLLIN } };

		assert_true(poll(p, 2, RIG_PATIENCE_MS) > 0);
		served = p[1].revents != 0;
		rig_reset(client);
	}
	assert_true(served);
	assert_true(lookup_int(d, 0, "lookup.lookups") <= 4); /* the first one, too */
	number = forward_status(d, &o, 1);
	assert_null(json_at(number, "lookup"));
	assert_int_equal(json_object_array_length(json_at(number, "addresses")), 1);
	json_object_put(o);
	rig_stop(d);
}

/*
 * A forward that changes keeps what is known of its name, and one that is new is kept up to date.
 */
static void reloads(void **state)
{
	struct daemon *d;
	int client, server;

	prepare();
	name_server_set("moves.test", "127.0.0.1");
	d = rig_start(*state, MOVING "resolve-interval = 0.1\n");
	name_server_set("moves.test", "127.0.0.2");
	wait_address(d, 0, OTHER_UPSTREAM);
	name_server_mode(NAMES_SILENT);
	rig_reload_good(d, MOVING "resolve-interval = 0.1\nconnect-timeout = 7\n");
	wait_address(d, 0, OTHER_UPSTREAM);
	client = rig_dial(NULL, ONE);
	server = accept_at(other_fd);
	rig_talk(client, server, 20);
	name_server_mode(NAMES_ANSWER);
	name_server_set("new.test", "127.0.0.1");
	rig_reload_good(d, MOVING "resolve-interval = 0.1\nconnect-timeout = 7\n"
		  "[forward new]\nlisten = " TWO "\nupstream = new.test:9100\n"
		  "resolve-interval = 0.1\n");
	is_reached(TWO);
	name_server_set("new.test", "127.0.0.2");
	wait_address(d, 1, OTHER_UPSTREAM);
	rig_talk(client, server, 20);
	rig_reload_good(d, MOVING "resolve-interval = 0.1\n"); /* rig_stop() counts descriptors */
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "families", families },
	{ "many-addresses", many_addresses },
	{ "client-leaves", client_leaves },
	{ "moves", moves },
	{ "moves-after-failure", moves_after_failure },
	{ "reloads", reloads },
};

int main(void)
{
	env_need_ipv6("test_names");
	return rig_run("test_names", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
