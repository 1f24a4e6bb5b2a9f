/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "datapath/flow.h"
#include "datapath/buffer_pool.h"

/*
 * The two carriers of user space.  Both move bytes from io->src to io->dst, and count them in
 * flow.user_in and user_out.  Bytes that the target does not take become the flow's pending bytes.
 */
struct pump_io {
	struct flow *flow;
	struct pool *pool;
	int src, dst;
	size_t buffer_size; /* copy: bytes a read */
	uint64_t limit;     /* do not read beyond this value of READ */
	bool until_eof;     /* a FIN has been seen: do not take a short read for "empty" */
	bool had_all;       /* the last read has most likely taken all that there was */
	uint64_t read;      /* out: bytes read by all calls */
	uint32_t reads;     /* out: reads that returned bytes */
	int error;          /* out: errno of PUMP_SRC_ERROR and PUMP_DST_ERROR */
};

enum pump {
	PUMP_EMPTY,       /* nothing pending, and the source had no more: but more may have come */
	PUMP_MORE,        /* nothing pending; stopped for fairness, or at the limit */
	PUMP_BLOCKED,     /* bytes are pending: the target is full */
	PUMP_EOF,         /* nothing pending, and the source has ended */
	PUMP_STARVED,     /* there is no buffer, pipe or kernel memory: try again later */
	PUMP_UNSUPPORTED, /* this carrier cannot read the source's next bytes: copy them */
	PUMP_SRC_ERROR,
	PUMP_DST_ERROR,
};

/* Write pending bytes, whichever carrier has read them; then go on BY copy or splice. */
enum pump carrier_pump(struct pump_io *io, enum carrier by);
/* Copy: read without writing, until the limit is reached or MOST bytes are pending. */
enum pump carrier_read_ahead(struct pump_io *io, uint32_t most);

/* Give back the buffers and pipe of a flow.  Pending bytes are discarded. */
void carrier_release(struct flow *f, struct pool *pool);

/* Pending bytes of F that are in a pipe go to a buffer.  -ENOMEM: they stay. */
int carrier_leave_pipe(struct flow *f, struct pool *pool);
/* The N bytes at P, which another daemon has read and counted, become pending bytes of F.  -ENOMEM. */
int carrier_put_pending(struct flow *f, struct pool *pool, const void *p, uint32_t n);
/* Copy the pending bytes of F, which are in buffers, to TO. */
void carrier_get_pending(const struct flow *f, uint8_t *to);

/*
 * Fairness: the most reads, and about the most bytes, of one flow before others get their turn.
 * Without the limit of bytes, a turn of splice could have 16 x 512 KiB.
 */
#define PUMP_ROUNDS 16
#define PUMP_BYTES (1024 * 1024)
