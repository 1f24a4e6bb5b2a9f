// SPDX-License-Identifier: BSD-2-Clause
/* Many sessions that are to end at once: a few in each batch of events, and only those. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "relay/limits.h"
#include "session_rig.h"

#define MEANT 200
#define OTHERS 10

static uint64_t reset_before; /* at the end of the last batch */
static bool other_ends;       /* one of those that wait comes to its own end */

/* No batch has reset more than it may. */
static void after_batch(void *arg)
{
	struct worker *w = arg;
	uint64_t reset = count_get(&w->stats.errors[CAUSE_KILLED]);

	assert_in_range(reset - reset_before, 0, SESSION_ENDS);
	reset_before = reset;
	if (other_ends && w->ending) {
		other_ends = false;
		session_reset(w->ending, CAUSE_CLIENT_RESET);
	}
	session_reap(w);
	if (!w->ending)
		w->loop.stop = true;
}

static bool is_of(const void *arg, const struct session *s)
{
	return s->forward == arg;
}

/* Returns how many were reset. */
static uint64_t end_all(struct session_rig *rig)
{
	for (unsigned int i = 0; i < MEANT; i++) {
		session_rig_add(rig, 0);
		if (i < OTHERS)
			session_rig_add(rig, 1);
	}
	reset_before = 0;
	assert_int_equal(session_end_many(&rig->worker, is_of, rig->forwards[0], CAUSE_KILLED),
			 MEANT);
	assert_int_equal(count_get(&rig->worker.stats.errors[CAUSE_KILLED]), SESSION_ENDS);
	/* they are out of sight, but counted */
	for (const struct session *s = rig->worker.sessions; s; s = s->next)
		assert_ptr_equal(s->forward, rig->forwards[1]);
	assert_int_equal(admission_sessions(rig->shared.admission), MEANT + OTHERS - SESSION_ENDS);
	reset_before = SESSION_ENDS; /* before the first batch */
	assert_int_equal(loop_run(&rig->worker.loop), 0);
	assert_int_equal(rig->worker.n_sessions, OTHERS);
	assert_int_equal(admission_sessions(rig->shared.admission), OTHERS);
	return count_get(&rig->worker.stats.errors[CAUSE_KILLED]);
}

static void test_in_turns(void **state)
{
	assert_int_equal(end_all(*state), MEANT);
}

static void test_own_end(void **state)
{
	struct session_rig *rig = *state;

	other_ends = true;
	assert_int_equal(end_all(rig), MEANT - 1);
	assert_int_equal(count_get(&rig->worker.stats.errors[CAUSE_CLIENT_RESET]), 1);
}

static void test_none(void **state)
{
	struct session_rig *rig = *state;

	session_rig_add(rig, 1);
	assert_int_equal(session_end_many(&rig->worker, is_of, rig->forwards[0], CAUSE_KILLED),
			 0);
	assert_null(rig->worker.ending);
	assert_int_equal(rig->worker.n_sessions, 1);
}

static int setup(void **state)
{
	return session_rig_open(state, after_batch);
}

#define ON_RIG(f) cmocka_unit_test_setup_teardown(f, setup, session_rig_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_RIG(test_in_turns),
		ON_RIG(test_own_end),
		ON_RIG(test_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
