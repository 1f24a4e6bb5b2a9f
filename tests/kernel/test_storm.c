/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * T16 under load: flows that leave the kernel, again and again, amid bytes that arrive.  The race
 * with the verdict (sk_psock_verdict_recv) shows seldom, so a behaviour of `culvert probe` is tried
 * here for seconds.  A small receive buffer is the hard case: SO_RCVLOWAT, which the kernel caps at
 * half of it, is then no fence, and the gate has to do alone.
 */
#include "probe/behaviours.h"
#include "kt.h"

#define STORM_MS 5000

static void storm(const char *name, unsigned int flags)
{
	const struct behaviour *load = &behaviours[behaviour_find("load")];
	const struct behaviour *b = &behaviours[behaviour_find(name)];
	int64_t end = kt_now_ms() + STORM_MS;
	static struct probe p;
	unsigned int n = 0;
	bool holds;

	behaviours_begin(&p, NULL);
	p.flags = flags;
	holds = behaviour_holds(&p, load);
	for (; holds && kt_now_ms() < end; n++)
		holds = behaviour_holds(&p, b);
	behaviours_end(&p);
	print_message("%s: %u times; %s\n", name, n, p.detail);
	assert_true(holds);
}

static void no_byte_is_lost(void **state)
{
	(void)state;
	storm("leave", 0);
}

static void no_byte_is_lost_with_small_buffers(void **state)
{
	(void)state;
	storm("leave", RIG_SMALL_A | RIG_SMALL_B);
}

static void no_byte_is_lost_over_the_hard_limit(void **state)
{
	(void)state;
	storm("hard-limit", 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_byte_is_lost),
		cmocka_unit_test(no_byte_is_lost_with_small_buffers),
		cmocka_unit_test(no_byte_is_lost_over_the_hard_limit),
	};

	kt_enter();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
