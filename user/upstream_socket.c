// SPDX-License-Identifier: BSD-2-Clause
#include "upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <unistd.h>

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
	SYSCALL(connect),
	SYSCALL(getsockname),
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

/*
 * A listener at every local address takes what comes to any of them.  Which those are is seen when
 * a connection is under way: one to a local address comes from the same.  All that is sure before,
 * the configuration and the names have kept out already, by addr_leads_to().
 */
static bool may_loop(const struct forward_conf *fc, const struct addr *to)
{
	for (size_t i = 0; i < fc->listen.n_addrs; i++) {
		const struct addr *l = &fc->listen.addrs[i];

		if (l->ss.ss_family == to->ss.ss_family && addr_is_any(l) &&
		    addr_port(l) == addr_port(to))
			return !fc->interface; /* which may be one of another routing domain */
	}
	return false;
}

static bool comes_from(const struct addr *to, int fd)
{
	struct addr from = { .len = sizeof(from.ss) };

	if (getsockname(fd, (struct sockaddr *)&from.ss, &from.len))
		return false;
	addr_set_port(&from, addr_port(to));
	return addr_equal(&from, to);
}

int upstream_connect(const struct forward_conf *fc, const struct addr *to, int fd)
{
	int r = connect(fd, (const struct sockaddr *)&to->ss, to->len) ? errno : 0;

	return (!r || r == EINPROGRESS) && may_loop(fc, to) && comes_from(to, fd) ?
		       UPSTREAM_SOCKET_LOOPS : r;
}

const char *upstream_socket_error(int error)
{
	switch (error) {
	case EAFNOSUPPORT:
		return "skipped, it is of another address family than the connection's source";
	case EPIPE:
		return "the privileged process, which makes sockets with a mark or for transparent "
		       "forwarding, has ended: start culvert again";
	case UPSTREAM_SOCKET_LOOPS:
		return "a loop, it is an address of this machine, where this forward itself listens";
	case UPSTREAM_SOCKET_LACKS:
		return "no socket with a mark or for transparent forwarding was to be had within "
		       "connect-timeout: the privileged process, which makes them, does not keep "
		       "up, or hangs";
	default:
		return strerror(error);
	}
}
