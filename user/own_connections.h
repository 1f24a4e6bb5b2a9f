/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_OWN_CONNECTIONS_H
#define CULVERT_OWN_CONNECTIONS_H

#include <errno.h>

#include "addr.h"

/*
 * The connections that this daemon makes to itself: from one of its forwards to another, which is
 * fine, or round in a circle.  What the configuration says of circles is seen when it is read; this
 * is for names that come to mean this machine, and for addresses of it that nobody told us about.
 *
 * All workers share it, without a lock.
 */
struct own_connections;

/* So many times a connection may come through this daemon; the next time is taken for a circle. */
#define OWN_CONNECTIONS_MAX 8

/* What connect(2) never returns. */
#define OWN_CONNECTIONS_LOOP EDEADLK

/* -ENOMEM. */
int own_connections_open(struct own_connections **ret);
void own_connections_close(struct own_connections *o);

/* Somebody listens at A. */
void own_connections_listen(struct own_connections *o, const struct addr *a);

/*
 * Connect FD to TO, for the client at PEER, as connect(2) does.  Returns 0 or errno;
 * OWN_CONNECTIONS_LOOP: not done, PEER is this daemon itself, and has come a long way already;
 * ECONNREFUSED: also if FD has been connected to itself, so that FD must be closed by RST.
 */
int own_connections_make(struct own_connections *o, int fd, const struct addr *to,
			 const struct sockaddr *peer);

#endif
