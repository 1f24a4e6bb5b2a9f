// SPDX-License-Identifier: BSD-2-Clause
/* The payload and its verification, what both ends say, and one direction of a connection. */
#include "wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"

/* --- the payload --- */

static uint8_t table[PATTERN_PERIOD + PATTERN_PIECE];

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

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
	size_t i = 0;

	while (i < n && a[i] == b[i])
		i++;
	return i;
}

static bool sample_equal(const uint8_t *expected, const uint8_t *data, size_t first, size_t n)
{
	for (size_t i = first; i + sizeof(uint64_t) <= n; i += PATTERN_STRIDE) {
		uint64_t want, is;

		memcpy(&want, expected + i, sizeof(want));
		memcpy(&is, data + i, sizeof(is));
		if (want != is)
			return false;
	}
	return true;
}

size_t pattern_check(const struct pattern *p, const uint8_t *data, size_t n, bool full)
{
	const uint8_t *expected = table + p->at;
	size_t first = (PATTERN_STRIDE - p->position % PATTERN_STRIDE) % PATTERN_STRIDE;
	bool equal;

	if (full || n < PATTERN_STRIDE)
		equal = !memcmp(expected, data, n);
	else
		equal = sample_equal(expected, data, first, n);
	return equal ? n : first_difference(expected, data, n);
}

/* --- what both ends say to each other --- */

#define MAGIC_LEN 8
#define HEADER_MAGIC "cvb-head"
#define TAIL_MAGIC "cvb-tail"

static uint8_t *put(uint8_t *p, uint64_t value, unsigned int bytes)
{
	for (unsigned int i = 0; i < bytes; i++)
		p[i] = (uint8_t)(value >> (8 * i));
	return p + bytes;
}

static uint64_t get(const uint8_t **p, unsigned int bytes)
{
	uint64_t value = 0;

	for (unsigned int i = 0; i < bytes; i++)
		value |= (uint64_t)(*p)[i] << (8 * i);
	*p += bytes;
	return value;
}

/* FNV-1a.  It finds what a relay does to bytes; nobody attacks. */
static uint32_t checksum(const uint8_t *p, size_t n)
{
	uint32_t sum = UINT32_C(2166136261);

	for (size_t i = 0; i < n; i++)
		sum = (sum ^ p[i]) * UINT32_C(16777619);
	return sum;
}

/* A frame ends with the checksum of what is before. */
static bool frame_valid(const uint8_t *in, size_t len, const char *magic)
{
	const uint8_t *at = in + len - 4;

	return !memcmp(in, magic, MAGIC_LEN) && get(&at, 4) == checksum(in, len - 4);
}

void header_encode(const struct header *h, uint8_t out[PROTOCOL_HEADER])
{
	uint8_t *p = out;

	memset(out, 0, PROTOCOL_HEADER);
	memcpy(p, HEADER_MAGIC, MAGIC_LEN);
	p = put(p + MAGIC_LEN, h->wire, 1);
	p = put(p, h->full, 1);
	p = put(p + 2, h->size, 4);
	p = put(p, h->seed, 8);
	p = put(p, h->warmup_ms, 4);
	put(p, h->measure_ms, 4);
	put(out + PROTOCOL_HEADER - 4, checksum(out, PROTOCOL_HEADER - 4), 4);
}

static int check_limits(const struct header *h)
{
	uint32_t size_max = h->wire == WIRE_EXCHANGE ? EXCHANGE_SIZE_MAX : TRANSFER_SIZE_MAX;

	if (h->wire < WIRE_EXCHANGE || h->wire > WIRE_BOTH)
		return -ERANGE;
	if (h->size < 1 || h->size > size_max)
		return -ERANGE;
	if (h->warmup_ms > PHASE_MS_MAX || h->measure_ms > PHASE_MS_MAX)
		return -ERANGE;
	return 0;
}

int header_parse(const uint8_t in[PROTOCOL_HEADER], struct header *ret)
{
	const uint8_t *p = in + MAGIC_LEN;

	if (!frame_valid(in, PROTOCOL_HEADER, HEADER_MAGIC))
		return -EPROTO;
	ret->wire = (enum wire)get(&p, 1);
	ret->full = get(&p, 1) != 0;
	p += 2;
	ret->size = (uint32_t)get(&p, 4);
	ret->seed = get(&p, 8);
	ret->warmup_ms = (uint32_t)get(&p, 4);
	ret->measure_ms = (uint32_t)get(&p, 4);
	return check_limits(ret);
}

void tail_encode(const struct tail *t, uint8_t out[PROTOCOL_TAIL])
{
	uint8_t *p = out;

	memcpy(p, TAIL_MAGIC, MAGIC_LEN);
	p = put(p + MAGIC_LEN, t->sent, 8);
	p = put(p, t->received, 8);
	p = put(p, t->window, 8);
	p = put(p, t->wrong, 4);
	put(p, checksum(out, PROTOCOL_TAIL - 4), 4);
}

/* True if these N bytes (any number) may be the begin of a tail. */
static bool tail_begins(const uint8_t *in, size_t n)
{
	return !memcmp(in, TAIL_MAGIC, n < MAGIC_LEN ? n : MAGIC_LEN);
}

/* 0; -EPROTO: these bytes are no tail, or damaged. */
static int tail_parse(const uint8_t in[PROTOCOL_TAIL], struct tail *ret)
{
	const uint8_t *p = in + MAGIC_LEN;

	if (!frame_valid(in, PROTOCOL_TAIL, TAIL_MAGIC))
		return -EPROTO;
	ret->sent = get(&p, 8);
	ret->received = get(&p, 8);
	ret->window = get(&p, 8);
	ret->wrong = (uint32_t)get(&p, 4);
	return 0;
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

void sender_stop(struct sender *s, uint64_t block)
{
	s->left = (block - s->at.position % block) % block;
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

	if (piece > s->left)
		piece = s->left;
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

void receiver_open(struct receiver *r, uint64_t seed, enum pattern_direction direction, bool full)
{
	memset(r, 0, sizeof(*r));
	pattern_open(&r->at, seed, direction);
	r->full = full;
	r->begin_ns = r->end_ns = NEVER;
}

void receiver_take(struct receiver *r, const uint8_t *data, size_t n, uint64_t now)
{
	if (!r->wrong) {
		size_t right = pattern_check(&r->at, data, n, r->full);

		r->wrong = right < n;
		r->wrong_at = r->at.position + right;
	}
	pattern_advance(&r->at, n);
	if (now >= r->begin_ns && now < r->end_ns)
		r->window += n;
}

/* Payload bytes of DATA before what may be a tail: all N, if there is nothing of that kind. */
static size_t find_tail(const struct receiver *r, const uint8_t *data, size_t n)
{
	size_t at = (PROTOCOL_BLOCK - r->at.position % PROTOCOL_BLOCK) % PROTOCOL_BLOCK;

	while (at < n && !tail_begins(data + at, n - at))
		at += PROTOCOL_BLOCK;
	return at < n ? at : n;
}

static void say_wrong(struct receiver *r)
{
	if (!r->wrong)
		r->wrong_at = r->at.position;
	r->wrong = true;
}

/* All of a tail is in held. */
static void take_tail(struct receiver *r)
{
	r->ended = !tail_parse(r->held, &r->tail);
	if (!r->ended)
		say_wrong(r);
}

void receiver_stream(struct receiver *r, uint8_t *data, size_t n, uint64_t now)
{
	uint8_t *begin = data - r->held_n;
	size_t payload;

	if (r->ended || r->held_n == PROTOCOL_TAIL) {
		say_wrong(r);
		return;
	}
	memcpy(begin, r->held, r->held_n);
	n += r->held_n;
	payload = find_tail(r, begin, n);
	if (payload > PATTERN_PIECE) { /* held bytes that are none, before a full piece */
		receiver_take(r, begin, payload - PATTERN_PIECE, now);
		begin += payload - PATTERN_PIECE;
		n -= payload - PATTERN_PIECE;
		payload = PATTERN_PIECE;
	}
	if (payload)
		receiver_take(r, begin, payload, now);
	r->held_n = (uint8_t)(n - payload < PROTOCOL_TAIL ? n - payload : PROTOCOL_TAIL);
	memcpy(r->held, begin + payload, r->held_n);
	if (r->held_n == PROTOCOL_TAIL)
		take_tail(r);
	if (n - payload > PROTOCOL_TAIL)
		say_wrong(r);
}

bool receiver_complete(const struct receiver *r)
{
	return r->ended && !r->wrong && r->tail.sent == r->at.position;
}
