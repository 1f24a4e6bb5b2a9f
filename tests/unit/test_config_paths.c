// SPDX-License-Identifier: BSD-2-Clause
/* Two things of culvert at one path: found before anything is made there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config/config_paths.h"
#include "config_rig.h"

static void test_same(void **state)
{
	static const struct {
		const char *a, *b;
		bool same;
	} rows[] = {
		{ "/a/x", "/a/x", true },	{ "/a/x", "/a/./x", true },
		{ "//a///x", "/./a/x", true },	{ "/a/.//./x", "/a/x", true },
		{ "/a/x", "/a/xy", false },	{ "/a/x", "/a/.x", false },
		{ "/a/.", "/a/..", false },	{ "/a/x", "/b/../a/x", false },
		{ "@a", "@a", true },		{ "@a", "/a", false },
		{ "", "", true },		{ "", "/", false },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (path_same(rows[i].a, rows[i].b) != rows[i].same ||
		    path_same(rows[i].b, rows[i].a) != rows[i].same)
			fail_msg("%s %s", rows[i].a, rows[i].b);
}

#define FORWARD "[forward f]\nlisten = 127.0.0.1:80\nupstream = 127.0.0.1:81\n"
#define AT(path) "[forward u]\nlisten = unix:" path "\nupstream = 127.0.0.1:81\n"

static const struct rig_mistake mistakes[] = {
	{ 3, "session-log /a/./x is that of pid-file as well: each needs its own",
	  "[culvert]\npid-file = /a/x\nsession-log = /a/./x\n" FORWARD },
	{ 2, "pid-file /run/culvert/control.sock is that of control as well",
	  "[culvert]\npid-file = /run/culvert/control.sock\n" FORWARD },
	{ 3, "session-log /a/x is that of control as well",
	  "[culvert]\ncontrol = /a/x\nsession-log = /a/x\n" FORWARD },
	{ 7, "listen \"unix:/a/x\": the path is that of control as well: each needs its own",
	  "[culvert]\ncontrol = /a//x\n" FORWARD AT("/a/x") },
	{ 4, "listen \"unix:/a/x\": the path is that of pid-file as well",
	  "[culvert]\npid-file = /a/x\n" AT("/a/x") },
	{ 2, "listen \"unix:/run/culvert/control.sock\": the path is that of control as well",
	  AT("/run/culvert/control.sock") },
};

static void test_mistakes(void **state)
{
	char err[1024];
	struct config c;

	(void)state;
	rig_bad(mistakes, sizeof(mistakes) / sizeof(mistakes[0]));
	/* one of them, or both, from the command line, which has no lines */
	rig_write("[culvert]\npid-file = /a/x\n" FORWARD);
	assert_int_equal(rig_read(&c, WORDS("--session-log=/a/x"), err, sizeof(err)), -EINVAL);
	config_close(&c);
	assert_non_null(strstr(err, ":2: pid-file /a/x is that of session-log as well"));
	assert_int_equal(rig_read(&c, WORDS("--control=/b", "unix:/b", "1.2.3.4:5"), err,
				  sizeof(err)), -EINVAL);
	config_close(&c);
	assert_string_equal(err, "culvert: LISTEN \"unix:/b\": the path is that of control as "
				 "well: each needs its own\n");
}

static void test_good(void **state)
{
	struct config c;

	(void)state;
	rig_good(&c, "[culvert]\ncontrol = /a/c\npid-file = /a/p\nsession-log = /a/s\n"
		 AT("/a/u"), NULL);
	config_close(&c);
	rig_good(&c, "[culvert]\nsession-log = -\n" FORWARD, WORDS("--pid-file=-"));
	config_close(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_same),
		cmocka_unit_test(test_mistakes),
		cmocka_unit_test(test_good),
	};

	return cmocka_run_group_tests(tests, rig_open, rig_close);
}
