/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_POLICY_RIG_H
#define CULVERT_TESTS_POLICY_RIG_H

/* The policy as the tests of it know it: with figures of their own instead of the options. */

#include "datapath/policy.h"

#define SETTLE_MS 500
#define REVIEW_PACKETS 1000

static inline struct policy policy_of(enum engine e)
{
	struct policy p;

	policy_init(&p, e, SETTLE_MS, REVIEW_PACKETS);
	return p;
}

#endif
