/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_DRAIN_H
#define CULVERT_DRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/reload.h"

/*
 * `culvert drain`: a forward takes no new sessions for a while, and those that it has go on.  Its
 * sockets are closed, so that whoever connects is refused at once and may try elsewhere.  For
 * whoever has the turn (serving.h).
 */

/* F is active.  DUE_MS: what is left of its sessions, also of those that are older than
 * a reload, is reset then; UINT64_MAX: never. */
void drain_begin(const struct reload *r, struct forward *f, uint64_t due_ms);

/* Listen again, with sockets that BY makes.  -errno, and ERR: it stays as it was. */
int drain_end(const struct reload *r, struct forward *f, const struct listening_maker *by,
	      char *err, size_t errlen);

#endif
