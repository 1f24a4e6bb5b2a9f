// SPDX-License-Identifier: BSD-2-Clause
#include "relay/upstream_socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"
#include "datapath/graft/graft.h"
#include "datapath/tcp.h"
#include "relay/marked_sockets.h"

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51 /* since Linux 6.3 */
#endif
#define PORT_RANGE "/proc/sys/net/ipv4/ip_local_port_range" /* of IPv6, too */

#define ALLOWED_SOCKET(family, type)                                                               \
	SYSCALL(socket, SYSCALL_ARG(0, family), SYSCALL_ARG(1, type), SYSCALL_ARG(2, 0))

SYSCALLS_ALLOWED(
	ALLOWED_SOCKET(AF_INET, UPSTREAM_SOCKET_TYPE),
	ALLOWED_SOCKET(AF_INET6, UPSTREAM_SOCKET_TYPE),
	ALLOWED_SOCKET(AF_UNIX, UPSTREAM_SOCKET_TYPE),
	ALLOWED_SOCKET(AF_INET, UPSTREAM_SOCKET_UDP),
	ALLOWED_SOCKET(AF_INET6, UPSTREAM_SOCKET_UDP),
	SYSCALL(connect), SYSCALL(getsockname),
	SETSOCKOPT_IF(PART_GRAFT, IPPROTO_IP, IP_LOCAL_PORT_RANGE));

enum cause upstream_cause(int error)
{
	return error == ECONNREFUSED || error == ENOENT ? CAUSE_CONNECT_REFUSED :
	       error == ETIMEDOUT                       ? CAUSE_CONNECT_TIMEOUT :
	       error == ENOSR                           ? CAUSE_NO_SOCKET :
	       error == ENETUNREACH || error == EHOSTUNREACH ?
				CAUSE_CONNECT_UNREACHABLE :
				tcp_cause_of_shortage(error, CAUSE_CONNECT_FAILED);
}

static int open_socket(const struct forward *f, const struct sockaddr *source,
		       const struct addr *to, bool udp)
{
	bool stock = f->stock && udp == f->conf->listen.udp;
	int fd, r = 0;

	if (source && source->sa_family != to->ss.ss_family)
		return -EAFNOSUPPORT;
	fd = stock ? marked_sockets_take(f->stock, to->ss.ss_family) :
		     socket(to->ss.ss_family, udp ? UPSTREAM_SOCKET_UDP : UPSTREAM_SOCKET_TYPE, 0);
	if (fd < 0)
		return stock ? fd : -errno;
	if (f->conf->interface)
		r = socket_bind_interface(fd, f->conf->interface);
	/* SOURCE has room for either family, and bind(2) takes this length for both */
	if (!r && source && !udp)
		r = socket_bind_source(fd, source, sizeof(struct sockaddr_in6));
	if (!r)
		return fd;
	close(fd);
	return r;
}

static const struct sockaddr *configured_source(const struct forward_conf *fc)
{
	return fc->source.len ? &fc->source.sa : NULL;
}

int upstream_socket(const struct forward *f, const struct sockaddr *client, const struct addr *to)
{
	const struct forward_conf *fc = f->conf;

	return open_socket(f, fc->transparent ? client : configured_source(fc), to, fc->listen.udp);
}

int upstream_check_socket(const struct forward *f, const struct addr *to, bool udp)
{
	const struct sockaddr *source = configured_source(f->conf);
	int fd = open_socket(f, source, to, udp), r;

	if (fd < 0 || !udp || !source)
		return fd;
	r = socket_bind_source(fd, source, sizeof(struct sockaddr_in6));
	if (!r)
		return fd;
	close(fd);
	return r;
}

/* --- ports that the kernel must not choose --- */

/* The default, for a kernel that does not tell its ports. */
unsigned int upstream_ports[2] = { 1024, 65535 };

bool upstream_learn_ports(void)
{
	FILE *f = fopen(PORT_RANGE, "re");
	bool found = f && fscanf(f, "%u %u", &upstream_ports[0], &upstream_ports[1]) == 2;

	if (f)
		fclose(f);
	return found;
}

bool upstream_use_any(const unsigned int ports[2])
{
	return ports[0] <= upstream_ports[1] && upstream_ports[0] <= ports[1];
}

#define TRIES 256

static struct graft_table *_Atomic grafts; /* NULL: no other relay's session can be here */

void upstream_avoid(struct graft_table *gs)
{
	atomic_store(&grafts, gs);
}

static bool is_held(const struct addr *to, const struct addr *own)
{
	struct graft_table *gs = atomic_load(&grafts);
	struct graft_tuple t;

	if (!gs)
		return false;
	graft_tuple_set(&t, &to->sa, &own->sa);
	return graft_find(gs, false, &t) != NO_SLOT;
}

/*
 * Disconnect FD.  Its next connection begins at a port that is not below FIRST.  The kernel prefers
 * ports with the parity of FIRST.  Sessions of another relay may hold all such ports that the
 * kernel believes to be free.  So the caller alternates between the parities.
 */
static void disconnect(int fd, unsigned int first)
{
	const struct sockaddr nowhere = { .sa_family = AF_UNSPEC };
	uint32_t range = first | upstream_ports[1] << 16;

	(void)connect(fd, &nowhere, sizeof(nowhere));
	setsockopt(fd, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof(range));
}

/*
 * If nobody listens at a port of this machine, the kernel may choose that very port to connect
 * from.  Then the SYN meets the socket that has sent it, and the socket is connected to itself (RFC
 * 9293, simultaneous open).  The kernel does not know the tuples of other relays' sessions: a SYN
 * from such a tuple would end at the packet programs.
 */
int upstream_connect(int fd, const struct addr *to)
{
	unsigned int port = ntohs(addr_port(to));
	bool may_meet_itself = port >= upstream_ports[0] && port <= upstream_ports[1];

	for (unsigned int i = 0; i < TRIES; i++) {
		int error = connect(fd, &to->sa, to->len) ? errno : 0;
		struct addr own = { .len = sizeof(own.ss) };

		if ((error && error != EINPROGRESS) || !(may_meet_itself || atomic_load(&grafts)) ||
		    !addr_is_inet(to) || getsockname(fd, &own.sa, &own.len))
			return error;
		if (addr_equal(&own, to))
			return ECONNREFUSED;
		if (!is_held(to, &own))
			return error;
		disconnect(fd, upstream_ports[0] + !(i % 2));
	}
	return EADDRNOTAVAIL;
}
