/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/types.h>

#include "config/config.h"
#include "probe/probe.h"
#include "relay/threads.h"

struct forwards;

/* Grafted sessions outlive the daemon: what the next one, or `culvert graft`, finds of them. */

/*
 * Load what carries sessions in the kernel, as probe_start() does, into SHARED.  What a daemon
 * before this one has left of grafted sessions is used.  Needs root, and the control socket, which
 * only one daemon has at a time.  A: what the daemon becomes.
 */
int adopt_open(const struct config *c, const struct account *a, struct shared *shared,
	       struct probe_start *probe);

/* Make the sessions left ones of TS and ALL, before the workers start; or reset them. */
void adopt_sessions(struct shared *shared, struct threads *ts, const struct forwards *all);

/* --- sessions of both protocols that no session of a worker has --- */

/*
 * What is entered at AT.  As many places as grafts_total() says are of TCP, and as many behind them
 * of UDP.  The pointers lead into the maps.
 */
struct held {
	enum { HELD_NOTHING, HELD_ACTIVE, HELD_STANDBY } state;
	struct graft_leg *leg[2]; /* 0: the client */
	/* other threads may write them at any time */
	_Atomic uint32_t *forward, *source, *mirrored, *alone_ms;
	_Atomic uint64_t *id;
};

struct held held_at(const struct shared *shared, uint32_t at);
/* Set *AT to the next place, from *AT on, where something may be entered.  False: there is none. */
bool held_next(const struct shared *shared, uint32_t *at);
/* Take it out, or, if that is possible, reset it. */
void held_end(struct shared *shared, uint32_t at);
/* W is the one that gets it: so the kernel chooses sockets of UDP. */
bool held_is_of(const struct shared *shared, const struct worker *w, uint32_t at);
/*
 * Make it a session of W, by the thread of that: 0, or why not.  -ENOENT: there is no forward with its
 * name, or, of UDP, no socket of W for it; -EUSERS: a limit.
 */
int held_adopt(struct shared *shared, struct worker *w, const struct forwards *all, uint32_t at);

/* `culvert graft`: what is left of a daemon that does not run.  Returns the exit code. */
int graft_run(int argc, char **argv);
