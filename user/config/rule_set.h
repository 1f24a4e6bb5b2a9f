/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RULE_SET_H
#define CULVERT_RULE_SET_H

#include <stddef.h>

#include "config/acl_rule.h"

/* Rules of which any may match; `allow` in them means nothing. */
struct rule_set {
	struct acl_rule *rules; /* owned */
	size_t n;
};

#define RULE_SET_MAX 4096

/* Add R unless a rule of the set covers it.  -E2BIG, -ENOMEM. */
int rule_set_add(struct rule_set *s, const struct acl_rule *r);
void rule_set_close(struct rule_set *s);

#endif
