/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/udp/udp_session.h"

/*
 * Sockets of UDP that clients send to.  They outlive their listener: as long as there are sessions,
 * these go on.
 */

/*
 * W begins to serve F by the socket FD, which is bound to A and becomes the module's; no other
 * worker reads what comes by it.  NULL: it cannot.  That is logged.
 */
struct udp_socket *udp_listener_start(struct worker *w, struct forward *f, const struct addr *a,
				      int fd);
/* New sessions are no more to come by US, which may be freed. */
void udp_listener_end(struct udp_socket *us);
