/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "probe/probe.h"
#include "relay/threads.h"

struct forwards;

/*
 * Grafted sessions outlive the daemon: the next one adopts them, and `culvert graft` resets them.
 * On the main thread, before others start.
 */

/*
 * Load the programs that carry sessions in the kernel into SHARED, as probe_start() does.  SHARED
 * then also has the grafted sessions of the previous daemon.  The caller needs root, and has the
 * control socket, which only one daemon has at a time.  A: the account that the daemon becomes.
 * TAKES_OVER: as in struct graft_limits.
 */
int adopt_open(const struct config *c, const struct account *a, bool takes_over,
	       struct shared *shared, struct probe_start *probe);

/* Why no session begins in the kernel, as far as C says; NULL: they may. */
const char *adopt_no_syn(const struct config *c);

/*
 * Give each session of the previous daemon to a worker of TS.  Reset each session that no forward
 * of ALL may adopt.
 */
void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all);

/* `culvert graft`: reset the sessions of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
