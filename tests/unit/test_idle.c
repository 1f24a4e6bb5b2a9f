// SPDX-License-Identifier: BSD-2-Clause
/* When a session was last at work, and how many are looked at together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "relay/idle.h"

/* Look at two sides, of which CLIENT is the first, and the other has never done anything. */
static uint64_t look(struct idle *i, struct idle_side client)
{
	struct idle_side sides[2] = { client };

	idle_look(i, sides);
	return i->since_ms;
}

static void test_hears(void **state)
{
	struct idle i = { .since_ms = 1000 };

	(void)state;
	assert_int_equal(look(&i, (struct idle_side){ .heard_ms = 900 }), 1000);
	assert_int_equal(look(&i, (struct idle_side){ .heard_ms = 1700 }), 1700);
	assert_int_equal(look(&i, (struct idle_side){ .sent_ms = 1800 }), 1800);
	assert_int_equal(look(&i, (struct idle_side){ .heard_ms = 1750, .sent_ms = 1 }), 1800);
	i.read_ms = 2500;
	assert_int_equal(look(&i, (struct idle_side){ 0 }), 2500);
	/* an ACK alone, as of a keepalive probe */
	assert_int_equal(look(&i, (struct idle_side){ .took_ms = 9000 }), 2500);
}

/* What is sent again and again, to an end that is gone. */
static void test_unanswered(void **state)
{
	struct idle i = { .since_ms = 1000 };
	struct idle_side side = { .sent_ms = 2000, .took_ms = 1900, .taken = 5, .owed = true };

	(void)state;
	/* there was no look before: it may have taken these five since */
	assert_int_equal(look(&i, side), 1900);
	for (unsigned int n = 0; n < 10; n++) {
		side.sent_ms += 1000;
		assert_int_equal(look(&i, side), 1900);
	}
}

/* What waits in the buffers of an end that reads slowly. */
static void test_slow_reader(void **state)
{
	struct idle i = { .since_ms = 1000 };
	struct idle_side side = { .sent_ms = 1500, .took_ms = 1500, .taken = 5, .owed = true };
	uint64_t since = look(&i, side);

	(void)state;
	for (unsigned int n = 0; n < 10; n++) {
		side.took_ms += 700;
		side.taken += n % 2;
		if (n % 2)
			since = side.took_ms;
		assert_int_equal(look(&i, side), since);
	}
	/* the rest was taken some time after the last look */
	side = (struct idle_side){ .sent_ms = 1500, .took_ms = 20000, .taken = 50 };
	assert_int_equal(look(&i, side), 20000);
	side.took_ms = 30000; /* an ACK alone */
	assert_int_equal(look(&i, side), 20000);
}

static void test_ago(void **state)
{
	(void)state;
	assert_int_equal(idle_ago(1000, 0), 1000);
	assert_int_equal(idle_ago(1000, 10), 1000);
	assert_int_equal(idle_ago(1000, 11), 999);
	assert_int_equal(idle_ago(1000, 510), 500);
	assert_int_equal(idle_ago(1000, 1010), 0);
	assert_int_equal(idle_ago(1000, UINT32_MAX), 0); /* never, on a machine that just started */
}

/* Ten thousand that are due at the same time, on a machine where a look takes its time. */
static void test_many(void **state)
{
	static uint64_t due[10000];
	struct idle_turns t = { 0 };
	uint64_t now = 1000, begin = now;
	unsigned int left = 10000, asked = 0;

	(void)state;
	for (uint32_t batch = 1; left; batch++) {
		unsigned int looks = 0;

		for (unsigned int i = 0; i < 10000; i++) {
			if (due[i] > now)
				continue;
			asked++;
			due[i] = idle_turn(&t, batch, now);
			if (due[i] > now)
				continue;
			due[i] = UINT64_MAX;
			looks++;
			left--;
		}
		assert_true(looks <= IDLE_LOOKS);
		/* some batches are of one millisecond, and some take long */
		now += batch % 3 ? batch % 3 : batch % 99 == 0 ? 50 : 0;
		assert_true(begin + (10000 - left) / IDLE_LOOKS <= now + 1);
	}
	assert_true(now - begin < 10000 / IDLE_LOOKS * 4);
	assert_true(asked <= 6 * 10000); /* and nobody asks all the time */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hears),
		cmocka_unit_test(test_unanswered),
		cmocka_unit_test(test_slow_reader),
		cmocka_unit_test(test_ago),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
