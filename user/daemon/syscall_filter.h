/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>

#include "base/built_with.h"
#include "base/syscalls_allowed.h"
#include "config/config.h"

/* The daemon's seccomp filter. */

/*
 * Confine all threads of this process, for good.  no_new_privs must be set.  PARTS are those in
 * use.  LIST NULL: the daemon.  Another process needs LIST, which ends with SYSCALLS_END, and what
 * the C library does on its own account; with a sanitizer built in it is not confined.  -errno; ERR
 * says what failed.
 */
int syscall_filter_enter(enum filter_mode mode, const struct syscall_need *list, unsigned int parts,
			 char *err, size_t errlen);
