/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LISTEN_SOCKET_H
#define CULVERT_LISTEN_SOCKET_H

#include <stdbool.h>

#include "config/config.h"

#define LISTEN_BACKLOG 4096

/*
 * One listening socket, made in the same way by the daemon, while it starts, and by the privileged
 * process (privileged.h), which makes the later ones.  Sockets of one address are a group
 * (SO_REUSEPORT), for which the kernel wants all of them to be made under the same effective uid.
 */

/*
 * Before the first socket of A: SO_REUSEPORT would also let a second culvert of the same user share
 * the port in silence, so it must be free without that.  The file of a unix socket that nobody
 * listens on any more is left over from a crash, and is removed.  -errno.
 */
int listen_socket_make_room(const struct forward_conf *fc, const struct addr *a);

/* Socket, options of FC, bind(2), listen(2).  REUSEPORT: one of a group; not for unix sockets. */
int listen_socket_open(const struct forward_conf *fc, const struct addr *a, bool reuseport,
		       int *ret_fd);

/* What is accepted from FD, which listens on A, shall be as FC says.  -errno. */
int listen_socket_set_options(int fd, const struct forward_conf *fc, const struct addr *a);

/* Does the kernel make IPv6 sockets at all?  Without (ipv6.disable=1) it makes none. */
bool listen_socket_has_ipv6(void);

/* Port 0 in A becomes the one that the kernel has picked for FD.  False: nothing was to do. */
bool listen_socket_learn_port(struct addr *a, int fd);

#endif
