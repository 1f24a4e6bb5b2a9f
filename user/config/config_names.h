/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_NAMES_H
#define CULVERT_CONFIG_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"
#include "relay/names.h"

/*
 * The host names of a configuration.  To parse it, none is looked up: those of upstreams are while
 * the daemon runs (names.h), and nobody waits for that; but one to listen at needs its addresses
 * before it can be bound.
 */

/* An endpoint without an address: a host name. */
struct config_name {
	struct endpoint *endpoint; /* of C */
	size_t forward;            /* its index */
	bool listen;
};

/* All of C, or only those to LISTEN at; RET has room, or is NULL.  Returns how many. */
size_t config_names(struct config *c, bool listen, struct config_name *ret);

/* Questions about the N of NAMES, to be freed; NULL: no memory. */
struct question *config_questions(const struct config_name *names, size_t n);

/* Give NAME the addresses that Q, which is done, was answered with.  -errno; ERR says why not. */
int config_name_found(struct config_name *name, const struct question *q, char *err, size_t errlen);

/*
 * Look up those to listen at, by N, and wait, NAMES_PATIENCE_S at most.  -ENOENT: one does not
 * exist; -EAGAIN: nobody has answered; -EINVAL: its addresses are another forward's; ERR names the
 * forward.  Nothing is looked up, and N may be NULL, if all are numbers.
 *
 * On a kernel without IPv6, what has an IPv4 address as well then has only that.
 */
int config_find_listeners(struct config *c, struct names *n, char *err, size_t errlen);

#endif
