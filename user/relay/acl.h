/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ACL_H
#define CULVERT_ACL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "config/acl_rule.h"

/*
 * Who may connect: rules in the order in which they were written.  The first one that matches a
 * client decides.  Where none does: the client may connect, unless some rule allows anybody, since
 * then it is not among those.  No rules: everybody may.
 */
struct acl {
	struct acl_rule *rules; /* owned */
	size_t n;
	bool allows; /* some rule does */
};

#define ACL_RULES_MAX 4096

/*
 * Add a rule for each element of TEXT, as acl_rule_parse() takes them, between commas and blanks.
 * Elements that earlier rules decide in the same way are dropped.
 *
 * -EINVAL: syntax; -EEXIST: an earlier rule covers an element and says the opposite, so that the
 * new rule would never count; -E2BIG: more than ACL_RULES_MAX; -ENOMEM.  Rules before that are
 * kept.
 */
int acl_add(struct acl *a, bool allow, const char *text);

/* May CLIENT connect?  IPv4-mapped IPv6 addresses are IPv4 ones. */
bool acl_allows(const struct acl *a, const struct sockaddr *client);

/* The same rules in the same order. */
bool acl_same(const struct acl *a, const struct acl *b);

/* Make TO, which is empty, a copy.  -ENOMEM. */
int acl_copy(struct acl *to, const struct acl *from);
void acl_close(struct acl *a);

#endif
