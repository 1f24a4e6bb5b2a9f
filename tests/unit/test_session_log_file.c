// SPDX-License-Identifier: BSD-2-Clause
/* What may be opened as a log, and what is refused. */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"
#include "relay/session_log.h"
#include "temp_dir.h"

static char dir[TEMP_DIR_LEN];
static struct account me = { .name = "tester" };

static int enter(void **state)
{
	(void)state;
	me.uid = geteuid();
	me.gid = getegid();
	return temp_dir_make(dir) || chdir(dir);
}

static int leave(void **state)
{
	(void)state;
	return chdir("/") || temp_dir_remove(dir);
}

/* After each test, also one that failed. */
static int clean(void **state)
{
	static const char *const names[] = { "log", "fifo", "link" };

	(void)state;
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unlink(names[i]);
	rmdir("sub");
	return chmod(".", 0700);
}

static int open_log(const char *path)
{
	char err[512] = "";
	int fd = log_file_open(path, &me, err, sizeof(err));

	if (fd < 0)
		fail_msg("%s: %s", path, err);
	return fd;
}

static void is_refused(const char *path, int error, const char *why)
{
	char err[PATH_MAX + 512] = "";
	int fd = log_file_open(path, &me, err, sizeof(err));

	if (fd != error || !strstr(err, why))
		fail_msg("%s: %d, \"%s\"", path, fd, err);
}

TEST_WITH(test_open, NULL, clean)
{
	struct stat st;
	mode_t mask = umask(0);

	for (int i = 0; i < 2; i++) { /* it is appended to */
		int fd = open_log(i ? "./log" : "log");

		assert_int_equal(write(fd, "one\n", 4), 4);
		close(fd);
	}
	umask(mask);
	assert_int_equal(stat("log", &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0640);
	assert_int_equal(st.st_size, 8);
	close(open_log("/dev/null"));
}

TEST_WITH(test_refused, NULL, clean)
{
	char path[PATH_MAX + 10];

	close(open_log("log"));
	assert_int_equal(symlink("log", "link"), 0);
	is_refused("link", -ELOOP, "a symbolic link is not followed");
	assert_int_equal(mkdir("sub", 0700), 0);
	is_refused("sub", -EISDIR, "Is a directory");
	is_refused("missing/log", -ENOENT, "No such file");
	is_refused("log/log", -ENOTDIR, "Not a directory");
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	is_refused(path, -ENAMETOOLONG, "name too long");
	path[sizeof(path) - 5] = '/';
	is_refused(path, -ENAMETOOLONG, "name too long");
	assert_int_equal(mkfifo("fifo", 0600), 0);
	is_refused("fifo", -ENXIO, "No such device or address");
}

TEST_WITH(test_unsafe, NULL, clean)
{
	close(open_log("log"));
	assert_int_equal(chmod("log", 0666), 0);
	is_refused("log", -EPERM, "it has uid");
	assert_int_equal(chmod("log", 0660), 0);
	assert_int_equal(chmod(".", 0777), 0);
	is_refused("log", -EPERM, ". has uid");
	assert_int_equal(chmod(".", 01777), 0);
	close(open_log("log"));
	if (geteuid()) {
		printf("skip: the files of others: not root\n");
		return;
	}
	assert_int_equal(chown("log", 12345, 12345), 0);
	/* a kernel with fs.protected_regular says EACCES itself */
	assert_int_equal(chmod(".", 0700), 0);
	is_refused("log", -EPERM, "it has uid 12345 and mode");
	assert_int_equal(chown(".", 12345, 12345), 0);
	is_refused("log", -EPERM, ". has uid 12345 and mode");
	assert_int_equal(chown(".", 0, 0), 0);
}

static void is_opened_as(const char *path, const struct account *a, uid_t owner)
{
	char err[512] = "";
	int fd = log_file_open(path, a, err, sizeof(err));
	struct stat st;

	if (fd < 0)
		fail_msg("%s", err);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_uid, owner);
	assert_int_equal(geteuid(), 0);
	assert_int_equal(getegid(), 0);
	close(fd);
}

/* Root makes it, and gives it away; root's own file stays root's. */
TEST_WITH(test_open_as, NULL, clean)
{
	const struct account other = { .name = "other", .uid = 12345, .gid = 12346 };
	char err[512] = "", path[64];

	if (geteuid()) {
		printf("skip: not root\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/log", dir);
	assert_int_equal(chmod(dir, 0755), 0);
	is_opened_as(path, &other, 12345);
	is_opened_as(path, &other, 12345);
	assert_int_equal(chown("log", 0, 0), 0);
	is_opened_as(path, &other, 0);
	assert_int_equal(chmod("log", 0666), 0);
	assert_int_equal(log_file_open(path, &other, err, sizeof(err)), -EPERM);
	assert_non_null(strstr(err, "not everybody may write it"));
}

UNIT_MAIN(enter, leave)
