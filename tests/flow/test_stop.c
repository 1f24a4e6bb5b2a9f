// SPDX-License-Identifier: BSD-2-Clause
/* The signals that end the daemon. */
#include "forward_rig.h"

#define TEST_SECONDS 100
#define PAIRS 80 /* more than are reset in one batch of events, on each of two workers */
#define LONG_GRACE "[culvert]\nsettle = 0.02\nworkers = 2\ngrace = 3600\n"
#define COMMAND(name, forward, more)                                                               \
	"{\"command\":\"" name "\",\"forward\":\"" forward "\"" more "}"
#define DRAIN(forward) COMMAND("drain", forward, "")
#define UNDO(forward) COMMAND("drain", forward, ",\"undo\":true")

static struct ends talking[PAIRS];

static struct daemon *start_talking(const char *engine)
{
	struct daemon *d = rig_start(engine, LONG_GRACE LIVE_AND_OTHER);

	for (size_t i = 0; i < PAIRS; i++) {
		talking[i] = connect_pair(NULL, ONE);
		rig_talk_on(talking[i], i % 2 ? 40 : 1);
	}
	return d;
}

/* The grace has hardly begun, and the user has no time. */
ROW(second_signal)
{
	struct daemon *d = start_talking(*state);

	daemon_signal(d, SIGTERM);
	rig_wait_log(d, "80 that run may finish within 3600.0 s");
	poll(NULL, 0, 150); /* else it may count as the same signal */
	rig_talk_on(talking[0], 5);
	daemon_signal(d, SIGINT);
	rig_wait_log(d, "Interrupt again: the 80 sessions that still run are reset");
	for (size_t i = 0; i < PAIRS; i++)
		is_reset(talking[i]);
	rig_join(d);
}

/* Two signals at once are one; the log is opened anew, and the last session is the end. */
ROW(one_signal)
{
	struct daemon *d = start_talking(*state);

	daemon_signal(d, SIGSTOP);
	daemon_signal(d, SIGTERM);
	daemon_signal(d, SIGINT);
	daemon_signal(d, SIGCONT);
	rig_wait_log(d, "80 that run may finish within 3600.0 s");
	for (int round = 0; round < 5; round++) {
		for (size_t i = 0; i < PAIRS; i++)
			rig_talk_on(talking[i], 1);
		daemon_signal(d, SIGUSR1);
		daemon_signal(d, SIGHUP);
	}
	assert_int_equal(rig_status(d, "resources.sessions"), PAIRS);
	assert_int_equal(rig_status(d, "errors.grace-over"), 0);
	for (size_t i = 0; i < PAIRS; i++)
		close_both(talking[i]);
	rig_join(d);
}

/* Workers end their listeners one after another; what is grafted talks without them meanwhile. */
static void closes(const char *to)
{
	int fd;

	while ((fd = rig_try_dial(NULL, to)) >= 0)
		rig_reset(fd);
	assert_int_equal(fd, -ECONNREFUSED);
}

static void is_refused(struct daemon *d, const char *line)
{
	struct json_object *o = ask(d, "%s", line);

	if (strcmp(json_text(o, "error.code"), "failed") != 0 ||
	    !strstr(json_text(o, "error.message"), "culvert is stopping"))
		fail_msg("%s: %s", line, json_object_to_json_string(o));
}

/* Nothing listens any more that could change; what is about sessions is done as before. */
ROW_ONCE(commands)
{
	struct daemon *d = rig_start(*state, LONG_GRACE LIVE_AND_OTHER);
	struct ends e = connect_pair(NULL, ONE);
	struct json_object *o;

	rig_talk_on(e, 40);
	ask(d, DRAIN("live"));
	daemon_signal(d, SIGTERM);
	closes(TWO); /* no worker has listeners any more, and those without sessions have ended */
	is_refused(d, DRAIN("other"));
	is_refused(d, UNDO("live"));
	is_refused(d, COMMAND("drain", "live", ",\"deadline\":1"));
	is_refused(d, "{\"command\":\"reload\"}");
	is_closed(ONE);
	rig_talk_on(e, 40);
	/* one of both workers has ended, and has no sessions to ask about */
	o = ask(d, COMMAND("engine", "live", ",\"engine\":\"copy\""));
	assert_string_equal(json_text(o, "engine"), "copy");
	rig_talk_on(e, 40);
	o = ask(d, COMMAND("kill", "live", ""));
	assert_int_equal(json_int(o, "killed"), 1);
	is_reset(e);
	rig_join(d);
}

/* The signal comes while an operator drains forwards, and opens them again. */
ROW_ONCE(amid_drains)
{
	static const char *const lines[] = {
		DRAIN("live"),
		UNDO("live"),
		DRAIN("other"),
		UNDO("other"),
	};
	struct daemon *d = start_talking(*state);
	int64_t deadline = now_ms() + RIG_PATIENCE_MS;
	struct json_object *o = NULL;

	daemon_signal(d, SIGTERM);
	for (size_t i = 0; !json_at(o, "error"); i++) {
		assert_true(now_ms() < deadline);
		o = ask(d, "%s", lines[i % 4]);
	}
	assert_non_null(strstr(json_text(o, "error.message"), "culvert is stopping"));
	for (size_t i = 0; i < PAIRS; i++)
		rig_talk_on(talking[i], 1);
	closes(ONE);
	closes(TWO);
	o = ask(d, "{\"command\":\"kill\",\"all\":true}");
	assert_int_equal(json_int(o, "killed"), PAIRS);
	for (size_t i = 0; i < PAIRS; i++)
		is_reset(talking[i]);
	rig_join(d);
}

static void expect_content(const char *path, const char *want)
{
	char got[64] = "";
	FILE *f = fopen(path, "re");

	assert_non_null(f);
	(void)!fread(got, 1, sizeof(got) - 1, f);
	fclose(f);
	assert_string_equal(got, want);
}

/* It has the daemon's pid; what is no file of its own is kept. */
ROW_ONCE(pid_file)
{
	const char *path = textf("%s/pid", env_dir()), *other = textf("%s/other", env_dir());
	const char *text = textf("[culvert]\npid-file = %s\n" LIVE_AND_OTHER, path), *pid;
	struct daemon *d;

	unlink(path);
	d = rig_start(*state, text);
	pid = textf("%d\n", (int)rig_pid(d));
	expect_content(path, pid);
	rig_stop(d);
	assert_int_equal(rename(path, other), 0);
	assert_int_equal(symlink(other, path), 0);
	rig_refuses(*state, text, "pid-file");
	expect_content(other, pid);
	unlink(path);
	unlink(other);
}

int main(void)
{
	return rig_run("test_stop", TEST_SECONDS);
}
