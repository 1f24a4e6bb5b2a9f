/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "peer.h"

/*
 * What one torture session does: two mirrored scripts and perhaps an abort, a pure function of
 * (seed, id), so that the server side needs nothing but the id that the first line of the
 * connection carries.
 */

#define PLAN_HEADER_LEN 64 /* one line, newline included; the client's first bytes */

enum plan_side {
	PLAN_CLIENT,
	PLAN_SERVER,
	PLAN_NOBODY,
};

struct plan_script {
	struct step steps[PEER_MAX_STEPS];
	size_t n;
	uint64_t bytes;  /* to send */
	uint64_t rounds; /* of conversation */
};

struct plan {
	struct plan_script side[2];
	enum plan_side aborts; /* this side sends a RST at ... */
	uint64_t abort_tx, abort_rx;
};

void plan_make(uint64_t seed, uint64_t id, struct plan *ret);

/* Give P the script, patterns and abort of SIDE; RUN tells repetitions of an id apart. */
void plan_apply(const struct plan *plan, enum plan_side side, uint64_t seed, uint64_t id,
		uint64_t run, struct peer *p);

/* Write the first line, PLAN_HEADER_LEN bytes and no NUL, to BUF. */
void plan_header(uint64_t seed, uint64_t id, uint64_t run, char *buf);

/*
 * Returns 0; -EINVAL if this cannot be such a line; -ESRCH if it is one of another seed than SEED.
 */
int plan_parse_header(const char *buf, uint64_t seed, uint64_t *ret_id, uint64_t *ret_run);
