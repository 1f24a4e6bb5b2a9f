/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * An access list decides which clients may connect.  The first rule that matches a client counts.
 * Without such a rule the client may connect, unless the list has an allow rule.
 */

#define ACL_PATTERN_LEN 48 /* room for a pattern; an address has at most 45 characters */

/* One condition on a client's address. */
struct acl_rule {
	char pattern[ACL_PATTERN_LEN]; /* for fnmatch(3); "": addr, mask and family decide */
	uint8_t addr[16]; /* network order; IPv4 is in the first 4 bytes; 0 where MASK is 0 */
	uint8_t mask[16]; /* bits that must be equal: most often a prefix */
	uint16_t family;  /* AF_INET, AF_INET6 */
	bool allow;
	bool and_next; /* the next rule must match, too, and does not count alone */
};

struct acl {
	struct acl_rule *rules; /* owned, unless they are shared */
	bool shared;            /* another list of the configuration owns the rules */
	size_t n;
	bool allows; /* some rule allows */
};

/*
 * Add rules for TEXT: elements with commas or blanks between them.  An element is
 *
 *	192.0.2.1, 2001:db8::1      an address
 *	10.0.0.0/8                  a prefix without host bits
 *	10.0.3.4/255.0.255.255      an address and a mask, which may have holes
 *	10.*, 192.168.2.1?          a pattern of the address's text: * any characters, ? one
 *	unix:                       every client of a unix socket
 *	all, *                      every client
 *	A&B                         clients that both A and B match
 *
 * Clients with an IPv4-mapped IPv6 address are IPv4.  After -EINVAL A can only be closed.
 */
int acl_add(struct acl *a, bool allow, const char *text);

/* True if CLIENT may connect. */
bool acl_allows(const struct acl *a, const struct sockaddr *client);

/* True if A and B have the same rules in the same order. */
bool acl_same(const struct acl *a, const struct acl *b);

void acl_close(struct acl *a);
