// SPDX-License-Identifier: BSD-2-Clause
/*
 * Operators change a running daemon: they move live sessions from one engine to another
 * (test_torture --moves has more), find sessions, reset them.
 */
#include "forward_rig.h"

#define TEST_SECONDS 200
#define CLIENT_A "127.0.0.11:0"
#define CLIENT_B "127.0.0.12:0"

/* --- engines --- */

/* What `live` has then. */
static const char *set_engine(struct daemon *d, const char *engine)
{
	return json_text(ask(d, "{\"command\":\"engine\",\"forward\":\"live\",\"engine\":\"%s\"}",
			     engine),
			 "engine");
}

/* With copy the payload goes through the daemon, where an operator can trace it; and back. */
static void engine_moves(struct daemon *d, const char *carrier, int client, int server)
{
	int64_t kernel, bytes;

	set_engine(d, "copy");
	rig_talk_until(d, "live", "copy", client, server);
	kernel = rig_flow_int(d, "live", 0, "kernel_bytes");
	bytes = rig_flow_int(d, "live", 0, "bytes");
	rig_talk(client, server, 300);
	assert_int_equal(rig_flow_int(d, "live", 0, "kernel_bytes"), kernel);
	assert_int_equal(rig_flow_int(d, "live", 0, "bytes"), bytes + 300 * MESSAGE);
	assert_string_equal(rig_flow_text(d, "live", 1, "carrier"), "copy");
	assert_string_equal(rig_flow_text(d, "live", 1, "reason"), "engine");
	set_engine(d, "default");
	if (strcmp(carrier, "graft") != 0) /* which a session leaves for good */
		rig_talk_until(d, "live", carrier, client, server);
	rig_talk(client, server, 50);
}

/* New sessions have the engine that was asked for, those of another forward have not. */
static void engine_is_the_forwards(struct daemon *d, const char *configured)
{
	struct json_object *o;

	rig_talk_on(connect_pair(NULL, ONE), 300);
	assert_string_equal(rig_flow_text(d, "live", 0, "carrier"), "copy");
	o = rig_forward(d, "live");
	assert_string_equal(json_text(o, "engine"), "copy");
	assert_string_equal(json_text(o, "engine_configured"), configured);
	o = ask(d, "{\"command\":\"engine\",\"forward\":\"other\"}");
	assert_string_equal(json_text(o, "engine"), "auto");
}

/* A flow whose target is full whenever it is looked at follows as well. */
static void engine_saturated(struct daemon *d, const char *from, const char *to)
{
	int client = rig_dial(NULL, ONE), server = rig_accept();
	int64_t deadline = now_ms() + RIG_PATIENCE_MS * env_slow();
	static char buf[16384];

	set_engine(d, from);
	rig_talk(client, server, 10);
	for (int i = 0; i < 20; i++) {
		rig_give(client, 65536, SIZE_MAX, 0);
		poll(NULL, 0, 1);
	}
	assert_string_equal(rig_flow_text(d, "live", 0, "carrier"), from);
	set_engine(d, to);
	do {
		if (now_ms() > deadline)
			fail_msg("a full flow stays with %s", from);
		for (int i = 0; i < 20; i++) {
			rig_receive(server, buf, sizeof(buf));
			rig_give(client, 65536, SIZE_MAX, 0);
		}
	} while (strcmp(rig_flow_text(d, "live", 0, "carrier"), to) != 0);
	rig_reset(client);
	rig_reset(server);
	rig_wait_status(d, "resources.sessions", 0);
}

ROW(engine)
{
	struct daemon *d = rig_start(*state,
				     "[culvert]\nsettle = 0.02\nworkers = 2\n" LIVE_AND_OTHER);
	const char *carrier = rig_carrier(d, *state);
	struct ends e;

	engine_saturated(d, "copy", "splice");
	engine_saturated(d, "splice", "copy");
	assert_string_equal(set_engine(d, "default"), *state);
	e = rig_open_carried(d, *state, "live", ONE);
	engine_moves(d, carrier, e.client, e.server);
	assert_string_equal(set_engine(d, "copy"), "copy");
	rig_hang_up(e);
	engine_is_the_forwards(d, *state);
	rig_stop(d);
}

/* --- which sessions --- */

static size_t listed(struct daemon *d, const char *filter)
{
	return json_object_array_length(
		json_at(ask(d, "{\"command\":\"sessions\"%s}", filter), "sessions"));
}

static int64_t killed(struct daemon *d, const char *filter)
{
	struct json_object *o = ask(d, "{\"command\":\"kill\"%s}", filter);

	if (!json_at(o, "killed"))
		fail_msg("kill %s: %s", filter, json_object_to_json_string(o));
	return json_int(o, "killed");
}

static void filters(struct daemon *d, const char *carrier)
{
	struct ends a[2], b, other;
	const char *filter;
	int64_t id;

	a[0] = connect_pair(CLIENT_A, ONE);
	rig_talk_until(d, "live", carrier, a[0].client, a[0].server);
	b = connect_pair(CLIENT_B, ONE);
	a[1] = connect_pair(CLIENT_A, TWO);
	other = connect_pair(NULL, TWO);
	for (int i = 0; i < 3; i++) { /* all are open, and said something */
		rig_talk(b.client, b.server, 1);
		rig_talk(a[1].client, a[1].server, 1);
		rig_talk(other.client, other.server, 1);
	}
	assert_int_equal(listed(d, ""), 4);
	assert_int_equal(listed(d, ",\"forward\":\"live\""), 2);
	assert_int_equal(listed(d, ",\"forward\":\"other\""), 2);
	assert_int_equal(listed(d, ",\"client\":\"127.0.0.11\""), 2);
	assert_int_equal(listed(d, ",\"client\":\"127.0.0.8/29\""), 3);
	assert_int_equal(listed(d, ",\"client\":\"127.0.0.12, 127.0.0.1\""), 2);
	assert_int_equal(listed(d, ",\"client\":\"::1\""), 0);
	assert_int_equal(listed(d, ",\"client\":\"127.0.0.11\",\"forward\":\"other\""), 1);
	filter = textf(",\"carrier\":\"%s\",\"client\":\"127.0.0.11\",\"forward\":\"live\"",
		       carrier);
	assert_int_equal(listed(d, filter), 1);
	expect_error(d, "{\"command\":\"sessions\",\"forward\":\"none\"}", "no-such-forward");

	id = json_int(json_object_array_get_idx(
			      json_at(ask(d, "{\"command\":\"sessions\",\"client\":\"127.0.0.12\"}"),
				      "sessions"),
			      0),
		      "id");
	assert_int_equal(listed(d, textf(",\"id\":%lld", (long long)id)), 1);
	filter = textf(",\"id\":[%lld,999999]", (long long)id);
	assert_int_equal(killed(d, filter), 1);
	is_reset(b);
	assert_int_equal(killed(d, filter), 0);
	assert_int_equal(killed(d, ",\"client\":\"127.0.0.11\",\"forward\":\"live\""), 1);
	is_reset(a[0]);
	rig_talk(a[1].client, a[1].server, 20);
	assert_int_equal(killed(d, ",\"client\":\"127.0.0.0/28\",\"carrier\":\"splice\""), 0);
	assert_int_equal(killed(d, ",\"client\":\"127.0.0.0/28\""), 2);
	is_reset(a[1]);
	is_reset(other);
	assert_int_equal(rig_status(d, "errors.killed"), 4);
}

#define MANY 100 /* more than are reset in one batch of events, on each of two workers */

/* All of many, on both workers, while they talk; new ones are served. */
static void kill_all(struct daemon *d)
{
	int64_t before = rig_status(d, "errors.killed");
	struct ends e[MANY];

	for (size_t i = 0; i < MANY; i++) {
		e[i] = connect_pair(NULL, i % 2 ? ONE : TWO);
		rig_talk(e[i].client, e[i].server, 40);
	}
	expect_error(d, "kill", "missing-key");
	assert_int_equal(killed(d, ",\"all\":true"), MANY);
	for (size_t i = 0; i < MANY; i++)
		is_reset(e[i]);
	assert_int_equal(rig_status(d, "errors.killed"), before + MANY);
	assert_int_equal(rig_status(d, "resources.sessions"), 0);
	e[0] = connect_pair(NULL, ONE);
	rig_talk(e[0].client, e[0].server, 40);
	rig_wait_log(d, "{\"killed\":100}");
	assert_int_equal(killed(d, ",\"all\":true"), 1);
	is_reset(e[0]);
}

static void log_level(struct daemon *d)
{
	assert_string_equal(json_text(ask(d, "log-level"), "level"), "info");
	rig_not_logged(d, "reset: killed"); /* which is for debugging */
	assert_string_equal(json_text(ask(d, "{\"command\":\"log-level\",\"level\":\"debug\"}"),
				      "level"),
			    "debug");
	rig_dial(NULL, ONE);
	rig_accept();
	killed(d, ",\"all\":true");
	rig_wait_log(d, "reset: killed");
	rig_wait_log(d, "{\"level\":\"debug\"} (by uid 0");
}

ROW_ONCE(sessions)
{
	struct daemon *d = rig_start(*state,
				     "[culvert]\nsettle = 0.02\nworkers = 2\n" LIVE_AND_OTHER);

	filters(d, rig_carrier(d, *state));
	kill_all(d);
	log_level(d);
	rig_stop(d);
}

/* --- totals --- */

static int64_t total(struct daemon *d, const char *member)
{
	return json_int(rig_forward(d, "live"), member);
}

/* By the forward, and by all carriers together: what clients have sent, and servers. */
static void expect_totals(struct daemon *d, int64_t sent, int64_t answered)
{
	struct json_object *o, *list;
	int64_t carried = 0;

	assert_int_equal(total(d, "bytes_to_upstream"), sent);
	assert_int_equal(total(d, "bytes_to_client"), answered);
	o = ask(d, "status");
	list = json_at(o, "carriers");
	for (size_t i = 0; i < json_object_array_length(list); i++)
		carried += json_int(json_object_array_get_idx(list, i), "bytes");
	assert_int_equal(carried, sent + answered);
}

#define CHATS 100 /* more than are reset in one batch of events */
#define CHAT_ROUNDS 40
#define CHAT_BYTES (CHAT_ROUNDS * MESSAGE)

/*
 * Every byte is in the totals as soon as it has arrived, and once: while its session is open, waits
 * for its reset, and has ended.
 */
ROW(totals)
{
	struct daemon *d = rig_start(*state,
				     "[culvert]\nsettle = 0.02\nworkers = 2\n" LIVE_AND_OTHER);
	static char block[100000];
	struct ends e[CHATS];
	int64_t up = 0, down = 0;

	e[0] = rig_open_carried(d, *state, "live", ONE);
	up = rig_flow_int(d, "live", 0, "bytes");
	down = rig_flow_int(d, "live", 1, "bytes");
	for (int i = 0; i < 30; i++) { /* whatever carries them */
		rig_send(e[0].client, block, sizeof(block));
		rig_receive(e[0].server, block, sizeof(block));
		up += sizeof(block);
		expect_totals(d, up, down);
	}
	for (size_t i = 1; i < CHATS; i++) {
		e[i] = connect_pair(NULL, ONE);
		rig_talk(e[i].client, e[i].server, CHAT_ROUNDS);
		expect_totals(d, up += CHAT_BYTES, down += CHAT_BYTES);
	}
	for (size_t i = 0; i < CHATS / 10; i++) {
		rig_talk(e[i].client, e[i].server, CHAT_ROUNDS);
		rig_reset(e[i].client); /* some are live at the first look, and ended at the next */
		expect_totals(d, up += CHAT_BYTES, down += CHAT_BYTES);
		expect_totals(d, up, down);
	}
	ask(d, "{\"command\":\"drain\",\"forward\":\"live\",\"deadline\":0.01}");
	while (total(d, "live"))
		expect_totals(d, up, down);
	expect_totals(d, up, down);
	assert_int_equal(rig_status(d, "errors.drain-over"), CHATS - CHATS / 10);
	rig_stop(d);
}

#define LONG_LIST 2500

/* It comes in pieces, and has each session once. */
ROW_ONCE(a_long_list)
{
	static const char *const options[] = { "--max-sessions-per-client", "0", NULL };
	struct daemon *d = rig_start_with("copy", options, LIVE_AND_OTHER);
	static struct ends e[LONG_LIST];
	struct json_object *list;
	int64_t sum = 0;

	for (size_t i = 0; i < LONG_LIST; i++) {
		e[i] = connect_pair(NULL, ONE);
		n_sockets = 0; /* closed below */
	}
	list = json_at(query(d, "sessions"), "sessions");
	assert_int_equal(json_object_array_length(list), LONG_LIST);
	for (size_t i = 0; i < LONG_LIST; i++)
		sum += json_int(json_object_array_get_idx(list, i), "id");
	assert_int_equal(sum, (int64_t)LONG_LIST * (LONG_LIST + 1) / 2);
	for (size_t i = 0; i < LONG_LIST; i++) {
		close(e[i].client);
		close(e[i].server);
	}
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_control", TEST_SECONDS);
}
