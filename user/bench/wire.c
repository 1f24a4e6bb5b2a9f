// SPDX-License-Identifier: BSD-2-Clause
/* The payload and its verification, what both ends say, and one direction of a connection. */
#include "wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/minmax.h"

/* --- the payload --- */

#define SAMPLE 8 /* bytes of each PATTERN_STRIDE */

static uint8_t table[PATTERN_PERIOD + PATTERN_PIECE + sizeof(struct frame)];

/* The finalizer of SplitMix64. */
uint64_t pattern_mix(uint64_t x)
{
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

void pattern_init(void)
{
	uint64_t state = 0;

	for (size_t i = 0; i < PATTERN_PERIOD; i++) {
		state += UINT64_C(0x9e3779b97f4a7c15);
		table[i] = (uint8_t)(pattern_mix(state) >> 56);
	}
	for (size_t i = PATTERN_PERIOD; i < sizeof(table); i++)
		table[i] = table[i - PATTERN_PERIOD];
}

void pattern_open(struct pattern *p, uint64_t seed, enum pattern_direction direction)
{
	p->position = 0;
	p->at = (uint32_t)(pattern_mix(2 * seed + direction + 1) % PATTERN_PERIOD);
}

const uint8_t *pattern_bytes(const struct pattern *p)
{
	return table + p->at;
}

void pattern_advance(struct pattern *p, uint64_t n)
{
	p->position += n;
	p->at = (uint32_t)((p->at + n % PATTERN_PERIOD) % PATTERN_PERIOD);
}

static bool sample_equal(const uint8_t *expected, const uint8_t *data, size_t first, size_t n)
{
	for (size_t i = first; i + SAMPLE <= n; i += PATTERN_STRIDE)
		if (memcmp(expected + i, data + i, SAMPLE))
			return false;
	return true;
}

size_t pattern_check(const struct pattern *p, const uint8_t *data, size_t n, bool sample)
{
	const uint8_t *expected = table + p->at;
	size_t first = (PATTERN_STRIDE - p->position % PATTERN_STRIDE) % PATTERN_STRIDE, i = 0;
	bool equal;

	if (sample && n >= PATTERN_STRIDE)
		equal = sample_equal(expected, data, first, n);
	else
		equal = !memcmp(expected, data, n);
	while (!equal && expected[i] == data[i])
		i++;
	return equal ? n : i;
}

/* --- what both ends say to each other --- */

/* The checksum finds bytes that a relay has changed; it need not resist an attacker. */
static uint64_t checksum(const struct frame *f)
{
	uint64_t words[offsetof(struct frame, checksum) / sizeof(uint64_t)], sum = 0;

	memcpy(words, f, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		sum = pattern_mix(sum ^ words[i]) + 1;
	return sum;
}

void frame_seal(struct frame *f, const char *magic)
{
	memcpy(f->magic, magic, sizeof(f->magic));
	f->checksum = checksum(f);
}

bool frame_valid(const struct frame *f, const char *magic)
{
	return !memcmp(f->magic, magic, sizeof(f->magic)) && f->checksum == checksum(f);
}

/* --- one direction of a connection --- */

void sender_open(struct sender *s, uint64_t seed, enum pattern_direction direction)
{
	pattern_open(&s->at, seed, direction);
	s->left = 0;
	s->note_at = s->note_n = 0;
}

void sender_note(struct sender *s, const void *note, size_t n)
{
	memcpy(s->note, note, n);
	s->note_at = 0;
	s->note_n = (uint8_t)n;
}

void sender_stop(struct sender *s)
{
	s->left = (PROTOCOL_BLOCK - s->at.position % PROTOCOL_BLOCK) % PROTOCOL_BLOCK;
}

static ssize_t push_both(struct sender *s, int fd, size_t piece)
{
	struct iovec iov[2] = {
		{ .iov_base = s->note + s->note_at, .iov_len = s->note_n - s->note_at },
		{ .iov_base = (void *)pattern_bytes(&s->at), .iov_len = piece },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t n = sendmsg(fd, &msg, MSG_NOSIGNAL);

	if (n < 0)
		return -errno;
	if ((size_t)n < iov[0].iov_len) {
		s->note_at += (uint8_t)n;
		return 0;
	}
	s->note_at = s->note_n = 0;
	return n - (ssize_t)iov[0].iov_len;
}

ssize_t sender_push(struct sender *s, int fd, size_t piece)
{
	ssize_t n;

	piece = smaller(piece, s->left);
	if (sender_has_note(s)) {
		n = push_both(s, fd, piece);
	} else {
		n = send(fd, pattern_bytes(&s->at), piece, MSG_NOSIGNAL);
		if (n < 0)
			n = -errno;
	}
	if (n <= 0)
		return n;
	pattern_advance(&s->at, (uint64_t)n);
	if (s->left != SENDER_ENDLESS)
		s->left -= (uint64_t)n;
	return n;
}

void receiver_open(struct receiver *r, uint64_t seed, enum pattern_direction direction, bool sample)
{
	memset(r, 0, sizeof(*r));
	pattern_open(&r->at, seed, direction);
	r->sample = sample;
	r->begin_ns = r->end_ns = NEVER;
}

void receiver_take(struct receiver *r, const uint8_t *data, size_t n, uint64_t now)
{
	if (!r->wrong) {
		size_t right = pattern_check(&r->at, data, n, r->sample);

		r->wrong = right < n;
		r->wrong_at = r->at.position + right;
	}
	pattern_advance(&r->at, n);
	if (now >= r->begin_ns && now < r->end_ns)
		r->window += n;
}

/* Returns the number of payload bytes before a possible tail in DATA; N: there is no tail. */
static size_t find_tail(const struct receiver *r, const uint8_t *data, size_t n)
{
	size_t at = (PROTOCOL_BLOCK - r->at.position % PROTOCOL_BLOCK) % PROTOCOL_BLOCK;

	while (at < n && memcmp(data + at, FRAME_TAIL, smaller(n - at, strlen(FRAME_TAIL))))
		at += PROTOCOL_BLOCK;
	return smaller(at, n);
}

void receiver_wrong(struct receiver *r)
{
	if (!r->wrong)
		r->wrong_at = r->at.position;
	r->wrong = true;
}

void receiver_stream(struct receiver *r, uint8_t *data, size_t n, uint64_t now)
{
	uint8_t *begin = data - r->held_n;
	size_t payload;

	if (r->held_n == sizeof(r->held)) {
		receiver_wrong(r); /* behind the tail */
		return;
	}
	memcpy(begin, r->held, r->held_n);
	n += r->held_n;
	payload = find_tail(r, begin, n);
	if (payload)
		receiver_take(r, begin, payload, now);
	n -= payload;
	r->held_n = (uint8_t)smaller(n, sizeof(r->held));
	memcpy(r->held, begin + payload, r->held_n);
	r->ended = r->held_n == sizeof(r->held) && frame_valid(&r->end, FRAME_TAIL);
	if (n > sizeof(r->held) || (n == sizeof(r->held) && !r->ended))
		receiver_wrong(r);
}

bool receiver_complete(const struct receiver *r)
{
	return r->ended && !r->wrong && r->end.tail.sent == r->at.position;
}
