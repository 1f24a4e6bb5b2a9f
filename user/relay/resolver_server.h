/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_RESOLVER_SERVER_H
#define CULVERT_RESOLVER_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

/*
 * What takes requests from the socket, and makes processes for them.  Never returns: ends when the
 * daemon is gone.
 */
#define RESOLVER_SOCKET 3 /* in guardian and server, where 0 to 2 are /dev/null */
/* That it needs: of each process, one that has just been killed, and some. */
#define RESOLVER_DESCRIPTORS (RESOLVER_PROCESSES + 32)

__attribute__((noreturn)) void resolver_serve(enum filter_mode filter);

/* Keep descriptor KEEP as number 3, and nothing above.  -errno. */
int resolver_keep_only(int keep);

/*
 * Be killed when the process that has made this one ends, stopped or not.  A change of user undoes
 * it.  -errno.
 */
int resolver_end_with_parent(void);

/* By either: look-up ID has failed (0: all that were under way have). */
void resolver_answer_error(uint32_t id, int error, const char *why);

#endif
