// SPDX-License-Identifier: BSD-2-Clause
/* What the session log says: a line for each session, whatever carries it, with true figures. */
#include "session_log_rig.h"

#define TEST_SECONDS 100

static int64_t flow_sum(struct json_object *line, size_t dir)
{
	struct json_object *f = json_object_array_get_idx(json_at(line, "flows"), dir);

	return json_int(f, "copy_bytes") + json_int(f, "splice_bytes") +
	       json_int(f, "kernel_bytes");
}

/* The books of the lines are those of the status. */
static void check_sums(struct daemon *d, const char *forward, int64_t finished, int64_t refused)
{
	struct json_object *status = query(d, "status");
	struct json_object *o = forward_of_status(status, forward);
	int64_t up = 0, down = 0, sessions = 0, without = 0;

	for (size_t i = 0; i < n_lines; i++) {
		if (strcmp(json_text(lines[i], "forward"), forward) != 0)
			continue;
		up += json_int(lines[i], "bytes_to_upstream");
		down += json_int(lines[i], "bytes_to_client");
		sessions += json_at(lines[i], "id") != NULL;
		without += json_at(lines[i], "id") == NULL;
	}
	assert_int_equal(json_int(o, "bytes_to_upstream"), up);
	assert_int_equal(json_int(o, "bytes_to_client"), down);
	assert_int_equal(json_int(o, "finished"), finished);
	assert_int_equal(sessions, finished);
	assert_int_equal(without, refused);
	json_object_put(status);
}

/* "127.0.0.1:PORT" of FD's own end. */
static const char *name_of(int fd, char buf[32])
{
	snprintf(buf, 32, "127.0.0.1:%d", net_port(fd, false));
	return buf;
}

static void check_line(const char *client, const char *end, int64_t up, int64_t down)
{
	struct json_object *line = line_of(client);

	assert_string_equal(json_text(line, "end"), end);
	assert_string_equal(json_text(line, "forward"), "talk");
	assert_string_equal(json_text(line, "upstream"), RIG_UPSTREAM);
	assert_int_equal(json_int(line, "bytes_to_upstream"), up);
	assert_int_equal(json_int(line, "bytes_to_client"), down);
	assert_int_equal(flow_sum(line, 0), up);
	assert_int_equal(flow_sum(line, 1), down);
	assert_int_equal(strlen(json_text(line, "time")), strlen("2026-11-22T06:44:01.123Z"));
	assert_true(strcmp(json_text(line, "start"), json_text(line, "time")) <= 0);
	assert_in_range(json_int(line, "connect_ms"), 0, 60000);
	assert_true(json_int(line, "duration_ms") >= json_int(line, "connect_ms"));
}

/* --- what sessions do --- */

#define MUCH 3000000

/* MUCH bytes. */
static void bulk(int from, int to)
{
	static const char zero[MUCH];
	struct pouring p;

	start_pouring(&p, from, zero, MUCH);
	drink(to, zero, MUCH);
	pthread_join(p.thread, NULL);
}

/* --- a line for each --- */

/* A conversation, as long as it takes to come to its carrier. */
static void conversation(struct daemon *d, const char *engine)
{
	const char *carrier = rig_carrier(d, engine);
	struct ends e = rig_open_carried(d, engine, "talk", ONE);
	char name[32];
	struct json_object *line;
	int64_t up, down, handovers;

	rig_talk_on(e, 10);
	up = rig_flow_int(d, "talk", 0, "bytes");
	down = rig_flow_int(d, "talk", 1, "bytes");
	handovers = rig_flow_int(d, "talk", 0, "handovers");
	name_of(e.client, name);
	close_both(e);
	wait_lines(d, 1);
	check_line(name, "finished", up, down);
	line = line_of(name);
	for (size_t dir = 0; dir < 2; dir++) {
		struct json_object *flow = flow_of(line, dir);

		assert_string_equal(json_text(flow, "carrier"), carrier);
		if (!strcmp(carrier, "sockmap"))
			assert_true(json_int(flow, "kernel_bytes") >= 10L * MESSAGE);
		else
			assert_int_equal(json_int(flow, "kernel_bytes"), 0);
		assert_true(strcmp(carrier, "splice") ||
			    json_int(flow, "splice_bytes") == flow_sum(line, dir));
		assert_true(strcmp(carrier, "copy") ||
			    json_int(flow, "copy_bytes") == flow_sum(line, dir));
	}
	assert_int_equal(json_int(flow_of(line, 0), "handovers"), handovers);
}

/* Megabytes one way, then one answer: whatever carriers that takes, every byte is in the line. */
static void one_way(struct daemon *d)
{
	struct ends e = connect_pair(NULL, ONE);
	char name[32];

	bulk(e.client, e.server);
	say(e.server, e.client, 1);
	name_of(e.client, name);
	close_both(e);
	wait_lines(d, 2);
	check_line(name, "finished", MUCH, MESSAGE);
}

static void resets(struct daemon *d)
{
	for (size_t who = 0; who < 2; who++) {
		struct ends e = connect_pair(NULL, ONE);
		char name[32];

		rig_talk_on(e, 5);
		name_of(e.client, name);
		rig_reset(who ? e.server : e.client);
		assert_int_equal(rig_end(who ? e.client : e.server, RIG_PATIENCE_MS), ECONNRESET);
		wait_lines(d, 3 + who);
		check_line(name, who ? "upstream-reset" : "client-reset", 5L * MESSAGE,
			   5L * MESSAGE);
	}
}

static void without_upstream(struct daemon *d)
{
	int refused = rig_dial(NULL, TWO), denied;
	struct json_object *line;
	char name[32];

	assert_int_equal(rig_end(refused, RIG_PATIENCE_MS), ECONNRESET);
	wait_lines(d, 5);
	line = line_of(name_of(refused, name));
	assert_string_equal(json_text(line, "end"), "connect-refused");
	assert_string_equal(json_text(line, "forward"), "nowhere");
	assert_string_equal(json_text(line, "upstream"), CLOSED);
	assert_null(json_at(line, "connect_ms"));
	assert_int_equal(json_object_array_length(json_at(line, "flows")), 0);

	denied = rig_dial(NULL, THREE);
	assert_int_equal(rig_end(denied, RIG_PATIENCE_MS), ECONNRESET);
	wait_lines(d, 6);
	line = line_of(name_of(denied, name));
	assert_string_equal(json_text(line, "end"), "denied");
	assert_string_equal(json_text(line, "forward"), "closed");
	assert_null(json_at(line, "id"));
	assert_null(json_at(line, "upstream"));
}

static void lines_of_sessions(void **state)
{
	struct daemon *d = rig_start(*state, GLOBAL "grace = 0\n" FORWARD
				     "[forward nowhere]\nlisten = " TWO "\nupstream = " CLOSED
				     "\n[forward closed]\nlisten = " THREE
				     "\nupstream = " RIG_UPSTREAM "\nallow = 127.0.0.77\n");
	struct ends e;
	char name[32];

	assert_int_equal(truncate(LOG, 0), 0); /* of the test before */
	conversation(d, *state);
	one_way(d);
	resets(d);
	without_upstream(d);
	check_sums(d, "talk", 4, 0);
	check_sums(d, "nowhere", 1, 0);
	check_sums(d, "closed", 0, 1);
	e = connect_pair(NULL, ONE);
	rig_talk_on(e, 3);
	assert_int_equal(rig_status(d, "session_log.lines"), 6); /* it lives */
	name_of(e.client, name);
	rig_end_daemon(d);
	forget_lines();
	read_lines(LOG);
	assert_int_equal(n_lines, 7);
	check_line(name, "grace-over", 3L * MESSAGE, 3L * MESSAGE);
	rig_close_sockets();
}

int main(void)
{
	static const struct rig_row rows[] = { { "lines", lines_of_sessions } };

	return run_with_place("test_session_log", TEST_SECONDS, rows, 1);
}
