/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>

#include "config/foreign.h"

/* Conditions of a haproxy.cfg, and its rules about who may connect. */

/* Where keywords have a meaning. */
enum { FRONT = 1, BACK = 2, BOTH = 3 };

#define ADMITS "not converted, so culvert admits clients that HAProxy refuses: see allow and deny"

/* The subject of a condition. */
enum about {
	TLS,      /* whether the client speaks TLS */
	TLS_NAME, /* the name in its hello */
	SOURCE,   /* its address */
};

/*
 * The values of the terms in AT, with "or" between them, or, of TLS, the names of the tests; *INVERTED:
 * the only one has "!".  NULL: they are about something else, or compare otherwise.
 */
const char *condition_of(struct draft *d, char **at, enum about about, bool *inverted);

/* For rows: a rule of `tcp-request`; TEXT: "" about the peer, or "-client". */
void take_request(struct draft *d);
/* Set the keys of D that follow from all such rules.  Only who speaks TLS may connect: .tls-only. */
void end_requests(struct draft *d);
