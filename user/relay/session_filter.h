/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_FILTER_H
#define CULVERT_SESSION_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "relay/acl.h"

struct session;

/*
 * Which sessions an operator means.  All that is given must hold; a filter in which nothing is
 * given matches every session.
 */
struct session_filter {
	const char *forward; /* name; NULL: any.  Not owned */
	struct acl clients;  /* those it allows; no rules: any */
	int carrier;         /* enum carrier, of either flow; FILTER_ANY */
	uint64_t *ids;       /* owned, in ascending order */
	size_t n_ids;        /* 0: any */
};

#define FILTER_ANY (-1)

/* Nothing is given yet. */
void session_filter_init(struct session_filter *f);
void session_filter_close(struct session_filter *f);

/* Order the ids, which may be written in any order. */
void session_filter_sort(struct session_filter *f);

/* On the thread of S's worker. */
bool session_filter_matches(const struct session_filter *f, const struct session *s);

#endif
