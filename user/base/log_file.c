// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: the directory is opened first, looked at, and the file then opened in it by
 * name, so that what was looked at is what is used.  O_APPEND: whoever truncates the file
 * (`copytruncate`) finds the next line at its beginning.  O_NONBLOCK: a FIFO whose reader is slow
 * or missing says so; files on a disk block all the same, which is why this is done on a thread of
 * its own (session_log.c).
 */
#include "base/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/syscalls_needed.h"

#define SLICE_MS 100
#define FILE_MODE 0640
#define DIRECTORY_FLAGS (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define FILE_FLAGS (O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* openat(2) has rules of its own in syscall_filter.c. */
SYSCALLS_NEEDED(
	SYSCALL(write),
	SYSCALL(poll),
	SYSCALL(ppoll), /* where there is no poll(2) */
	SYSCALL(close),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate),
	SYSCALL_IF(PART_SESSION_LOG, ftruncate64),
	/* fstat(2) and fstatat(2) in their forms */
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_EMPTY_PATH)),
	SYSCALL(newfstatat, SYSCALL_ARG(3, AT_SYMLINK_NOFOLLOW)),
	SYSCALL(fstat));

/* --- opening --- */

struct place {
	char dir[PATH_MAX], name[NAME_MAX + 1];
};

/* -ENAMETOOLONG, or -EISDIR for a path that cannot be a file's. */
static int take_apart(const char *path, struct place *ret)
{
	const char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path;
	size_t len = slash ? (size_t)(slash - path) : 0;

	if (len >= sizeof(ret->dir) || strlen(name) >= sizeof(ret->name))
		return -ENAMETOOLONG;
	if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
		return -EISDIR;
	snprintf(ret->dir, sizeof(ret->dir), "%.*s", (int)len, path);
	if (!len)
		strcpy(ret->dir, slash ? "/" : ".");
	strcpy(ret->name, name);
	return 0;
}

/* What to do about R, from opening the file of P.  "": that goes without saying. */
static const char *advice(int r, const struct place *p, const struct account *a, char *buf,
			  size_t size)
{
	switch (r) {
	case -ENOENT:
	case -ENOTDIR:
		snprintf(buf, size, ": make its directory first (install -d -o %s %s)", a->name,
			 p->dir);
		return buf;
	case -EACCES:
	case -EPERM:
		snprintf(buf, size, ": the account %s must be able to write the file, or to make "
			 "it in %s", a->name, p->dir);
		return buf;
	case -EROFS:
		snprintf(buf, size, ": under the systemd unit /var/log/culvert can be written "
			 "(LogsDirectory=), and %s with ReadWritePaths= in a drop-in", p->dir);
		return buf;
	case -ELOOP:
		return ": a symbolic link is not followed, give the path of the file itself";
	case -EISDIR:
		return ": give the path of a file";
	case -EINVAL:
		return ": it must be a file, a FIFO or a terminal";
	case -ENXIO:
		return ": it has no reader yet";
	case -ENOSPC:
	case -EDQUOT:
		return ": make room";
	default:
		return "";
	}
}

/* With the right to write it anybody could put another file into the place of ours. */
static int check_directory(int dir, const struct place *p, const struct account *a, char *err,
			   size_t errlen)
{
	struct stat st;

	if (fstat(dir, &st))
		return -errno;
	if (st.st_uid != 0 && st.st_uid != a->uid && st.st_uid != geteuid()) {
		snprintf(err, errlen, "its directory %s belongs to uid %u, who could put any file "
			 "there: chown it to root or %s", p->dir, (unsigned int)st.st_uid, a->name);
		return -EPERM;
	}
	if (st.st_mode & S_IWOTH && !(st.st_mode & S_ISVTX)) {
		snprintf(err, errlen, "its directory %s can be written by everybody (mode %04o): "
			 "chmod o-w", p->dir, (unsigned int)st.st_mode & 07777);
		return -EPERM;
	}
	return 0;
}

static int check_file(int fd, const struct account *a, char *err, size_t errlen)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) && !S_ISFIFO(st.st_mode) && !S_ISCHR(st.st_mode)) {
		return -EINVAL;
	}
	if (S_ISCHR(st.st_mode))
		return 0;
	if (st.st_uid != 0 && st.st_uid != a->uid && st.st_uid != geteuid()) {
		snprintf(err, errlen, "it belongs to uid %u: chown it to %s, or remove it",
			 (unsigned int)st.st_uid, a->name);
		return -EPERM;
	}
	if (st.st_mode & S_IWOTH) {
		snprintf(err, errlen, "it can be written by everybody (mode %04o): chmod o-w",
			 (unsigned int)st.st_mode & 07777);
		return -EPERM;
	}
	return 0;
}

/* open(2) says the same of a FIFO without a reader and of a socket. */
static int open_in(int dir, const char *name)
{
	int fd = openat(dir, name, FILE_FLAGS, FILE_MODE);
	struct stat st;

	if (fd >= 0)
		return fd;
	if (errno != ENXIO)
		return -errno;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) || S_ISFIFO(st.st_mode))
		return -ENXIO;
	return -EINVAL;
}

int log_file_check(const char *path, const struct account *account, char *err, size_t errlen)
{
	struct place p = { .dir = "?" };
	char todo[PATH_MAX + 256];
	struct stat st;
	int r = take_apart(path, &p);

	if (!r && stat(p.dir, &st))
		r = -errno;
	else if (!r && !S_ISDIR(st.st_mode))
		r = -ENOTDIR;
	else if (!r && !lstat(path, &st))
		r = S_ISDIR(st.st_mode) ? -EISDIR : S_ISLNK(st.st_mode) ? -ELOOP : 0;
	/* whoever asks may not be who culvert is */
	if (!r || r == -EACCES)
		return 0;
	snprintf(err, errlen, "%s%s", strerror(-r), advice(r, &p, account, todo, sizeof(todo)));
	return r;
}

int log_file_open(const char *path, const struct account *account, char *err, size_t errlen)
{
	struct place p = { .dir = "?" };
	char why[PATH_MAX + 256] = "", todo[PATH_MAX + 256];
	int r = take_apart(path, &p), dir = -1, fd = -1;

	if (!r) {
		dir = open(p.dir, DIRECTORY_FLAGS);
		r = dir < 0 ? -errno : check_directory(dir, &p, account, why, sizeof(why));
	}
	if (!r) {
		fd = open_in(dir, p.name);
		r = fd < 0 ? fd : check_file(fd, account, why, sizeof(why));
	}
	if (dir >= 0)
		close(dir);
	if (!r)
		return fd;
	if (fd >= 0)
		close(fd);
	if (why[0])
		snprintf(err, errlen, "%s", why);
	else
		snprintf(err, errlen, "%s%s", strerror(-r),
			 advice(r, &p, account, todo, sizeof(todo)));
	return r;
}

/* Become A, or root again. */
static int act_as(uid_t uid, gid_t gid)
{
	if (uid ? setegid(gid) || seteuid(uid) : seteuid(uid) || setegid(gid))
		return -errno;
	return 0;
}

int log_file_open_as(const char *path, const struct account *account, bool *ret_root, char *err,
		     size_t errlen)
{
	bool existed = !access(path, F_OK);
	int r, fd;

	*ret_root = false;
	if (geteuid())
		return log_file_open(path, account, err, errlen);
	fd = act_as(account->uid, account->gid);
	if (fd)
		snprintf(err, errlen, "cannot act as the account %s: %s", account->name,
			 strerror(-fd));
	else
		fd = log_file_open(path, account, err, errlen);
	r = act_as(0, 0);
	if (r) {
		snprintf(err, errlen, "cannot be root again: %s", strerror(-r));
		if (fd >= 0)
			close(fd);
		return r;
	}
	if (fd != -EACCES)
		return fd;
	fd = log_file_open(path, account, err, errlen);
	if (fd >= 0 && !existed && fchown(fd, account->uid, account->gid)) {
		snprintf(err, errlen, "cannot be given to the account %s: %s", account->name,
			 strerror(errno));
		r = -errno;
		close(fd);
		return r;
	}
	*ret_root = fd >= 0;
	return fd;
}

void log_file_adopt(struct log_file *f, int fd)
{
	struct stat st;

	f->fd = fd;
	f->regular = fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode);
	f->torn = false;
}

void log_file_close(struct log_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

/* --- writing --- */

/* The bytes of whole lines among the first LEN of TEXT. */
static size_t whole_lines(const char *text, size_t len)
{
	const char *end = len ? memrchr(text, '\n', len) : NULL;

	return end ? (size_t)(end - text) + 1 : 0;
}

/*
 * Nobody else makes the file longer.  If somebody truncates it in this very moment, it is left as
 * it is when that was seen, and else gets some NUL bytes, as O_APPEND has it.
 */
static bool cut_off(int fd, size_t len)
{
	struct stat st;

	return !fstat(fd, &st) && (uint64_t)st.st_size >= len &&
	       !ftruncate(fd, st.st_size - (off_t)len);
}

static int wait_writable(int fd, log_file_patience_fn *patience, void *arg)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	do {
		int n = poll(&p, 1, SLICE_MS);

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	} while (patience(arg));
	return -EAGAIN;
}

/* A write has failed with ERROR: 0 if it is to be tried again. */
static int look_at_error(int error, log_file_patience_fn *patience, void *arg)
{
	if (error == EINTR)
		return 0;
	if (error != EAGAIN)
		return -error;
	if (poll(NULL, 0, SLICE_MS) && errno != EINTR) /* although poll(2) has called it ready */
		return -errno;
	return patience(arg) ? 0 : -EAGAIN;
}

/*
 * Lines of LEN bytes at most, so that it does not block: a pipe that is ready has room for
 * PIPE_BUF.
 */
static size_t portion(const char *text, size_t len)
{
	size_t n;

	if (len <= PIPE_BUF)
		return len;
	n = whole_lines(text, PIPE_BUF);
	return n ? n : PIPE_BUF;
}

/* Write all of TEXT.  *RET_DONE: as far as it came. */
static int write_all(struct log_file *f, const char *text, size_t len,
		     log_file_patience_fn *patience, void *arg, size_t *ret_done)
{
	size_t done = 0;
	int r = 0;

	while (!r && done < len) {
		ssize_t n;

		r = f->regular ? 0 : wait_writable(f->fd, patience, arg);
		if (r)
			break;
		n = write(f->fd, text + done,
			  f->regular ? len - done : portion(text + done, len - done));
		if (n > 0)
			done += (size_t)n;
		else if (n == 0)
			r = -EIO;
		else
			r = look_at_error(errno, patience, arg);
	}
	*ret_done = done;
	return r;
}

int log_file_write(struct log_file *f, const char *text, size_t len, log_file_patience_fn *patience,
		   void *arg, size_t *ret_done)
{
	size_t done;
	int r;

	*ret_done = 0;
	if (f->torn) { /* at least it shall not spoil the next line */
		r = write_all(f, "\n", 1, patience, arg, &done);
		if (r)
			return r;
		f->torn = false;
	}
	r = write_all(f, text, len, patience, arg, &done);
	*ret_done = whole_lines(text, done);
	if (done > *ret_done)
		f->torn = !f->regular || !cut_off(f->fd, done - *ret_done);
	return r;
}
