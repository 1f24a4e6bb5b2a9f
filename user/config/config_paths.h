/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_CONFIG_PATHS_H
#define CULVERT_CONFIG_PATHS_H

#include <stdbool.h>

#include "config/config.h"
#include "config/config_text.h"

/* What culvert makes in the file system.  No system calls: links are not followed. */

/* The same file, whatever "//" and "/./" there is in between. */
bool path_same(const char *a, const char *b);

/*
 * The control socket, the sockets of forwards, the session log and the pid file need a path each.
 * -EINVAL: two of C have one; it is said which, with the place in TEXT.
 */
int config_check_paths(const struct config *c, const struct config_text *text);

#endif
