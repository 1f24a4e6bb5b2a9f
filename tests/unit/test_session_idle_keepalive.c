// SPDX-License-Identifier: BSD-2-Clause
/* When a session was last at work. */
#include <stdbool.h>

#include "unit.h"
#include "relay/session_idle_keepalive.h"

#define NOW 100000
#define TICK 10 /* a socket's clock is that coarse */

/* So long ago was AT_MS, as a socket tells at NOW_MS; 0: never. */
static uint32_t ago(uint64_t now_ms, uint64_t at_ms)
{
	return at_ms ? (uint32_t)(now_ms - at_ms) + TICK : UINT32_MAX;
}

/* Look at two sides at NOW_MS, of which the first heard, sent and was answered at these times. */
static uint64_t look(struct idle *i, uint64_t now_ms, const uint64_t at_ms[3], uint64_t acked,
		     bool owed)
{
	struct tcp_activity sides[2] = {
		{ ago(now_ms, at_ms[0]), ago(now_ms, at_ms[1]), ago(now_ms, at_ms[2]), acked, owed,
		  false },
		{ UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, false, false },
	};

	idle_look(i, now_ms, sides);
	return i->since_ms;
}

/* What is sent again and again, to an end that is gone. */
TEST(test_unanswered)
{
	struct idle i = { .since_ms = 1000 };

	/* there was no look before: it may have taken these five since */
	assert_int_equal(look(&i, NOW, (const uint64_t[]){ 0, 2000, 1900 }, 5, true), 1900);
	for (uint64_t sent = 3000; sent < 13000; sent += 1000)
		assert_int_equal(look(&i, NOW, (const uint64_t[]){ 0, sent, 1900 }, 5, true), 1900);
}

/*
 * Look every second with keepalive = 4, at an end that answers at PROBED_MS what we ask in vain
 * from then on, if ANSWERS.  Returns when it counts as gone; 0: not in a minute.
 */
static uint64_t gone_at(uint64_t probed_ms, bool answers)
{
	struct idle i = { .asked_ms = 1 };

	for (uint64_t now = 1000; now < 60000; now += idle_ask_ms(4000), i.asked_ms = now) {
		uint64_t answered = answers && now > probed_ms + 100 ? probed_ms + 100 : 1;
		struct tcp_activity side = { .ack_received_ago_ms = ago(now, answered),
					     .asked = now >= probed_ms && answered == 1 };

		if (idle_is_gone(&i, now, 4000, &side, 0))
			return now;
	}
	return 0;
}

/* An end that is owed something: it is dead, or stands still and is asked more and more seldom. */
TEST(test_gone)
{
	assert_in_range(gone_at(500, false), 6000, 8000);
	assert_in_range(gone_at(30000, false), 33000, 34000);
	assert_int_equal(gone_at(29950, true), 0);
	assert_int_equal(gone_at(500, true), 0);
}

UNIT_MAIN(NULL, NULL)
