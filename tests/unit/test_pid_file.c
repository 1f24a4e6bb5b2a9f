// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/pid_file.h"
#include "temp_dir.h"

static char dir[TEMP_DIR_LEN];
static char path[64], other[64];

static int make_dir(void **state)
{
	(void)state;
	if (temp_dir_make(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/pid", dir);
	snprintf(other, sizeof(other), "%s/other", dir);
	return 0;
}

static int remove_dir(void **state)
{
	(void)state;
	return temp_dir_remove(dir);
}

static void write_file(const char *name, const char *text)
{
	temp_file_write(name, text, strlen(text));
}

static void check_content(const char *name, const char *text)
{
	char buf[64] = "";
	FILE *f = fopen(name, "re");

	assert_non_null(f);
	assert_int_equal(fread(buf, 1, sizeof(buf) - 1, f), strlen(text));
	assert_string_equal(buf, text);
	fclose(f);
}

static void test_written_and_blanked(void **state)
{
	char err[256], pid[32];
	int fd;

	(void)state;
	snprintf(pid, sizeof(pid), "%ld\n", (long)getpid());
	write_file(path, "a longer text, of a daemon that was killed\n");
	for (int i = 0; i < 2; i++) {
		fd = pid_file_open(path, err, sizeof(err));
		assert_true(fd >= 0);
		check_content(path, pid);
		pid_file_close(fd);
		check_content(path, "                    \n");
		unlink(path);
	}
	pid_file_close(-1);
}

static void check_refused(int error, const char *why)
{
	char err[256];

	assert_int_equal(pid_file_open(path, err, sizeof(err)), error);
	assert_non_null(strstr(err, path));
	if (!strstr(err, why))
		fail_msg("%s", err);
}

/* What others have put there stays as it is. */
static void test_something_else(void **state)
{
	(void)state;
	unlink(path);
	write_file(other, "text\n");
	assert_int_equal(symlink(other, path), 0);
	check_refused(-ELOOP, "no file of ours");
	unlink(path);
	assert_int_equal(link(other, path), 0);
	check_refused(-EEXIST, "no file of ours");
	check_content(other, "text\n");
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	check_refused(-ENXIO, strerror(ENXIO));
	unlink(path);
	assert_int_equal(mkdir(path, 0700), 0);
	check_refused(-EISDIR, strerror(EISDIR));
	rmdir(path);
	if (geteuid() == 0) {
		write_file(path, "text\n");
		assert_int_equal(chown(path, 12345, 12345), 0);
		check_refused(-EPERM, "belongs to another account");
		check_content(path, "text\n");
	}
}

static void test_no_directory(void **state)
{
	char err[256], name[96];

	(void)state;
	unlink(path);
	snprintf(name, sizeof(name), "%s/none/pid", dir);
	assert_int_equal(pid_file_open(name, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "make its directory first (install -d /"));
	assert_non_null(strstr(err, "/none)"));
	write_file(path, "text\n");
	snprintf(name, sizeof(name), "%s/pid", path);
	assert_int_equal(pid_file_open(name, err, sizeof(err)), -ENOTDIR);
	assert_non_null(strstr(err, "make its directory first"));
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_written_and_blanked),
		cmocka_unit_test(test_something_else),
		cmocka_unit_test(test_no_directory),
	};

	return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
