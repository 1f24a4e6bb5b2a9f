/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

/* Which server gets a session.  Pure decisions: no system calls, no locks. */

struct candidate {
	bool aside;
	bool backup;
	bool silent;         /* and not to be asked again yet */
	unsigned int weight; /* as health_weight() of server_health.h says; not 0 */
	unsigned int live;   /* sessions */
	uint64_t name;       /* balance_hash() of its name */
	int64_t *turn;       /* its account; begins with 0 */
};

/* 64 bits that depend on all LEN bytes at P, and on SEED. */
uint64_t balance_hash(const void *p, size_t len, uint64_t seed);

/*
 * Choose one of the N candidates at C for the client CLIENT (a balance_hash()).  Servers that are
 * up or returning come first, backups only if there is no such server, and then those that are set
 * aside, in the same order.  Among equals those that are silent come last.  N is not 0.
 */
size_t balance_pick(enum balance how, const struct candidate *c, size_t n, uint64_t client);
