/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_LIMITS_H
#define CULVERT_LIMITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config/config.h"
#include "datapath/stats.h"

/*
 * How many sessions there may be: in all, of one forward, of one client, and of one client at one
 * forward.  Each limit holds beside the others.  Any thread may call any of this.
 *
 * A client is an IPv4 address or an IPv6 /64, which is what one customer or one machine can choose
 * addresses from.  Clients of unix sockets have no address and are not limited.
 */

struct bandwidth;
struct forward;

/* --- clients --- */

/*
 * The clients that have sessions: of all forwards, or under the name of one.  Where the functions
 * below take NULL, nothing is counted and there is no limit.
 */
struct clients {
	pthread_mutex_t lock; /* of the rest */
	void *tree;           /* of tsearch(3) */
	_Atomic unsigned int n; /* status reads it without the lock */
};

void clients_init(struct clients *c);
void clients_close(struct clients *c);

/*
 * Count a session of CLIENT in, if it has fewer than MOST (0: any number).  -EUSERS: it has not;
 * -ENOMEM.
 */
int clients_enter(struct clients *c, const struct sockaddr *client, unsigned int most);
/* Count a session out again. */
void clients_leave(struct clients *c, const struct sockaddr *client);

/*
 * Get a reference to what CLIENT, which has sessions, may use in a second: RATE in each direction.
 * Sessions that began with another RATE keep what they have.  RATE 0: *RET is NULL.  -ENOMEM.
 */
int clients_bandwidth(struct clients *c, const struct sockaddr *client, uint64_t rate,
		      struct bandwidth **ret);

/* --- admission --- */

struct admission;

/* C must live as long. */
struct admission *admission_open(const struct config *c);
void admission_close(struct admission *a);

/* Count a session of F in before its client is known.  False: there is no room, see *RET_WHY. */
bool admission_enter(struct admission *a, struct forward *f, enum cause *ret_why);
/* Count it out again: no client came, or none that may have a session. */
void admission_cancel(struct admission *a, struct forward *f);
/*
 * The client of that session is known: count the session as one of CLIENT's.  False: CLIENT has as
 * many as it may, which is logged, or there is no memory, see *RET_WHY.  The caller ends the
 * connection by RST, so that the client does not wait behind its own sessions.
 */
bool admission_enter_client(struct admission *a, struct forward *f, const struct sockaddr *client,
			    enum cause *ret_why);
/* The session ends: undo both.  F may be freed by the time that this returns. */
void admission_leave(struct admission *a, struct forward *f, const struct sockaddr *client);

/* Of all forwards: sessions, and clients that have some. */
unsigned int admission_sessions(struct admission *a);
unsigned int admission_clients(struct admission *a);

#endif
