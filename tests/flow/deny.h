/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdint.h>

/*
 * From now on this process, and all that it starts, lives on a kernel that does not know system
 * call NR: it fails with ERROR, or kills the caller if ERROR is 0.  If ARG is not negative, only
 * calls whose argument ARG is VALUE.  Needs root; it cannot be undone.
 */
void deny_syscall(int nr, int error, int arg, uint64_t value);
