/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_FAULTS_CASES_H
#define CULVERT_TEST_FAULTS_CASES_H

#include <stdbool.h>
#include <stdint.h>

#include "lanes.h"
#include "rig.h"

/* One fault of the network or of the machine, on one engine. */
struct net_case {
	const char *culvert, *preload, *engine;
	struct rig rig;
	uint64_t times;  /* how often the fault has happened */
	struct batch sum; /* of all sessions; resets are those that the fault does not call for */
	char why[1200];
};

/* Returns 0; -1 and what broke in why; or -ENOTSUP and why the fault cannot be made here. */
typedef int net_case_fn(struct net_case *c);

int net_fail(struct net_case *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Add B to the sum; -1 if a session had worse than a reset, or a reset and RESETS is false. */
int net_add(struct net_case *c, const struct batch *b, bool resets);

/* Bytes and ends: cases_stage.c. */
net_case_fn case_reset_stages, case_fin_stages, case_tiny_windows, case_zero_windows;
/* The network: cases_network.c. */
net_case_fn case_loss, case_doubling, case_reordering, case_mtu, case_link;
/* The machine: cases_machine.c. */
net_case_fn case_memory, case_full_table, case_ring, case_stopped;

#endif
