/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/types.h>

struct graft_side;

/*
 * Make a socket for a connection that has lost its own.  No packet is sent (TCP_REPAIR, which needs
 * CAP_NET_ADMIN).  SIDE has the addresses, and the numbers at which the lost socket was frozen.
 * UID is the owner, for ip rule ... uidrange.  A descriptor, or -errno.
 */
int tcp_revive(const struct graft_side *side, uid_t uid);
