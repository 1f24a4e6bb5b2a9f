/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_ADMISSION_H
#define CULVERT_ADMISSION_H

#include <stdbool.h>
#include <sys/socket.h>

#include "config/config.h"
#include "datapath/stats.h"
#include "relay/forward.h"

/*
 * How many sessions there may be: in all, of one forward, of one client, and of one client at one
 * forward.  Each limit holds beside the others.
 *
 * May be called by any thread.  Nothing is allocated after admission_open().
 */
struct admission;

/* C must live as long.  -ENOMEM. */
int admission_open(const struct config *c, struct admission **ret);
void admission_close(struct admission *a);

/*
 * Count a session of FORWARD in, whose client is not known yet.  False: that would be one too many,
 * *RET_WHY says of what.
 */
bool admission_enter(struct admission *a, struct forward *f, enum cause *ret_why);
/* Count it out again: no client came, or none that may have it. */
void admission_cancel(struct admission *a, struct forward *f);

/*
 * Its client is known.  False: it has as many as it may, *RET_MOST, at the forward or (*RET_ALL) in
 * all.
 */
bool admission_enter_client(struct admission *a, struct forward *f, const struct sockaddr *client,
			    unsigned int *ret_most, bool *ret_all);

/* The session ends: both counts.  F may be freed by the time that this returns. */
void admission_leave(struct admission *a, struct forward *f, const struct sockaddr *client);

/* Sessions, and clients that have some; of all forwards. */
unsigned int admission_sessions(struct admission *a);
unsigned int admission_clients(struct admission *a);

#endif
