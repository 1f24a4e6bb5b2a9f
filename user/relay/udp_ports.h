/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The local ports of flows.  A late answer must not reach another client's flow, so a port that was
 * used rests.  Any of the others may be the next, since who can guess the port can forge answers.
 * Ports are from net.ipv4.ip_local_port_range, but for those of ip_local_reserved_ports.  By any
 * thread.
 */

/*
 * So long a port rests: after one question and its answers, when no more than what the network has
 * doubled can come; after what was given up; and after a stream that its server may go on sending.
 */
#define UDP_PORT_RESTS_MS 250
#define UDP_PORT_OWED_MS 2000
#define UDP_PORT_STREAM_MS 60000

/* Read both settings.  Once, before there are threads. */
void udp_ports_open(void);
/* A port in network order; 0: all, or nearly all, are in use or rest. */
in_port_t udp_port_take(uint64_t now_ms);
/* This one, of a flow that a daemon before this one has left.  False: it is not one of ours. */
bool udp_port_take_this(in_port_t port);
/* PORT, whether it was used, or has turned out to be somebody else's, rests until FREE_MS. */
void udp_port_put(in_port_t port, uint64_t free_ms);
