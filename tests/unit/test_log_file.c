// SPDX-License-Identifier: BSD-2-Clause
/* What a log may be opened as, and that lines get into it whole or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log_file.h"
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

static struct log_file file = { .fd = -1 };

/* After each test, also one that failed. */
static int clean(void **state)
{
	static const char *const names[] = { "log", "other", "fifo", "socket", "link" };

	(void)state;
	log_file_close(&file);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unlink(names[i]);
	rmdir("sub");
	return chmod(".", 0700);
}

static void opens(const char *path)
{
	char err[256] = "";
	int fd = log_file_open(path, &me, err, sizeof(err));

	if (fd < 0)
		fail_msg("%s: %s", path, err);
	log_file_close(&file);
	log_file_adopt(&file, fd);
}

static void is_refused(const char *path, int error, const char *why)
{
	char err[512] = "";
	int fd = log_file_open(path, &me, err, sizeof(err));

	if (fd != error || !strstr(err, why))
		fail_msg("%s: %d, \"%s\"", path, fd, err);
}

static const char *content(const char *path)
{
	static char buf[4096];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fd >= 0);
	n = read(fd, buf, sizeof(buf) - 1);
	assert_true(n >= 0);
	close(fd);
	buf[n] = '\0';
	return buf;
}

/* Gives up at once, or when the number of times is over. */
static bool patience(void *arg)
{
	int *times = arg;

	return times && (*times)-- > 0;
}

static int writes(const char *text, size_t *ret_done)
{
	return log_file_write(&file, text, strlen(text), patience, NULL, ret_done);
}

static void is_written(const char *text)
{
	size_t done;

	assert_int_equal(writes(text, &done), 0);
	assert_int_equal(done, strlen(text));
}

static void test_open(void **state)
{
	struct stat st;
	mode_t mask = umask(0);

	(void)state;
	opens("log");
	umask(mask);
	assert_int_equal(stat("log", &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0640);
	assert_true(file.regular);
	is_written("one\n");
	opens("./log"); /* again, and it is appended to */
	is_written("two\nthree\n");
	assert_string_equal(content("log"), "one\ntwo\nthree\n");
	/* what `copytruncate` does */
	assert_int_equal(truncate("log", 0), 0);
	is_written("four\n");
	assert_string_equal(content("log"), "four\n");
	opens("/dev/null");
	assert_false(file.regular);
	is_written("five\n");
}

static void test_refused(void **state)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "socket" };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char path[PATH_MAX + 10];

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	is_refused("socket", -EINVAL, "it must be a file, a FIFO or a terminal");
	close(fd);
	opens("log");
	assert_int_equal(symlink("log", "link"), 0);
	is_refused("link", -ELOOP, "a symbolic link is not followed");
	assert_int_equal(mkdir("sub", 0700), 0);
	is_refused("sub", -EISDIR, "give the path of a file");
	is_refused("sub/", -EISDIR, "give the path of a file");
	is_refused("sub/..", -EISDIR, "give the path of a file");
	is_refused("missing/log", -ENOENT,
		   "make its directory first (install -d -o tester missing)");
	is_refused("log/log", -ENOTDIR, "make its directory first");
	memset(path, 'x', sizeof(path) - 1);
	path[sizeof(path) - 1] = '\0';
	is_refused(path, -ENAMETOOLONG, "name too long");
	path[sizeof(path) - 5] = '/';
	is_refused(path, -ENAMETOOLONG, "name too long");
}

static void test_unsafe(void **state)
{
	(void)state;
	opens("log");
	assert_int_equal(chmod("log", 0666), 0);
	is_refused("log", -EPERM, "it can be written by everybody (mode 0666): chmod o-w");
	assert_int_equal(chmod("log", 0660), 0);
	opens("log");
	assert_int_equal(chmod(".", 0777), 0);
	is_refused("log", -EPERM, "its directory . can be written by everybody (mode 0777)");
	assert_int_equal(chmod(".", 01777), 0);
	opens("log");
	if (geteuid()) {
		printf("skip: the files of others: not root\n");
		return;
	}
	assert_int_equal(chown("log", 12345, 12345), 0);
	/* a kernel with fs.protected_regular says EACCES itself */
	assert_int_equal(chmod(".", 0700), 0);
	is_refused("log", -EPERM, "it belongs to uid 12345: chown it to tester");
	assert_int_equal(chown(".", 12345, 12345), 0);
	is_refused("log", -EPERM, "its directory . belongs to uid 12345");
	assert_int_equal(chown(".", 0, 0), 0);
}

/* Root makes what the account cannot, and gives it away. */
static void test_open_as(void **state)
{
	const struct account other = { .name = "other", .uid = 12345, .gid = 12346 };
	char err[512] = "", path[64];
	bool by_root = false;
	struct stat st;
	int fd;

	(void)state;
	if (geteuid()) {
		printf("skip: not root\n");
		skip();
	}
	snprintf(path, sizeof(path), "%s/log", dir);
	assert_int_equal(chmod(dir, 0755), 0);
	fd = log_file_open_as(path, &other, &by_root, err, sizeof(err));
	if (fd < 0)
		fail_msg("%s", err);
	assert_true(by_root);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_uid, 12345);
	assert_int_equal(st.st_gid, 12346);
	close(fd);
	/* it is there now, and the account's own */
	fd = log_file_open_as(path, &other, &by_root, err, sizeof(err));
	assert_true(fd >= 0);
	assert_false(by_root);
	close(fd);
	assert_int_equal(geteuid(), 0);
	assert_int_equal(getegid(), 0);
	/* root's own file stays root's */
	assert_int_equal(chown("log", 0, 0), 0);
	fd = log_file_open_as(path, &other, &by_root, err, sizeof(err));
	assert_true(fd >= 0 && by_root);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_uid, 0);
	close(fd);
	/* what is not safe is not tried as root */
	assert_int_equal(chmod("log", 0666), 0);
	fd = log_file_open_as(path, &other, &by_root, err, sizeof(err));
	assert_int_equal(fd, -EPERM);
	assert_non_null(strstr(err, "chmod o-w"));
}

static void test_fifo(void **state)
{
	char buf[64];
	size_t done;
	int fd;

	(void)state;
	assert_int_equal(mkfifo("fifo", 0600), 0);
	is_refused("fifo", -ENXIO, "it has no reader yet");
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	opens("fifo");
	assert_false(file.regular);
	is_written("one\ntwo\n");
	assert_int_equal(read(fd, buf, sizeof(buf)), 8);
	close(fd);
	assert_int_equal(writes("three\n", &done), -EPIPE);
	assert_int_equal(done, 0);
	fd = open("fifo", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	is_written("four\n"); /* to the next reader */
	assert_int_equal(read(fd, buf, sizeof(buf)), 5);
	close(fd);
}

/* A file may be no longer than LEN: a write is cut short there. */
static void limit_files(rlim_t len)
{
	struct rlimit r;

	assert_int_equal(getrlimit(RLIMIT_FSIZE, &r), 0);
	r.rlim_cur = len;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
}

/* As on a full disk: of the line that does not fit nothing stays. */
static void test_short_write(void **state)
{
	size_t done = 99;
	int r;

	(void)state;
	opens("log");
	is_written("one\n");
	for (rlim_t room = 4; room < 4 + 8; room++) {
		limit_files(room);
		r = writes("two\nfour\n", &done);
		limit_files(RLIM_INFINITY);
		assert_int_equal(r, -EFBIG);
		assert_int_equal(done, room < 8 ? 0 : 4);
		assert_string_equal(content("log"), room < 8 ? "one\n" : "one\ntwo\n");
		assert_int_equal(truncate("log", 4), 0);
	}
	is_written("five\n");
	assert_string_equal(content("log"), "one\nfive\n");
	opens("/dev/full");
	assert_int_equal(writes("six\n", &done), -ENOSPC);
	assert_int_equal(done, 0);
}

/* A reader that is slow is waited for, and one that does not read at all is given up. */
static void test_slow_reader(void **state)
{
	static char text[200000];
	size_t done, got = 0;
	int fds[2], r, times = 1;
	char buf[5000];

	(void)state;
	memset(text, 'x', sizeof(text) - 1);
	for (size_t i = 99; i < sizeof(text) - 1; i += 100)
		text[i] = '\n';
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0); /* it blocks, as stdout does */
	log_file_adopt(&file, fds[1]);
	r = log_file_write(&file, text, sizeof(text) - 1, patience, &times, &done);
	assert_int_equal(r, -EAGAIN);
	assert_true(done > 30000 && done < sizeof(text) - 1);
	assert_int_equal(done % 100, 0);
	assert_int_equal(times, -1);
	close(fds[1]);
	file.fd = -1;
	for (ssize_t n; (n = read(fds[0], buf, sizeof(buf))) > 0; got += (size_t)n)
		assert_memory_equal(buf, text + got, (size_t)n);
	assert_int_equal(got, done);
	close(fds[0]);
}

/* What is torn, and cannot be cut off, does not spoil the next line. */
static void test_torn(void **state)
{
	static char text[300000], got[600000];
	int fds[2], r;
	size_t done, len = 0;

	(void)state;
	memset(text, 'y', sizeof(text) - 2);
	text[sizeof(text) - 2] = '\n';
	assert_int_equal(
		socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
	log_file_adopt(&file, fds[1]);
	r = writes(text, &done);
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(done, 0);
	assert_true(file.torn);
	for (ssize_t n; (n = read(fds[0], got + len, sizeof(got) - len)) > 0; len += (size_t)n)
		;
	assert_true(len > 0);
	is_written("next\n");
	assert_false(file.torn);
	assert_int_equal(read(fds[0], got, sizeof(got)), 6);
	assert_memory_equal(got, "\nnext\n", 6);
	close(fds[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_open, clean),
		cmocka_unit_test_teardown(test_refused, clean),
		cmocka_unit_test_teardown(test_unsafe, clean),
		cmocka_unit_test_teardown(test_open_as, clean),
		cmocka_unit_test_teardown(test_fifo, clean),
		cmocka_unit_test_teardown(test_short_write, clean),
		cmocka_unit_test_teardown(test_slow_reader, clean),
		cmocka_unit_test_teardown(test_torn, clean),
	};

	signal(SIGXFSZ, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, enter, leave);
}
