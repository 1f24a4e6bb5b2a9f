/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_DENY_H
#define CULVERT_TEST_DENY_H

#include <stdint.h>

/*
 * From now on this process, and all that it starts, lives on a kernel that does not know system call
 * NR: it fails with ERROR, or kills the caller if ERROR is 0.  If OPTION is not 0, only calls whose
 * third argument it is: an option of setsockopt(2), say.  Needs root; it cannot be undone.
 */
void deny_syscall(int nr, int error, uint32_t option);

#endif
