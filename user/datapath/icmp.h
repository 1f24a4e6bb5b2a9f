/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdint.h>

#include "base/addr.h"

/*
 * ICMP errors about datagrams that this daemon has taken and cannot deliver, for who has sent them.
 * So they hear what they would hear of a router.
 */

/*
 * Make the raw sockets, which can send errors and receive nothing.  Needs CAP_NET_RAW; without it
 * nobody is told of errors.  Once, before there are threads.
 */
void icmp_open(void);

/*
 * Tell TO, of IPv4 or IPv6, that a datagram of it to FROM could not be delivered: for ERROR, an
 * errno.  MTU: what fits, in the family of TO; 0 if that is not why.  At most 1,000 a second for
 * all.  By any thread.
 */
void icmp_tell(const union client_addr *to, const union client_addr *from, int error, uint32_t mtu);
