/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/addr.h"

/*
 * Sockets of UDP, and batches of datagrams.  Where nothing else is said, 0 or -errno is returned.
 *
 * A message is what one call receives or sends: one datagram, or several of one size behind each
 * other (UDP_GRO, UDP_SEGMENT), of which the last may be shorter.
 */

#define UDP_MESSAGE_MAX 65536 /* bytes of payload, and then some */

struct udp_message {
	union client_addr peer;  /* of a listening socket: where it comes from, or goes to */
	union client_addr local; /* the same: our address, with port 0; AF_UNSPEC: any */
	unsigned int ifindex;    /* the same: that it came by; for a link-local PEER */
	uint8_t *data;
	size_t len;
	unsigned int segment; /* bytes of each datagram; LEN or more if there is one alone */
};

/* Datagrams in M, at least 1: one may be empty. */
unsigned int udp_datagrams(const struct udp_message *m);

/*
 * Set what every flow's socket has: errors of the path are told (IP_RECVERR); what is too large is
 * fragmented; UDP_GRO.
 */
int udp_set_flow(int fd, int family);
/*
 * The same for a listening socket, and the receiver is told addresses (IP_PKTINFO).  An error of
 * the path may come to any socket of the address: the kernel asks udp_spread() of datagrams alone.
 */
int udp_set_listener(int fd, int family);
/*
 * Let the kernel choose among the N sockets at an address by udp_worker(): FD is one of them, and
 * all are bound, in the order of the workers.
 */
int udp_spread(int fd, int family, unsigned int n);
/* The worker, of N, that has the flows of PEER. */
unsigned int udp_worker(const union client_addr *peer, unsigned int n);
/* FD drops all that comes (BLOCK), or takes it again. */
int udp_block(int fd, bool block);

/*
 * A batch: room for COUNT messages of UDP_MESSAGE_MAX bytes.  NULL: no memory.  Pages are taken
 * as they are needed.
 */
struct udp_batch;
struct udp_batch *udp_batch_new(unsigned int count);
void udp_batch_free(struct udp_batch *b); /* NULL is fine */

/*
 * Receive from FD what there is, up to N messages, into the rooms of B from FIRST on.  Waits for
 * nothing.  Returns how many (udp_batch_at() has them); 0: there is none; -errno: as recvmmsg(2),
 * once for each error that udp_next_error() has not told yet.  The look that finds no more costs a
 * fifth of receiving one: of who had one alone last time, N should be 1.
 */
int udp_receive(struct udp_batch *b, int fd, unsigned int first, unsigned int n);
struct udp_message *udp_batch_at(struct udp_batch *b, unsigned int i);

/*
 * Send M on FD, which is connected.  PREFIX, if not NULL, goes before each datagram (PROXY
 * header).  -EAGAIN: no room, the rest of M is lost; -EMSGSIZE; other errors may be of an earlier
 * datagram, then it was sent again, and the error is what the second try says.
 */
int udp_send(int fd, const struct udp_message *m, const void *prefix, size_t prefix_len);
/*
 * Send those N messages on FD, which listens, to their peers, from their local addresses.  Returns
 * how many of the first ones were sent.  If not all: the next one is lost, *RET_ERROR says why, as
 * udp_send() would; those behind it were not tried.
 */
unsigned int udp_send_to(int fd, struct udp_message *const *m, unsigned int n, int *ret_error);

/* An error of the path that a datagram of ours has met. */
struct udp_error {
	union client_addr peer;  /* where it was sent */
	union client_addr local; /* AF_UNSPEC: not told */
	int error;               /* errno: ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, EMSGSIZE, ... */
	uint8_t type, code; /* as in ICMP, or ICMPv6 if the socket is of IPv6; both 0: found here */
	bool icmp;          /* a message told of it; else this machine has found it */
	uint32_t mtu;       /* EMSGSIZE: what would have fitted */
};
/* The next error of FD.  False: there is none any more. */
bool udp_next_error(int fd, struct udp_error *ret);

/*
 * Add to the control data of H, which has room for it, that LOCAL (AF_UNSPEC: any) shall be the
 * source of what is sent; IFINDEX: for a link-local one.
 */
#define UDP_SOURCE_SPACE CMSG_SPACE(sizeof(struct in6_pktinfo))
void udp_add_source(struct msghdr *h, const union client_addr *local, unsigned int ifindex);

/* Bytes of the largest packet on FD's way, IP header included; 0: not known. */
uint32_t udp_path_mtu(int fd, int family);
