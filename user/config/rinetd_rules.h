/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RINETD_RULES_H
#define CULVERT_RINETD_RULES_H

#include <stdbool.h>
#include <stddef.h>

#include "config/rinetd_pattern.h"

/*
 * The rules of a rinetd.conf, for all forwards (before the first of them) or for one (behind it).
 * A client passes a list if none of its `deny` matches and, where there is an `allow`, one of these
 * does; their order means nothing.  Who connects must pass both lists.
 */
struct rinetd_rule {
	struct rinetd_pattern pattern;
	const char *text; /* as written; not owned */
	unsigned int line;
	bool allow;
};

struct rinetd_rules {
	struct rinetd_rule *rules; /* owned */
	size_t n, patterns;        /* PATTERNS: of all of them */
};

/* -E2BIG also if all of them are too many.  Else as rinetd_pattern_parse(). */
int rinetd_rules_add(struct rinetd_rules *l, bool allow, const char *text, unsigned int line);
void rinetd_rules_close(struct rinetd_rules *l);

/* Whose addresses a listener gets to see. */
enum {
	CLIENTS_INET = 1,
	CLIENTS_MAPPED = 2, /* IPv4 at a listener for both families, where rinetd sees IPv6 */
	CLIENTS_INET6 = 4,
};

/*
 * Rules of which the first that matches decides (acl.h), and which say of every client of the kinds
 * CLIENTS what the lists say.  With CLIENTS_MAPPED a `deny` also counts if it matches the IPv4
 * address as such: rinetd would not see that it does.  -E2BIG, -ENOMEM; -ERANGE: *RET_RULE is
 * unclear for CLIENTS.
 */
int rinetd_rules_compile(const struct rinetd_rules *global, const struct rinetd_rules *own,
			 unsigned int clients, struct rule_set *ret,
			 const struct rinetd_rule **ret_rule);

#endif
