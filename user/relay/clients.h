/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>
#include <sys/socket.h>

/*
 * The clients with sessions: of all forwards, or of all forwards of one name.  Any thread may call
 * any of this.  A client whose bandwidth lacks tokens is kept for a while after its last session.
 *
 * A client is an IPv4 address or an IPv6 /64, which is what one customer or one machine can choose
 * addresses from.  Clients of unix sockets have no address and are not limited.
 */

struct bandwidth;

struct clients {
	pthread_mutex_t lock;                     /* of the rest */
	void *tree;                               /* of tsearch(3) */
	_Atomic unsigned int n;                   /* status reads it without the lock */
	TAILQ_HEAD(client_queue, client) resting; /* the clients of the tree that have no session */
};

void clients_init(struct clients *c);
void clients_close(struct clients *c);

/*
 * Count a session of CLIENT in, if it has fewer than MOST (0: any number).  PROVEN: also record a
 * proof, as clients_proven() does with NOW.  -EUSERS: CLIENT has MOST sessions; -ENOMEM.
 */
int clients_enter(struct clients *c, const struct sockaddr *client, unsigned int most, bool proven);
/*
 * True if CLIENT has proven that it receives at its address.  NOW: record that proof; CLIENT has a
 * session.  The proof lasts as long as CLIENT has sessions.
 */
bool clients_proven(struct clients *c, const struct sockaddr *client, bool now);
/* Count a session out again. */
void clients_leave(struct clients *c, const struct sockaddr *client);

/* The bandwidth of CLIENT, which lives as long as CLIENT has sessions.  NULL: no memory. */
struct bandwidth *clients_bandwidth(struct clients *c, const struct sockaddr *client);
