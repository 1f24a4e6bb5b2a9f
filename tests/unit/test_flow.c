/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "aborts.h"
#include "datapath/flow.h"
#include "datapath/stats.h"
#include "seeded.h"

/*
 * Who may follow whom, written from the text of flow.h and not from flow.c: a row for each phase,
 * a letter for each phase that it leads to, in the order User Kernel Leaving dRaining Finishing
 * Done.
 */
static const char *const leads_to[FLOW_PHASES] = {
	[FLOW_USER]      = ".K...D",
	[FLOW_KERNEL]    = "..L.F.",
	[FLOW_LEAVING]   = "...RF.",
	[FLOW_DRAINING]  = "U.....",
	[FLOW_FINISHING] = ".....D",
	[FLOW_DONE]      = "......",
};

static bool expected(unsigned int from, unsigned int to)
{
	return leads_to[from][to] != '.';
}

static void test_transitions(void **state)
{
	unsigned int n = 0;

	(void)state;
	assert_int_equal(FLOW_PHASES, 6);
	for (unsigned int from = 0; from < FLOW_PHASES; from++) {
		for (unsigned int to = 0; to < FLOW_PHASES; to++) {
			if (flow_may(from, to) != expected(from, to))
				fail_msg("%s -> %s", flow_phase_name(from), flow_phase_name(to));
			n += flow_may(from, to);
		}
	}
	assert_int_equal(n, 8);
}

static void test_transitions_out_of_range(void **state)
{
	static const int strange[] = { FLOW_PHASES, FLOW_PHASES + 1, 31, 32, 33, 255, 1 << 20, -1 };

	(void)state;
	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
		for (unsigned int p = 0; p <= FLOW_PHASES; p++) {
			assert_false(flow_may((enum flow_phase)strange[i], p));
			assert_false(flow_may(p, (enum flow_phase)strange[i]));
		}
	}
}

/* Every phase that leads somewhere leads to DONE in the end. */
static void test_no_dead_end(void **state)
{
	unsigned int reaches = 1U << FLOW_DONE;

	(void)state;
	for (unsigned int round = 0; round < FLOW_PHASES; round++)
		for (unsigned int from = 0; from < FLOW_PHASES; from++)
			for (unsigned int to = 0; to < FLOW_PHASES; to++)
				if (flow_may(from, to) && (reaches & 1U << to))
					reaches |= 1U << from;
	assert_int_equal(reaches, (1U << FLOW_PHASES) - 1);
}

static void test_set_phase(void **state)
{
	(void)state;
	for (unsigned int from = 0; from < FLOW_PHASES; from++) {
		for (unsigned int to = 0; to < FLOW_PHASES; to++) {
			struct flow f = { .phase = (uint8_t)from, .user_carrier = CARRIER_SPLICE,
					  .reason = REASON_BULK, .pending = 7, .user_in = 9,
					  .user_out = 2, .due_ms = 5, .wait_ms = 4, .stuck = 3 };

			if (!expected(from, to))
				continue;
			flow_set_phase(&f, to);
			assert_int_equal(f.phase, to);
			/* a new phase begins with an open mind: no look is due, none was in vain */
			assert_int_equal(f.due_ms, 0);
			assert_int_equal(f.wait_ms, 0);
			assert_int_equal(f.stuck, 0);
			assert_int_equal(f.user_carrier, CARRIER_SPLICE);
			assert_int_equal(f.reason, REASON_BULK);
			assert_int_equal(f.pending, 7);
			assert_int_equal(f.user_in, 9);
			assert_int_equal(f.user_out, 2);
		}
	}
}

struct step {
	unsigned int from, to;
};

static void take(void *arg)
{
	const struct step *step = arg;
	struct flow f = { .phase = (uint8_t)step->from };

	flow_set_phase(&f, step->to);
}

static void test_set_phase_asserts(void **state)
{
	(void)state;
#ifdef NDEBUG
	print_message("skipped: built with NDEBUG, nothing asserts\n");
	skip();
#endif
	for (unsigned int from = 0; from < FLOW_PHASES; from++) {
		for (unsigned int to = 0; to <= FLOW_PHASES; to++) {
			struct step step = { from, to };

			if ((to == FLOW_PHASES || !expected(from, to)) && !aborts(take, &step))
				fail_msg("%s -> %s is let through", flow_phase_name(from),
					 flow_phase_name(to));
		}
	}
}

/*
 * What a flow waits for.  Columns: starved or not, in each of: nothing special, blocked, pending,
 * pending and blocked.
 */
#define R FLOW_WANT_READ
#define F FLOW_WANT_FIN
#define W FLOW_WANT_WRITE
#define T FLOW_WANT_TIMER

static const unsigned int wants[FLOW_PHASES][8] = {
	[FLOW_USER]      = { R,     T,     R,     T,     W,     T,     W,     T },
	[FLOW_KERNEL]    = { F,     F,     F,     F,     F,     F,     F,     F },
	[FLOW_LEAVING]   = { F | T, F | T, F | W, F | T, F | T, F | T, F | W, F | T },
	[FLOW_DRAINING]  = { T,     T,     W,     T,     T,     T,     W,     T },
	[FLOW_FINISHING] = { T,     T,     W,     T,     T,     T,     W,     T },
	[FLOW_DONE]      = { 0,     0,     0,     0,     0,     0,     0,     0 },
};

#undef R
#undef F
#undef W
#undef T

static unsigned int expected_wants(const struct flow *f)
{
	return wants[f->phase][(f->pending ? 4 : 0) + (f->blocked ? 2 : 0) + f->starved];
}

/* Whose turn is later waits for that, but not before it has written what it has read. */
static void test_wants_paced(void **state)
{
	struct flow f = { .phase = FLOW_USER, .paced = true };

	(void)state;
	assert_int_equal(flow_wants(&f), FLOW_WANT_TIMER);
	f.starved = true;
	assert_int_equal(flow_wants(&f), FLOW_WANT_TIMER);
	f.starved = false;
	f.pending = 1;
	assert_int_equal(flow_wants(&f), FLOW_WANT_WRITE);
	f.phase = FLOW_DONE;
	assert_int_equal(flow_wants(&f), 0);
}

static void test_wants(void **state)
{
	static const uint32_t pending[] = { 0, 1, 65536, UINT32_MAX };

	(void)state;
	for (unsigned int phase = 0; phase < FLOW_PHASES; phase++) {
		for (unsigned int i = 0; i < 16; i++) {
			struct flow f = { .phase = (uint8_t)phase, .starved = i & 1,
					  .blocked = i & 2, .pending = pending[i / 4] };
			unsigned int got = flow_wants(&f);

			if (got != expected_wants(&f))
				fail_msg("%s, pending %u, blocked %d, starved %d: %x, not %x",
					 flow_phase_name(phase), f.pending, f.blocked, f.starved,
					 got, expected_wants(&f));
		}
	}
}

/* A pure function of these: nothing is written, nothing else is looked at. */
static void test_wants_is_pure(void **state)
{
	struct seeded r = { 1 };

	(void)state;
	for (int i = 0; i < 2000; i++) {
		struct flow f, before;

		memset(&f, 0, sizeof(f));
		f.phase = (uint8_t)seeded_below(&r, FLOW_PHASES);
		f.user_carrier = (uint8_t)seeded_below(&r, 2);
		f.reason = (uint8_t)seeded_below(&r, REASONS);
		f.eof = seeded_below(&r, 2);
		f.starved = seeded_below(&r, 2);
		f.blocked = seeded_below(&r, 2);
		f.no_enter = seeded_below(&r, 2);
		f.pending = seeded_below(&r, 2) ? (uint32_t)seeded_next(&r) : 0;
		f.user_in = seeded_next(&r);
		f.user_out = seeded_next(&r);
		f.due_ms = seeded_next(&r);
		f.wait_ms = (uint16_t)seeded_next(&r);
		f.stuck = (uint16_t)seeded_next(&r);
		f.credit = seeded_next(&r);
		memcpy(&before, &f, sizeof(f));
		assert_int_equal(flow_wants(&f), expected_wants(&f));
		assert_memory_equal(&before, &f, sizeof(f));
	}
}

/* Whatever a flow waits for, it waits for something until it is done: no flow is forgotten. */
static void test_wants_something(void **state)
{
	struct flow f = { 0 };

	(void)state;
	for (unsigned int i = 0; i < FLOW_DONE * 8; i++) {
		f.phase = (uint8_t)(i / 8);
		f.pending = i & 1;
		f.starved = i & 2;
		f.blocked = i & 4;
		assert_int_not_equal(flow_wants(&f), 0);
		/* what is pending goes first: reading on would need a second place to keep it */
		if (f.pending)
			assert_false(flow_wants(&f) & FLOW_WANT_READ);
		/* a starved flow on a writable socket would spin */
		if (f.starved)
			assert_false(flow_wants(&f) & FLOW_WANT_WRITE);
	}
}

static void test_look_later(void **state)
{
	static const unsigned int waits[] = { 1, 2, 4, 8, 16, 32, 64, 128 };
	struct flow f = { 0 };
	uint64_t now = 1000;

	(void)state;
	for (unsigned int i = 0; i < 200; i++) {
		unsigned int wait = i < 8 ? waits[i] : 128;

		flow_look_later(&f, now);
		assert_int_equal(f.wait_ms, wait);
		assert_int_equal(f.due_ms, now + wait);
		now += wait;
	}
	flow_look_reset(&f);
	assert_int_equal(f.due_ms, 0);
	assert_int_equal(f.wait_ms, 0);
	flow_look_later(&f, now);
	assert_int_equal(f.due_ms, now + 1);

	/* beyond 32 bits of milliseconds (50 days) */
	flow_look_later(&f, UINT64_C(1) << 40);
	assert_int_equal(f.due_ms, (UINT64_C(1) << 40) + 2);
}

/* A target that has been full for long is waited for, and not looked at for ever. */
static void test_await_target(void **state)
{
	struct flow f = { .phase = FLOW_DRAINING };
	uint64_t now = 1000;
	unsigned int looks = 0;

	(void)state;
	for (int stall = 0; stall < 2; stall++) {
		for (looks = 0; flow_wants(&f) == FLOW_WANT_TIMER && looks < 100; looks++) {
			now = f.due_ms ?: now;
			flow_await_target(&f, now);
		}
		assert_in_range(looks, 8, 10);
		assert_int_equal(flow_wants(&f), FLOW_WANT_WRITE);
		flow_await_target(&f, now); /* it has room, and the backlog goes there first */
		assert_int_equal(flow_wants(&f), FLOW_WANT_TIMER);
		assert_int_equal(f.due_ms, now + 1);
	}
}

static void test_look_soon(void **state)
{
	struct flow f = { 0 };

	(void)state;
	for (int i = 0; i < 5; i++)
		flow_look_later(&f, 100);
	flow_look_soon(&f, 300);
	assert_int_equal(f.due_ms, 300);
	flow_look_later(&f, 300);
	assert_int_equal(f.due_ms, 301);
}

/* --- names --- */

static const char *name_of(unsigned int what, int i)
{
	switch (what) {
	case 0:
		return carrier_name((enum carrier)i);
	case 1:
		return flow_phase_name((enum flow_phase)i);
	case 2:
		return reason_name((enum reason)i);
	case 3:
		return cause_name((enum cause)i);
	default:
		return handover_name((enum handover)i);
	}
}

static void test_names(void **state)
{
	static const int sizes[] = { CARRIERS, FLOW_PHASES, REASONS, CAUSES, HANDOVERS };

	(void)state;
	for (unsigned int what = 0; what < 5; what++) {
		for (int i = 0; i < sizes[what]; i++) {
			assert_non_null(name_of(what, i));
			assert_true(strlen(name_of(what, i)) > 1);
			for (int j = 0; j < i; j++)
				assert_string_not_equal(name_of(what, i), name_of(what, j));
		}
		for (int i = sizes[what]; i < sizes[what] + 300; i++)
			assert_string_equal(name_of(what, i), "?");
		assert_string_equal(name_of(what, -1), "?");
		assert_string_equal(name_of(what, INT32_MAX), "?");
		assert_string_equal(name_of(what, INT32_MIN), "?");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_transitions),
		cmocka_unit_test(test_transitions_out_of_range),
		cmocka_unit_test(test_no_dead_end),
		cmocka_unit_test(test_set_phase),
		cmocka_unit_test(test_set_phase_asserts),
		cmocka_unit_test(test_wants),
		cmocka_unit_test(test_wants_paced),
		cmocka_unit_test(test_wants_is_pure),
		cmocka_unit_test(test_wants_something),
		cmocka_unit_test(test_look_later),
		cmocka_unit_test(test_await_target),
		cmocka_unit_test(test_look_soon),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
