// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <sys/socket.h>

#include "carrier.h"

/* Write what is pending.  PUMP_MORE: all of it is written and the buffer is given back. */
static enum pump flush(struct pump_io *io)
{
	struct flow *f = io->flow;

	while (f->pending) {
		ssize_t n = send(io->dst, f->buffer->data + f->pending_at, f->pending,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return carrier_dst_error(io, errno);
		}
		f->pending -= (uint32_t)n;
		f->pending_at += (uint32_t)n;
		f->user_out += (uint64_t)n;
	}
	return PUMP_MORE;
}

enum pump copy_pump(struct pump_io *io)
{
	struct flow *f = io->flow;
	enum pump result = PUMP_MORE;

	if (!f->pending && io->limit && !f->buffer) {
		f->buffer = pool_buffer_get(io->pool);
		if (!f->buffer)
			return PUMP_STARVED;
	}
	if (f->pending)
		result = flush(io);
	for (int round = 0; result == PUMP_MORE && io->read < io->limit && round < PUMP_ROUNDS;) {
		size_t want = io->pool->buffer_size;
		ssize_t n;

		if (want > io->limit - io->read)
			want = (size_t)(io->limit - io->read);
		n = recv(io->src, f->buffer->data, want, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN) {
			result = PUMP_EMPTY;
		} else if (n < 0) {
			io->error = errno;
			result = PUMP_SRC_ERROR;
		} else if (n == 0) {
			result = PUMP_EOF;
		} else {
			io->read += (uint64_t)n;
			io->reads++;
			round++;
			f->user_in += (uint64_t)n;
			f->pending_at = 0;
			f->pending = (uint32_t)n;
			result = flush(io);
			if (result == PUMP_MORE && (size_t)n < want && !io->until_eof)
				result = PUMP_EMPTY;
		}
	}
	if (!f->pending && f->buffer) {
		pool_buffer_put(io->pool, f->buffer);
		f->buffer = NULL;
	}
	return result;
}
