/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

/* Decides which server gets a session.  Pure decisions: no system calls, no locks. */

struct candidate {
	bool aside;
	bool backup;
	bool silent;         /* silent, and not yet due to be asked again */
	unsigned int weight; /* as health_weight() of server_health.h says; not 0 */
	unsigned int live;   /* sessions */
	uint64_t name;       /* balance_hash() of its name */
	int64_t *turn;       /* its credit for turns; starts at 0 */
};

/* 64 bits that depend on all LEN bytes at P, and on SEED. */
uint64_t balance_hash(const void *p, size_t len, uint64_t seed);

/*
 * Choose one of the N candidates at C for the client CLIENT (a balance_hash()).  The order of
 * choice is: servers, backups, servers that are set aside, backups that are set aside.  Among
 * equals those that are silent come last.  N is not 0.
 */
size_t balance_pick(enum balance how, const struct candidate *c, size_t n, uint64_t client);
/* Candidate AT of the N at C, which balance_pick() has chosen, gets no session: undo its turn. */
void balance_undo(enum balance how, const struct candidate *c, size_t n, size_t at);
