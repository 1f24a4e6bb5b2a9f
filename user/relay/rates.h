/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RATES_H
#define CULVERT_RATES_H

#include <stdbool.h>

#include "base/bucket.h"
#include "config/config.h"
#include "relay/bandwidth.h"
#include "relay/client_rate.h"

/*
 * Tokens of one connection: so many that what has come of the next one is known to the millisecond.
 */
#define RATES_ACCEPT 1000

/*
 * What a forward may do in a second, in all its workers together.  All of it may be used by any
 * thread; rates_open(), rates_share() and rates_close() are not for several threads at a time.
 */
struct rates {
	struct bucket accepts;        /* RATES_ACCEPT for each connection; rate 0: any number */
	struct bandwidth bandwidth;   /* of all clients together */
	struct client_rates *clients; /* NULL: none of each client */
	/* what it was made of */
	unsigned int accept_rate, sessions;
	uint64_t of_all, of_client;
	unsigned int refs;
};

/* What FC says, for so many SESSIONS at a time.  -ENOMEM. */
int rates_open(const struct forward_conf *fc, unsigned int sessions, struct rates **ret);
/* R once more, for one who closes it as well. */
struct rates *rates_share(struct rates *r);
void rates_close(struct rates *r);
/* True if R is what rates_open() would make of the same. */
bool rates_are(const struct rates *r, const struct forward_conf *fc, unsigned int sessions);

#endif
