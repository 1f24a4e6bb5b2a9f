// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/carrier_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"

SYSCALLS_ALLOWED(
	SYSCALL(recvfrom),
	SYSCALL(sendto),
	SYSCALL(splice));

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

/* --- copy: read, buffer, write --- */

/* Room in the last buffer that is worth another read. */
#define TAIL_ROOM 4096

/* Write what is pending.  PUMP_MORE: all of it is written. */
static enum pump copy_flush(struct pump_io *io)
{
	struct flow *f = io->flow;

	while (f->head) {
		struct buffer *b = f->head;
		ssize_t n = send(io->dst, b->data + b->at, b->len - b->at,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return dst_error(io, errno);
		}
		b->at += (uint32_t)n;
		f->pending -= (uint32_t)n;
		f->user_out += (uint64_t)n;
		if (b->at == b->len)
			drop_head(f, io->pool);
	}
	return PUMP_MORE;
}

/*
 * Read up to WANT bytes to the end of B, the last buffer or a new one, which goes back to the pool if
 * there are none.  PUMP_MORE: it got *RET_N.
 */
static enum pump copy_fill(struct pump_io *io, struct buffer *b, size_t want, uint32_t *ret_n)
{
	struct flow *f = io->flow;
	ssize_t n = tcp_recv(io->src, b->data + b->len, want, 0);
	int error = errno;

	if (n <= 0 && b != f->tail)
		pool_buffer_put(io->pool, b);
	if (n == 0)
		return PUMP_EOF;
	if (n < 0) {
		if (error == EAGAIN)
			return PUMP_EMPTY;
		io->error = error;
		return PUMP_SRC_ERROR;
	}
	if (!f->tail)
		f->head = b;
	else if (b != f->tail)
		f->tail->next = b;
	f->tail = b;
	io->read += (uint64_t)n;
	io->reads++;
	f->user_in += (uint64_t)n;
	f->pending += (uint32_t)n;
	b->len += (uint32_t)n;
	*ret_n = (uint32_t)n;
	return PUMP_MORE;
}

enum pump copy_pump(struct pump_io *io)
{
	enum pump result = copy_flush(io);

	for (int round = 0; result == PUMP_MORE && io->read < io->limit && round < PUMP_ROUNDS;
	     round++) {
		struct buffer *b = pool_buffer_get(io->pool, io->buffer_size);
		uint32_t n = 0;
		size_t want;

		if (!b)
			return PUMP_STARVED;
		want = smaller(b->size, io->limit - io->read);
		result = copy_fill(io, b, want, &n);
		if (result != PUMP_MORE)
			break;
		result = copy_flush(io);
		if (result == PUMP_MORE && n < want && !io->until_eof)
			result = PUMP_EMPTY;
	}
	return result;
}

enum pump copy_read_ahead(struct pump_io *io, uint32_t most)
{
	struct flow *f = io->flow;
	enum pump result = PUMP_MORE;

	while (result == PUMP_MORE && io->read < io->limit && f->pending < most) {
		size_t room = f->tail ? f->tail->size - f->tail->len : 0;
		struct buffer *b = f->tail;
		uint32_t n;

		if (!b || (room < TAIL_ROOM && room < io->limit - io->read)) {
			b = pool_buffer_get(io->pool, io->buffer_size);
			if (!b)
				return PUMP_STARVED;
			room = b->size;
		}
		result = copy_fill(io, b, smaller(room, io->limit - io->read), &n);
	}
	return result;
}

/* --- splice: socket, pipe, socket --- */

/* Empty the pipe into the target.  PUMP_MORE: it is empty. */
static enum pump splice_flush(struct pump_io *io)
{
	struct flow *f = io->flow;

	while (f->pending) {
		ssize_t n = splice(f->pipe->read_fd, NULL, io->dst, NULL, f->pending, SPLICE_FLAGS);

		if (n < 0 && errno == EINTR)
			continue;
		/* 0: no kernel is known to do that, but it must not be an endless loop */
		if (n <= 0)
			return dst_error(io, n ? errno : EPIPE);
		f->pending -= (uint32_t)n;
		f->user_out += (uint64_t)n;
	}
	return PUMP_MORE;
}

/*
 * splice(2) returned 0, or EAGAIN although epoll had said "readable".  That is also what it does
 * when an urgent byte is next: tcp_read_sock() stops there, whatever SO_OOBINLINE says.  Taken for
 * EOF it would cut the stream off, taken for "empty" it would spin.
 */
static enum pump look_closer(struct pump_io *io)
{
	char c;
	ssize_t n = tcp_recv(io->src, &c, 1, MSG_PEEK);

	if (n == 0)
		return PUMP_EOF;
	if (n > 0)
		return PUMP_UNSUPPORTED;
	if (errno == EAGAIN)
		return PUMP_EMPTY;
	io->error = errno;
	return PUMP_SRC_ERROR;
}

/*
 * The pipe is filled only when it is empty: then EAGAIN can only mean that the source is, and not
 * that the pipe is full.
 */
static enum pump splice_fill(struct pump_io *io)
{
	struct flow *f = io->flow;
	size_t want = smaller(f->pipe->size, io->limit - io->read);
	ssize_t n;

	do
		n = splice(io->src, NULL, f->pipe->write_fd, NULL, want, SPLICE_FLAGS);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return look_closer(io);
	if (n < 0) {
		if (errno == EAGAIN)
			return io->reads ? PUMP_EMPTY : look_closer(io);
		if (errno == EINVAL)
			return PUMP_UNSUPPORTED;
		io->error = errno;
		return PUMP_SRC_ERROR;
	}
	io->read += (uint64_t)n;
	io->reads++;
	f->user_in += (uint64_t)n;
	f->pending = (uint32_t)n;
	return PUMP_MORE;
}

/*
 * True if a read of N bytes has most likely taken all that there was: a guess that saves the call
 * that would say EAGAIN.  That N is below the pipe's size proves nothing: each slot of the pipe,
 * one for 4 KiB of its size, takes one segment, however small, and 128 segments of 1448 bytes fill
 * a pipe of 512 KiB.  But with segments of 1 KiB or more a full pipe holds at least a quarter of
 * its size.  Where segments are smaller, a wrong guess costs one epoll_wait for each full pipe.
 */
static bool was_all(const struct pump_io *io, uint64_t n)
{
	return !io->until_eof && n < io->flow->pipe->size / 4 && io->read < io->limit;
}

enum pump splice_pump(struct pump_io *io)
{
	struct flow *f = io->flow;
	uint64_t turn = smaller(io->limit, PUMP_BYTES);
	enum pump result = PUMP_MORE;

	if (!f->pipe) {
		f->pipe = pool_pipe_get(io->pool);
		if (!f->pipe)
			return PUMP_STARVED;
	}
	if (f->pending)
		result = splice_flush(io);
	for (int round = 0; result == PUMP_MORE && io->read < turn && round < PUMP_ROUNDS;
	     round++) {
		uint64_t before = io->read;

		result = splice_fill(io);
		if (result == PUMP_MORE)
			result = splice_flush(io);
		if (result == PUMP_MORE && was_all(io, io->read - before))
			result = PUMP_EMPTY;
	}
	if (!f->pending) {
		pool_pipe_put(io->pool, f->pipe, true);
		f->pipe = NULL;
	}
	return result;
}
