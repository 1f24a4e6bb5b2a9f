/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* --- the payload --- */

/*
 * The payload.  Each direction of each connection is a stream of its own: PATTERN_PERIOD random
 * bytes over and over, begun at a place that depends on the connection's seed and the direction.
 *
 * Sending costs only the system call, which sends from the table of random bytes.  The table goes
 * on after the period, so a piece of PATTERN_PIECE bytes and a frame can begin at any place of it.
 *
 * The period is a prime number near 256 KiB, and no size of a buffer or packet is a multiple of it.
 * So if a buffer or packet is lost, doubled or moved, some bytes are where other random bytes are
 * expected.  A loss of exactly one period leaves the content right.  Both ends find that loss by
 * the number of bytes of the whole stream (struct tail).
 *
 * Full verification compares every byte.  A sample compares the 8 bytes at each multiple of 256 in
 * the stream, and every byte of a piece of less than 256 bytes.  A sample finds each shift within
 * the next 264 bytes, and each moved piece of 264 bytes or more, but only 1 of 32 single flipped
 * bytes.  Samples are for throughput, where a full comparison would be a cost of its own.
 */
#define PATTERN_PERIOD 262139
#define PATTERN_PIECE (256U << 10)
#define PATTERN_STRIDE 256

enum pattern_direction {
	PATTERN_UP,   /* from the client to the sink */
	PATTERN_DOWN, /* from the sink to the client */
};

/* A place in a stream. */
struct pattern {
	uint64_t position; /* bytes from the stream's begin */
	uint32_t at;       /* in the table */
};

/* Fill the table, which is the same in every process.  Call it once, before anything else. */
void pattern_init(void);

void pattern_open(struct pattern *p, uint64_t seed, enum pattern_direction direction);

/* The next PATTERN_PIECE bytes of the stream. */
const uint8_t *pattern_bytes(const struct pattern *p);

void pattern_advance(struct pattern *p, uint64_t n);

/*
 * Compare the N bytes (at most PATTERN_PIECE and a frame) of DATA with the stream at P.  Returns
 * the index of the first that is wrong, or N.  Does not move P.
 */
size_t pattern_check(const struct pattern *p, const uint8_t *data, size_t n, bool sample);

/* Spread the bits of X: for seeds. */
uint64_t pattern_mix(uint64_t x);

/* --- what both ends say to each other --- */

enum workload {
	WORKLOAD_SINK,
	WORKLOAD_RR,
	WORKLOAD_CRR,
	WORKLOAD_IDLE,
	WORKLOAD_BULK_UP, /* from here on transfers, the others exchange messages */
	WORKLOAD_BULK_DOWN,
	WORKLOAD_BULK_BOTH,
	WORKLOAD_SLOW,
	N_WORKLOADS,
};

static inline bool is_transfer(enum workload w)
{
	return w >= WORKLOAD_BULK_UP;
}

static inline bool sends_up(enum workload w)
{
	return w == WORKLOAD_BULK_UP || w == WORKLOAD_BULK_BOTH;
}

static inline bool sends_down(enum workload w)
{
	return is_transfer(w) && w != WORKLOAD_BULK_UP;
}

/*
 * How a connection of crr ends, after one exchange.  The end that resets does so when the other has
 * all bytes: a reset may overtake them.
 */
enum ends {
	ENDS_CLIENT,       /* the client closes */
	ENDS_SERVER,       /* the sink closes */
	ENDS_CLIENT_HALF,  /* the client half-closes behind its request, the sink answers then */
	ENDS_SERVER_HALF,  /* the sink half-closes, and gets one more message then */
	ENDS_CLIENT_RESET, /* the client resets */
	ENDS_SERVER_RESET, /* the sink resets at a second message */
	N_ENDS,
	ENDS_EACH = N_ENDS, /* all of them in turn */
};

/*
 * The protocol of generator and sink.
 *
 * Each connection begins with a frame, from the client: a header.  It says what the connection is
 * for; the sink itself has no options.
 *
 * Messages        The first request follows the header in the same segment.  Each request and each
 *                 response is `size` bytes of its direction's stream, without any framing; the
 *                 streams go on from one message to the next.  A sink that receives a wrong byte
 *                 answers with a byte that is wrong on purpose, and then reads on without
 *                 answering.  So the client counts each wrong message, and counts it once.
 *
 * Transfers       The sink answers the header with PROTOCOL_HELLO: then the whole path is known
 *                 to work.  When all connections are open, the client sends PROTOCOL_GO on each,
 *                 and both sides begin their warm-up.
 *                 Payload has no framing, but ends at a multiple of PROTOCOL_BLOCK bytes.  One
 *                 frame follows, the tail, which has the sender's total.  A receiver looks for the
 *                 tail at each such multiple.  When the measured time is over, the client sends
 *                 its tail, even if it had no payload to send.  Then the sink ends its stream with
 *                 its own tail.  The sink's tail also has the bytes that the sink has received, in
 *                 all and in the measured time.  The client closes when it has this tail.  No
 *                 half-close is needed for that: not every relay forwards one.
 *                 A sink that receives wrong content sends its tail at once.
 *
 * Numbers are in the byte order of the machine.
 */
#define PROTOCOL_BLOCK 4096
#define PROTOCOL_WORD 8 /* PROTOCOL_HELLO, PROTOCOL_GO */
#define PROTOCOL_HELLO "cvb-helo"
#define PROTOCOL_GO "cvb-go!\n"

/* Limits of what a client may ask for. */
#define EXCHANGE_SIZE_MAX (16U << 20)
#define TRANSFER_SIZE_MAX PATTERN_PIECE
#define ENDS_SIZE_MAX (16U << 10) /* one send(2) takes it all */
#define DATAGRAM_MIN 24           /* of datagram.h */
#define DATAGRAM_MAX 65507
#define PHASE_MS_MAX (24U * 3600 * 1000)

struct header {
	uint64_t seed;       /* of both streams */
	uint32_t workload;   /* enum workload */
	uint16_t sample;     /* do not verify every byte */
	uint16_t ends;       /* enum ends */
	uint32_t size;       /* bytes of a message; transfers: bytes per send(2) */
	uint32_t warmup_ms;  /* after PROTOCOL_GO */
	uint64_t seconds_ms; /* the measured time, after the warm-up */
};

struct tail {
	uint64_t sent;     /* payload bytes before this tail */
	uint64_t received; /* the sink's: payload bytes of the whole connection */
	uint64_t window;   /* the sink's: of these, those received in the measured time */
	uint64_t wrong;    /* the sink's: 1 if the content was wrong */
};

struct frame {
	uint8_t magic[8]; /* FRAME_HEADER or FRAME_TAIL */
	union {
		struct header header;
		struct tail tail;
	};
	uint64_t checksum; /* of what is before */
};

#define FRAME_HEADER "cvb-head"
#define FRAME_TAIL "cvb-tail"

/* F becomes valid, as a frame of that MAGIC. */
void frame_seal(struct frame *f, const char *magic);

/* False: F is no frame of that MAGIC, or is damaged. */
bool frame_valid(const struct frame *f, const char *magic);

/* --- one direction of a connection --- */

#define SENDER_ENDLESS UINT64_MAX

/* One direction of a connection, at the end that sends it. */
struct sender {
	struct pattern at;
	uint64_t left; /* payload bytes to send, after the note; or SENDER_ENDLESS */
	uint8_t note[sizeof(struct frame)]; /* a few bytes of protocol, sent first */
	uint8_t note_at, note_n;
};

void sender_open(struct sender *s, uint64_t seed, enum pattern_direction direction);

/* Send the N bytes of NOTE before any more payload.  There must be no note that is unsent. */
void sender_note(struct sender *s, const void *note, size_t n);

/* End the payload at the next multiple of PROTOCOL_BLOCK. */
void sender_stop(struct sender *s);

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
 * Send the note and at most PIECE bytes of payload (1 to PATTERN_PIECE) by one system call.
 * Returns the payload bytes that the kernel took, or -errno; -EAGAIN: wait for EPOLLOUT.
 */
ssize_t sender_push(struct sender *s, int fd, size_t piece);

/* One direction of a connection, at the end that receives it. */
struct receiver {
	struct pattern at;
	uint64_t begin_ns, end_ns; /* the measured time: begin <= now < end */
	uint64_t window;           /* payload bytes received then */
	uint64_t wrong_at;         /* position of the first wrong byte */
	bool sample;               /* do not compare every byte */
	bool wrong; /* once true, the rest is counted, but not compared: it is shifted */
	bool ended; /* transfers: the tail has come */
	uint8_t held_n;
	union {
		uint8_t held[sizeof(struct frame)]; /* transfers: begin of what looks like a tail */
		struct frame end;                   /* once ended: the tail */
	};
};

/* The caller sets the measured time afterwards.  Bytes received before that are not in it. */
void receiver_open(struct receiver *r, uint64_t seed, enum pattern_direction direction,
		   bool sample);

/* N payload bytes (at most PATTERN_PIECE and a frame) have come. */
void receiver_take(struct receiver *r, const uint8_t *data, size_t n, uint64_t now);

/*
 * The same for a stream that ends in a tail.  Before DATA there must be room for a frame, which is
 * overwritten.  Bytes after the tail are wrong content.
 */
void receiver_stream(struct receiver *r, uint8_t *data, size_t n, uint64_t now);

/* The bytes at this place of the stream are wrong. */
void receiver_wrong(struct receiver *r);

/* True if the stream has ended with a tail, and everything that was sent has come. */
bool receiver_complete(const struct receiver *r);
