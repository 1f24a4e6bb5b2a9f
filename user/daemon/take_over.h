/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/listener.h"
#include "relay/threads.h"

/*
 * The side of the next daemon: see hand_over_stream.h.  By the main thread, before workers run.
 */
struct take_over;

/*
 * Ask the daemon at the control socket PATH for what it has.  Its listening sockets are used from
 * now on (listening_open()).  -errno, after a complaint.
 */
int take_over_begin(const char *path, struct take_over **ret);
/* For graft_limits.pins_fd; 0: there is none that this version can use. */
int take_over_pins(struct take_over *t);
/*
 * This daemon has come up: take the sessions, for the workers TS.  -errno after a complaint: the
 * other daemon goes on with all of them, and this one has to end.
 */
int take_over_sessions(struct take_over *t, struct threads *ts, const struct forwards *all);
/* The workers run: say how long the sessions have waited.  Frees T; NULL is fine. */
void take_over_end(struct take_over *t);
