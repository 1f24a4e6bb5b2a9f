// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "aborts.h"
#include "relay/session.h"

/*
 * Who may follow whom, written from the text of session.h and not from session_state.c: a letter
 * for each state that one leads to, in the order Header Connecting Open Parting Dead.
 */
static const char *const leads_to[SESSION_STATES] = {
	[SESSION_HEADER]     = ".C..D",
	[SESSION_CONNECTING] = "..O.D",
	[SESSION_OPEN]       = "...PD",
	[SESSION_PARTING]    = "....D",
	[SESSION_DEAD]       = ".....",
};

static bool expected(unsigned int from, unsigned int to)
{
	return leads_to[from][to] != '.';
}

static void test_transitions(void **state)
{
	(void)state;
	for (unsigned int from = 0; from <= SESSION_STATES; from++) {
		for (unsigned int to = 0; to <= SESSION_STATES; to++) {
			bool may = from < SESSION_STATES && to < SESSION_STATES &&
				   expected(from, to);
			struct session s = { .state = (uint8_t)from };

			if (session_may(from, to) != may)
				fail_msg("%u -> %u", from, to);
			if (!may)
				continue;
			session_set_state(&s, to);
			assert_int_equal(s.state, to);
		}
	}
}

/* A session begins where nothing is known of it. */
static void test_beginning(void **state)
{
	struct session s = { 0 };

	(void)state;
	assert_int_equal(s.state, SESSION_HEADER);
}

struct step {
	unsigned int from, to;
};

static void take(void *arg)
{
	const struct step *step = arg;
	struct session s = { .state = (uint8_t)step->from };

	session_set_state(&s, step->to);
}

static void test_asserts(void **state)
{
	(void)state;
#ifdef NDEBUG
	print_message("skipped: built with NDEBUG, nothing asserts\n");
	skip();
#endif
	for (unsigned int from = 0; from < SESSION_STATES; from++) {
		for (unsigned int to = 0; to <= SESSION_STATES; to++) {
			struct step step = { from, to };

			if ((to == SESSION_STATES || !expected(from, to)) && !aborts(take, &step))
				fail_msg("%u -> %u is let through", from, to);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transitions),
		cmocka_unit_test(test_beginning),
		cmocka_unit_test(test_asserts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
