// SPDX-License-Identifier: BSD-2-Clause
#include "relay/upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"
#include "relay/marked_sockets.h"

#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range" /* of IPv6, too */

SYSCALLS_ALLOWED(
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_UNIX), SYSCALL_ARG(1, UPSTREAM_SOCKET_TYPE),
		SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET), SYSCALL_ARG(1, UPSTREAM_SOCKET_UDP),
		SYSCALL_ARG(2, 0)),
	SYSCALL(socket, SYSCALL_ARG(0, AF_INET6), SYSCALL_ARG(1, UPSTREAM_SOCKET_UDP),
		SYSCALL_ARG(2, 0)),
	SYSCALL(connect),
	SYSCALL(getsockname));

enum cause upstream_cause(int error)
{
	switch (error) {
	case ECONNREFUSED:
	case ENOENT:
		return CAUSE_CONNECT_REFUSED;
	case ETIMEDOUT:
		return CAUSE_CONNECT_TIMEOUT;
	case ENOSR:
		return CAUSE_NO_SOCKET;
	case ENETUNREACH:
	case EHOSTUNREACH:
		return CAUSE_CONNECT_UNREACHABLE;
	default:
		return tcp_cause_of_shortage(error, CAUSE_CONNECT_FAILED);
	}
}

int upstream_socket(const struct forward *f, const struct sockaddr *client, const struct addr *to)
{
	const struct forward_conf *fc = f->conf;
	const struct sockaddr *source = fc->transparent ? client :
					fc->source.len  ? (const void *)&fc->source.ss :
							  NULL;
	int fd, r = 0;

	if (source && source->sa_family != to->ss.ss_family)
		return -EAFNOSUPPORT;
	fd = f->stock ? marked_sockets_take(f->stock, to->ss.ss_family) :
			socket(to->ss.ss_family,
			       fc->listen.udp ? UPSTREAM_SOCKET_UDP : UPSTREAM_SOCKET_TYPE, 0);
	if (fd < 0)
		return f->stock ? fd : -errno;
	if (fc->interface)
		r = socket_bind_interface(fd, fc->interface);
	/* there is room for either family, and either takes so many bytes */
	if (!r && source && !fc->listen.udp)
		r = socket_bind_source(fd, source, sizeof(struct sockaddr_in6));
	if (!r)
		return fd;
	close(fd);
	return r;
}

/* --- a socket that meets itself --- */

/* Ports that the kernel may connect from; what a kernel has that does not tell. */
static unsigned int first_port = 1024, last_port = 65535;

bool upstream_port_range(unsigned int *ret_first, unsigned int *ret_last)
{
	FILE *f = fopen(PORT_RANGE, "re");
	bool found = f && fscanf(f, "%u %u", ret_first, ret_last) == 2;

	if (f)
		fclose(f);
	return found;
}

void upstream_learn_ports(void)
{
	(void)upstream_port_range(&first_port, &last_port);
}

/*
 * Where nobody listens at a port of this machine, the kernel may choose that very port to connect
 * from: then the SYN meets the socket that has sent it, and that is connected to itself (RFC 9293,
 * simultaneous open).
 */
int upstream_connect(int fd, const struct addr *to)
{
	int error = connect(fd, (const struct sockaddr *)&to->ss, to->len) ? errno : 0;
	struct addr own = { .len = sizeof(own.ss) };
	unsigned int port = ntohs(addr_port(to));

	if ((!error || error == EINPROGRESS) && port >= first_port && port <= last_port &&
	    !getsockname(fd, (struct sockaddr *)&own.ss, &own.len) && addr_equal(&own, to))
		return ECONNREFUSED;
	return error;
}
