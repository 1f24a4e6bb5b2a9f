// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <fcntl.h>

#include "base/syscalls_needed.h"
#include "datapath/carrier.h"
#include "datapath/tcp.h"

#define SPLICE_FLAGS (SPLICE_F_MOVE | SPLICE_F_NONBLOCK)

SYSCALLS_NEEDED(SYSCALL(splice));

/* Empty the pipe into the target.  PUMP_MORE: it is empty. */
static enum pump flush(struct pump_io *io)
{
	struct flow *f = io->flow;

	while (f->pending) {
		ssize_t n = splice(f->pipe->read_fd, NULL, io->dst, NULL, f->pending, SPLICE_FLAGS);

		if (n < 0 && errno == EINTR)
			continue;
		/* 0: no kernel is known to do that, but it must not be an endless loop */
		if (n <= 0)
			return carrier_dst_error(io, n ? errno : EPIPE);
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
	ssize_t n = tcp_peek(io->src, &c, 1, 0);

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
static enum pump fill(struct pump_io *io)
{
	struct flow *f = io->flow;
	size_t want = f->pipe->size;
	ssize_t n;

	if (want > io->limit - io->read)
		want = (size_t)(io->limit - io->read);
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
	uint64_t turn = io->limit < PUMP_BYTES ? io->limit : PUMP_BYTES;
	enum pump result = PUMP_MORE;

	if (!f->pipe) {
		f->pipe = pool_pipe_get(io->pool);
		if (!f->pipe)
			return PUMP_STARVED;
	}
	if (f->pending)
		result = flush(io);
	for (int round = 0; result == PUMP_MORE && io->read < turn && round < PUMP_ROUNDS;
	     round++) {
		uint64_t before = io->read;

		result = fill(io);
		if (result == PUMP_MORE)
			result = flush(io);
		if (result == PUMP_MORE && was_all(io, io->read - before))
			result = PUMP_EMPTY;
	}
	if (!f->pending) {
		pool_pipe_put(io->pool, f->pipe, true);
		f->pipe = NULL;
	}
	return result;
}
