// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the directory is opened and looked at first.  The file is then opened in
 * that directory by name, so the directory that was looked at is the directory that is used.
 *
 * O_APPEND: after `copytruncate` of logrotate the next line is at the beginning of the file.
 * O_NONBLOCK: open(2) and write(2) of a FIFO without a reader return at once.
 */
#include "base/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error_hint.h"
#include "base/syscalls_allowed.h"

#define FILE_MODE 0640
#define DIRECTORY_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define FILE_FLAGS (O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* A directory is found, and a file appended to. */
SYSCALLS_ALLOWED(
	SYSCALL_IF(PART_SESSION_LOG, openat, SYSCALL_ARG_BITS(2, O_PATH, O_PATH)),
	SYSCALL_IF(PART_SESSION_LOG, openat,
		   SYSCALL_ARG_BITS(2, O_PATH | O_ACCMODE | O_APPEND | O_NOFOLLOW | O_TRUNC |
				    O_DIRECTORY, O_WRONLY | O_APPEND | O_NOFOLLOW)),
	SYSCALL(close),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)), /* fstat(2) */
	SYSCALL(fstat));

/* Explain -ERROR in ERR.  Return it. */
static int fail(int error, char *err, size_t errlen)
{
	snprintf(err, errlen, "%s%s", strerror(error), error_hint(HINT_LOG_FILE, error));
	return -error;
}

/*
 * Refuse FD, which is WHAT, if it could not be opened, or is no directory, file, FIFO or device, or
 * if another account than root and A could replace it or has prepared it.
 */
static int check(int fd, const char *what, const struct account *a, char *err, size_t errlen)
{
	struct stat st;
	bool others;

	if (fd < 0 || fstat(fd, &st))
		return fail(errno, err, errlen);
	if (S_ISCHR(st.st_mode))
		return 0;
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return fail(EINVAL, err, errlen);
	others = st.st_mode & S_IWOTH && !(S_ISDIR(st.st_mode) && st.st_mode & S_ISVTX);
	if ((st.st_uid == 0 || st.st_uid == a->uid) && !others)
		return 0;
	snprintf(err, errlen, "%s has uid %u and mode %04o: it must belong to root or %s, and not "
		 "everybody may write it", what, (unsigned int)st.st_uid,
		 (unsigned int)st.st_mode & 07777, a->name);
	return -EPERM;
}

int log_file_open(const char *path, const struct account *a, char *err, size_t errlen)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char directory[PATH_MAX] = ".";
	int dir, fd = -1, r;
	bool made = false;
	struct stat st;

	if (name - path >= PATH_MAX)
		return fail(ENAMETOOLONG, err, errlen);
	if (slash)
		snprintf(directory, sizeof(directory), "%.*s", (int)(name - path), path);
	dir = open(directory, DIRECTORY_FLAGS);
	r = check(dir, directory, a, err, errlen);
	if (!r) {
		fd = openat(dir, name, FILE_FLAGS | O_EXCL, FILE_MODE);
		made = fd >= 0;
		if (fd < 0 && errno == EEXIST)
			fd = openat(dir, name, FILE_FLAGS, FILE_MODE);
		r = check(fd, "it", a, err, errlen);
	}
	if (!r && made && !fstat(fd, &st) && st.st_uid != a->uid && fchown(fd, a->uid, a->gid))
		r = fail(errno, err, errlen);
	if (dir >= 0)
		close(dir);
	if (r && fd >= 0)
		close(fd);
	return r ?: fd;
}
