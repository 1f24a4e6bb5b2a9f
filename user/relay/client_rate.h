/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CLIENT_RATE_H
#define CULVERT_CLIENT_RATE_H

#include <stdint.h>
#include <sys/socket.h>

#include "relay/bandwidth.h"
#include "relay/client_key.h"

/*
 * The bandwidth of each client, see client_key.h, which all its sessions share.  Clients of unix
 * sockets have no address, and no limit.
 *
 * May be called by any thread; what a session holds is used without the lock.  Nothing is allocated
 * after client_rates_open().
 */
struct client_rates;

struct client_rate {
	struct bandwidth bandwidth;
	/* the rest is client_rate.c's */
	struct client_key key;
	uint32_t sessions;
	uint32_t next;         /* in its chain */
	uint32_t older, newer; /* of those without sessions */
	bool known;            /* it is in a chain */
};

/*
 * RATE bytes a second for one client, 0: any number (then *RET is NULL, which all functions take).
 * TOTAL: sessions of all clients at a time.  -ENOMEM.
 */
int client_rates_open(uint64_t rate, uint32_t total, struct client_rates **ret);
void client_rates_close(struct client_rates *l);

/*
 * That of CLIENT, for one session more; *RET is NULL if there is no limit.  -ENOSPC: more sessions
 * than TOTAL.
 */
int client_rates_enter(struct client_rates *l, const struct sockaddr *client, uint64_t now_ms,
		       struct client_rate **ret);
/* The session ends.  NULL is fine. */
void client_rates_leave(struct client_rates *l, struct client_rate *r);

#endif
