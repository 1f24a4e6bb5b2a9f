/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SYSCALL_FILTER_H
#define CULVERT_SYSCALL_FILTER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/syscalls_needed.h"
#include "config/config.h"

/* The daemon's seccomp filter. */

/*
 * Confine all threads of this process, for good.  no_new_privs must be set.  PARTS: those in use.
 * -errno; ERR says what failed.
 */
int syscall_filter_enter(enum filter_mode mode, unsigned int parts, char *err, size_t errlen);

/*
 * The same for a process that is not the daemon: what it needs is LIST, which ends with
 * SYSCALLS_END, and what the C library does on its own account.
 */
int syscall_filter_enter_list(enum filter_mode mode, const struct syscall_need *list, char *err,
			      size_t errlen);

/* What this program was built with that no filter fits, as in -fsanitize=NAME; or NULL. */
const char *syscall_filter_hindrance(void);

#endif
