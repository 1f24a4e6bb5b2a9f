// SPDX-License-Identifier: BSD-2-Clause
#include "relay/upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"
#include "datapath/graft/graft.h"
#include "datapath/tcp.h"
#include "relay/marked_sockets.h"

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51 /* since Linux 6.3 */
#endif
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
	SYSCALL(connect), SYSCALL(getsockname),
	SETSOCKOPT_IF(PART_GRAFT, IPPROTO_IP, IP_LOCAL_PORT_RANGE));

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
	/* SOURCE has room for either family, and bind(2) takes this length for both */
	if (!r && source && !fc->listen.udp)
		r = socket_bind_source(fd, source, sizeof(struct sockaddr_in6));
	if (!r)
		return fd;
	close(fd);
	return r;
}

/* --- ports that the kernel must not choose --- */

/* Ports that the kernel may connect from; a wide guess, where it does not tell. */
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

#define TRIES 256

static const struct graft_table *_Atomic grafts; /* NULL: no other relay's session can be here */

void upstream_avoid(const struct graft_table *gs)
{
	atomic_store(&grafts, gs);
}

static bool is_held(const struct addr *to, const struct addr *own)
{
	const struct graft_table *gs = atomic_load(&grafts);
	struct graft_tuple t;

	if (!gs)
		return false;
	graft_tuple_set(&t, (const struct sockaddr *)&to->ss, (const struct sockaddr *)&own->ss);
	return graft_find(gs, &t) != NO_SLOT;
}

/*
 * Disconnect FD.  Its next connection begins at a port that is not below FIRST.  The kernel prefers
 * ports with the parity of FIRST, and sessions of another relay may hold all of these that the
 * kernel takes for free.  So the caller alternates between the parities.
 */
static void disconnect(int fd, unsigned int first)
{
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };
	uint32_t range = first | last_port << 16;

	(void)connect(fd, &nowhere, sizeof(nowhere));
	setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range));
}

/*
 * If nobody listens at a port of this machine, the kernel may choose that very port to connect
 * from.  Then the SYN meets the socket that has sent it, and the socket is connected to itself (RFC
 * 9293, simultaneous open).  The kernel does not know the tuples of sessions of other relays
 * either: a SYN from such a tuple would end at the packet programs.
 */
int upstream_connect(int fd, const struct addr *to)
{
	unsigned int port = ntohs(addr_port(to));
	bool may_meet_itself = port >= first_port && port <= last_port;

	for (unsigned int i = 0; i < TRIES; i++) {
		int error = connect(fd, (const struct sockaddr *)&to->ss, to->len) ? errno : 0;
		struct addr own = { .len = sizeof(own.ss) };

		if ((error && error != EINPROGRESS) || !(may_meet_itself || atomic_load(&grafts)) ||
		    !addr_is_inet(to) || getsockname(fd, (struct sockaddr *)&own.ss, &own.len))
			return error;
		if (addr_equal(&own, to))
			return ECONNREFUSED;
		if (!is_held(to, &own))
			return error;
		disconnect(fd, first_port + !(i % 2));
	}
	return EADDRNOTAVAIL;
}
