/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

/*
 * A program of tests.  Each test is a function that begins with TEST(name), and UNIT_MAIN() runs
 * them in the order of the file: no table can forget one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define UNIT_TESTS_MAX 64

static struct CMUnitTest unit_tests[UNIT_TESTS_MAX];
static size_t unit_n_tests;

/* SETUP and TEARDOWN (NULL: none) run before and after this test, be it good or bad. */
#define TEST_WITH(name, setup, teardown)                                                           \
	static void name(void **state);                                                            \
	__attribute__((constructor)) static void unit_add_##name(void)                             \
	{                                                                                          \
		unit_tests[unit_n_tests++] = (struct CMUnitTest){                                  \
			#name, name, setup, teardown, NULL,                                        \
		};                                                                                 \
	}                                                                                          \
	static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)

/* All tests, with SETUP before the first and TEARDOWN behind the last.  How many have failed. */
static inline int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	return _cmocka_run_group_tests("tests", unit_tests, unit_n_tests, setup, teardown);
}

#define UNIT_MAIN(setup, teardown)                                                                 \
	int main(void)                                                                             \
	{                                                                                          \
		return unit_run(setup, teardown);                                                  \
	}
