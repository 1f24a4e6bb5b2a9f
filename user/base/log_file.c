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

#include "base/syscalls_needed.h"

#define FILE_MODE 0640
#define DIRECTORY_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define FILE_FLAGS (O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* openat(2) has rules of its own in syscall_filter.c. */
SYSCALLS_NEEDED(
	SYSCALL(close),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)), /* fstat(2) */
	SYSCALL(fstat));

/* Write the directory of PATH into DIR; return the name of the file, or NULL if PATH has none. */
static const char *take_apart(const char *path, char dir[PATH_MAX])
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;

	if (len >= PATH_MAX)
		return NULL;
	snprintf(dir, PATH_MAX, "%.*s", (int)len, path);
	if (!len)
		strcpy(dir, slash ? "/" : ".");
	return slash ? slash + 1 : path;
}

/* Explain why opening a file in DIR has failed with R.  Return R. */
static int explain(int r, const char *dir, const struct account *a, char *err, size_t errlen)
{
	size_t n = (size_t)snprintf(err, errlen, "%s", strerror(-r));

	if (n >= errlen)
		return r;
	err += n;
	errlen -= n;
	if (r == -ENOENT || r == -ENOTDIR)
		snprintf(err, errlen, ": make its directory first (install -d -o %s %s)", a->name,
			 dir);
	else if (r == -EACCES || r == -EPERM)
		snprintf(err, errlen, ": the account %s must be able to write the file, or to make "
			 "it in %s", a->name, dir);
	else if (r == -EROFS)
		snprintf(err, errlen, ": under the systemd unit /var/log/culvert can be written "
			 "(LogsDirectory=), and %s with ReadWritePaths= in a drop-in", dir);
	else if (r == -ELOOP)
		snprintf(err, errlen, ": a symbolic link is not followed, give the path of the "
			 "file itself");
	else if (r == -EISDIR || r == -EINVAL)
		snprintf(err, errlen, ": give the path of a file, a FIFO or a terminal");
	else if (r == -ENXIO)
		snprintf(err, errlen, ": it has no reader yet, or is a socket");
	return r;
}

/* Refuse what another account could replace or has prepared.  WHAT begins the message. */
static int check_owner(const struct stat *st, const char *what, const struct account *a, char *err,
		       size_t errlen)
{
	bool sticky = S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX;

	if (st->st_uid != 0 && st->st_uid != a->uid && st->st_uid != geteuid()) {
		snprintf(err, errlen, "%s belongs to uid %u: chown it to %s", what,
			 (unsigned int)st->st_uid, a->name);
		return -EPERM;
	}
	if (st->st_mode & S_IWOTH && !sticky) {
		snprintf(err, errlen, "%s can be written by everybody (mode %04o): chmod o-w", what,
			 (unsigned int)st->st_mode & 07777);
		return -EPERM;
	}
	return 0;
}

static int check_directory(int fd, const char *dir, const struct account *a, char *err,
			   size_t errlen)
{
	char what[PATH_MAX + 32];
	struct stat st;

	if (fstat(fd, &st))
		return explain(-errno, dir, a, err, errlen);
	snprintf(what, sizeof(what), "its directory %s", dir);
	return check_owner(&st, what, a, err, errlen);
}

static int check_file(int fd, const char *dir, const struct account *a, char *err, size_t errlen)
{
	struct stat st;

	if (fstat(fd, &st))
		return explain(-errno, dir, a, err, errlen);
	if (S_ISCHR(st.st_mode))
		return 0;
	if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode))
		return explain(-EINVAL, dir, a, err, errlen);
	return check_owner(&st, "it", a, err, errlen);
}

int log_file_open(const char *path, const struct account *account, char *err, size_t errlen)
{
	char dir[PATH_MAX] = "?";
	const char *name = take_apart(path, dir);
	int dir_fd, fd, r;

	if (!name || !*name)
		return explain(name ? -EISDIR : -ENAMETOOLONG, dir, account, err, errlen);
	dir_fd = open(dir, DIRECTORY_FLAGS);
	if (dir_fd < 0)
		return explain(-errno, dir, account, err, errlen);
	r = check_directory(dir_fd, dir, account, err, errlen);
	if (r) {
		close(dir_fd);
		return r;
	}
	fd = openat(dir_fd, name, FILE_FLAGS, FILE_MODE);
	r = fd < 0 ? explain(-errno, dir, account, err, errlen) :
		     check_file(fd, dir, account, err, errlen);
	close(dir_fd);
	if (!r)
		return fd;
	if (fd >= 0)
		close(fd);
	return r;
}

int log_file_check(const char *path, const struct account *account, char *err, size_t errlen)
{
	char dir[PATH_MAX] = "?";
	const char *name = take_apart(path, dir);
	struct stat st;
	int r = 0;

	if (!name)
		r = -ENAMETOOLONG;
	else if (stat(dir, &st))
		r = -errno;
	else if (!S_ISDIR(st.st_mode))
		r = -ENOTDIR;
	else if (!lstat(path, &st))
		r = S_ISDIR(st.st_mode) ? -EISDIR : S_ISLNK(st.st_mode) ? -ELOOP : 0;
	/* the account that asks may see less than the account that culvert becomes */
	return !r || r == -EACCES ? 0 : explain(r, dir, account, err, errlen);
}

int log_file_open_as(const char *path, const struct account *account, char *err, size_t errlen)
{
	struct stat st;
	bool existed;
	int fd;

	if (geteuid())
		return log_file_open(path, account, err, errlen);
	if (setegid(account->gid) || seteuid(account->uid)) {
		snprintf(err, errlen, "cannot act as the account %s: %m", account->name);
		return -EPERM;
	}
	fd = log_file_open(path, account, err, errlen);
	if (seteuid(0) || setegid(0)) {
		snprintf(err, errlen, "cannot be root again: %m");
		return -EPERM;
	}
	if (fd != -EACCES)
		return fd;
	existed = !lstat(path, &st);
	fd = log_file_open(path, account, err, errlen);
	if (fd >= 0 && !existed && fchown(fd, account->uid, account->gid)) {
		snprintf(err, errlen, "cannot be given to the account %s: %m", account->name);
		close(fd);
		return -EPERM;
	}
	return fd;
}
