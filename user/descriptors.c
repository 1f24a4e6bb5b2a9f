// SPDX-License-Identifier: BSD-2-Clause
#include "descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "pool.h"
#include "sandbox.h"

/* A session has two sockets, and two pipes while both its directions hold spliced bytes. */
#define SOCKETS_EACH 2UL
#define DESCRIPTORS_EACH (SOCKETS_EACH + 2 * 2)
/* Beside those of sessions: listeners, maps, epoll, the control socket's clients; idle pipes. */
#define OWN_DESCRIPTORS 256
#define SPARE_DESCRIPTORS 1024

int descriptors_reserve_streams(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) != fd)
			return log_complain(-EBADF, "/dev/null cannot be opened: %s",
					    strerror(errno));
	return 0;
}

void descriptors_limit(unsigned int sessions)
{
	unsigned long sockets = SOCKETS_EACH * sessions + OWN_DESCRIPTORS;
	unsigned long want = DESCRIPTORS_EACH * sessions + SPARE_DESCRIPTORS;
	unsigned long limit = sandbox_raise_nofile(want), pipes = limit / 4;

	if (limit > sockets && limit - sockets > pipes)
		pipes = limit - sockets;
	pipes = pipes / 2 < UINT_MAX ? pipes / 2 : UINT_MAX;
	pool_limit_pipes((unsigned int)pipes);
	if (limit < sockets)
		log_warning("only %lu descriptors: %u sessions need %lu, and %lu to splice both "
			    "ways: raise RLIMIT_NOFILE or lower --max-sessions", limit, sessions,
			    sockets, want);
	else if (limit < want)
		log_warning("only %lu descriptors: enough for %u sessions, but for %lu pipes only "
			    "(RLIMIT_NOFILE %lu gives each two); flows without a pipe are copied",
			    limit, sessions, pipes, want);
}
