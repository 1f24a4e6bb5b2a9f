// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "relay/admission.h"

#define FORWARDS 3

/* Forward 0 has no limits of its own, 1 has 3 sessions, 2 has 1 of each client. */
static struct forward_conf forwards[FORWARDS] = {
	[1] = { .max_sessions = 3 },
	[2] = { .max_sessions_per_client = 1 },
};

static const struct config config = {
	.workers = 1, .max_sessions = 8, .max_sessions_per_client = 4,
	.forwards = forwards, .n_forwards = FORWARDS,
};

static struct admission *admission;
static struct forward *made[FORWARDS];

static int open_it(void **state)
{
	(void)state;
	for (size_t i = 0; i < FORWARDS; i++)
		assert_int_equal(forward_new(&forwards[i], &config, NULL, NULL, &made[i]), 0);
	return admission_open(&config, &admission);
}

static int close_it(void **state)
{
	(void)state;
	for (size_t i = 0; i < FORWARDS; i++) {
		assert_int_equal(made[i]->sessions, 0);
		forward_free(made[i]);
	}
	admission_close(admission);
	return 0;
}

static const struct sockaddr *client(unsigned int n)
{
	static struct sockaddr_in in = { .sin_family = AF_INET };

	in.sin_addr.s_addr = htonl(0x0a000000U + n);
	return (const struct sockaddr *)&in;
}

static bool enter(unsigned int forward)
{
	enum cause why;

	return admission_enter(admission, made[forward], &why);
}

static void must_not_enter(unsigned int forward, enum cause expected)
{
	enum cause why = CAUSE_INTERNAL;

	assert_false(admission_enter(admission, made[forward], &why));
	assert_int_equal(why, expected);
}

static bool enter_client(unsigned int forward, unsigned int who)
{
	unsigned int most;
	bool all;

	assert_true(enter(forward));
	if (admission_enter_client(admission, made[forward], client(who), &most, &all))
		return true;
	admission_cancel(admission, made[forward]);
	return false;
}

static void test_sessions(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		assert_true(enter(1));
	must_not_enter(1, CAUSE_FORWARD_LIMIT);
	for (int i = 0; i < 5; i++)
		assert_true(enter(0));
	must_not_enter(0, CAUSE_SESSION_LIMIT);
	must_not_enter(1, CAUSE_FORWARD_LIMIT);
	assert_int_equal(admission_sessions(admission), 8);
	/* what all forwards together refuse does not count for the forward */
	admission_cancel(admission, made[1]);
	assert_true(enter(0));
	must_not_enter(1, CAUSE_SESSION_LIMIT);
	admission_cancel(admission, made[0]);
	assert_true(enter(1));
	must_not_enter(1, CAUSE_FORWARD_LIMIT);
	for (int i = 0; i < 3; i++)
		admission_cancel(admission, made[1]);
	for (int i = 0; i < 5; i++)
		admission_cancel(admission, made[0]);
	assert_int_equal(admission_sessions(admission), 0);
}

static void test_clients(void **state)
{
	unsigned int most;
	bool all;

	(void)state;
	assert_true(enter_client(2, 1));
	assert_false(enter_client(2, 1));
	assert_true(enter_client(2, 2));
	assert_false(admission_enter_client(admission, made[2], client(1), &most, &all));
	assert_int_equal(most, 1);
	assert_false(all);
	for (int i = 0; i < 3; i++)
		assert_true(enter_client(0, 1));
	assert_false(admission_enter_client(admission, made[0], client(1), &most, &all));
	assert_int_equal(most, 4);
	assert_true(all);
	assert_int_equal(admission_sessions(admission), 5);
	assert_int_equal(admission_clients(admission), 2);
	/* refused in all, it is not counted at the forward either */
	admission_leave(admission, made[2], client(1));
	assert_true(enter_client(0, 1));
	assert_false(enter_client(2, 1));
	admission_leave(admission, made[0], client(1));
	assert_true(enter_client(2, 1));
	for (int i = 0; i < 3; i++)
		admission_leave(admission, made[0], client(1));
	admission_leave(admission, made[2], client(1));
	admission_leave(admission, made[2], client(2));
	assert_int_equal(admission_sessions(admission), 0);
	assert_int_equal(admission_clients(admission), 0);
}

static _Atomic unsigned int inside, worst;

static void *come_and_go(void *arg)
{
	for (int i = 0; i < 20000; i++) {
		unsigned int n;

		if (!enter(1))
			continue;
		n = atomic_fetch_add(&inside, 1) + 1;
		if (n > atomic_load(&worst))
			atomic_store(&worst, n);
		atomic_fetch_sub(&inside, 1);
		admission_cancel(admission, made[1]);
	}
	return arg;
}

/* Several workers never let in more than there may be. */
static void test_threads(void **state)
{
	pthread_t threads[6];

	(void)state;
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_in_range(atomic_load(&worst), 1, 3);
	assert_int_equal(admission_sessions(admission), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_sessions, open_it, close_it),
		cmocka_unit_test_setup_teardown(test_clients, open_it, close_it),
		cmocka_unit_test_setup_teardown(test_threads, open_it, close_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
