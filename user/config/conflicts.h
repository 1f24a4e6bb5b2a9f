/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "config/config.h"

/*
 * Conflicts between settings that are valid one by one.  Each function complains of each conflict,
 * with its file and line, and returns -EINVAL then.
 */

/* The settings of C outside forwards. */
int conflicts_of_globals(const struct config *c);
/* Can servers of FC be checked?  Those of UDP need a port of TCP, or words to send and to expect. */
bool conflicts_may_check(const struct forward_conf *fc);
/* The settings of FC, whose values have been stored. */
int conflicts_of_forward(const struct config *c, const struct forward_conf *fc);
/*
 * Check that no two forwards of C take the same connections, that no forward takes those of
 * metrics, and that no forward has its own listener as its upstream.  The check makes no system
 * call, so it knows no address of this machine but loopback.  To be called again when host names
 * have addresses.
 */
int conflicts_of_addresses(const struct config *c);
/* The same for FC alone. */
int conflicts_of_address(const struct config *c, const struct forward_conf *fc);

/* Print the file and line of an address of FC, and its fault WHY.  -EINVAL. */
int conflicts_complain_address(const struct forward_conf *fc, bool listen, const char *why);
