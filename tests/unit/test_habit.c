/* SPDX-License-Identifier: BSD-2-Clause */
/* What decisions are made from: what a session (habit) and a worker (load) have been doing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "policy.h"
#include "policy_rig.h"

static void test_habit_read(void **state)
{
	struct habit h = { 0 };

	(void)state;
	habit_read(&h, 0, 100, 1);
	habit_read(&h, 0, 50, 2);
	assert_int_equal(h.turns, 0);
	assert_int_equal(h.run, 150);
	habit_read(&h, 1, 7, 1);
	assert_int_equal(h.turns, 1);
	assert_int_equal(h.run, 7);
	assert_int_equal(h.last_dir, 1);
	habit_read(&h, 0, 1, 1);
	assert_int_equal(h.turns, 2);
	assert_int_equal(h.run, 1);
	assert_int_equal(h.bytes[0], 151);
	assert_int_equal(h.bytes[1], 7);
	assert_int_equal(h.reads[0], 4);
	assert_int_equal(h.reads[1], 1);
}

/* A look that found nothing to read says nothing about the session. */
static void test_habit_read_of_nothing(void **state)
{
	struct habit h = { 0 }, before;

	(void)state;
	habit_read(&h, 0, 5, 1);
	before = h;
	habit_read(&h, 1, 0, 0);
	habit_read(&h, 0, 0, 0);
	assert_memory_equal(&h, &before, sizeof(h));
}

static void test_habit_full(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	assert_false(habit_full(&p, &h));
	habit_read(&h, 0, 2 * p.window - 1, 1);
	assert_false(habit_full(&p, &h));
	habit_read(&h, 1, 1, 1);
	assert_true(habit_full(&p, &h));
	habit_restart(&h);
	assert_false(habit_full(&p, &h));
}

static void test_habit_restart(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	habit_read(&h, 0, 1000, 3);
	habit_demoted(&p, &h);
	assert_int_equal(h.demotions, 1);
	habit_read(&h, 1, 1000, 3);
	habit_read(&h, 0, 1000, 3);
	habit_restart(&h);
	assert_int_equal(h.demotions, 1);
	assert_int_equal(h.turns, 0);
	assert_int_equal(h.run, 0);
	for (int dir = 0; dir < 2; dir++) {
		assert_int_equal(h.bytes[dir], 0);
		assert_int_equal(h.reads[dir], 0);
	}
}

static void test_load(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct load l = { 0 };

	(void)state;
	assert_false(load_busy(&p, &l, 0));
	load_look(&p, &l, 2400, 1000, 10000); /* less than 2.5 events a wake-up */
	assert_false(load_busy(&p, &l, 10000));
	load_look(&p, &l, 9000, 2000, 10050); /* too early for a look */
	assert_false(load_busy(&p, &l, 10050));
	load_look(&p, &l, 9000, 2000, 10100);
	assert_true(load_busy(&p, &l, 10100));
	load_look(&p, &l, 10000, 3000, 10200); /* over, but not for long enough */
	assert_true(load_busy(&p, &l, 10100 + SETTLE_MS - 1));
	assert_false(load_busy(&p, &l, 10100 + SETTLE_MS));
	load_look(&p, &l, 10100, 3010, 20000); /* ten wake-ups in ten seconds say nothing */
	assert_false(load_busy(&p, &l, 20000));
	p.settle_ms = 0;
	load_look(&p, &l, 20100, 4010, 20100);
	assert_false(load_busy(&p, &l, 20100));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_habit_read),
		cmocka_unit_test(test_habit_read_of_nothing),
		cmocka_unit_test(test_habit_full),
		cmocka_unit_test(test_habit_restart),
		cmocka_unit_test(test_load),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
