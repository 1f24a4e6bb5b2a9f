/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* Addresses of clients, and who of them may connect.  Included after cmocka.h. */

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/addr.h"
#include "config/acl.h"

/* TEXT is an IPv4 or IPv6 address; or "unix": a client of a unix socket has none. */
static inline union client_addr client_at(const char *text)
{
	union client_addr a = { .sa.sa_family = AF_UNIX };

	if (!strcmp(text, "unix"))
		return a;
	a.sa.sa_family = strchr(text, ':') ? AF_INET6 : AF_INET;
	assert_int_equal(inet_pton(a.sa.sa_family, text,
				   a.sa.sa_family == AF_INET ? (void *)&a.in.sin_addr :
							       (void *)&a.in6.sin6_addr),
			 1);
	return a;
}

/* RULES, which A is, decide so about each of CLIENTS, which are between blanks. */
static inline void expect_clients(const struct acl *a, const char *rules, const char *clients,
				  bool allowed)
{
	char copy[128], *at = copy;

	snprintf(copy, sizeof(copy), "%s", clients);
	for (const char *one; (one = strsep(&at, " ")) && *one;) {
		union client_addr c = client_at(one);

		c.in6.sin6_scope_id = 3; /* of a link: it does not matter */
		if (acl_allows(a, &c.sa) != allowed)
			fail_msg("\"%s\" %s %s", rules, allowed ? "denies" : "allows", one);
	}
}
