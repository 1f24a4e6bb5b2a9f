/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_LIMIT_H
#define CULVERT_CLIENT_LIMIT_H

#include <stdbool.h>
#include <sys/socket.h>

/*
 * How many sessions each client has.  A client is an IPv4 address or an IPv6 /64, which is what one
 * customer or one machine can choose addresses from.  Clients of unix sockets have no address and
 * are not counted.
 *
 * May be called by any thread.  Nothing is allocated after client_limit_open().
 */
struct client_limit;

/*
 * MOST sessions for one client, 0: any number (then *RET is NULL, which all functions take).
 * TOTAL: sessions of all clients at a time.  -ENOMEM.
 */
int client_limit_open(unsigned int most, unsigned int total, struct client_limit **ret);
/* L once more, for one who closes it as well.  Not by several threads at a time. */
struct client_limit *client_limit_share(struct client_limit *l);
void client_limit_close(struct client_limit *l);
/* True if L is what client_limit_open() would make of MOST and TOTAL. */
bool client_limit_is(const struct client_limit *l, unsigned int most, unsigned int total);

/* Count a session of CLIENT in.  False: it has as many as it may. */
bool client_limit_enter(struct client_limit *l, const struct sockaddr *client);
/* Count it out again: once for each client_limit_enter() that was true. */
void client_limit_leave(struct client_limit *l, const struct sockaddr *client);

/* Clients that have sessions. */
unsigned int client_limit_clients(struct client_limit *l);

#endif
