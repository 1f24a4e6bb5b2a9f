/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "probe/probe_try.h"

static void expect(const char *variable, const char *value, const char *complaint)
{
	char err[256] = "";
	int r;

	assert_int_equal(setenv(variable, value, 1), 0);
	r = probe_check_variable(err, sizeof(err));
	unsetenv(variable);
	assert_int_equal(r, complaint ? -EINVAL : 0);
	if (complaint && !strstr(err, complaint))
		fail_msg("%s=%s: \"%s\" lacks \"%s\"", variable, value, err, complaint);
}

static void test_slow(void **state)
{
	static const char *const good[] = { "1", "7", "007", "100" };
	static const char *const bad[] = { "", "0", "000", "101", "1000", "-1", "+1", " 1", "1 ",
					   "1.5", "x", "4294967297", "18446744073709551617" };
	char err[256];

	(void)state;
	assert_int_equal(probe_check_variable(err, sizeof(err)), 0);
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		expect(PROBE_SLOW_VARIABLE, good[i], NULL);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect(PROBE_SLOW_VARIABLE, bad[i], "is not a whole number from 1 to 100");
}

static void test_fail(void **state)
{
	(void)state;
	expect(PROBE_FAIL_VARIABLE, "load,splice:hang", NULL);
	expect(PROBE_FAIL_VARIABLE, "load,sausage", "no check is called \"sausage\"");
	expect(PROBE_FAIL_VARIABLE, "load:slowly", "neither :hang nor :crash");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slow),
		cmocka_unit_test(test_fail),
	};

	unsetenv(PROBE_SLOW_VARIABLE);
	unsetenv(PROBE_FAIL_VARIABLE);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
