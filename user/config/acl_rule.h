/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ACL_RULE_H
#define CULVERT_ACL_RULE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/*
 * Some clients, and whether they may connect: those whose address has the bits of ADDR wherever
 * MASK has one.  Most masks are prefixes; any other is one as well.
 */
struct acl_rule {
	uint8_t addr[16]; /* as in the socket address; 0 where MASK is */
	uint8_t mask[16];
	uint16_t family;  /* AF_INET, AF_INET6, AF_UNIX; AF_UNSPEC: every client */
	bool allow;
};

/*
 * The clients that TEXT stands for: an IPv4 or IPv6 address, a prefix ("10.0.0.0/8"), an address
 * and a mask of its family, with or without holes ("10.0.3.4/255.0.255.255"), "unix:" (every client
 * of a unix socket), or "all".  Bits of the address that do not count must be 0; IPv4-mapped IPv6
 * becomes IPv4.  RET->allow is left alone.  -EINVAL.
 */
int acl_rule_parse(const char *text, struct acl_rule *ret);

/* The way back, into BUF of ACL_RULE_STRLEN bytes, which it returns. */
#define ACL_RULE_STRLEN 96
const char *acl_rule_format(const struct acl_rule *r, char *buf);

/* CLIENT alone. */
struct acl_rule acl_rule_of(const struct sockaddr *client);

/* Does R match every client that WHOM matches? */
bool acl_rule_covers(const struct acl_rule *r, const struct acl_rule *whom);

/* Those that both match; false: there are none. */
bool acl_rule_meet(const struct acl_rule *a, const struct acl_rule *b, struct acl_rule *ret);

#endif
