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

static void storm(const char *name, bool small)
{
	const struct behaviour *b = behaviours;
	int64_t end = kt_now_ms() + STORM_MS;
	char detail[PROBE_DETAIL] = "";
	bool holds = true;
	unsigned int n = 0;

	while (strcmp(b->name, name) != 0)
		b++;
	for (; holds && kt_now_ms() < end; n++)
		holds = behaviour_holds(b, kt_culvert, NULL, small, detail);
	print_message("%s: %u times; %s\n", name, n, detail);
	assert_true(holds);
}

TEST(no_byte_is_lost)
{
	storm("leave", false);
}

TEST(no_byte_is_lost_with_small_buffers)
{
	storm("leave", true);
}

TEST(no_byte_is_lost_over_the_hard_limit)
{
	storm("hard-limit", false);
}

/* The least that kernel-memory may be: gates close, and what has closed its gate has to leave. */
TEST(nothing_stands_still_for_want_of_memory)
{
	const struct sockmap_limits limits = { .pairs = 1, .workers = 1, .memory = 1 << 20 };
	struct sockmap *without = kt_culvert;
	char err[512];

	assert_int_equal(sockmap_open(&limits, &kt_culvert, err, sizeof(err)), 0);
	storm("redirect", false);
	sockmap_close(kt_culvert);
	kt_culvert = without;
}

KT_MAIN(kt_load_culvert, kt_unload_culvert)
