/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdint.h>

#include "base/addr.h"

/*
 * ICMP errors about datagrams that this daemon has taken and cannot deliver.  Their senders get the
 * errors that a router would send.
 */

/*
 * Make the raw sockets, which can send errors and receive nothing.  Needs CAP_NET_RAW; without it
 * no error is sent.  Once, before there are threads.
 */
void icmp_open(void);

/*
 * Tell TO, of IPv4 or IPv6, that its datagram could not be delivered.  TO had sent the datagram to
 * FROM, so the error comes from FROM.  ERROR is the errno.  MTU: the largest packet that fits, in
 * the family of TO; 0: the size is not the reason.  At most 1,000 errors a second in all.  By any
 * thread.
 */
void icmp_tell(const union client_addr *to, const union client_addr *from, int error, uint32_t mtu);
