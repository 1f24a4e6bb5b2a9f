// SPDX-License-Identifier: BSD-2-Clause
#include "relay/client_addr.h"

#include <stdio.h>
#include <string.h>

static socklen_t length_of(const union client_addr *a)
{
	if (a->sa.sa_family == AF_INET)
		return sizeof(a->in);
	return a->sa.sa_family == AF_INET6 ? sizeof(a->in6) : sizeof(a->sa.sa_family);
}

void client_addr_set(union client_addr *a, const struct sockaddr *sa)
{
	memset(a, 0, sizeof(*a));
	if (sa->sa_family == AF_INET)
		memcpy(&a->in, sa, sizeof(a->in));
	else if (sa->sa_family == AF_INET6)
		memcpy(&a->in6, sa, sizeof(a->in6));
	else
		a->sa.sa_family = AF_UNIX;
}

struct addr client_addr_get(const union client_addr *a)
{
	struct addr addr = { .len = length_of(a) };

	memcpy(&addr.ss, a, addr.len);
	return addr;
}

const char *client_addr_text(const union client_addr *a, char *buf, size_t size)
{
	if (a->sa.sa_family != AF_INET && a->sa.sa_family != AF_INET6)
		snprintf(buf, size, "unix:");
	else
		addr_format(&a->sa, length_of(a), buf, size);
	return buf;
}
