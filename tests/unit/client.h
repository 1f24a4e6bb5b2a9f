/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/* The address of a client.  Included after cmocka.h. */

#include <arpa/inet.h>
#include <string.h>

#include "base/addr.h"

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
