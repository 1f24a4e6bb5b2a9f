/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_STREAM_H
#define CULVERT_BENCH_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "pattern.h"
#include "protocol.h"

#define SENDER_ENDLESS UINT64_MAX

/* One direction of a connection, at the end that sends it. */
struct sender {
	struct pattern at;
	uint64_t left; /* payload bytes to send, after the note; or SENDER_ENDLESS */
	uint8_t note[PROTOCOL_HEADER]; /* a few bytes of protocol, sent first */
	uint8_t note_at, note_n;
};

void sender_open(struct sender *s, uint64_t seed, enum pattern_direction direction);

/* Send the N bytes of NOTE before any more payload.  There must be no note that is unsent. */
void sender_note(struct sender *s, const void *note, size_t n);

/* No more payload but what is left to the next multiple of BLOCK. */
void sender_stop(struct sender *s, uint64_t block);

static inline bool sender_has_note(const struct sender *s)
{
	return s->note_at < s->note_n;
}

/* Everything is sent. */
static inline bool sender_idle(const struct sender *s)
{
	return !s->left && !sender_has_note(s);
}

/*
 * One system call that sends note and payload, of the latter at most PIECE bytes (1 to
 * PATTERN_PIECE).  Returns the payload bytes that the kernel took, or -errno; -EAGAIN: wait for
 * EPOLLOUT.
 */
ssize_t sender_push(struct sender *s, int fd, size_t piece);

/* One direction of a connection, at the end that receives it. */
struct receiver {
	struct pattern at;
	uint64_t begin_ns, end_ns; /* the measured time: begin <= now < end */
	uint64_t window;           /* payload bytes received then */
	uint64_t wrong_at;         /* position of the first wrong byte */
	bool full;                 /* compare every byte */
	bool wrong;  /* once true, the rest is counted, but not compared: it is shifted */
	bool ended;  /* transfers: the tail has come */
	uint8_t held_n;
	uint8_t held[PROTOCOL_TAIL]; /* transfers: the begin of what looks like a tail */
	struct tail tail;            /* once ended */
};

/* The measured time is to be set by the caller; until then nothing is in it. */
void receiver_open(struct receiver *r, uint64_t seed, enum pattern_direction direction, bool full);

/* N payload bytes (at most PATTERN_PIECE) have come. */
void receiver_take(struct receiver *r, const uint8_t *data, size_t n, uint64_t now);

/*
 * The same for a stream that ends in a tail.  Before DATA there must be room for PROTOCOL_TAIL
 * bytes, which are overwritten.  Bytes after the tail are wrong content.
 */
void receiver_stream(struct receiver *r, uint8_t *data, size_t n, uint64_t now);

/* True if the stream has ended with a tail, and everything that was sent has come. */
bool receiver_complete(const struct receiver *r);

#endif
