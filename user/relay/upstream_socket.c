// SPDX-License-Identifier: BSD-2-Clause
#include "relay/upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"
#include "datapath/graft.h"
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
	SYSCALL(bind), SYSCALL(connect),
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

/* --- tuples of other relays' sessions --- */

#define TRIES 64

static const struct grafts *grafts;
static in_port_t (*draw_port)(void);

void upstream_learn_grafts(const struct grafts *gs, in_port_t (*draw)(void))
{
	grafts = gs;
	draw_port = draw;
}

/*
 * Bind FD to SOURCE and a port that no session of another relay to TO has.  The kernel, which chooses
 * the port else, does not know of these.  -errno.
 */
static int bind_unheld(int fd, const struct sockaddr *source, const struct addr *to)
{
	struct addr a = { .len = sizeof(a.in6) };
	struct graft_tuple t;
	int r = -EADDRINUSE;

	memcpy(&a.in6, source, sizeof(a.in6));
	for (unsigned int i = 0; i < TRIES && r == -EADDRINUSE; i++) {
		addr_set_port(&a, draw_port());
		graft_tuple_set(&t, (const struct sockaddr *)&to->ss, (struct sockaddr *)&a.ss);
		if (graft_find(grafts, &t) == NO_SLOT)
			r = bind(fd, (struct sockaddr *)&a.ss, a.len) ? -errno : 0;
	}
	return r == -EADDRINUSE ? -EADDRNOTAVAIL : r;
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
		r = grafts_hold(grafts) ?
			    bind_unheld(fd, source, to) :
			    socket_bind_source(fd, source, sizeof(struct sockaddr_in6));
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

void upstream_ports(unsigned int ret[2])
{
	ret[0] = first_port;
	ret[1] = last_port;
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
