/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_RELOAD_RIG_H
#define CULVERT_TEST_RELOAD_RIG_H

/* forward_rig.h, for a daemon whose file changes. */
#include "forward_rig.h"

/* not every program needs all of it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"

#define ONE "127.0.0.1:9001"
#define TWO "127.0.0.1:9002"
#define THREE "127.0.0.1:9003"
#define ANY_ONE "0.0.0.0:9001"
#define ECHO "127.0.0.1:9200"
#define TO_UPSTREAM "upstream = " RIG_UPSTREAM "\n"
#define TO_ECHO "upstream = " ECHO "\n"
#define ONE_OF(more) "[forward one]\nlisten = " ONE "\n" TO_UPSTREAM more
#define TWO_OF(more) "[forward two]\nlisten = " TWO "\n" TO_UPSTREAM more

static int64_t reloads(struct daemon *d)
{
	return rig_status(d, "reload.finished");
}

static void is_served(const char *to)
{
	int client = rig_dial(NULL, to), server = rig_accept();

	rig_talk(client, server, 20);
	rig_reset(client);
	rig_reset(server);
}

static void is_closed(const char *to)
{
	assert_int_equal(rig_try_dial(NULL, to), -ECONNREFUSED);
}

#pragma GCC diagnostic pop

#endif
