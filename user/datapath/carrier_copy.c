// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/carrier_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"

SYSCALLS_ALLOWED(SYSCALL(sendto), SYSCALL(splice));

#define SPLICE_FLAGS (SPLICE_F_MOVE | SPLICE_F_NONBLOCK)

/* What a failed write to the target means: EAGAIN, memory pressure, or the end. */
static enum pump dst_error(struct pump_io *io, int error)
{
	if (error == EAGAIN)
		return PUMP_BLOCKED;
	/* the socket may well be writable: waiting for EPOLLOUT would spin */
	if (error == ENOBUFS || error == ENOMEM)
		return PUMP_STARVED;
	io->error = error;
	return PUMP_DST_ERROR;
}

/* Give back the first buffer. */
static void drop_head(struct flow *f, struct pool *pool)
{
	struct buffer *b = f->head;

	f->head = b->next;
	if (!f->head)
		f->tail = NULL;
	pool_buffer_put(pool, b);
}

void carrier_release(struct flow *f, struct pool *pool)
{
	while (f->head)
		drop_head(f, pool);
	if (f->pipe)
		pool_pipe_put(pool, f->pipe, f->pending == 0);
	f->pipe = NULL;
	f->pending = 0;
}

/* --- pending bytes that another daemon gets --- */

int carrier_leave_pipe(struct flow *f, struct pool *pool)
{
	struct buffer *b;
	ssize_t n = 0;

	if (!f->pipe || !f->pending)
		return 0;
	b = pool_buffer_get(pool, f->pending);
	if (!b)
		return -ENOMEM;
	while (b->len < f->pending &&
	       (n = read(f->pipe->read_fd, b->data + b->len, f->pending - b->len)) > 0)
		b->len += (uint32_t)n;
	f->head = f->tail = b;
	f->pending = b->len; /* a pipe gives all of its bytes */
	pool_pipe_put(pool, f->pipe, true);
	f->pipe = NULL;
	return 0;
}

int carrier_put_pending(struct flow *f, struct pool *pool, const void *p, uint32_t n)
{
	struct buffer *b = pool_buffer_get(pool, n);

	if (!b)
		return -ENOMEM;
	memcpy(b->data, p, n);
	b->len = n;
	f->head = f->tail = b;
	f->pending = n;
	return 0;
}

void carrier_get_pending(const struct flow *f, uint8_t *to)
{
	for (const struct buffer *b = f->head; b; b = b->next) {
		memcpy(to, b->data + b->at, b->len - b->at);
		to += b->len - b->at;
	}
}

/* Write pending bytes.  PUMP_MORE: all are written. */
static enum pump flush(struct pump_io *io)
{
	struct flow *f = io->flow;

	while (f->pending) {
		struct buffer *b = f->head;
		ssize_t n;

		if (b)
			n = send(io->dst, b->data + b->at, b->len - b->at,
				 MSG_DONTWAIT | MSG_NOSIGNAL);
		else
			n = splice(f->pipe->read_fd, NULL, io->dst, NULL, f->pending, SPLICE_FLAGS);
		if (n < 0 && errno == EINTR)
			continue;
		/* 0: no kernel is known to do that, but it must not be an endless loop */
		if (n <= 0)
			return dst_error(io, n ? errno : EPIPE);
		f->pending -= (uint32_t)n;
		f->user_out += (uint64_t)n;
		if (!b)
			continue;
		b->at += (uint32_t)n;
		if (b->at == b->len)
			drop_head(f, io->pool);
	}
	return PUMP_MORE;
}

static enum pump src_error(struct pump_io *io, int error)
{
	if (error == EAGAIN)
		return PUMP_EMPTY;
	io->error = error;
	return PUMP_SRC_ERROR;
}

/* N bytes were read.  ALL: that is most likely all that there was. */
static enum pump filled(struct pump_io *io, ssize_t n, bool all)
{
	io->read += (uint64_t)n;
	io->reads++;
	io->flow->user_in += (uint64_t)n;
	io->flow->pending += (uint32_t)n;
	io->had_all = all;
	return PUMP_MORE;
}

/* Room in the last buffer that is worth another read. */
#define TAIL_ROOM 4096

/* Read once, to the end of the last buffer or to a new one.  PUMP_MORE: it got something. */
static enum pump copy_fill(struct pump_io *io)
{
	struct flow *f = io->flow;
	struct buffer *b = f->tail;
	size_t room = b ? b->size - b->len : 0;
	ssize_t n;

	if (!b || room < smaller(TAIL_ROOM, io->limit - io->read)) {
		b = pool_buffer_get(io->pool, io->buffer_size);
		if (!b)
			return PUMP_STARVED;
		room = b->size;
	}
	room = smaller(room, io->limit - io->read);
	n = tcp_recv(io->src, b->data + b->len, room, 0);
	if (n <= 0) {
		int error = errno;

		if (b != f->tail)
			pool_buffer_put(io->pool, b);
		return n ? src_error(io, error) : PUMP_EOF;
	}
	if (!f->tail)
		f->head = b;
	else if (b != f->tail)
		f->tail->next = b;
	f->tail = b;
	b->len += (uint32_t)n;
	return filled(io, n, (size_t)n < room);
}

/*
 * splice(2) returned 0, or EAGAIN although epoll had said "readable".  Both also happen when an
 * urgent byte is next: tcp_read_sock() stops there, whatever SO_OOBINLINE says.  Taken for EOF, the
 * urgent byte would cut the stream off.  Taken for "empty", it would make the loop spin.
 */
static enum pump look_closer(struct pump_io *io)
{
	char c;
	ssize_t n = tcp_recv(io->src, &c, 1, MSG_PEEK);

	if (n == 0)
		return PUMP_EOF;
	return n > 0 ? PUMP_UNSUPPORTED : src_error(io, errno);
}

/*
 * The pipe is filled only when it is empty.  So EAGAIN can only mean that the source is empty, and
 * not that the pipe is full.
 *
 * If a read has most likely taken all, the call that would return EAGAIN is saved.  A read below
 * the pipe's size does not prove that: a slot of the pipe (one for 4 KiB of its size) takes one
 * segment, however small, so 128 segments of 1448 bytes fill a pipe of 512 KiB.  But with segments
 * of 1 KiB or more a full pipe holds at least a quarter of its size.  Where segments are smaller, a
 * wrong guess costs one epoll_wait for each full pipe.
 */
static enum pump splice_fill(struct pump_io *io)
{
	struct flow *f = io->flow;
	ssize_t n;

	f->pipe = f->pipe ?: pool_pipe_get(io->pool);
	if (!f->pipe)
		return PUMP_STARVED;
	do
		n = splice(io->src, NULL, f->pipe->write_fd, NULL,
			   smaller(f->pipe->size, io->limit - io->read), SPLICE_FLAGS);
	while (n < 0 && errno == EINTR);
	if (n == 0 || (n < 0 && errno == EAGAIN && !io->reads))
		return look_closer(io);
	if (n < 0)
		return errno == EINVAL ? PUMP_UNSUPPORTED : src_error(io, errno);
	return filled(io, n, (uint64_t)n < smaller(f->pipe->size / 4, io->limit - io->read));
}

enum pump carrier_pump(struct pump_io *io, enum carrier by)
{
	struct flow *f = io->flow;
	uint64_t turn = smaller(io->limit, io->read + PUMP_BYTES);
	enum pump result = flush(io);

	for (int round = 0; result == PUMP_MORE && io->read < turn && round < PUMP_ROUNDS;
	     round++) {
		result = by == CARRIER_SPLICE ? splice_fill(io) : copy_fill(io);
		if (result == PUMP_MORE)
			result = flush(io);
		if (result == PUMP_MORE && io->had_all && !io->until_eof)
			result = PUMP_EMPTY;
	}
	if (f->pipe && !f->pending) {
		pool_pipe_put(io->pool, f->pipe, true);
		f->pipe = NULL;
	}
	return result;
}

enum pump carrier_read_ahead(struct pump_io *io, uint32_t most)
{
	enum pump result = PUMP_MORE;

	while (result == PUMP_MORE && io->read < io->limit && io->flow->pending < most)
		result = copy_fill(io);
	return result;
}
