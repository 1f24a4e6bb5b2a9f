/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_LISTEN_H
#define CULVERT_CONFIG_LISTEN_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"

/*
 * Which connections come to which listener, as far as the configuration tells: of the addresses of
 * this machine it knows those of loopback, and what listeners are bound to.  Port 0 is another one
 * for each listener.  No system calls.
 */

/* The upstream of FC is its own listener: it would feed on itself until no session is left. */
bool config_feeds_itself(const struct forward_conf *fc);

/*
 * The first listener before number N that takes connections which number N would take as well, or
 * NULL.  *RET_SAME: they have an address in common; else one has all local addresses.
 */
const struct endpoint *config_overlap(const struct config *c, size_t n, bool *ret_same);

/*
 * Look for connections that would come back to the forward that makes them, by way of others or
 * not: they would multiply until no session is left.  1: forward *RET_FROM leads to *RET_TO, and
 * that leads back (they may be the same); 0: there is none; -ENOMEM.
 */
int config_find_loop(const struct config *c, size_t *ret_from, size_t *ret_to);

#endif
