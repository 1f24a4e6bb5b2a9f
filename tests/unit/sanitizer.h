/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_SANITIZER_H
#define CULVERT_TESTS_SANITIZER_H

/*
 * For programs that want to see malloc() fail: without this a sanitizer's would end them.  To be
 * included once in a program.
 */

/* NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers look for these names */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
	return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "allocator_may_return_null=1";
}
/* NOLINTEND(bugprone-reserved-identifier) */

#endif
