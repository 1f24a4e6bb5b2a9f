/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_PRIVILEGED_CONFINE_H
#define CULVERT_PRIVILEGED_CONFINE_H

#include "config/config.h"

#define PRIVILEGED_FD 3 /* the pair, as it knows it */

/*
 * Take from this process, the privileged one of a daemon that was started with C, all that it does
 * not need: descriptors but FD, which becomes PRIVILEGED_FD, and stderr; signals; capabilities;
 * system calls.  -errno, and ERR.
 */
int privileged_confine(int fd, const struct config *c, char *err, size_t errlen);

#endif
