/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_ADDR_H
#define CULVERT_CLIENT_ADDR_H

#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/addr.h"

/*
 * A client's address, which each session keeps: much smaller than sockaddr_storage, because a unix
 * client has no name worth keeping.
 */
union client_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* What is neither IPv4 nor IPv6 becomes AF_UNIX. */
void client_addr_set(union client_addr *a, const struct sockaddr *sa);

/* The same as an address for all. */
struct addr client_addr_get(const union client_addr *a);

/* For people and JSON, "unix:" for unix clients; SIZE ADDR_STRLEN is enough.  Returns BUF. */
const char *client_addr_text(const union client_addr *a, char *buf, size_t size);

#endif
