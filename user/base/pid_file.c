// SPDX-License-Identifier: BSD-2-Clause
#include "base/pid_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(SYSCALL(write), SYSCALL(close));

/* In place of any number. */
static const char blanks[] = "                    \n";

/* What is there is no pid file: a device, or the file of somebody else who could look ahead. */
static int check(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
		return -EEXIST;
	return st.st_uid == geteuid() ? 0 : -EPERM;
}

static void say_why(int r, const char *path, char *err, size_t errlen)
{
	const char *slash = strrchr(path, '/');

	if ((r == -ENOENT || r == -ENOTDIR) && slash)
		snprintf(err, errlen, "pid-file %s: %s: make its directory first (install -d "
			 "%.*s)", path, strerror(-r), (int)(slash - path), path);
	else
		snprintf(err, errlen, "pid-file %s: %s", path,
			 r == -EEXIST || r == -ELOOP ?
				 "there is something else, which is no file of ours" :
			 r == -EPERM ? "that file belongs to another account" : strerror(-r));
}

int pid_file_open(const char *path, char *err, size_t errlen)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY,
		      0644);
	char pid[sizeof(blanks)];
	int r = fd < 0 ? -errno : check(fd);

	/* the offset stays at the beginning, where the blanks go */
	snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
	if (!r && (ftruncate(fd, 0) || pwrite(fd, pid, strlen(pid), 0) < 0))
		r = -errno;
	if (!r)
		return fd;
	if (fd >= 0)
		close(fd);
	say_why(r, path, err, errlen);
	return r;
}

void pid_file_close(int fd)
{
	if (fd < 0)
		return;
	while (write(fd, blanks, strlen(blanks)) < 0 && errno == EINTR)
		; /* nothing can be done about other errors */
	close(fd);
}
