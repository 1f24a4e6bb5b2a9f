/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../flow/daemon.h"

/* A daemon that serves the lanes, and the question whether it is as it was before. */

struct rig {
	struct daemon *d;
	int64_t pid;
};

/*
 * Start it: ENGINE, then OPTIONS (NULL-terminated, may be NULL), with low limits so that flows
 * leave the kernel, and wait until every forward has an address.  Environment variables are the
 * caller's.  As daemon_start(), with a message printed.
 */
int rig_start(struct rig *rig, const char *culvert, const char *engine, const char *const *options);
void rig_kill(struct rig *rig);

/* Print what it has complained of, if it runs. */
void rig_show_warnings(struct rig *rig);
/* Print the lines of its session log, since it was started, of sessions that have not finished. */
void rig_show_broken_sessions(void);

/* The sum of what the daemon has counted under "errors". */
int rig_errors(struct rig *rig, int64_t *ret);

/*
 * True once nothing is left of any session: status, descriptors, maps.  A map that refuses to
 * delete an entry keeps it until its slot is used again; then it must go, so batches are run to
 * see.
 */
bool rig_clean(struct rig *rig, char *why, size_t len);
