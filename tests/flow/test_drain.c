// SPDX-License-Identifier: BSD-2-Clause
/* A forward that an operator drains, on every engine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>

#include "forward_rig.h"
#include "operator.h"

#define TEST_SECONDS 200

static void expect_state(struct daemon *d, const char *state)
{
	struct json_object *o = ask(d, "{\"command\":\"forwards\",\"forward\":\"live\"}");

	o = json_object_array_get_idx(json_at(o, "forwards"), 0);
	assert_string_equal(json_text(o, "state"), state);
}

static struct ends connect_talking(const char *to)
{
	struct ends e = connect_pair(NULL, to);

	rig_talk(e.client, e.server, 20);
	return e;
}

/* Nobody new is served, and nobody else notices. */
static void drain(void **state)
{
	struct daemon *d = rig_start(*state, "[culvert]\nsettle = 0.02\nworkers = 2\n"
					     LIVE_AND_OTHER);
	struct ends before[8], later, other;

	for (size_t i = 0; i < 8; i++)
		before[i] = connect_talking(ONE);
	for (int round = 0; round < 10; round++) {
		ask(d, "{\"command\":\"drain\",\"forward\":\"live\"}");
		expect_state(d, "draining");
		for (int i = 0; i < 5; i++)
			assert_int_equal(rig_try_dial(NULL, ONE), -ECONNREFUSED);
		other = connect_talking(TWO);
		for (size_t i = 0; i < 8; i++)
			rig_talk(before[i].client, before[i].server, 5);
		ask(d, "{\"command\":\"drain\",\"forward\":\"live\",\"undo\":true}");
		expect_state(d, "active");
		later = connect_talking(ONE);
		rig_reset(other.client);
		rig_reset(other.server);
		rig_reset(later.client);
		rig_reset(later.server);
	}
	expect_error(d, "{\"command\":\"drain\",\"forward\":\"none\"}", "no-such-forward");
	other = connect_talking(TWO);
	ask(d, "{\"command\":\"drain\",\"forward\":\"live\",\"deadline\":0.2}");
	rig_talk(before[0].client, before[0].server, 5);
	for (size_t i = 0; i < 8; i++)
		is_reset(before[i]);
	assert_int_equal(rig_status(d, "errors.drain-over"), 8);
	rig_talk(other.client, other.server, 20);
	expect_state(d, "draining");
	/* a reload ends it, too */
	daemon_signal(d, SIGHUP);
	rig_wait_status(d, "reload.finished", 1);
	expect_state(d, "active");
	connect_talking(ONE);
	rig_stop(d);
}

/* Nobody is left who could make sockets: whoever drains is told. */
static void for_good(void **state)
{
	struct daemon *d = rig_start(*state, LIVE_AND_OTHER);
	struct ends e = connect_talking(ONE);
	struct json_object *o;

	o = ask(d, "{\"command\":\"drain\",\"forward\":\"other\"}");
	assert_string_equal(json_text(o, "warning"), "");
	kill(daemon_privileged(d), SIGKILL);
	/* it is known as soon as the process has ended, be that logged or not */
	o = ask(d, "{\"command\":\"drain\",\"forward\":\"other\",\"undo\":true}");
	assert_string_equal(json_text(o, "error.code"), "failed");
	o = ask(d, "{\"command\":\"drain\",\"forward\":\"live\"}");
	assert_string_equal(json_text(o, "state"), "draining");
	assert_non_null(strstr(json_text(o, "warning"), "cannot be undone"));
	rig_wait_log(d, "warning: forward live: that it drains cannot be undone");
	assert_int_equal(rig_try_dial(NULL, ONE), -ECONNREFUSED);
	rig_talk(e.client, e.server, 5);
	o = ask(d, "{\"command\":\"drain\",\"forward\":\"live\",\"undo\":true}");
	assert_string_equal(json_text(o, "error.code"), "failed");
	rig_stop(d);
}

#define OPERATOR_MS 8000 /* longer than an operator waits, less than what a file is waited for */

/* The control socket is not held up for long by a privileged process that hangs. */
static void hung(void **state)
{
	struct daemon *d = rig_start(*state, LIVE_AND_OTHER);
	struct ends e = connect_talking(ONE);
	struct json_object *o = NULL;

	ask(d, "{\"command\":\"drain\",\"forward\":\"live\"}");
	assert_int_equal(kill(daemon_privileged(d), SIGSTOP), 0);
	assert_int_equal(daemon_ask(d, "{\"command\":\"drain\",\"forward\":\"live\","
				       "\"undo\":true}", OPERATOR_MS, &o), 0);
	assert_string_equal(json_text(o, "error.code"), "failed");
	json_object_put(o);
	rig_wait_log(d, "the privileged process does not answer");
	expect_state(d, "draining");
	rig_talk(e.client, e.server, 5);
	assert_int_equal(kill(daemon_privileged(d), SIGCONT), 0);
	rig_stop(d);
}

static const struct rig_row rows[] = {
	{ "drain", drain }, { "for_good", for_good }, { "hung", hung },
};

int main(void)
{
	return rig_run("test_drain", TEST_SECONDS, rows, sizeof(rows) / sizeof(rows[0]));
}
