/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine of a running forward: each has thresholds of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "relay/forward.h"

static struct config config = { .workers = 2, .max_sessions = 10, .settle_ms = 123,
				.review_packets = 77 };
static struct forward_conf conf = { .name = "db", .engine = ENGINE_SPLICE };

static int setup(void **state)
{
	struct forward *f;

	if (forward_new(&conf, &config, NULL, NULL, &f))
		return -1;
	f->policy.no_splice = true;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	forward_free(*state);
	return 0;
}

/* Every engine has its own thresholds, and what is known of the kernel. */
static bool is_whole(const struct policy *p)
{
	struct policy due;

	policy_init(&due, p->engine, config.settle_ms, 0);
	return p->no_splice && p->settle_ms == due.settle_ms &&
	       p->kernel_bulk == due.kernel_bulk && p->window == due.window &&
	       p->promote_turns == due.promote_turns;
}

static void test_engines(void **state)
{
	struct forward *f = *state;
	const struct policy *first = forward_policy(f), *copy;

	assert_ptr_equal(first, &f->policy);
	forward_set_engine(f, ENGINE_COPY);
	copy = forward_policy(f);
	assert_int_equal(copy->engine, ENGINE_COPY);
	for (int e = 0; e < ENGINES; e++) {
		forward_set_engine(f, (enum engine)e);
		assert_int_equal(forward_policy(f)->engine, e);
		assert_true(is_whole(forward_policy(f)));
	}
	forward_set_engine(f, ENGINE_COPY);
	assert_ptr_equal(forward_policy(f), copy);
	forward_set_engine(f, ENGINE_SPLICE);
	assert_ptr_equal(forward_policy(f), first);
	assert_int_equal(f->conf->engine, ENGINE_SPLICE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_engines, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
