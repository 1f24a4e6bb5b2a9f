// SPDX-License-Identifier: BSD-2-Clause
/* Whose turn it is to be looked up.  The clock of these tests is a number, and so are processes. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "relay/resolver_queue.h"

#define NEVER UINT64_MAX
#define STEP_MS 100

static struct queue q;
static pid_t last_pid;

static int setup(void **state)
{
	(void)state;
	memset(&q, 0, sizeof(q));
	return 0;
}

static struct job *add(uint32_t id, unsigned int hung, uint64_t now)
{
	struct resolver_request r = { .id = id, .hung = hung };

	return queue_add(&q, &r, now);
}

static void end_runners(struct job *j, bool keep)
{
	for (unsigned int i = 0; i < j->begun; i++) {
		if (j->runners[i].pid && !keep)
			queue_ended(&q, &j->runners[i]);
		else if (j->runners[i].pid)
			keep = false;
	}
}

/* All that is to be done at NOW; returns how many processes were begun. */
static unsigned int advance(uint64_t now)
{
	struct queue_step step;
	unsigned int begun = 0;

	while ((step = queue_next(&q, now)).what) {
		if (step.what == QUEUE_BEGIN) {
			queue_begun(&q, step.job, (struct runner){ ++last_pid, 0 }, now);
			begun++;
		} else {
			end_runners(step.job, step.what == QUEUE_THIN);
		}
		if (step.what == QUEUE_PUT_BACK)
			queue_put_back(&q, step.job, now);
		assert_true(q.running <= RESOLVER_PROCESSES);
		assert_true(begun < 100000);
	}
	return begun;
}

static void finish(struct job *j)
{
	end_runners(j, false);
	queue_remove(&q, j);
}

/* Without an answer more processes begin, each in its time, and for each family at last. */
static void test_again(void **state)
{
	struct job *j = add(1, 0, 1000);

	(void)state;
	assert_int_equal(queue_family(j), AF_UNSPEC);
	assert_int_equal(advance(1000), 1);
	assert_int_equal(queue_family(j), AF_UNSPEC);
	assert_int_equal(queue_due(&q, 1000), 1000 + RESOLVER_AGAIN_MS);
	assert_int_equal(advance(999 + RESOLVER_AGAIN_MS), 0);
	assert_int_equal(advance(1000 + RESOLVER_AGAIN_MS), 1);
	assert_int_equal(queue_family(j), AF_INET6);
	assert_int_equal(queue_due(&q, 3000), 1000 + RESOLVER_FAMILY_MS);
	assert_int_equal(advance(1000 + RESOLVER_FAMILY_MS), 2);
	assert_int_equal(q.running, 4);
	assert_int_equal(advance(1000 + RESOLVER_PATIENCE_MS - 1), 0);
	assert_int_equal(queue_due(&q, 20000), 1000 + RESOLVER_PATIENCE_MS);
	finish(j);
	assert_int_equal(q.running, 0);
	assert_int_equal(queue_due(&q, 20000), NEVER);
	/* one to listen at is not content with one family */
	j = add(2, 0, 0);
	j->q.passive = true;
	assert_int_equal(advance(0) + advance(RESOLVER_AGAIN_MS) + advance(20000), 2);
}

/* How look-ups end, by what each process comes to. */
static void test_settles(void **state)
{
	static const struct {
		const char *name;
		int errors[QUEUE_RUNNERS]; /* of runners, in order; 1: does not end */
		int settled_by, error;     /* -1: none */
	} rows[] = {
		{ "found", { 0 }, 0, 0 },
		{ "does not exist", { -ENOENT }, 0, 0 },
		{ "the first hangs", { 1, 0 }, 1, 0 },
		{ "A is not answered", { 1, 1, 0, 1 }, 2, 0 },
		{ "AAAA is not answered", { 1, 1, 1, 0 }, 3, 0 },
		{ "no A, and AAAA fails", { 1, 1, -EAGAIN, -ENOENT }, -1, 0 },
		{ "nothing is answered", { -EAGAIN, -EAGAIN, -ENOENT, -EAGAIN }, 3, -EAGAIN },
		{ "a crash", { -EIO, -EIO, -EIO, -EIO }, 3, -EIO },
		{ "the second try", { -EAGAIN, 0 }, 1, 0 },
		{ "AAAA fails", { -EAGAIN, -EAGAIN, -EAGAIN, 0 }, 3, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct job *j = add(1, 0, 0);
		int settled_by = -1;

		for (unsigned int k = 0; k < QUEUE_RUNNERS && settled_by < 0; k++) {
			uint64_t now = k < 2 ? k * RESOLVER_AGAIN_MS : RESOLVER_FAMILY_MS;

			advance(now);
			if (rows[i].errors[k] == 1)
				continue;
			assert_true(j->begun > k);
			queue_ended(&q, &j->runners[k]);
			if (queue_settles(j, &j->runners[k], rows[i].errors[k], "why", now))
				settled_by = (int)k;
		}
		if (settled_by != rows[i].settled_by || j->error != (settled_by < 0 ? j->error :
								     rows[i].error))
			fail_msg("%s: by %d, error %d", rows[i].name, settled_by, j->error);
		finish(j);
		assert_int_equal(q.running, 0);
	}
}

/* One that has failed is tried again at once, and not after a while. */
static void test_fails_early(void **state)
{
	struct job *j = add(1, 0, 0);

	(void)state;
	advance(0);
	queue_ended(&q, &j->runners[0]);
	assert_false(queue_settles(j, &j->runners[0], -EAGAIN, "x", 5));
	assert_int_equal(advance(5), 1);
	queue_ended(&q, &j->runners[1]);
	assert_false(queue_settles(j, &j->runners[1], -EAGAIN, "x", 10));
	assert_int_equal(advance(10), 1);
}

/* One that is answered by its process number BY, or one after that, when this has run for TAKES_MS. */
struct answered {
	unsigned int by;
	uint64_t takes_ms;
	pid_t pids[QUEUE_RUNNERS];
	uint64_t began_ms[QUEUE_RUNNERS];
};

static bool is_answered(struct answered *a, const struct job *j, uint64_t now)
{
	for (unsigned int i = a->by; i < j->begun; i++) {
		pid_t pid = j->runners[i].pid;

		if (pid && pid != a->pids[i])
			a->began_ms[i] = now;
		a->pids[i] = pid;
		if (pid && now >= a->began_ms[i] + a->takes_ms)
			return true;
	}
	return false;
}

/* Those that were never answered hang once more. */
static void ask_again(const struct job *good, uint64_t now)
{
	for (size_t i = 0; i < QUEUE_JOBS; i++) {
		struct job *j = &q.jobs[i];
		uint32_t id = j->q.id, hung = j->q.hung;

		if (j == good || !j->used || now < j->due_ms)
			continue;
		finish(j);
		add(id, hung + 1, now);
	}
}

/* HANGING names that have hung so often, and one more, which is A.  Returns when it is answered. */
static uint64_t served_after(unsigned int hanging, unsigned int hung, unsigned int own,
			     struct answered a)
{
	struct job *good;

	memset(&q, 0, sizeof(q));
	for (uint32_t i = 0; i < hanging; i++)
		assert_non_null(add(i + 1, hung, 0));
	advance(0);
	good = add(5000, own, 0);
	assert_non_null(good);
	for (uint64_t now = 0; now < RESOLVER_PATIENCE_MS; now += STEP_MS) {
		ask_again(good, now);
		advance(now);
		assert_true(queue_due(&q, now) > now);
		if (is_answered(&a, good, now))
			return now;
	}
	return NEVER;
}

static void test_fair(void **state)
{
	static const struct {
		unsigned int hanging, hung, own; /* of the others, and of the one */
		uint64_t takes, most;
	} rows[] = {
		{ RESOLVER_AT_ONCE - 1, 0, 0, 10, STEP_MS },
		/* nobody knows which of them hang */
		{ RESOLVER_AT_ONCE, 0, 0, 10, RESOLVER_TURN_MS + STEP_MS },
		{ 1000, 0, 0, 10, 8 * (RESOLVER_TURN_MS + STEP_MS) },
		{ 200, 0, 0, 5000, 20000 },
		/* it is known */
		{ 1000, 1, 0, 10, STEP_MS },
		{ 1000, 4, 0, 10, STEP_MS },
		{ 1000, 4, 0, 5000, 5000 + STEP_MS },
		/* the one has hung before, too */
		{ RESOLVER_AT_ONCE, 0, 1, 10, 2 * RESOLVER_TURN_MS + STEP_MS },
		{ 300, 0, 1, 10, 10000 },
		{ 300, 0, 1, 5000, 29000 },
		{ 300, 1, 1, 5000, 25000 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t ms = served_after(rows[i].hanging, rows[i].hung, rows[i].own,
					   (struct answered){ .takes_ms = rows[i].takes });

		if (ms > rows[i].most)
			fail_msg("row %zu: after %llu ms", i, (unsigned long long)ms);
	}
}

/* One whose first packet is lost, or one family of which is not answered, needs an extra. */
static void test_extras_go_round(void **state)
{
	static const struct {
		unsigned int hanging, hung, by;
		uint64_t most;
	} rows[] = {
		{ 20, 0, 1, 1000 },
		{ 20, 0, 3, 2500 },
		{ 70, 0, 1, 1500 },
		{ 70, 0, 3, 3500 },
		{ 127, 0, 1, 1500 },
		{ 127, 0, 3, 4000 },
		/* it is known which of them hang */
		{ 127, 1, 1, 1000 },
		{ 127, 1, 3, 2500 },
		{ 1000, 1, 1, 1000 },
		{ 1000, 1, 3, 2500 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		uint64_t ms = served_after(rows[i].hanging, rows[i].hung, 0,
					   (struct answered){ .by = rows[i].by, .takes_ms = 10 });

		if (ms > rows[i].most + 2 * STEP_MS)
			fail_msg("row %zu: after %llu ms", i, (unsigned long long)ms);
	}
}

/* One that waits takes one place: those that have had their turn as well go on. */
static void test_one_place(void **state)
{
	uint64_t later = 10 * RESOLVER_TURN_MS;

	(void)state;
	for (uint32_t i = 0; i < RESOLVER_AT_ONCE; i++)
		add(i + 1, 0, 0);
	assert_int_equal(advance(0), RESOLVER_AT_ONCE);
	for (uint64_t now = STEP_MS; now <= later; now += STEP_MS) /* with all extras behind them */
		advance(now);
	add(1000, 0, later);
	assert_int_equal(advance(later), 1);
	assert_int_equal(advance(later + 1), 0);
	/* and the one that gave its own up gets the next that is free */
	finish(&q.jobs[7]);
	assert_int_equal(advance(later + 2), 1);
}

/* Extras leave the places alone, and nobody is without a process for one. */
static void test_thin(void **state)
{
	uint64_t now = RESOLVER_AGAIN_MS;

	(void)state;
	for (uint32_t i = 0; i < RESOLVER_AT_ONCE - 1; i++)
		add(i + 1, 0, 0);
	assert_int_equal(advance(0), RESOLVER_AT_ONCE - 1);
	assert_int_equal(advance(now), RESOLVER_EXTRAS);
	assert_int_equal(queue_due(&q, now), now + RESOLVER_EXTRA_MS);
	add(1000, 0, now);
	assert_int_equal(advance(now), 1);
	now += RESOLVER_EXTRA_MS;
	assert_int_equal(advance(now), RESOLVER_AT_ONCE - 1 - RESOLVER_EXTRAS);
	assert_int_equal(q.running, RESOLVER_PROCESSES);
	for (size_t i = 0; i < QUEUE_JOBS; i++)
		assert_true(!q.jobs[i].used || (q.jobs[i].begun && q.jobs[i].runners[0].pid));
}

/* One that has failed, and waits, is given a place, and not one of an extra. */
static void test_failed_waits(void **state)
{
	struct job *j;

	(void)state;
	for (uint32_t i = 0; i < RESOLVER_AT_ONCE; i++)
		add(i + 1, 0, 0);
	advance(0);
	j = &q.jobs[5];
	queue_ended(&q, &j->runners[0]);
	assert_false(queue_settles(j, &j->runners[0], -EAGAIN, "x", 5));
	add(1000, 0, 5);
	assert_int_equal(advance(5), 1);
	assert_int_equal(q.running, RESOLVER_AT_ONCE);
	assert_int_equal(j->begun, 2); /* who has come before */
}

static void test_full(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < QUEUE_JOBS; i++)
		assert_non_null(add(i + 1, i % 9, 0));
	assert_null(add(9999, 0, 0));
	queue_remove(&q, &q.jobs[QUEUE_JOBS - 1]);
	assert_ptr_equal(add(9999, 0, 0), &q.jobs[QUEUE_JOBS - 1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_again, setup),
		cmocka_unit_test_setup(test_settles, setup),
		cmocka_unit_test_setup(test_fails_early, setup),
		cmocka_unit_test_setup(test_fair, setup),
		cmocka_unit_test_setup(test_extras_go_round, setup),
		cmocka_unit_test_setup(test_one_place, setup),
		cmocka_unit_test_setup(test_thin, setup),
		cmocka_unit_test_setup(test_failed_waits, setup),
		cmocka_unit_test_setup(test_full, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
