// SPDX-License-Identifier: BSD-2-Clause
/*
 * What becomes of listening sockets while culvert runs: those of a reload that has to wait, and
 * those that drain closes and opens again.
 */
#include "forward_rig.h"

#include <sys/syscall.h>

#include "hold.h"

#define TEST_SECONDS 120
#define ONE_OF FORWARD("one", ONE, "")

/* While a reload waits for the privileged process, whoever asks the daemon is answered. */
ROW(asked_meanwhile)
{
	struct daemon *d = rig_start(*state, ONE_OF);
	pid_t pid = daemon_privileged(d);
	int64_t before = rig_status(d, "reload.finished");
	struct ends e = rig_open(ONE);

	assert_int_equal(hold_begin(pid), 0);
	rig_write(ONE_OF FORWARD("two", TWO, ""));
	daemon_signal(d, SIGHUP);
	assert_int_equal(hold_before(pid, SYS_bind, RIG_PATIENCE_MS), 0);
	rig_expect_sessions(d, "one", 1);
	query(d, "forwards");
	rig_talk_on(e, 20);
	is_served(ONE);
	is_closed(TWO);
	assert_int_equal(rig_status(d, "reload.finished"), before); /* it still waits */
	hold_end(pid);
	rig_wait_status(d, "reload.finished", before + 1);
	is_served(TWO);
	rig_talk_on(e, 20);
	rig_reload_good(d, ONE_OF);
	is_closed(TWO);
	rig_stop(d);
}

/* --- drain --- */

/* A unix socket has no group of sockets to join, and its file may still be there. */
ROW_ONCE(drain_unix)
{
	const char *to = textf("unix:%s/drained", env_dir());
	const char *text = textf(ONE_OF FORWARD("file", "%s", ""), to);
	struct daemon *d = rig_start(*state, text);
	struct ends e = rig_open(to);

	for (int i = 0; i < 2; i++) {
		ask(d, "{\"command\":\"drain\",\"forward\":\"file\"}");
		is_closed(to);
		rig_talk_on(e, 10);
		ask(d, "{\"command\":\"drain\",\"forward\":\"file\",\"undo\":true}");
		is_served(to);
	}
	rig_talk_on(e, 10);
	rig_reload_good(d, text); /* for which the privileged process is needed */
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_reload_sockets", TEST_SECONDS);
}
