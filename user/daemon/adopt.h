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

/* The first forward of the list with that graft_tag(); or NULL. */
struct forward *forward_with_tag(struct forward *first, uint32_t tag);
/*
 * The same of one that came from another relay, by the thread of W, which gets it: 0, or why not.
 * -ENOENT: there is no forward with its name, or, of UDP, no socket of W for it; -EUSERS: a limit.
 */
int adopt_session(struct shared *shared, struct worker *w, struct forward *first, uint32_t slot);
/* The kernel chooses W for its client. */
bool flow_is_of(const struct shared *shared, const struct worker *w, uint32_t slot);
int adopt_flow(struct shared *shared, struct worker *w, struct forward *first, uint32_t slot);

/* `culvert graft`: what is left of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
