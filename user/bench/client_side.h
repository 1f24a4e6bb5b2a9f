/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_CLIENT_SIDE_H
#define CULVERT_BENCH_CLIENT_SIDE_H

#include "options.h"

/* Run the workload of O with as many processes as it needs; print the result.  The exit code. */
int client_side_run(const struct options *o);

/* Raise the soft limit of descriptors to the hard one; returns it. */
uint64_t raise_descriptor_limit(void);

/*
 * Processes for CONNECTIONS when each may have LIMIT descriptors: at least WANTED, at most
 * PROCESSES_MAX, never more than there are connections.  0: they are too many for all of these.
 */
unsigned int processes_needed(uint32_t connections, uint64_t limit, unsigned int wanted);

#endif
