/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Room for any formatted address: "[ipv6%scope]:port" or "unix:" and a full sun_path. */
#define ADDR_STRLEN 160

/* One socket address. */
struct addr {
	union {
		struct sockaddr_storage ss;
		struct sockaddr sa;
		struct sockaddr_in in;
		struct sockaddr_in6 in6;
		struct sockaddr_un un;
	};
	socklen_t len;
};

/* An IPv4 or IPv6 address alone, with port 0: "1.2.3.4", "::1", "fe80::1%eth0".  -EINVAL. */
int addr_parse_host(const char *text, struct addr *ret);

/*
 * Format SA for people and JSON into BUF (ADDR_STRLEN is always enough); returns BUF.  The result
 * is printable ASCII: any other byte of a unix path becomes '?', because the peer may have chosen
 * it.  No system call is made, so IPv6 scopes are numbers.
 */
const char *addr_format(const struct sockaddr *sa, socklen_t len, char *buf, size_t size);

/* True for AF_INET and AF_INET6. */
bool addr_is_inet(const struct addr *a);

/*
 * The port, in network order.  For other families than AF_INET and AF_INET6 addr_port() is 0, and
 * addr_set_port() does nothing.
 */
in_port_t addr_port(const struct addr *a);
void addr_set_port(struct addr *a, in_port_t port);
/* A with OFFSET added to its port. */
struct addr addr_plus_offset(const struct addr *a, uint16_t offset);

/* True for AF_INET and AF_INET6 with port 0: the kernel picks the port of a listener. */
bool addr_takes_any_port(const struct addr *a);

/* True if both are the same address and port, or the same unix path. */
bool addr_equal(const struct addr *a, const struct addr *b);

/* A; if A is IPv4 in IPv6 form ([::ffff:1.2.3.4]), the IPv4 address. */
struct addr addr_unmapped(const struct addr *a);

/*
 * Remove the file of a unix socket without a listener, so that its path can be bound again.
 * -EADDRINUSE: a process listens on it; -EEXIST: the file is no socket; else -errno.  A file that
 * is missing, and an abstract name, are no error.  0 also if connect(2) fails in another way: then
 * bind(2) says EADDRINUSE.
 */
int unix_remove_stale(const struct sockaddr_un *un, socklen_t len);

/* 0.0.0.0 or [::]. */
bool addr_is_any(const struct addr *a);

/*
 * True if connections to TO come to a socket that listens at LISTENER.  The function does not know
 * this machine's addresses, except loopback.
 */
bool addr_leads_to(const struct addr *to, const struct addr *listener);

/*
 * The address of a session's client: much smaller than struct addr, because the name of a unix
 * client is not worth keeping.
 */
union client_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

/* Any family but AF_INET and AF_INET6 becomes AF_UNIX. */
void client_addr_set(union client_addr *a, const struct sockaddr *sa);
/* Are both the same address and port, and on the same link? */
bool client_addr_equal(const union client_addr *a, const union client_addr *b);
/* For people and JSON, "unix:" for unix clients; SIZE ADDR_STRLEN is enough.  Returns BUF. */
const char *client_addr_text(const union client_addr *a, char *buf, size_t size);

/* False if the kernel makes no IPv6 sockets (ipv6.disable=1). */
bool addr_has_ipv6(void);
