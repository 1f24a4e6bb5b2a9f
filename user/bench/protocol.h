/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_PROTOCOL_H
#define CULVERT_BENCH_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pattern.h"

/*
 * What generator and sink say to each other.
 *
 * Each connection begins with a header, from the client.  It says what the connection is for; the
 * sink itself has no options.
 *
 * WIRE_EXCHANGE   The first request follows the header in the same segment.  Each request and each
 *                 response is `size` bytes of its direction's stream (pattern.h), without any
 *                 framing; the streams go on from one message to the next.  A sink that receives a
 *                 wrong byte answers with one that is wrong on purpose, and then reads on without
 *                 answering: so the client counts it, and every wrong message counts once.
 *
 * WIRE_UP, _DOWN, _BOTH
 *                 The sink answers the header with PROTOCOL_HELLO: then the whole path is known
 *                 to work.  When all connections are open, the client sends PROTOCOL_GO on each,
 *                 and both sides begin their warm-up.
 *                 Payload has no framing, but ends at a multiple of PROTOCOL_BLOCK bytes and is
 *                 followed by one tail, which has the sender's total.  So a receiver looks for a
 *                 tail there.  When the measured time is over, the client sends its tail, even if
 *                 it had no payload to send; then the sink ends its stream with its own tail,
 *                 which also tells what the sink has received, in all and in the measured time.
 *                 The client closes when it has this tail.  No half-close is needed for that:
 *                 not every relay forwards one.
 *                 A sink that receives wrong content sends its tail at once.
 *
 * Numbers are little-endian.
 */
#define PROTOCOL_HEADER 40
#define PROTOCOL_TAIL 40
#define PROTOCOL_BLOCK 4096
#define PROTOCOL_WORD 8 /* PROTOCOL_HELLO, PROTOCOL_GO */
#define PROTOCOL_HELLO "cvb-helo"
#define PROTOCOL_GO "cvb-go!\n"

/* Limits of what a header may ask for. */
#define EXCHANGE_SIZE_MAX (16U << 20)
#define TRANSFER_SIZE_MAX PATTERN_PIECE
#define PHASE_MS_MAX (24U * 3600 * 1000)

enum wire {
	WIRE_EXCHANGE = 1,
	WIRE_UP = 2,
	WIRE_DOWN = 3,
	WIRE_BOTH = 4,
};

struct header {
	enum wire wire;
	bool full;           /* verify every byte */
	uint32_t size;       /* bytes of a message; transfers: bytes per send(2) */
	uint64_t seed;       /* of both streams */
	uint32_t warmup_ms;  /* after PROTOCOL_GO */
	uint32_t measure_ms; /* then */
};

struct tail {
	uint64_t sent;     /* payload bytes before this tail */
	uint64_t received; /* the sink's: payload bytes of the whole connection */
	uint64_t window;   /* the sink's: of these, those received in the measured time */
	uint32_t wrong;    /* the sink's: 1 if the content was wrong */
};

static inline bool wire_sends_down(enum wire w)
{
	return w == WIRE_DOWN || w == WIRE_BOTH;
}

void header_encode(const struct header *h, uint8_t out[PROTOCOL_HEADER]);

/* 0; -EPROTO: these bytes are no header, or damaged; -ERANGE: a value beyond its limits. */
int header_parse(const uint8_t in[PROTOCOL_HEADER], struct header *ret);

void tail_encode(const struct tail *t, uint8_t out[PROTOCOL_TAIL]);

/* True if these N bytes (any number) may be the begin of a tail. */
bool tail_begins(const uint8_t *in, size_t n);

/* 0; -EPROTO: these bytes are no tail, or damaged. */
int tail_parse(const uint8_t in[PROTOCOL_TAIL], struct tail *ret);

#endif
