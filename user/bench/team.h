/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

/*
 * Processes that share the work, and their parent.  Parent and children talk by signals.  SIGINT
 * and SIGTERM are for the parent alone.  When the parent dies, the kernel kills the children.
 */
struct team {
	pid_t children[PROCESSES_MAX]; /* 0: has ended */
	unsigned int n, running;
	bool died; /* a child ended otherwise than with exit code 0 */
};

#define TEAM_READY SIGRTMIN /* a child is ready; a real-time signal, so each one is queued */

/* What a child does: returns its exit code. */
typedef int team_work(unsigned int index, void *arg);

/* Zeroed memory for N objects of SIZE bytes that children and parent share; NULL: no memory. */
void *team_memory(unsigned int n, size_t size);

/* Fork N children.  Returns 0, or -errno: no child runs. */
int team_start(struct team *t, unsigned int n, team_work *work, void *arg);

/* Tell all children to begin at START_NS, or (0) to end in order. */
void team_tell(struct team *t, uint64_t start_ns);

/* Wait for a signal, which is returned: TEAM_READY, SIGCHLD, SIGINT, SIGTERM. */
int team_next(struct team *t);

/* End the children that still run, at once. */
void team_close(struct team *t);

/* For children: a descriptor at which one reads what the parent tells; or -1. */
int team_listen(void);

/* False: nothing has been told. */
bool team_hear(int fd, uint64_t *ret_start_ns);

/* For children: tell the parent TEAM_READY. */
void team_ready(void);

/* Raise the limit of descriptors as far as the process may. */
void raise_descriptor_limit(void);
