/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "carrier_rig.h"
#include "datapath/carrier.h"
#include "seeded.h"

/*
 * Random streams: writes, pumps and reads of random sizes in random order, through a target that is
 * full most of the time.  carrier_rig.h checks every byte and, after each pump, the books.
 */

#define STREAM (256 * 1024) /* bytes */

struct tally {
	unsigned int results[PUMP_DST_ERROR + 1];
	unsigned int partial; /* pumps that wrote some of what was pending, and not all */
};

static uint64_t random_limit(struct seeded *r)
{
	return seeded_below(r, 2) ? ALL : seeded_size(r, 17);
}

static enum pump random_pump(struct rig *rig, struct seeded *r, enum carrier c, struct tally *tally)
{
	uint64_t out = rig->flow.user_out;
	uint32_t pending = rig->flow.pending;
	struct pump_io io = { .limit = random_limit(r), .until_eof = seeded_below(r, 2) };

	enum pump result = pump_with(rig, c, &io);

	tally->results[result]++;
	out = rig->flow.user_out - out;
	tally->partial += out && out < pending;
	if (out < pending)
		assert_int_equal(io.read, 0); /* what is pending goes first */
	return result;
}

/* Who carries now: what is pending stays with the one who holds it. */
static enum carrier choose(const struct rig *rig, struct seeded *r, bool mixed)
{
	if (!mixed)
		return carrier;
	if (rig->flow.pending)
		return rig->flow.pipe ? CARRIER_SPLICE : CARRIER_COPY;
	return seeded_below(r, 2) ? CARRIER_SPLICE : CARRIER_COPY;
}

static void random_stream(struct rig *rig, uint64_t seed, bool mixed, struct tally *tally)
{
	struct seeded r = { seed };
	unsigned int thrift = 9 + (unsigned int)seeded_below(&r, 6); /* of the reader */
	enum pump result;

	narrow(rig);
	rig->pool.buffer_size = 64 + seeded_size(&r, 17);
	while (rig->sent < STREAM) {
		switch (seeded_below(&r, 4)) {
		case 0:
			produce(rig, seeded_size(&r, 17));
			break;
		case 1:
			consume(rig, seeded_size(&r, thrift));
			break;
		case 2: /* the reader wakes up */
			if (seeded_below(&r, 32) == 0)
				consume_all(rig);
			break;
		default:
			random_pump(rig, &r, choose(rig, &r, mixed), tally);
		}
	}
	shutdown(rig->in, SHUT_WR);
	do {
		consume(rig, seeded_size(&r, thrift));
		result = random_pump(rig, &r, choose(rig, &r, mixed), tally);
	} while (result == PUMP_BLOCKED || result == PUMP_MORE || result == PUMP_EMPTY);
	assert_int_equal(result, PUMP_EOF);
	expect_all_arrived(rig);
	assert_int_equal(rig->pool.buffers_lent + rig->pool.pipes_lent, 0);
}

static void streams(void **state, uint64_t first_seed, bool mixed)
{
	struct tally tally = { 0 };

	for (uint64_t seed = first_seed; seed < first_seed + 10; seed++) {
		assert_int_equal(rig_setup(state), 0);
		random_stream(*state, seed, mixed, &tally);
		assert_int_equal(rig_teardown(state), 0);
	}
	/* the streams were as rough as they should be */
	assert_true(tally.results[PUMP_EMPTY] > 10);
	assert_true(tally.results[PUMP_MORE] > 10);
	assert_true(tally.results[PUMP_BLOCKED] > 100);
	assert_true(tally.partial > 10);
	assert_int_equal(tally.results[PUMP_SRC_ERROR] + tally.results[PUMP_DST_ERROR], 0);
	assert_int_equal(tally.results[PUMP_STARVED] + tally.results[PUMP_UNSUPPORTED], 0);
}

static void test_streams(void **state)
{
	streams(state, 100, false);
}

/* The flow changes its carrier whenever nothing is pending, as session_flow.c does. */
static void test_mixed_streams(void **state)
{
	streams(state, 200, true);
}

int main(void)
{
	const struct CMUnitTest one[] = { cmocka_unit_test(test_streams) };
	const struct CMUnitTest mixed[] = { cmocka_unit_test(test_mixed_streams) };
	int failed = cmocka_run_group_tests_name("copy", one, use_copy, NULL);

	failed += cmocka_run_group_tests_name("splice", one, use_splice, NULL);
	return failed + cmocka_run_group_tests_name("both in turn", mixed, use_splice, NULL);
}
