/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_GIVEN_H
#define CULVERT_GIVEN_H

#include <stddef.h>

#include "base/addr.h"

/*
 * Listening sockets that were open before culvert was: systemd makes them (socket activation,
 * sd_listen_fds(3)) and keeps them while culvert restarts, so that no client is refused.  One is
 * used for the listen address that it is bound to.  They stay open as long as the daemon runs, so a
 * forward that a reload takes away and another brings back finds its socket again.
 *
 * There is one list, as there is one environment.  Threads other than the one that reloads do not
 * call this.
 */

/*
 * Take what the environment of the process tells of, which is then told no more.  0, also if there
 * is none; -errno: ERR says which is of no use, and why.
 */
int given_take(char *err, size_t errlen);
void given_close(void);

/*
 * Another descriptor, to be closed by the caller, of the socket that is bound to A.  -ENOENT: there
 * is none; -errno.
 */
int given_open(const struct addr *a);

/* 0 if each has been opened; else -EINVAL, and ERR says which has not. */
int given_check(char *err, size_t errlen);

#endif
