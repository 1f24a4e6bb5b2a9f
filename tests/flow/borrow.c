// SPDX-License-Identifier: BSD-2-Clause
#include "borrow.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "peer.h"

static bool is_it(int fd, int local, int peer)
{
	return net_port(fd, false) == local && net_port(fd, true) == peer;
}

static int look_through(DIR *dir, int pidfd, int local, int peer)
{
	struct dirent *e;

	while ((e = readdir(dir))) {
		int fd;

		if (e->d_name[0] == '.')
			continue;
		fd = (int)syscall(SYS_pidfd_getfd, pidfd, (int)strtol(e->d_name, NULL, 10), 0);
		if (fd < 0) {
			if (errno == EBADF) /* closed since */
				continue;
			return -errno;
		}
		if (is_it(fd, local, peer))
			return fd;
		close(fd);
	}
	return -ENOENT;
}

int borrow_socket(pid_t pid, int local, int peer)
{
	char path[64];
	int pidfd, r;
	DIR *dir;

	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return -errno;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	r = dir ? look_through(dir, pidfd, local, peer) : -errno;
	if (dir)
		closedir(dir);
	close(pidfd);
	return r;
}
