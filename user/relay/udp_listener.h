/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/listener.h"
#include "relay/udp_session.h"

/*
 * Sockets of UDP that clients send to.  They outlive their listener: as long as there are sessions,
 * these go on.
 */

/* LS begins to take datagrams on its socket FD, which becomes the module's.  -ENOMEM. */
int udp_listener_start(struct listener *ls, int fd);
/* New sessions are no more to come by LS. */
void udp_listener_end(struct listener *ls);
/* After a batch of events of W. */
void udp_listener_after_batch(struct worker *w);
