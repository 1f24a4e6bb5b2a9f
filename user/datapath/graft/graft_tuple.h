/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <string.h>

#include "base/addr.h"
#include "graft_contract.h"

/* The LOCAL or the remote address of T, as sockets have it. */
static inline struct addr graft_tuple_address(const volatile struct graft_tuple *t, bool local)
{
	const struct graft_addr host = local ? t->local : t->remote;
	bool ipv6 = graft_addr_is_ipv6(&host);
	struct addr a = { .len = ipv6 ? sizeof(a.in6) : sizeof(a.in) };

	a.ss.ss_family = ipv6 ? AF_INET6 : AF_INET;
	a.in.sin_port = local ? t->local_port : t->remote_port; /* at the same place in both */
	if (ipv6)
		memcpy(&a.in6.sin6_addr, &host, sizeof(host));
	else
		a.in.sin_addr.s_addr = host.w[3];
	return a;
}
