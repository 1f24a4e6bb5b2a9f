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
 * Refuse FD, which is WHAT, if it is no directory, file, FIFO or device, or if another account than
 * root, A and the caller could replace it or has prepared it.
 */
static int check(int fd, const char *what, const struct account *a, char *err, size_t errlen)
{
	struct stat st;
	bool sticky;

	if (fstat(fd, &st))
		return fail(errno, err, errlen);
	if (S_ISCHR(st.st_mode))
		return 0;
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return fail(EINVAL, err, errlen);
	sticky = S_ISDIR(st.st_mode) && st.st_mode & S_ISVTX;
	if ((st.st_uid == 0 || st.st_uid == a->uid || st.st_uid == geteuid()) &&
	    (sticky || !(st.st_mode & S_IWOTH)))
		return 0;
	snprintf(err, errlen, "%s has uid %u and mode %04o: it must belong to root or %s, and not "
		 "everybody may write it", what, (unsigned int)st.st_uid,
		 (unsigned int)st.st_mode & 07777, a->name);
	return -EPERM;
}

/* Open the directory of PATH; *RET_NAME is the file's name in it. */
static int open_directory(const char *path, const char **ret_name, const struct account *a,
			  char *err, size_t errlen)
{
	const char *slash = strrchr(path, '/');
	char dir[PATH_MAX];
	int fd, r;

	*ret_name = slash ? slash + 1 : path;
	if (*ret_name - path >= PATH_MAX)
		return fail(ENAMETOOLONG, err, errlen);
	snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(*ret_name - path) : 1, slash ? path : ".");
	fd = open(dir, DIRECTORY_FLAGS);
	if (fd < 0)
		return fail(errno, err, errlen);
	r = check(fd, dir, a, err, errlen);
	if (!r)
		return fd;
	close(fd);
	return r;
}

int log_file_open(const char *path, const struct account *a, char *err, size_t errlen)
{
	const char *name;
	int dir = open_directory(path, &name, a, err, errlen), fd, r;
	struct stat st;
	bool made;

	if (dir < 0)
		return dir;
	fd = openat(dir, name, FILE_FLAGS | O_EXCL, FILE_MODE);
	made = fd >= 0;
	if (!made && errno == EEXIST)
		fd = openat(dir, name, FILE_FLAGS, FILE_MODE);
	r = fd < 0 ? fail(errno, err, errlen) : check(fd, "it", a, err, errlen);
	close(dir);
	if (!r && made && !fstat(fd, &st) && st.st_uid != a->uid && fchown(fd, a->uid, a->gid))
		r = fail(errno, err, errlen);
	if (!r)
		return fd;
	if (fd >= 0)
		close(fd);
	return r;
}
