// SPDX-License-Identifier: BSD-2-Clause
/* Which files are read: what they are, whose, and who else could have written them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config_rig.h"

#define FORWARD "[forward a]\nlisten = 127.0.0.1:9000\nupstream = 127.0.0.1:9001\n"

static int parse_as(mode_t file, mode_t dir, char *err, size_t errlen)
{
	struct config c;
	int r;

	assert_int_equal(chmod(rig_path, file), 0);
	assert_int_equal(chmod(rig_dir, dir), 0);
	r = rig_read(&c, NULL, err, errlen);
	config_close(&c);
	assert_int_equal(chmod(rig_dir, 0700), 0);
	return r;
}

/* What a link leads to counts, and where that is. */
static void test_link(void **state)
{
	char err[1024], link[96], dir[80];
	struct config c;
	int r;

	(void)state;
	rig_write(FORWARD);
	snprintf(dir, sizeof(dir), "%s/d", rig_dir);
	snprintf(link, sizeof(link), "%s/d/link", rig_dir);
	assert_int_equal(mkdir(dir, 0700), 0);
	assert_int_equal(symlink("../c", link), 0);
	strcpy(rig_path + strlen(rig_dir), "/d/link");
	r = rig_read(&c, NULL, err, sizeof(err));
	config_close(&c);
	assert_int_equal(r, 0);
	assert_int_equal(chmod(rig_dir, 0777), 0);
	r = rig_read(&c, NULL, err, sizeof(err));
	config_close(&c);
	assert_int_equal(chmod(rig_dir, 0700), 0);
	assert_int_equal(r, -EPERM);
	snprintf(link, sizeof(link),
		 "%s can be written by others (mode 0777): chmod go-w", rig_dir);
	assert_non_null(strstr(err, link));
	assert_int_equal(unlink(rig_path), 0);
	assert_int_equal(symlink("../nothing", rig_path), 0);
	assert_int_equal(rig_read(&c, NULL, err, sizeof(err)), -ENOENT);
	config_close(&c);
	assert_non_null(strstr(err, "d/link: No such file or directory (uid "));
	assert_int_equal(unlink(rig_path), 0);
	assert_int_equal(rmdir(dir), 0);
	strcpy(rig_path + strlen(rig_dir), "/c");
}

/* Who could have written it? */
static void test_owner(void **state)
{
	char err[1024];
	struct config c;

	(void)state;
	rig_write(FORWARD);
	assert_int_equal(parse_as(0600, 0700, err, sizeof(err)), 0);
	assert_int_equal(parse_as(0644, 0755, err, sizeof(err)), 0);
	assert_int_equal(parse_as(0644, 01777, err, sizeof(err)), 0); /* as /tmp */
	assert_int_equal(parse_as(0664, 0755, err, sizeof(err)), -EPERM);
	assert_non_null(strstr(err, "/c can be written by others (mode 0664): chmod go-w"));
	assert_int_equal(parse_as(0644, 0777, err, sizeof(err)), -EPERM);
	if (!geteuid()) {
		assert_int_equal(chown(rig_path, 65534, 65534), 0);
		assert_int_equal(parse_as(0600, 0700, err, sizeof(err)), -EPERM);
		assert_non_null(strstr(err, "belongs to uid 65534, who could write "
					    "anything into the configuration: chown root"));
	}
	unlink(rig_path);
	assert_int_equal(rig_read(&c, NULL, err, sizeof(err)), -ENOENT);
	assert_non_null(strstr(err, "No such file or directory"));
	config_close(&c);
	assert_int_equal(mkfifo(rig_path, 0600), 0);
	assert_int_equal(rig_read(&c, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "not a regular file"));
	config_close(&c);
	unlink(rig_path);
	assert_int_equal(mkdir(rig_path, 0700), 0);
	assert_int_equal(rig_read(&c, NULL, err, sizeof(err)), -EINVAL);
	assert_non_null(strstr(err, "not a regular file"));
	config_close(&c);
	rmdir(rig_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_link),
		cmocka_unit_test(test_owner),
	};

	return cmocka_run_group_tests(tests, rig_open, rig_close);
}
