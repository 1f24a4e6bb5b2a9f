/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <errno.h>
#include <sys/socket.h>

/* Set an option whose value is an int.  -errno. */
static inline int socket_set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value)) ? -errno : 0;
}
