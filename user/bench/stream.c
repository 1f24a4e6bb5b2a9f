// SPDX-License-Identifier: BSD-2-Clause
#include "stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"

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
