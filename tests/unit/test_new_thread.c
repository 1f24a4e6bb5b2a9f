// SPDX-License-Identifier: BSD-2-Clause
/* A thread that cannot be started: what is missing is said as it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/new_thread.h"
#include "base/advice.h"

#define NOBODY 65534
#define TOO_LARGE ((size_t)1 << 50) /* more than a process can have at all */

static void *nothing(void *arg)
{
	return arg;
}

static void set_stack(size_t size)
{
	pthread_attr_t attr;

	assert_int_equal(pthread_attr_init(&attr), 0);
	assert_int_equal(pthread_attr_setstacksize(&attr, size), 0);
	assert_int_equal(pthread_setattr_default_np(&attr), 0);
	pthread_attr_destroy(&attr);
}

static void test_starts(void **state)
{
	pthread_t id;
	void *result;

	assert_int_equal(new_thread(&id, nothing, state), 0);
	assert_int_equal(pthread_join(id, &result), 0);
	assert_ptr_equal(result, state);
}

static void test_no_memory(void **state)
{
	pthread_t id;

	(void)state;
	set_stack(TOO_LARGE);
	assert_int_equal(new_thread(&id, nothing, NULL), -ENOMEM);
	set_stack(1 << 20);
	assert_int_equal(new_thread(&id, nothing, NULL), 0);
	pthread_join(id, NULL);
}

/* In a process of its own: the account is given up, since root has no such limit. */
static int error_without_processes(void)
{
	const struct rlimit none = { 0, 0 };
	pthread_t id;

	if (setrlimit(RLIMIT_NPROC, &none) || (geteuid() == 0 && setuid(NOBODY)))
		return 0;
	return -new_thread(&id, nothing, NULL);
}

static void test_no_process(void **state)
{
	pid_t pid = fork();
	int status;

	(void)state;
	if (!pid)
		_exit(error_without_processes());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), EAGAIN);
}

static void test_advice(void **state)
{
	(void)state;
	assert_non_null(strstr(advice_thread(EAGAIN), "RLIMIT_NPROC"));
	assert_null(strstr(advice_thread(ENOMEM), "RLIMIT_NPROC"));
	assert_non_null(strstr(advice_process(EAGAIN), "RLIMIT_NPROC"));
	assert_null(strstr(advice_process(ENOMEM), "RLIMIT_NPROC"));
	assert_null(strstr(advice_workers(ENOMEM), "RLIMIT_NPROC"));
	assert_string_equal(advice_thread(0), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_starts),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_no_process),
		cmocka_unit_test(test_advice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
