/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_DESCRIPTORS_H
#define CULVERT_DESCRIPTORS_H

#include "config/config.h"

/* What the daemon may open, and what it finds open. */

/*
 * What is 0, 1 or 2 when culvert starts without them would become a socket or a map, and the log
 * would write into it.  -errno, after a message.
 */
int descriptors_reserve_streams(void);

/*
 * What C can use at most: for all sockets, those of sessions, listeners and stocks; and with two
 * pipes for each session, while both its directions hold spliced bytes.
 */
void descriptors_need(const struct config *c, unsigned long *ret_sockets, unsigned long *ret_all);

/*
 * Raise the limit as far as C needs, and see to it that pipes, without which a flow is copied,
 * leave descriptors for sockets, without which there is no session.  Where there are hardly enough
 * for all sockets, or not even those, pipes get a quarter: it takes many sessions to miss it.
 * Warns of what is missing.
 */
void descriptors_limit(const struct config *c);

#endif
