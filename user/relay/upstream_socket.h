/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/socket.h>

#include "base/addr.h"
#include "datapath/stats.h"
#include "relay/forward.h"

struct graft_table;

/* Sockets that connect to servers, for sessions and for checks.  By any thread. */

#define UPSTREAM_SOCKET_TYPE (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)
#define UPSTREAM_SOCKET_UDP (SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

/*
 * Find out from which ports the kernel connects (net.ipv4.ip_local_port_range).  To be called
 * before there are threads, and before the daemon is confined.  False: the kernel does not tell.
 */
bool upstream_learn_ports(void);
/* The first and the last of these ports. */
extern unsigned int upstream_ports[2];
/* True if PORTS, the first and the last, have some of these. */
bool upstream_use_any(const unsigned int ports[2]);
/* GS may have sessions of other relays from now on: no socket may get one of their tuples. */
void upstream_avoid(struct graft_table *gs);

/*
 * A non-blocking socket that can be connected to TO, with F's mark, interface and source.  CLIENT:
 * the source address if F is transparent; NULL: an address of this machine.  A socket of UDP is
 * left unbound: the caller binds it, together with a port.  -errno.
 */
int upstream_socket(const struct forward *f, const struct sockaddr *client, const struct addr *to);
/* The same for a check by UDP, or by TCP, bound to F's source.  F's servers may be of the other. */
int upstream_check_socket(const struct forward *f, const struct addr *to, bool udp);
/* As connect(2), but a socket that would connect to itself is refused: 0 or errno. */
int upstream_connect(int fd, const struct addr *to);

/* The cause to count for errno ERROR of a connect. */
enum cause upstream_cause(int error);
