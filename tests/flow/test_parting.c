// SPDX-License-Identifier: BSD-2-Clause
/*
 * Sessions in the state "parting": one end has gone by RST, and there is still payload for the
 * other, which takes none, or goes too.  What it does take test_cases has ("reset-last-words").
 */
#include "forward_rig.h"

#define TEST_SECONDS 200
#define CONF "[culvert]\nprobe = no\n[forward one]\nlisten = " ONE "\n" TO_UPSTREAM

/* One of both ends fills the session, and resets it.  The other end. */
static int fill_and_go(bool from_server)
{
	struct ends e = rig_open(ONE);
	int from = from_server ? e.server : e.client;

	rig_give(from, 65536, SIZE_MAX, 0);
	rig_reset(from);
	return from_server ? e.client : e.server;
}

/* The other end takes nothing: after a while it is reset as well. */
ROW(nobody_listens)
{
	struct daemon *d = rig_start(*state, CONF);

	for (int i = 0; i < 2; i++) {
		int other = fill_and_go(i);

		rig_wait_status(d, "resources.sessions", 0);
		rig_reset(other);
	}
	rig_stop(d);
}

/* The other end goes as well, or the daemon is told to end the session. */
ROW(both_go)
{
	struct daemon *d = rig_start(*state, CONF);

	for (int i = 0; i < 8; i++) {
		int other = fill_and_go(i % 2);

		if (i < 4)
			rig_reset(other);
		else
			ask(d, "{\"command\":\"kill\",\"forward\":\"one\"}");
		rig_wait_status(d, "resources.sessions", 0);
	}
	rig_stop(d);
}

int main(void)
{
	return rig_run("test_parting", TEST_SECONDS);
}
