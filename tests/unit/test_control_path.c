/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "control_rig.h"
#include "daemon/control.h"

/* The control socket as a file: who may open it, what it replaces, what it leaves behind. */

/* It does not open, and says why; what is at the path stays as it is. */
static void expect_refused(struct rig *rig, int error)
{
	struct control *c = NULL;
	struct stat before, after;
	bool existed = !lstat(rig->path, &before);
	unsigned int fds = count_descriptors(), now;

	assert_int_equal(open_control(rig, &c), error);
	assert_null(c);
	if (!strstr(rig->err, rig->path))
		fail_msg("the path is not in: %s", rig->err);
	assert_non_null(strstr(rig->err, strerror(-error)));
	/* a daemon on the same path, in this process, may still have the probe in its hands */
	for (int i = 0; (now = count_descriptors()) > fds && i < 2000; i++)
		short_pause();
	assert_true(now <= fds);
	assert_int_equal(!lstat(rig->path, &after), existed);
	if (existed) {
		assert_int_equal(after.st_ino, before.st_ino);
		assert_int_equal(after.st_mode, before.st_mode);
	}
}

static void test_permissions(void **state)
{
	static const mode_t masks[] = { 0, 022, 077, 0777 };
	struct rig *rig = *state;

	for (size_t i = 0; i < sizeof(masks) / sizeof(masks[0]); i++) {
		mode_t old = umask(masks[i]), mask;
		struct stat st;
		int r = open_control(rig, &rig->control);

		mask = umask(old);
		assert_int_equal(r, 0);
		assert_int_equal(mask, masks[i]); /* put back */
		assert_int_equal(lstat(rig->path, &st), 0);
		assert_true(S_ISSOCK(st.st_mode));
		assert_int_equal(st.st_mode & 07777, 0660);
		assert_int_equal(st.st_uid, getuid());
		assert_int_equal(st.st_gid, getgid());
		control_close(rig->control);
		rig->control = NULL;
		assert_int_equal(lstat(rig->path, &st), -1);
	}
}

static void test_close(void **state)
{
	struct rig *rig = *state;

	control_close(NULL);
	for (int start = 0; start < 2; start++) {
		assert_int_equal(open_control(rig, &rig->control), 0);
		if (start)
			assert_int_equal(control_start(rig->control, answer, rig), 0);
		control_close(rig->control);
		rig->control = NULL;
		assert_int_equal(access(rig->path, F_OK), -1);
		assert_int_equal(count_descriptors(), descriptors_before);
	}
}

/* Somebody has removed the file already, the directory too. */
static void test_close_without_file(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(open_control(rig, &rig->control), 0);
	assert_int_equal(unlink(rig->path), 0);
	assert_int_equal(rmdir(rig->dir), 0);
	control_close(rig->control);
	rig->control = NULL;
	assert_int_equal(mkdir(rig->dir, 0700), 0); /* for teardown */
}

static void test_second_daemon(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(open_control(rig, &rig->control), 0);
	expect_refused(rig, -EADDRINUSE); /* bound, but not served yet */
	assert_int_equal(control_start(rig->control, answer, rig), 0);
	for (int i = 0; i < 5; i++)
		expect_refused(rig, -EADDRINUSE);
	assert_non_null(strstr(rig->err, "--control"));
	expect_alive(rig);
	control_close(rig->control);
	rig->control = NULL;
	assert_int_equal(open_control(rig, &rig->control), 0);
}

/* Alive, but so busy that its queue is full. */
static void test_second_daemon_full_queue(void **state)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct rig *rig = *state;
	int fds[65], n = 0;

	strcpy(un.sun_path, rig->path);
	assert_int_equal(open_control(rig, &rig->control), 0); /* nobody accepts */
	for (; n < 64; n++) {
		fds[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (connect(fds[n], (struct sockaddr *)&un, sizeof(un))) {
			assert_int_equal(errno, EAGAIN);
			break;
		}
	}
	assert_true(n < 64);
	expect_refused(rig, -EADDRINUSE);
	for (; n >= 0; n--)
		close(fds[n]);
}

/* Bound and closed: what a daemon that was killed leaves behind. */
static void leave_stale(const char *path, int type)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	strcpy(un.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	close(fd);
}

static void test_stale_socket(void **state)
{
	struct rig *rig = *state;
	struct stat st;

	leave_stale(rig->path, SOCK_STREAM);
	assert_int_equal(chmod(rig->path, 0777), 0);
	assert_int_equal(open_control(rig, &rig->control), 0);
	assert_int_equal(lstat(rig->path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	assert_int_equal(control_start(rig->control, answer, rig), 0);
	expect_alive(rig);
}

/* Of another program: in use, although no stream can be opened to it. */
static void test_socket_of_another_kind(void **state)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct rig *rig = *state;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	strcpy(un.sun_path, rig->path);
	assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	expect_refused(rig, -EADDRINUSE);
	close(fd);
}

static void test_not_a_socket(void **state)
{
	struct rig *rig = *state;
	char target[128], text[16] = "";
	int fd = open(rig->path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);

	assert_int_equal(write(fd, "precious", 8), 8);
	expect_refused(rig, -EEXIST);
	assert_int_equal(pread(fd, text, sizeof(text), 0), 8);
	assert_string_equal(text, "precious");
	close(fd);
	unlink(rig->path);

	assert_int_equal(mkdir(rig->path, 0700), 0);
	expect_refused(rig, -EEXIST);
	assert_int_equal(rmdir(rig->path), 0);

	assert_int_equal(mkfifo(rig->path, 0600), 0);
	expect_refused(rig, -EEXIST);
	unlink(rig->path);

	/* a link, even one to a stale socket or to nothing, is not followed */
	snprintf(target, sizeof(target), "%s/target", rig->dir);
	assert_int_equal(symlink(target, rig->path), 0);
	expect_refused(rig, -EEXIST);
	leave_stale(target, SOCK_STREAM);
	expect_refused(rig, -EEXIST);
	assert_int_equal(unlink(target), 0);
}

static void test_makes_directory(void **state)
{
	struct rig *rig = *state;
	mode_t old;
	char dir[80];
	struct stat st;

	snprintf(dir, sizeof(dir), "%s/run", rig->dir);
	snprintf(rig->path, sizeof(rig->path), "%s/control.sock", dir);
	old = umask(022);
	assert_int_equal(open_control(rig, &rig->control), 0);
	umask(old);
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0755);
	assert_int_equal(st.st_uid, getuid());
	control_close(rig->control);
	rig->control = NULL;
	/* the directory is there already */
	assert_int_equal(open_control(rig, &rig->control), 0);
	control_close(rig->control);
	rig->control = NULL;
	assert_int_equal(rmdir(dir), 0);
}

static void test_no_directory(void **state)
{
	struct rig *rig = *state;
	int fd;

	snprintf(rig->path, sizeof(rig->path), "%s/a/b/control.sock", rig->dir);
	expect_refused(rig, -ENOENT); /* one level is made, not two */

	snprintf(rig->path, sizeof(rig->path), "%s/file", rig->dir);
	fd = open(rig->path, O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
	snprintf(rig->path, sizeof(rig->path), "%s/file/control.sock", rig->dir);
	expect_refused(rig, -ENOTDIR);
	snprintf(rig->path, sizeof(rig->path), "%s/file", rig->dir); /* for teardown */
}

/* The longest path that an address can hold, and one byte more. */
static void test_length(void **state)
{
	char path[109], err[256];
	struct rig *rig = *state;
	struct control *c = NULL;
	int n = snprintf(path, sizeof(path), "%s/", rig->dir);

	memset(path + n, 'x', sizeof(path) - 1 - (size_t)n);
	path[108] = '\0';
	assert_int_equal(control_open(path, getuid(), getgid(), &c, err, sizeof(err)),
			 -ENAMETOOLONG);
	assert_null(c);
	path[107] = '\0';
	strcpy(rig->path, path);
	assert_int_equal(open_control(rig, &rig->control), 0);
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(control_start(rig->control, answer, rig), 0);
	expect_alive(rig);
}

/* An error text that does not fit is cut, not written past the end. */
static void test_short_error(void **state)
{
	struct rig *rig = *state;
	struct control *c = NULL;
	char err[8] = "1234567";

	leave_stale(rig->path, SOCK_DGRAM);
	assert_true(control_open("/proc/x/y", getuid(), getgid(), &c, err, 4) < 0);
	assert_int_equal(strlen(err), 3);
	assert_string_equal(err + 4, "567");
}

/*
 * An empty path is no path.  Fails without root: the address of all zeros is an *abstract* socket,
 * which has no owner and no mode; as root, chown("") happens to end it.
 */
static void test_empty_path(void **state)
{
	struct rig *rig = *state;
	struct control *c = NULL;
	int r = control_open("", getuid(), getgid(), &c, rig->err, sizeof(rig->err));

	if (!r)
		control_close(c);
	assert_true(r < 0);
}

static void test_close_spares_the_next(void **state)
{
	struct rig *rig = *state, second = { .large = 0 };

	strcpy(second.path, rig->path);
	assert_int_equal(open_control(rig, &rig->control), 0);
	assert_int_equal(unlink(rig->path), 0);
	assert_int_equal(open_control(&second, &second.control), 0);
	assert_int_equal(control_start(second.control, answer, &second), 0);
	control_close(rig->control);
	rig->control = second.control;
	expect_alive(rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_DIR(test_permissions),
		ON_DIR(test_close),
		ON_DIR(test_close_without_file),
		ON_DIR(test_second_daemon),
		ON_DIR(test_second_daemon_full_queue),
		ON_DIR(test_stale_socket),
		ON_DIR(test_socket_of_another_kind),
		ON_DIR(test_not_a_socket),
		ON_DIR(test_makes_directory),
		ON_DIR(test_no_directory),
		ON_DIR(test_length),
		ON_DIR(test_short_error),
		ON_DIR(test_empty_path),
		ON_DIR(test_close_spares_the_next),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
