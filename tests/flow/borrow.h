/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_BORROW_H
#define CULVERT_TEST_BORROW_H

#include <sys/types.h>

/*
 * A descriptor for the IPv4 socket of process PID that is connected from port LOCAL to port PEER:
 * the very socket, whose options can be read here.  -ENOENT: it has none; or another -errno.
 */
int borrow_socket(pid_t pid, int local, int peer);

#endif
