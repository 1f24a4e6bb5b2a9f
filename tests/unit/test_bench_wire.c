// SPDX-License-Identifier: BSD-2-Clause
/* What a relay can do to a stream, and that each of it is found. */
#include <string.h>

#include "unit.h"
#include "bench/datagram.h"
#include "bench/wire.h"
#include "seeded.h"

#define SEED 42
#define LENGTH (3U * 1024 * 1024) /* of payload: a dozen periods */
#define ROOM (LENGTH + 2U * PATTERN_PERIOD + sizeof(struct frame))

static uint8_t stream[ROOM]; /* payload and tail, as the sender sent it */
static size_t stream_n;

static int setup(void **state)
{
	struct frame f = { .tail = { .sent = LENGTH } };
	struct pattern p;

	(void)state;
	pattern_init();
	pattern_open(&p, SEED, PATTERN_UP);
	for (size_t i = 0; i < LENGTH; i += PROTOCOL_BLOCK, pattern_advance(&p, PROTOCOL_BLOCK))
		memcpy(stream + i, pattern_bytes(&p), PROTOCOL_BLOCK);
	frame_seal(&f, FRAME_TAIL);
	memcpy(stream + LENGTH, &f, sizeof(f));
	stream_n = LENGTH + sizeof(f);
	return 0;
}

/* Receive the N bytes of DATA in pieces of at most PIECE, of random length. */
static void receive(struct receiver *r, const uint8_t *data, size_t n, size_t piece, bool sample)
{
	static uint8_t buffer[sizeof(struct frame) + PATTERN_PIECE];
	struct seeded random = { piece };

	receiver_open(r, SEED, PATTERN_UP, sample);
	while (n) {
		size_t part = 1 + seeded_below(&random, piece);

		if (part > n)
			part = n;
		memcpy(buffer + sizeof(struct frame), data, part);
		receiver_stream(r, buffer + sizeof(struct frame), part, 0);
		data += part;
		n -= part;
	}
}

static const size_t pieces[] = { 1, 7, 50, 1448, 4096, 65536, PATTERN_PIECE };
#define N_PIECES (sizeof(pieces) / sizeof(pieces[0]))

TEST(test_intact)
{
	struct receiver r;

	for (size_t i = 0; i < N_PIECES; i++) {
		for (int sample = 0; sample < 2; sample++) {
			receive(&r, stream, stream_n, pieces[i], sample);
			assert_true(r.ended);
			assert_true(receiver_complete(&r));
			assert_int_equal(r.at.position, LENGTH);
			assert_int_equal(r.end.tail.sent, LENGTH);
		}
	}
}

enum damage {
	LOSE,
	DOUBLE,
	SWAP, /* with the next piece of the same length */
	INVERT,
};

/* A copy of the stream, with LEN bytes at AT damaged. */
static const uint8_t *damaged(enum damage what, size_t at, size_t len, size_t *ret_n)
{
	static uint8_t copy[ROOM];

	memcpy(copy, stream, stream_n);
	*ret_n = stream_n;
	switch (what) {
	case LOSE:
		memmove(copy + at, stream + at + len, stream_n - at - len);
		*ret_n -= len;
		break;
	case DOUBLE:
		memcpy(copy + at + len, stream + at, stream_n - at);
		*ret_n += len;
		break;
	case SWAP:
		memcpy(copy + at, stream + at + len, len);
		memcpy(copy + at + len, stream + at, len);
		break;
	case INVERT:
		for (size_t i = at; i < at + len; i++)
			copy[i] ^= 0xff;
		break;
	}
	return copy;
}

static void assert_found(int what, size_t at, size_t len, bool sample)
{
	struct receiver r;
	size_t n;
	const uint8_t *copy = damaged((enum damage)what, at, len, &n);

	for (size_t i = 3; i < N_PIECES; i++) {
		receive(&r, copy, n, pieces[i], sample);
		if (receiver_complete(&r))
			fail_msg("damage %d of %zu bytes at %zu not found in pieces of %zu", what,
				 len, at, pieces[i]);
		if (!sample && (what == SWAP || what == INVERT) && at < LENGTH)
			assert_true(r.wrong_at >= at && r.wrong_at <= at + 2 * len);
	}
}

static const size_t places[] = { 0, 1, 255, 256, 4095, 4096, 8192, 1000001, LENGTH - 600000 };
#define N_PLACES (sizeof(places) / sizeof(places[0]))

/*
 * Whatever is shifted is found, by whole blocks and whole periods, too; and what is moved or
 * changed, by a sample if it is long enough.
 */
TEST(test_damage)
{
	static const size_t lengths[] = { 1, 256, 264, 1448, 4096, 65536, PATTERN_PERIOD };

	for (size_t i = 0; i < N_PLACES; i++)
		for (size_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++)
			for (int what = LOSE; what <= INVERT; what++) {
				size_t n = lengths[k];

				/* perhaps the same bytes */
				if (what == SWAP && (n == 1 || n == PATTERN_PERIOD))
					continue;
				assert_found(what, places[i], n, false);
				if (what == LOSE || what == DOUBLE || n >= 264)
					assert_found(what, places[i], n, true);
			}
}

/* At the very end there is nothing after it that would be wrong. */
TEST(test_end)
{
	static const struct {
		enum damage what;
		size_t at, len;
	} ends[] = {
		{ LOSE, LENGTH - 1, 1 },
		{ LOSE, LENGTH - PROTOCOL_BLOCK, PROTOCOL_BLOCK }, /* only the totals differ */
		{ INVERT, LENGTH, 1 },
		{ INVERT, LENGTH + sizeof(struct frame) - 1, 1 },
		{ LOSE, LENGTH + sizeof(struct frame) - 1, 1 },
		{ LOSE, LENGTH, sizeof(struct frame) },
		{ DOUBLE, LENGTH, sizeof(struct frame) },
	};

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		assert_found(ends[i].what, ends[i].at, ends[i].len, true);
}

TEST(test_other_stream)
{
	struct receiver r;
	struct pattern p;

	for (int other = 0; other < 2; other++) {
		pattern_open(&p, SEED + !other, other ? PATTERN_DOWN : PATTERN_UP);
		receive(&r, pattern_bytes(&p), PROTOCOL_BLOCK, 1448, true);
		assert_true(r.wrong);
	}
}

/* A relay that changes any bit is found. */
TEST(test_damaged_header)
{
	const struct header good = {
		.workload = WORKLOAD_BULK_BOTH,
		.size = 65536,
		.seed = UINT64_C(0x123456789abcdef0),
		.warmup_ms = 200,
		.seconds_ms = 5000,
	};

	for (size_t bit = 0; bit < 8 * sizeof(struct frame); bit++) {
		struct frame f = { .header = good };

		frame_seal(&f, FRAME_HEADER);
		assert_true(frame_valid(&f, FRAME_HEADER));
		((uint8_t *)&f)[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_false(frame_valid(&f, FRAME_HEADER));
	}
}

TEST(test_damaged_datagram)
{
	const struct datagram sent = { DATAGRAM_ANSWER, 7, UINT64_C(0x123456789abcdef0), 3 };
	uint8_t text[64 + 1];
	struct datagram d;

	for (size_t bit = 0; bit < 8 * 64; bit++) {
		datagram_write(text, 64, &sent);
		assert_true(datagram_read(text, 64, &d) && !memcmp(&d, &sent, sizeof(d)));
		text[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_false(datagram_read(text, 64, &d));
	}
	datagram_write(text, 64, &sent);
	for (size_t n = 0; n < 64; n++)
		assert_false(n != sizeof(d) && datagram_read(text, n, &d)); /* without payload */
}

UNIT_MAIN(setup, NULL)
