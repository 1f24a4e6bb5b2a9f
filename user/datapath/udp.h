/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/addr.h"

/*
 * Sockets of UDP, and batches of datagrams.  Functions return 0 or -errno if nothing else is said.
 *
 * A message is the data of one call: one datagram, or several of one size in a row (UDP_GRO,
 * UDP_SEGMENT).  The last datagram may be shorter.
 */

#define UDP_MESSAGE_MAX 65536 /* bytes of payload, and then some */

struct udp_message {
	union client_addr peer;  /* only of a listening socket */
	union client_addr local; /* likewise: our address, port 0; AF_UNSPEC: the socket's */
	uint8_t *data;
	size_t len;
	unsigned int segment; /* bytes of each datagram; LEN or more if there is one alone */
};

/* Datagrams in M, at least 1: one may be empty. */
unsigned int udp_datagrams(const struct udp_message *m);

/* Set the options of any socket of UDP: IP_RECVERR, which reports errors of the path; UDP_GRO. */
int udp_set_flow(int fd, int family);
/*
 * The same for a socket that is to listen at A.  If A is the wildcard address, the receiver is told
 * the local address (IP_PKTINFO).  An error of the path may come to any socket of the address: the
 * program of udp_spread() chooses for datagrams alone.
 */
int udp_set_listener(int fd, const struct addr *a);
/*
 * Let the kernel choose among the N sockets at an address by udp_worker(): FD is one of them, and
 * all are bound, in the order of the workers.
 */
int udp_spread(int fd, int family, unsigned int n);
/* The worker, of N, that has the flows of PEER. */
unsigned int udp_worker(const union client_addr *peer, unsigned int n);
/* FD drops all datagrams from now on. */
int udp_block(int fd);
/* Drop the datagrams that FD has received so far. */
void udp_discard(int fd);

/*
 * Room for UDP_BATCH messages, until free().  NULL: no memory.  Pages are taken as they are needed.
 */
#define UDP_BATCH 32
struct udp_batch;
struct udp_batch *udp_batch_new(void);

/*
 * Receive messages from FD, as many as B has room for, without waiting.  Returns their number
 * (udp_batch_at() has them); -errno: as recvmmsg(2), once for each error that udp_next_error() has
 * not returned yet.
 */
int udp_receive(struct udp_batch *b, int fd);
struct udp_message *udp_batch_at(struct udp_batch *b, unsigned int i);

/*
 * Send M on FD, which is connected.  PREFIX, if not NULL, goes before each datagram (PROXY header).
 * -EAGAIN: no room, the rest of M is lost; -EMSGSIZE: more than UDP can send.  Another error may
 * be an earlier datagram's: so the send was repeated, and the second error is returned.
 */
int udp_send(int fd, const struct udp_message *m, const void *prefix, size_t prefix_len);
/* The same on FD, which listens: to M's peer, from its local address. */
int udp_send_to(int fd, struct udp_message *m);

/* An error of the path that a datagram of ours has met. */
struct udp_error {
	union client_addr peer;  /* where it was sent */
	union client_addr local; /* AF_UNSPEC: not told */
	int error;               /* errno: ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EMSGSIZE, ... */
	uint32_t mtu;            /* EMSGSIZE: the largest packet that fits */
};
/* The next error of FD.  False: there is none any more. */
bool udp_next_error(int fd, struct udp_error *ret);

/*
 * Add LOCAL (AF_UNSPEC: any) as the source address to the control data of H, which has room for it.
 */
#define UDP_SOURCE_SPACE CMSG_SPACE(sizeof(struct in6_pktinfo))
void udp_add_source(struct msghdr *h, const union client_addr *local);
