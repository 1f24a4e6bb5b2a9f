/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/types.h>

#include "config/config.h"
#include "probe/probe.h"
#include "relay/threads.h"

struct forward;

/* Grafted sessions outlive the daemon: what the next one, or `culvert graft`, finds of them. */

/*
 * Load what carries sessions in the kernel, as probe_start() does, into SHARED.  What a daemon
 * before this one has left of grafted sessions is used.  Needs root, and the control socket, which
 * only one daemon has at a time.  A: what the daemon becomes.
 */
int adopt_open(const struct config *c, const struct account *a, struct shared *shared,
	       struct probe_start *probe);

/* Make the sessions left ones of TS and FIRST, before the workers start; or reset them. */
void adopt_sessions(struct shared *shared, struct threads *ts, struct forward *first);

/* `culvert graft`: what is left of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
