/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_UPSTREAM_SOCKET_H
#define CULVERT_UPSTREAM_SOCKET_H

#include <errno.h>

#include "config/config.h"

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

/*
 * Find out from which ports the kernel connects.  Once, before there are threads, since a daemon
 * that is confined cannot.
 */
void upstream_socket_learn_ports(void);

/*
 * As connect(2): 0 or errno.  ECONNREFUSED: also if FD has been connected to itself; it must then
 * be closed by RST.
 */
int upstream_socket_connect(int fd, const struct addr *to);

/* An error for those who have waited in vain for one in stock; connect(2) knows it not. */
#define UPSTREAM_SOCKET_LACKS ENOSR

/* As strerror(3), but it knows what is meant here. */
const char *upstream_socket_error(int error);

#endif
