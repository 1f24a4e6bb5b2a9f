// SPDX-License-Identifier: BSD-2-Clause
/*
 * What culvert-bench reads from the network: headers and tails (user/bench/wire.c) and streams
 * that end in a tail (stream.c, pattern.c).  The first byte says which:
 *
 *   0  a header    1  a tail    2  a stream, received in two different cuts    3  a comparison
 *
 * Headers and tails get their checksum from here, unless a bit of the first byte says otherwise: no
 * fuzzer would find it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench/wire.h"
#include "fuzz.h"

#define SMALL_MAX (16u << 10)         /* of payload; */
#define BIG_MAX (2 * PATTERN_PIECE)   /* for whole pieces, as one recv(2) fills them */
#define BEHIND_MAX (8u << 10)
#define MAGIC_LEN 8

/* FNV-1a over what is before it. */
static void put_checksum(uint8_t *frame, size_t len)
{
	uint32_t sum = UINT32_C(0x811c9dc5);

	for (size_t i = 0; i < len - 4; i++)
		sum = (sum ^ frame[i]) * UINT32_C(0x01000193);
	for (size_t i = 0; i < 4; i++)
		frame[len - 4 + i] = (uint8_t)(sum >> (8 * i));
}

static void take_frame(struct input *in, uint8_t *frame, size_t len, const char *magic, bool as_is)
{
	const uint8_t *bytes;
	size_t n;

	memset(frame, 0, len);
	if (!as_is)
		memcpy(frame, magic, MAGIC_LEN);
	n = input_bytes(in, as_is ? len : len - MAGIC_LEN - 4, &bytes);
	memcpy(frame + (as_is ? 0 : MAGIC_LEN), bytes, n);
	if (!as_is)
		put_checksum(frame, len);
}

static void check_header(struct input *in, bool as_is)
{
	uint8_t frame[PROTOCOL_HEADER], again[PROTOCOL_HEADER];
	struct header h = { 0 }, h2 = { 0 };
	int r;

	take_frame(in, frame, sizeof(frame), "cvb-head", as_is);
	r = header_parse(frame, &h);
	must(r == 0 || r == -ERANGE || (r == -EPROTO && as_is), "returned %d", r);
	if (r)
		return;
	must(h.wire >= WIRE_EXCHANGE && h.wire <= WIRE_BOTH, "wire %d", (int)h.wire);
	must(h.size >= 1 && h.size <= (h.wire == WIRE_EXCHANGE ? 16U << 20 : 256U << 10), "size %u",
	     h.size);
	must(h.warmup_ms <= 86400000 && h.measure_ms <= 86400000, "longer than a day");
	header_encode(&h, again);
	must(!header_parse(again, &h2), "does not parse again");
	must(h.wire == h2.wire && h.full == h2.full && h.size == h2.size && h.seed == h2.seed &&
	     h.warmup_ms == h2.warmup_ms && h.measure_ms == h2.measure_ms, "is another");
}

static void check_tail(struct input *in, bool as_is)
{
	uint8_t frame[PROTOCOL_TAIL], again[PROTOCOL_TAIL];
	struct tail t;
	int r;

	take_frame(in, frame, sizeof(frame), "cvb-tail", as_is);
	r = tail_parse(frame, &t);
	must(r == 0 || (r == -EPROTO && as_is), "returned %d", r);
	if (r)
		return;
	for (size_t n = 0; n <= sizeof(frame); n++)
		must(tail_begins(frame, n), "%zu bytes of a tail begin none", n);
	tail_encode(&t, again);
	must(!memcmp(frame, again, sizeof(frame)), "is another");
}

/* --- streams --- */

struct stream {
	uint64_t seed;
	bool full;
	bool big;
	bool right;    /* ends in its tail, and every byte is the right one */
	size_t n;
	uint8_t *bytes;
};

/* Where a tail may begin: some bytes of one, and no more.  True if the payload was another. */
static bool begin_tail(struct input *in, uint8_t *bytes)
{
	size_t n = 1 + input_byte(in) % MAGIC_LEN;
	bool changed = memcmp(bytes, "cvb-tail", n);

	memcpy(bytes, "cvb-tail", n);
	return changed;
}

/* Where one of the blocks begins that PAYLOAD is made of, by the number AT. */
static size_t block_of(size_t at, uint64_t payload)
{
	return at % (payload / PROTOCOL_BLOCK) * PROTOCOL_BLOCK;
}

/* Payload of some length, and its tail; damaged, perhaps. */
static void compose(struct input *in, struct stream *s)
{
	uint64_t payload = input_size(in) % (s->big ? BIG_MAX : SMALL_MAX);
	uint8_t damage = input_byte(in) % 7;
	size_t at = (size_t)input_size(in), more = 0;
	bool changed = false;
	struct pattern p;
	struct tail t = { 0 };

	if (damage != 1)
		payload -= payload % PROTOCOL_BLOCK;
	pattern_open(&p, s->seed, PATTERN_UP);
	for (size_t done = 0, n; done < payload; done += n, pattern_advance(&p, n)) {
		n = payload - done < PATTERN_PIECE ? payload - done : PATTERN_PIECE;
		memcpy(s->bytes + done, pattern_bytes(&p), n);
	}
	t.sent = payload + (damage == 2);
	tail_encode(&t, s->bytes + payload);
	s->n = payload + PROTOCOL_TAIL;
	if (damage == 3)
		s->bytes[at % s->n] ^= (uint8_t)(input_byte(in) | 1);
	if (damage == 4)
		more = 1 + at % 5000;
	if (damage == 5)
		s->n -= 1 + at % s->n;
	if (damage == 6 && payload)
		changed = begin_tail(in, s->bytes + block_of(at, payload));
	memset(s->bytes + s->n, 0x63, more);
	s->n += more;
	s->right = damage == 0 || (damage == 1 && payload % PROTOCOL_BLOCK == 0) ||
		   (damage == 6 && !changed);
}

/*
 * How many bytes come next, as the byte PIECE says: the most at once, or up to 1 to 7 bytes behind
 * a block, where a tail may begin; else few.
 */
static size_t piece_length(const struct stream *s, size_t at, uint8_t piece)
{
	size_t n = s->big ? 4096 + piece * 1024 : 1 + piece * piece;

	if (piece == 255)
		n = PATTERN_PIECE;
	else if (piece > 247)
		n = PROTOCOL_BLOCK - at % PROTOCOL_BLOCK + piece - 247;
	n = n < s->n - at ? n : s->n - at;
	return n < PATTERN_PIECE ? n : PATTERN_PIECE;
}

/* The bytes of PIECES are used in turn. */
static struct receiver receive(const struct stream *s, const uint8_t *pieces, size_t n_pieces)
{
	struct receiver r;

	receiver_open(&r, s->seed, PATTERN_UP, s->full);
	for (size_t at = 0, i = 0; at < s->n; i++) {
		size_t n = piece_length(s, at, pieces[i % n_pieces]);
		uint8_t *room = malloc(PROTOCOL_TAIL + n);

		if (!room)
			abort();
		memcpy(room + PROTOCOL_TAIL, s->bytes + at, n);
		receiver_stream(&r, room + PROTOCOL_TAIL, n, 0);
		free(room);
		at += n;
	}
	return r;
}

static void check_stream(struct input *in)
{
	static uint8_t bytes[BIG_MAX + PROTOCOL_TAIL + BEHIND_MAX];
	static const uint8_t most[] = { 255 };
	struct stream s = { .bytes = bytes };
	struct receiver whole, cut;
	const uint8_t *pieces;
	uint8_t kind = input_byte(in);
	size_t n;

	s.full = kind % 2;
	s.big = kind / 2 % 16 == 15;
	s.seed = input_number(in, 2);
	compose(in, &s);
	n = input_bytes(in, 16, &pieces);
	whole = receive(&s, most, 1);
	cut = n ? receive(&s, pieces, n) : whole;
	must(receiver_complete(&whole) == s.right || (!s.full && !whole.wrong),
	     "complete: %d, not %d", receiver_complete(&whole), s.right);
	must(!s.right || (receiver_complete(&whole) && receiver_complete(&cut)), "not complete");
	must(whole.ended == cut.ended || !s.full, "ended: %d in one piece", whole.ended);
	if (!s.full) /* a sample of short pieces compares more */
		return;
	must(whole.wrong == cut.wrong, "wrong: %d in one piece", whole.wrong);
	must(!whole.wrong || whole.wrong_at == cut.wrong_at, "wrong at %llu in one piece, not %llu",
	     (unsigned long long)whole.wrong_at, (unsigned long long)cut.wrong_at);
	must(receiver_complete(&whole) == receiver_complete(&cut), "complete: %d in one piece",
	     receiver_complete(&whole));
}

static void check_comparison(struct input *in)
{
	static uint8_t data[4096];
	struct pattern p;
	size_t n = input_number(in, 2) % sizeof(data), right = 0, at;
	bool full = input_byte(in) % 2, changed = input_byte(in) % 2;

	pattern_open(&p, input_number(in, 8), PATTERN_DOWN);
	pattern_advance(&p, input_size(in));
	memcpy(data, pattern_bytes(&p), n);
	if (changed && n)
		data[input_number(in, 2) % n] ^= (uint8_t)(input_byte(in) | 1);
	while (right < n && data[right] == pattern_bytes(&p)[right])
		right++;
	at = pattern_check(&p, data, n, full);
	must(at == right || (!full && n >= PATTERN_STRIDE && at == n),
	     "%zu of %zu bytes are right, not %zu", right, n, at);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
/* NOLINTNEXTLINE(readability-non-const-parameter): libFuzzer's prototype */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	pattern_init();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	uint8_t mode = input_byte(&in);

	switch (mode % 4) {
	case 0:
		check_header(&in, mode & 4);
		break;
	case 1:
		check_tail(&in, mode & 4);
		break;
	case 2:
		check_stream(&in);
		break;
	default:
		check_comparison(&in);
	}
	return 0;
}
