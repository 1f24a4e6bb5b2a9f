/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "graft_contract.h"

/* The LOCAL or the remote address of T, as sockets have it. */
static inline void graft_tuple_address(const struct graft_tuple *t, bool local,
				       struct sockaddr_storage *ret, socklen_t *ret_len)
{
	const struct graft_addr *a = local ? &t->local : &t->remote;
	in_port_t port = local ? t->local_port : t->remote_port;

	if (graft_addr_is_ipv6(a)) {
		struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = port };

		memcpy(&in6.sin6_addr, a, sizeof(in6.sin6_addr));
		memcpy(ret, &in6, *ret_len = sizeof(in6));
	} else {
		struct sockaddr_in in = { .sin_family = AF_INET,
					  .sin_port = port,
					  .sin_addr.s_addr = a->w[3] };

		memcpy(ret, &in, *ret_len = sizeof(in));
	}
}
