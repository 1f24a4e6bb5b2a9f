// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/protocol.h"
#include "seeded.h"

static const struct header good = {
	.wire = WIRE_BOTH,
	.full = true,
	.size = 65536,
	.seed = UINT64_C(0x123456789abcdef0),
	.warmup_ms = 200,
	.measure_ms = 5000,
};

static void test_header(void **state)
{
	uint8_t frame[PROTOCOL_HEADER];
	struct header h;

	(void)state;
	header_encode(&good, frame);
	memset(&h, 0xff, sizeof(h));
	assert_int_equal(header_parse(frame, &h), 0);
	assert_int_equal(h.wire, good.wire);
	assert_true(h.full);
	assert_int_equal(h.size, good.size);
	assert_true(h.seed == good.seed);
	assert_int_equal(h.warmup_ms, good.warmup_ms);
	assert_int_equal(h.measure_ms, good.measure_ms);
}

/* A relay that changes any byte is found. */
static void test_damaged_header(void **state)
{
	uint8_t frame[PROTOCOL_HEADER];
	struct header h;

	(void)state;
	for (size_t bit = 0; bit < 8 * sizeof(frame); bit++) {
		header_encode(&good, frame);
		frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(header_parse(frame, &h), -EPROTO);
	}
}

static int parse_with(enum wire wire, uint32_t size, uint32_t warmup_ms, uint32_t measure_ms)
{
	uint8_t frame[PROTOCOL_HEADER];
	struct header h = good;

	h.wire = wire;
	h.size = size;
	h.warmup_ms = warmup_ms;
	h.measure_ms = measure_ms;
	header_encode(&h, frame);
	return header_parse(frame, &h);
}

static void test_limits(void **state)
{
	(void)state;
	assert_int_equal(parse_with(WIRE_EXCHANGE, EXCHANGE_SIZE_MAX, 0, 0), 0);
	assert_int_equal(parse_with(WIRE_EXCHANGE, EXCHANGE_SIZE_MAX + 1, 0, 0), -ERANGE);
	assert_int_equal(parse_with(WIRE_EXCHANGE, 0, 0, 0), -ERANGE);
	assert_int_equal(parse_with(WIRE_UP, TRANSFER_SIZE_MAX, 0, 0), 0);
	assert_int_equal(parse_with(WIRE_UP, TRANSFER_SIZE_MAX + 1, 0, 0), -ERANGE);
	assert_int_equal(parse_with(WIRE_DOWN, UINT32_MAX, 0, 0), -ERANGE);
	assert_int_equal(parse_with((enum wire)0, 1, 0, 0), -ERANGE);
	assert_int_equal(parse_with((enum wire)(WIRE_BOTH + 1), 1, 0, 0), -ERANGE);
	assert_int_equal(parse_with(WIRE_UP, 1, PHASE_MS_MAX, PHASE_MS_MAX), 0);
	assert_int_equal(parse_with(WIRE_UP, 1, PHASE_MS_MAX + 1, 0), -ERANGE);
	assert_int_equal(parse_with(WIRE_UP, 1, 0, UINT32_MAX), -ERANGE);
}

static void test_garbage(void **state)
{
	struct seeded random = { 5 };
	uint8_t frame[PROTOCOL_HEADER];
	struct header h;
	struct tail t;

	(void)state;
	memset(frame, 0, sizeof(frame));
	assert_int_equal(header_parse(frame, &h), -EPROTO);
	assert_int_equal(tail_parse(frame, &t), -EPROTO);
	for (int i = 0; i < 10000; i++) {
		for (size_t k = 0; k < sizeof(frame); k++)
			frame[k] = (uint8_t)seeded_next(&random);
		assert_int_equal(header_parse(frame, &h), -EPROTO);
		assert_int_equal(tail_parse(frame, &t), -EPROTO);
	}
	memcpy(frame, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n\r\n", sizeof(frame));
	assert_int_equal(header_parse(frame, &h), -EPROTO);
}

static void test_tail(void **state)
{
	const struct tail in = { .sent = 1, .received = UINT64_MAX, .window = 3, .wrong = 1 };
	uint8_t frame[PROTOCOL_TAIL];
	struct tail out;

	(void)state;
	tail_encode(&in, frame);
	assert_int_equal(tail_parse(frame, &out), 0);
	assert_true(out.sent == 1 && out.received == UINT64_MAX && out.window == 3);
	assert_int_equal(out.wrong, 1);
	for (size_t n = 0; n <= sizeof(frame); n++)
		assert_true(tail_begins(frame, n));
	for (size_t bit = 0; bit < 8 * sizeof(frame); bit++) {
		frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(tail_parse(frame, &out), -EPROTO);
		assert_int_equal(tail_begins(frame, sizeof(frame)), bit >= 64);
		frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_damaged_header),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_garbage),
		cmocka_unit_test(test_tail),
	};

	return cmocka_run_group_tests_name("bench: protocol", tests, NULL, NULL);
}
