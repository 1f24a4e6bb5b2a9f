// SPDX-License-Identifier: BSD-2-Clause
/* A forward that an operator drains. */
#include "forward_rig.h"

#define TEST_SECONDS 200
#define LIVE(more) FORWARD("live", ONE, more)
/* `other` sees to it that the kernel path is there, whatever the engine of `live` */
#define OTHER FORWARD("other", TWO, "engine = auto\n")
#define DRAIN_LIVE "{\"command\":\"drain\",\"forward\":\"live\""
#define DRAIN_OTHER "{\"command\":\"drain\",\"forward\":\"other\""
#define UNDO ",\"undo\":true}"

static void expect_state(struct daemon *d, const char *state)
{
	assert_string_equal(json_text(rig_forward(d, "live"), "state"), state);
}

/* Nobody new is served, and nobody else notices. */
ROW(drain)
{
	struct daemon *d = rig_start(*state,
				     "[culvert]\nsettle = 0.02\nworkers = 2\n" LIVE("") OTHER);
	struct ends before[8], other;

	for (size_t i = 0; i < 8; i++)
		before[i] = rig_open(ONE);
	for (int round = 0; round < 10; round++) {
		ask(d, DRAIN_LIVE "}");
		expect_state(d, "draining");
		for (int i = 0; i < 5; i++)
			is_closed(ONE);
		other = rig_open(TWO);
		for (size_t i = 0; i < 8; i++)
			rig_talk_on(before[i], 5);
		ask(d, DRAIN_LIVE UNDO);
		expect_state(d, "active");
		is_served(ONE);
		rig_hang_up(other);
	}
	expect_error(d, "{\"command\":\"drain\",\"forward\":\"none\"}", "no-such-forward");
	other = rig_open(TWO);
	ask(d, DRAIN_LIVE ",\"deadline\":0.2}");
	rig_talk_on(before[0], 5);
	for (size_t i = 0; i < 8; i++)
		is_reset(before[i]);
	assert_int_equal(rig_status(d, "errors.drain-over"), 8);
	rig_talk_on(other, 20);
	expect_state(d, "draining");
	/* a reload ends it, too */
	daemon_signal(d, SIGHUP);
	rig_wait_status(d, "reload.finished", 1);
	expect_state(d, "active");
	rig_open(ONE);
	rig_stop(d);
}

/* One session from before `live` has changed, and one of now. */
static struct daemon *start_changed(const char *engine, struct ends e[2])
{
	struct daemon *d = rig_start(engine, LIVE("connect-timeout = 7\n") OTHER);

	e[0] = rig_open(ONE);
	rig_reload_good(d, LIVE("connect-timeout = 8\n") OTHER);
	e[1] = rig_open(ONE);
	return d;
}

/* A deadline is that of all sessions of the name, be they older than a reload. */
ROW_ONCE(deadline_of_older)
{
	struct ends e[2];
	struct daemon *d = start_changed(*state, e);
	struct json_object *o;

	o = ask(d, DRAIN_LIVE ",\"deadline\":0.2}");
	assert_int_equal(json_int(o, "live"), 2);
	is_reset(e[0]);
	is_reset(e[1]);
	assert_int_equal(rig_status(d, "errors.drain-over"), 2);
	rig_wait_log(d, "drain-over: forward live: its time to drain is over: 1 session is reset");
	/* whoever comes back later has no deadline */
	ask(d, DRAIN_LIVE UNDO);
	e[0] = rig_open(ONE);
	ask(d, DRAIN_LIVE "}");
	rig_talk_on(e[0], 20);
	rig_stop(d);
}

#define SOON_MS 3000

/* A deadline that is given to all of `live` and taken back; it passes, and nobody notices. */
static void take_back(const char *engine, bool reload)
{
	struct ends e[2], proof;
	struct daemon *d = start_changed(engine, e);

	proof = rig_open(TWO);
	ask(d, DRAIN_LIVE ",\"deadline\":%g}", SOON_MS / 1000.0);
	if (reload)
		rig_reload_good(d, LIVE("connect-timeout = 8\n") OTHER);
	else
		ask(d, DRAIN_LIVE UNDO);
	expect_state(d, "active");
	/* this one was set later, and is as far off */
	ask(d, DRAIN_OTHER ",\"deadline\":%g}", SOON_MS / 1000.0);
	is_reset(proof);
	for (size_t i = 0; i < 2; i++)
		rig_talk_on(e[i], 20);
	assert_int_equal(rig_status(d, "errors.drain-over"), 1);
	rig_stop(d);
}

ROW_ONCE(takes_back)
{
	take_back(*state, false);
	take_back(*state, true);
}

/*
 * A forward that is removed ends its sessions, also those older than a change, when its time is
 * over; a deadline that an operator has set before counts on, until it is the later one.
 */
ROW_ONCE(removed)
{
	static const struct {
		const char *drain_timeout, *deadline;
	} cases[] = {
		{ "drain-timeout = 0.5\n", NULL },
		{ "", "0.5" },
		{ "drain-timeout = 3600\n", "0.5" },
		{ "drain-timeout = 0.2\n", "3600" },
	};
	struct daemon *d = rig_start(*state, OTHER);
	struct ends other = rig_open(TWO);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ends e[2];

		for (int j = 0; j < 2; j++) {
			rig_reload_good(d, textf(LIVE("connect-timeout = %d\n%s") OTHER, 7 + j,
						 cases[i].drain_timeout));
			e[j] = rig_open(ONE);
		}
		if (cases[i].deadline)
			ask(d, DRAIN_LIVE ",\"deadline\":%s}", cases[i].deadline);
		rig_reload_good(d, OTHER);
		is_reset(e[0]);
		is_reset(e[1]);
		assert_int_equal(rig_status(d, "errors.drain-over"), 2 * (i + 1));
		rig_talk_on(other, 5);
	}
	rig_stop(d);
}

/* What `forwards` shows of the sessions of `live`, which is removed; -1: it is not there. */
static int64_t removed_live(struct daemon *d)
{
	struct json_object *list = json_at(ask(d, "forwards"), "forwards");

	for (size_t i = 0; i < json_object_array_length(list); i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		if (strcmp(json_text(o, "name"), "live") != 0)
			continue;
		assert_string_equal(json_text(o, "state"), "removed");
		return json_int(o, "live");
	}
	return -1;
}

static void wait_removed_live(struct daemon *d, int64_t n)
{
	RIG_WAIT(removed_live(d) == n, "`live` does not have %lld sessions", (long long)n);
}

/* It has changed before it is removed: it is shown as long as any of its sessions lives. */
ROW_ONCE(removed_is_shown)
{
	struct ends e[2];
	struct daemon *d = start_changed(*state, e);

	rig_reload_good(d, OTHER);
	assert_int_equal(removed_live(d), 2);
	rig_hang_up(e[1]);
	wait_removed_live(d, 1);
	rig_reload_good(d, OTHER);
	assert_int_equal(removed_live(d), 1);
	rig_talk_on(e[0], 20);
	rig_hang_up(e[0]);
	wait_removed_live(d, -1);
	rig_stop(d);
}

/* Nobody could make sockets: whoever drains is told. */
ROW_ONCE(for_good)
{
	struct daemon *d = rig_start(*state, "[culvert]\nprivileged-process = no\n" LIVE("") OTHER);
	struct ends e = rig_open(ONE);
	struct json_object *o;

	o = ask(d, DRAIN_LIVE "}");
	assert_string_equal(json_text(o, "state"), "draining");
	assert_non_null(strstr(json_text(o, "warning"), "cannot be undone"));
	rig_wait_log(d, "this cannot be undone");
	is_closed(ONE);
	rig_talk_on(e, 5);
	o = ask(d, DRAIN_LIVE UNDO);
	assert_string_equal(json_text(o, "error.code"), "failed");
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_drain", TEST_SECONDS);
}
