/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_UPSTREAM_SOCKET_H
#define CULVERT_UPSTREAM_SOCKET_H

#include <errno.h>

#include "config.h"

struct socket_stock;

#define UPSTREAM_SOCKET_TYPE (SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC)

/*
 * A socket that can be connected to TO, an upstream of FC, for CLIENT: with FC's mark, interface
 * and source address, or the client's if FC is transparent.  STOCK: where those with a mark and
 * transparent ones come from; NULL: FC needs none.
 * Returns the descriptor or -errno: -EAGAIN, there is none in stock at the moment; -EAFNOSUPPORT,
 * TO is of another family than the source address.
 */
int upstream_socket(const struct forward_conf *fc, struct socket_stock *stock,
		    const struct sockaddr *client, const struct addr *to);

/* An error for those who have waited in vain for one in stock; connect(2) knows it not. */
#define UPSTREAM_SOCKET_LACKS ENOSR

/*
 * Begin to connect FD, of upstream_socket(), to TO.  Returns 0: connected; EINPROGRESS;
 * UPSTREAM_SOCKET_LOOPS: TO is the listener of FC itself, so the connection would be accepted here
 * and connected again, and so on; or an errno of connect(2).  FD stays the caller's, who closes it,
 * with RST, as the connection to itself may have been made.
 */
int upstream_connect(const struct forward_conf *fc, const struct addr *to, int fd);

/* connect(2) knows it not. */
#define UPSTREAM_SOCKET_LOOPS EDEADLK

/* As strerror(3), but it knows what is meant here. */
const char *upstream_socket_error(int error);

#endif
