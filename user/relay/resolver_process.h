/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RESOLVER_PROCESS_H
#define CULVERT_RESOLVER_PROCESS_H

#include "relay/resolver.h"

/*
 * What runs at the other end.  Makes the guardian, as a child of the caller, with SOCK as its end;
 * its first packet is a reply number 0, which says whether it has given up all that it should.
 * Returns its pid, or -errno.
 */
pid_t resolver_fork(const struct account *a, enum filter_mode filter, int sock);

#endif
