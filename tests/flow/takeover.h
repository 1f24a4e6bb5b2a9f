/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <sys/types.h>

/* A call made inside another process, as by one who took it over. */

/* Why that cannot be done here; NULL: it can. */
const char *takeover_hindrance(void);

/*
 * Make thread PID, which waits in a system call, make another: its own `syscall` instruction is run
 * again with other registers.  RET gets what the kernel says.  Returns 0, or -errno if PID could
 * not be made to.  A call that kills PID counts as made.
 */
int takeover_call(pid_t pid, long nr, const long args[6], long *ret);
