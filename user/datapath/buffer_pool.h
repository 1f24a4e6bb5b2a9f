/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Buffers (copy) and pipes (splice) that a worker lends to flows while they hold bytes.  A flow
 * without pending bytes owns neither, so an idle session costs no memory for them.  One pool a
 * worker, no locks; it begins as zeroes.
 */
struct buffer {
	struct buffer *next;
	size_t size;      /* of data */
	uint32_t at, len; /* the pending bytes are data[at] to data[len - 1] */
	uint8_t data[];
};

struct pipe {
	int read_fd, write_fd;
	uint32_t size; /* bytes, as the kernel granted them */
};

#define PIPES_KEPT 8

struct pool {
	struct buffer *spare; /* the last returned buffer; most flows need one at a time */
	struct pipe *pipes[PIPES_KEPT]; /* idle */
	unsigned int buffers_lent, pipes_idle, pipes_lent;
};

/*
 * At most N pipes in all pools of the process together, so that the sockets of sessions find
 * descriptors.  Until it is called there is no limit.  To be called before there are threads.
 */
void pool_limit_pipes(unsigned int n);

/* Free all buffers and pipes.  None may be lent any more. */
void pool_close(struct pool *p);

/* SIZE bytes of data.  NULL: out of memory. */
struct buffer *pool_buffer_get(struct pool *p, size_t size);
void pool_buffer_put(struct pool *p, struct buffer *b);

/*
 * NULL: out of memory or descriptors, or at a limit: that of pool_limit_pipes(), or the kernel's
 * for the pipes of one user.
 */
struct pipe *pool_pipe_get(struct pool *p);
/* EMPTY: the pipe holds no bytes, and is kept to be lent again if a new one would be no larger. */
void pool_pipe_put(struct pool *p, struct pipe *pipe, bool empty);
/* Close idle pipes, to make room when descriptors run out. */
void pool_trim(struct pool *p);
