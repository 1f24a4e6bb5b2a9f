/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/types.h>

#include "config/config.h"
#include "probe/probe.h"
#include "relay/threads.h"

struct forward;

/* Grafted sessions outlive the daemon: what the next one, or `culvert graft`, finds of them. */

/*
 * Open what grafts sessions, if a forward of C wants it; what a daemon before this one has left is
 * used.  RET is NULL if no session can be grafted.  Needs root, and the control socket, which only
 * one daemon has at a time.  A: what the daemon becomes.  PROBE: what was found before; it gets
 * what is found here.  Returns 0, or an exit code if an engine was asked for by name and cannot
 * work.
 */
int adopt_open(const struct config *c, const struct account *a, struct grafts **ret,
	       struct probe_start *probe);

/* Make the sessions left ones of TS and FIRST, before the workers start; or reset them. */
void adopt_sessions(struct shared *shared, struct threads *ts, struct forward *first);

/* `culvert graft`: what is left of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
