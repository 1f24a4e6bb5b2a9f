// SPDX-License-Identifier: BSD-2-Clause
#include "upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

#include "own_connections.h"
#include "socket_options.h"
#include "socket_stock.h"
#include "syscall_filter.h"

SYSCALLS_NEEDED(
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL_IF(PART_UNIX, socket, SYSCALL_ARG(0, AF_UNIX),
		   SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE), SYSCALL_ARG(2, 0)),
	SYSCALL(close));

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
	case OWN_CONNECTIONS_LOOP:
		return "a loop: this connection has come through culvert several times already";
	case UPSTREAM_SOCKET_LACKS:
		return "no socket with a mark or for transparent forwarding was to be had within "
		       "connect-timeout: the privileged process, which makes them, does not keep "
		       "up, or hangs";
	default:
		return strerror(error);
	}
}
