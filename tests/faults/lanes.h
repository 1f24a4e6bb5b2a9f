/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "../flow/peer.h"

/*
 * The traffic of the fault sweep.  A lane is a forward of its own with an upstream of its own and
 * a script for both ends; a batch runs every lane's sessions, all lanes at once.  So the two ends
 * of a session find each other even when the daemon loses half of them.
 */

/* What went wrong in a batch: counts of sessions. */
struct batch {
	unsigned int sessions, results[PEER_RESULTS]; /* of those that did not end as they should */
	unsigned int resets_marked; /* those of sessions that need the privileged process */
	char why[600];              /* the worst that was seen */
};

/* Listeners of the upstream side, once per program.  Exits with a message on failure. */
void lanes_open(void);

/* Write the forwards of the lanes. */
void lanes_configuration(FILE *f);

/*
 * Run one batch.  TICK is called at least every 10 ms.  Returns true if no session had anything
 * worse than a reset.
 */
bool lanes_run(void (*tick)(void *arg), void *arg, struct batch *ret);

/* The worst result of B, or PEER_DONE; a reset is none. */
enum peer_result lanes_fault(const struct batch *b);

/* So many sessions that need the privileged process that some may find no socket in stock. */
void lanes_many_marked(bool many);

/* The listening socket of lane I's upstream. */
int lanes_listener(int i);

/* Close what waits at the upstream listeners: connections that no session wanted any more. */
void lanes_drain(void);
