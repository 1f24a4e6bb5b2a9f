// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: a connection to a port that is listened at here is noted in a table, by its
 * own port, with its descriptor.  A client is taken for the daemon itself if the descriptor that is
 * noted for its port is, at this moment, a socket with its address.  So what is noted need never be
 * taken out, and may be overwritten: then a connection is not recognised, which its next turn makes
 * up for.  Wrong the other way is a program of this machine that has the same port as one of our
 * connections to another place: it has come through once more than it has, which does not matter.
 */
#include "own_connections.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "syscall_filter.h"

SYSCALLS_NEEDED(SYSCALL(connect), SYSCALL(getsockname));

#define PORTS 65536
/* A note: the descriptor, and how often it has come through. */
#define TIMES_BITS 8
#define NOTE(fd, times) ((uint64_t)(fd) << TIMES_BITS | (times))
#define FD_OF(note) ((int)((note) >> TIMES_BITS))
#define TIMES_OF(note) ((unsigned int)((note) & ((1U << TIMES_BITS) - 1)))

struct own_connections {
	_Atomic uint64_t listened[PORTS / 64];
	_Atomic uint64_t notes[PORTS]; /* 0: none */
};

int own_connections_open(struct own_connections **ret)
{
	*ret = calloc(1, sizeof(**ret));
	return *ret ? 0 : -ENOMEM;
}

void own_connections_close(struct own_connections *o)
{
	free(o);
}

void own_connections_listen(struct own_connections *o, const struct addr *a)
{
	in_port_t port = addr_port(a);

	atomic_fetch_or(&o->listened[port / 64], UINT64_C(1) << port % 64);
}

static bool is_listened(const struct own_connections *o, in_port_t port)
{
	return atomic_load_explicit(&o->listened[port / 64], memory_order_relaxed) >> port % 64 & 1;
}

static bool local_addr(int fd, struct addr *ret)
{
	*ret = (struct addr){ .len = sizeof(ret->ss) };
	if (getsockname(fd, (struct sockaddr *)&ret->ss, &ret->len))
		return false;
	*ret = addr_unmapped(ret);
	return addr_is_inet(ret);
}

/* How often a connection from PEER has come through here already. */
static unsigned int times(const struct own_connections *o, const struct sockaddr *peer)
{
	struct addr client = { .len = peer->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) :
								     sizeof(struct sockaddr_in) };
	struct addr own;
	uint64_t note;

	if (peer->sa_family != AF_INET && peer->sa_family != AF_INET6)
		return 0;
	memcpy(&client.ss, peer, client.len);
	client = addr_unmapped(&client);
	note = atomic_load(&o->notes[addr_port(&client)]);
	return note && local_addr(FD_OF(note), &own) && addr_equal(&own, &client) ?
		       TIMES_OF(note) : 0;
}

/*
 * Where nobody listens at a port of this machine, the kernel may choose that very port to connect
 * from: then the SYN meets the socket that has sent it, and that is connected to itself (RFC 9293,
 * simultaneous open).  It does not choose lower ones, see net.ipv4.ip_local_port_range.
 */
static bool may_meet_itself(const struct addr *to)
{
	return addr_is_inet(to) && ntohs(addr_port(to)) >= 1024;
}

int own_connections_make(struct own_connections *o, int fd, const struct addr *to,
			 const struct sockaddr *peer)
{
	bool noted = addr_is_inet(to) && is_listened(o, addr_port(to));
	unsigned int n = noted ? times(o, peer) : 0;
	struct addr own, unmapped;
	int r;

	if (n >= OWN_CONNECTIONS_MAX)
		return OWN_CONNECTIONS_LOOP;
	r = connect(fd, (const struct sockaddr *)&to->ss, to->len) ? errno : 0;
	if ((r && r != EINPROGRESS) || !(noted || may_meet_itself(to)) || !local_addr(fd, &own))
		return r;
	if (noted)
		atomic_store(&o->notes[addr_port(&own)], NOTE(fd, n + 1));
	unmapped = addr_unmapped(to);
	return addr_equal(&own, &unmapped) ? ECONNREFUSED : r;
}
