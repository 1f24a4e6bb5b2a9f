/* SPDX-License-Identifier: BSD-2-Clause */
/* What decisions are made from: what a session (habit) and a worker (load) have been doing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "datapath/policy.h"
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

/* Percent of a CPU that the thread uses. */
static unsigned int cpu = 50;

/* N batches with READS small reads each, all at NOW_MS. */
static void batches(const struct policy *p, struct load *l, unsigned int n, unsigned int reads,
		    uint64_t now_ms)
{
	while (n--) {
		for (unsigned int i = 0; i < reads; i++)
			load_read(p, l, 64);
		if (load_batch(l, n ? l->looked_ms : now_ms))
			load_look(p, l, now_ms, l->cpu_ns + (now_ms - l->looked_ms) * cpu * 10000);
	}
}

static void test_load(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct load l = { 0 };

	(void)state;
	assert_false(load_busy(&p, &l, 0));
	batches(&p, &l, 100, 2, 10000); /* less than 2.5 reads a batch */
	assert_false(load_busy(&p, &l, 10000));
	batches(&p, &l, 100, 3, 10050);
	assert_false(load_busy(&p, &l, 10050)); /* too early for a look */
	batches(&p, &l, 100, 3, 10100);
	assert_true(load_busy(&p, &l, 10100));
	batches(&p, &l, 100, 1, 10200); /* over, but not for long enough */
	assert_true(load_busy(&p, &l, 10100 + SETTLE_MS - 1));
	assert_false(load_busy(&p, &l, 10100 + SETTLE_MS));
	batches(&p, &l, 10, 5, 20000); /* some reads in ten seconds say nothing */
	assert_false(load_busy(&p, &l, 20000));
	p.settle_ms = 0;
	batches(&p, &l, 1000, 5, 20100);
	assert_false(load_busy(&p, &l, 20100));
}

/* A worker that sleeps most of the time can wake up for each message. */
static void test_load_asleep(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct load l = { 0 };

	(void)state;
	cpu = 49;
	batches(&p, &l, 100, 5, 10000);
	assert_false(load_busy(&p, &l, 10000));
	cpu = 50;
	batches(&p, &l, 100, 5, 10100);
	assert_true(load_busy(&p, &l, 10100));
}

/* What waits for a big read of a neighbour is not many flows at once. */
static void test_load_beside_bulk(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct load l = { 0 };

	(void)state;
	for (unsigned int i = 0; i < 100; i++) {
		load_read(&p, &l, 64);
		load_read(&p, &l, p.big_turn); /* the reads of this batch do not count, */
		load_batch(&l, 1);
		batches(&p, &l, 1, 20, 1); /* nor of this one, in which all that waited is served, */
		batches(&p, &l, 1, 1, 1);  /* but those of this one do */
	}
	batches(&p, &l, 1, 1, 10000);
	assert_false(load_busy(&p, &l, 10000));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_habit_read),
		cmocka_unit_test(test_habit_read_of_nothing),
		cmocka_unit_test(test_load),
		cmocka_unit_test(test_load_asleep),
		cmocka_unit_test(test_load_beside_bulk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
