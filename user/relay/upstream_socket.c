// SPDX-License-Identifier: BSD-2-Clause
#include "relay/upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/syscalls_needed.h"
#include "relay/socket_options.h"
#include "relay/socket_stock.h"

SYSCALLS_NEEDED(
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL_IF(PART_UNIX, socket, SYSCALL_ARG(0, AF_UNIX),
		   SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE), SYSCALL_ARG(2, 0)),
	SYSCALL(connect),
	SYSCALL(getsockname),
	SYSCALL(close));

#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range" /* of IPv6, too */

/* Ports that the kernel may connect from; what a kernel has that does not tell. */
static unsigned int first_port = 1024, last_port = 65535;

/* Where connections come from; NULL: wherever the kernel's routing says. */
static const struct sockaddr *source_of(const struct forward_conf *fc,
					const struct sockaddr *client)
{
	if (fc->transparent)
		return client;
	return fc->source.len ? (const struct sockaddr *)&fc->source.ss : NULL;
}

static int prepare(const struct forward_conf *fc, const struct sockaddr *source, int fd)
{
	socklen_t len = source && source->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
								  sizeof(struct sockaddr_in);
	int r = fc->interface ? socket_bind_interface(fd, fc->interface) : 0;

	if (!r && source)
		r = socket_bind_source(fd, source, len);
	return r;
}

int upstream_socket(const struct forward_conf *fc, struct socket_stock *stock,
		    const struct sockaddr *client, const struct addr *to)
{
	const struct sockaddr *source = source_of(fc, client);
	int fd, r;

	if (source && source->sa_family != to->ss.ss_family)
		return -EAFNOSUPPORT;
	if (stock) {
		fd = socket_stock_take(stock, to->ss.ss_family);
	} else {
		fd = socket(to->ss.ss_family, UPSTREAM_SOCKET_TYPE, 0);
		if (fd < 0)
			return -errno;
	}
	if (fd < 0 || (!source && !fc->interface))
		return fd;
	r = prepare(fc, source, fd);
	if (!r)
		return fd;
	close(fd);
	return r;
}

/* --- a socket that meets itself --- */

void upstream_socket_learn_ports(void)
{
	unsigned int first, last;
	FILE *f = fopen(PORT_RANGE, "re");

	if (!f)
		return;
	if (fscanf(f, "%u %u", &first, &last) == 2) {
		first_port = first;
		last_port = last;
	}
	fclose(f);
}

/*
 * Where nobody listens at a port of this machine, the kernel may choose that very port to connect
 * from: then the SYN meets the socket that has sent it, and that is connected to itself (RFC 9293,
 * simultaneous open).
 */
static bool may_meet_itself(const struct addr *to)
{
	unsigned int port = addr_is_inet(to) ? ntohs(addr_port(to)) : 0;

	return port >= first_port && port <= last_port;
}

static bool has_met_itself(int fd, const struct addr *to)
{
	struct addr own = { .len = sizeof(own.ss) }, unmapped = addr_unmapped(to);

	if (getsockname(fd, (struct sockaddr *)&own.ss, &own.len))
		return false;
	own = addr_unmapped(&own);
	return addr_equal(&own, &unmapped);
}

int upstream_socket_connect(int fd, const struct addr *to)
{
	int error = connect(fd, (const struct sockaddr *)&to->ss, to->len) ? errno : 0;

	if ((!error || error == EINPROGRESS) && may_meet_itself(to) && has_met_itself(fd, to))
		return ECONNREFUSED;
	return error;
}

const char *upstream_socket_error(int error)
{
	switch (error) {
	case EAFNOSUPPORT:
		return "skipped, it is of another address family than the connection's source";
	case ENODEV:
		return "the network interface that the forward's `interface` names, or its "
		       "`source` behind %, does not exist";
	case EPIPE:
		return "the privileged process, which makes sockets with a mark or for transparent "
		       "forwarding, has ended: start culvert again";
	case UPSTREAM_SOCKET_LACKS:
		return "no socket with a mark or for transparent forwarding was to be had within "
		       "connect-timeout: the privileged process, which makes them, does not keep "
		       "up, or hangs";
	default:
		return strerror(error);
	}
}
