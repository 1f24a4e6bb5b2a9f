/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SOCKET_OPTIONS_H
#define CULVERT_SOCKET_OPTIONS_H

#include <sys/socket.h>

/* What makes packets of a TCP socket leave in another way than others.  0 or -errno. */

/* SO_MARK, for `ip rule ... fwmark` and firewalls.  CAP_NET_ADMIN. */
int socket_set_mark(int fd, unsigned int mark);

/*
 * IP_TRANSPARENT: it may have addresses that are not this machine's.  Of a listener, its accepted
 * sockets have it too.  CAP_NET_ADMIN.
 */
int socket_set_transparent(int fd, int family);
/* And no longer, for which it takes no privilege.  Sockets that a listener has accepted stay so. */
int socket_clear_transparent(int fd, int family);

/* SO_BINDTODEVICE, which needs no privilege on a socket that has no interface yet (Linux 5.7). */
int socket_bind_interface(int fd, const char *name);

/*
 * A local address, whose port is ignored: the kernel picks one at connect(2), where it need only
 * differ from other connections to the same place (IP_BIND_ADDRESS_NO_PORT).
 */
int socket_bind_source(int fd, const struct sockaddr *source, socklen_t len);

#endif
