/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "carrier_rig.h"
#include "datapath/carrier.h"
#include "sanitizer.h" /* for a malloc() that fails */
#include "seeded.h"

/* copy_read_ahead(): bytes are read now and written later, by copy_pump(), in order. */

static enum pump read_ahead(struct rig *rig, uint64_t limit, uint32_t most)
{
	uint64_t user_in = rig->flow.user_in, user_out = rig->flow.user_out;
	enum pump r;

	last = (struct pump_io){ .flow = &rig->flow, .pool = &rig->pool, .src = rig->src,
				 .dst = rig->dst, .limit = limit };
	r = copy_read_ahead(&last, most);
	assert_int_equal(rig->flow.user_out, user_out);
	assert_int_equal(rig->flow.user_in, user_in + last.read);
	assert_true(last.read <= limit);
	assert_int_equal(last.read != 0, last.reads != 0);
	assert_int_equal(last.error != 0, r == PUMP_SRC_ERROR);
	return r;
}

/* Write what was read, and no more. */
static void write_all(struct rig *rig)
{
	enum pump r;

	while ((r = pump(rig, 0, false)) == PUMP_BLOCKED)
		consume_all(rig);
	assert_int_equal(r, PUMP_MORE);
	expect_all_arrived(rig);
}

static void test_reads_only(void **state)
{
	struct rig *rig = *state;

	for (int i = 0; i < 3; i++) {
		produce(rig, 20000);
		assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EMPTY);
		assert_int_equal(last.read, 20000);
		assert_int_equal(rig->flow.pending, 20000);
		assert_int_equal(consume(rig, 1), 0);
		write_all(rig);
		check_loan(rig);
	}
}

static void test_read_ahead_limit(void **state)
{
	struct rig *rig = *state;
	uint64_t sum = 0;

	produce(rig, 40000);
	for (uint64_t limit = 0; sum < 30000; limit = limit * 2 + 1) {
		assert_int_equal(read_ahead(rig, limit, UINT32_MAX), PUMP_MORE);
		assert_int_equal(last.read, limit);
		sum += limit;
		assert_int_equal(rig->flow.pending, sum);
		check_loan(rig);
	}
	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EMPTY);
	write_all(rig);
}

/* Over MOST by less than a buffer; at MOST nothing more is read. */
static void test_read_ahead_most(void **state)
{
	struct rig *rig = *state;
	uint32_t most = 12345, pending;

	produce(rig, 40000);
	assert_int_equal(read_ahead(rig, ALL, most), PUMP_MORE);
	pending = rig->flow.pending;
	assert_true(pending >= most && pending < most + rig->pool.buffer_size);
	assert_int_equal(read_ahead(rig, ALL, most), PUMP_MORE);
	assert_int_equal(read_ahead(rig, ALL, pending), PUMP_MORE);
	assert_int_equal(last.read, 0);
	check_loan(rig);
	while (pump(rig, ALL, false) != PUMP_EMPTY)
		consume_all(rig);
	expect_all_arrived(rig);
}

/* Many small reads share buffers: a flow's memory stays in proportion to its bytes. */
static void test_small_reads_share(void **state)
{
	struct rig *rig = *state;

	for (int i = 0; i < 1000; i++) {
		produce(rig, 7);
		assert_int_equal(read_ahead(rig, 7, UINT32_MAX), PUMP_MORE);
	}
	assert_true(rig->pool.buffers_lent <= 2 + 7000 / (rig->pool.buffer_size - 4096));
	write_all(rig);
	check_loan(rig);
}

/*
 * Nothing to read.  Fails: the buffer that was appended before the read stays with a flow that has
 * nothing pending ("a flow without pending bytes owns neither", pool.h) until the next copy_pump().
 */
static void test_nothing_to_read(void **state)
{
	struct rig *rig = *state;

	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EMPTY);
	assert_int_equal(rig->flow.pending, 0);
	check_loan(rig);
}

/* The same at the end of a full buffer: the books still add up, and the next pump tidies up. */
static void test_exactly_full(void **state)
{
	struct rig *rig = *state;

	produce(rig, 2 * rig->pool.buffer_size);
	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EMPTY);
	assert_int_equal(rig->flow.pending, 2 * rig->pool.buffer_size);
	check_loan(rig);
	write_all(rig);
	check_loan(rig);
}

static void test_read_ahead_eof(void **state)
{
	struct rig *rig = *state;

	produce(rig, 6000);
	shutdown(rig->in, SHUT_WR);
	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EOF);
	assert_int_equal(rig->flow.pending, 6000);
	assert_int_equal(pump(rig, ALL, true), PUMP_EOF);
	expect_all_arrived(rig);
}

static void test_read_ahead_error(void **state)
{
	struct rig *rig = *state;

	produce(rig, 6000);
	assert_int_equal(send(rig->src, "unread", 6, MSG_NOSIGNAL), 6);
	close_end(&rig->in);
	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_SRC_ERROR);
	assert_int_equal(last.error, ECONNRESET);
	assert_int_equal(rig->flow.pending, 6000);
	carrier_release(&rig->flow, &rig->pool);
	assert_int_equal(rig->pool.buffers_lent, 0);
	assert_int_equal(rig->flow.pending, 0);
}

static void test_read_ahead_no_memory(void **state)
{
	struct rig *rig = *state;

	produce(rig, 100);
	rig->pool.buffer_size = SIZE_MAX / 4;
	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_STARVED);
	assert_int_equal(last.read, 0);
	check_loan(rig);
	rig->pool.buffer_size = 5000;
	assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EMPTY);
	write_all(rig);
}

/* Behind what a full target has left over. */
static void test_behind_pending(void **state)
{
	struct rig *rig = *state;

	block(rig);
	for (int i = 0; i < 4; i++) {
		produce(rig, 9000);
		assert_int_equal(read_ahead(rig, ALL, UINT32_MAX), PUMP_EMPTY);
		assert_int_equal(pump(rig, ALL, false), PUMP_BLOCKED);
		consume(rig, 5000);
	}
	write_all(rig);
	check_loan(rig);
}

static void test_random(void **state)
{
	unsigned int aheads = 0, blocked = 0;

	for (uint64_t seed = 300; seed < 310; seed++) {
		struct seeded r = { seed };
		struct rig *rig;

		assert_int_equal(rig_setup(state), 0);
		rig = *state;
		narrow(rig);
		rig->pool.buffer_size = 64 + seeded_size(&r, 15);
		while (rig->sent < 200000) {
			switch (seeded_below(&r, 4)) {
			case 0:
				produce(rig, seeded_size(&r, 15));
				break;
			case 1:
				consume(rig, seeded_size(&r, 14));
				break;
			case 2:
				read_ahead(rig, seeded_size(&r, 15), (uint32_t)seeded_size(&r, 17));
				aheads += last.read != 0;
				break;
			default:
				blocked += pump(rig, seeded_below(&r, 2) ? ALL : 0, false) ==
					   PUMP_BLOCKED;
			}
		}
		while (pump(rig, ALL, false) != PUMP_EMPTY)
			consume_all(rig);
		expect_all_arrived(rig);
		assert_int_equal(rig_teardown(state), 0);
	}
	assert_true(aheads > 100);
	assert_true(blocked > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_RIG(test_reads_only),
		ON_RIG(test_read_ahead_limit),
		ON_RIG(test_read_ahead_most),
		ON_RIG(test_small_reads_share),
		ON_RIG(test_nothing_to_read),
		ON_RIG(test_exactly_full),
		ON_RIG(test_read_ahead_eof),
		ON_RIG(test_read_ahead_error),
		ON_RIG(test_read_ahead_no_memory),
		ON_RIG(test_behind_pending),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, use_copy, NULL);
}
