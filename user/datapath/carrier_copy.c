// SPDX-License-Identifier: BSD-2-Clause
#include <errno.h>
#include <sys/socket.h>

#include "base/syscalls_needed.h"
#include "datapath/carrier.h"

SYSCALLS_NEEDED(
	SYSCALL(recvfrom),
	SYSCALL(sendto));

/* Room in the last buffer that is worth another read. */
#define TAIL_ROOM 4096

static void append(struct flow *f, struct buffer *b)
{
	if (f->tail)
		f->tail->next = b;
	else
		f->head = b;
	f->tail = b;
}

/* Give back the first buffer; it is empty.  One is kept in SPARE, for the next read. */
static void drop_head(struct pump_io *io, struct buffer **spare)
{
	struct flow *f = io->flow;
	struct buffer *b = f->head;

	f->head = b->next;
	if (!f->head)
		f->tail = NULL;
	b->next = NULL;
	b->at = b->len = 0;
	if (*spare)
		pool_buffer_put(io->pool, b);
	else
		*spare = b;
}

/* Write what is pending.  PUMP_MORE: all of it is written. */
static enum pump flush(struct pump_io *io, struct buffer **spare)
{
	struct flow *f = io->flow;

	while (f->head) {
		struct buffer *b = f->head;
		ssize_t n = send(io->dst, b->data + b->at, b->len - b->at,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			return carrier_dst_error(io, errno);
		}
		b->at += (uint32_t)n;
		f->pending -= (uint32_t)n;
		f->user_out += (uint64_t)n;
		if (b->at == b->len)
			drop_head(io, spare);
	}
	return PUMP_MORE;
}

/* Read up to WANT bytes to the end of B.  PUMP_MORE: it got some, *RET_N. */
static enum pump fill(struct pump_io *io, struct buffer *b, size_t want, uint32_t *ret_n)
{
	ssize_t n;

	do
		n = recv(io->src, b->data + b->len, want, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	if (n == 0)
		return PUMP_EOF;
	if (n < 0) {
		if (errno == EAGAIN)
			return PUMP_EMPTY;
		io->error = errno;
		return PUMP_SRC_ERROR;
	}
	io->read += (uint64_t)n;
	io->reads++;
	io->flow->user_in += (uint64_t)n;
	io->flow->pending += (uint32_t)n;
	b->len += (uint32_t)n;
	*ret_n = (uint32_t)n;
	return PUMP_MORE;
}

static size_t at_most(uint64_t want, uint64_t limit)
{
	return (size_t)(want < limit ? want : limit);
}

enum pump copy_pump(struct pump_io *io)
{
	struct flow *f = io->flow;
	struct buffer *spare = NULL;
	enum pump result = flush(io, &spare);

	for (int round = 0; result == PUMP_MORE && io->read < io->limit && round < PUMP_ROUNDS;
	     round++) {
		uint32_t n = 0;
		size_t want;

		if (!spare)
			spare = pool_buffer_get(io->pool, io->buffer_size);
		if (!spare)
			return PUMP_STARVED;
		want = at_most(spare->size, io->limit - io->read);
		result = fill(io, spare, want, &n);
		if (result != PUMP_MORE)
			break;
		append(f, spare);
		spare = NULL;
		result = flush(io, &spare);
		if (result == PUMP_MORE && n < want && !io->until_eof)
			result = PUMP_EMPTY;
	}
	if (spare)
		pool_buffer_put(io->pool, spare);
	return result;
}

enum pump copy_read_ahead(struct pump_io *io, uint32_t most)
{
	struct flow *f = io->flow;
	enum pump result = PUMP_MORE;

	while (result == PUMP_MORE && io->read < io->limit && f->pending < most) {
		size_t room = f->tail ? f->tail->size - f->tail->len : 0;
		struct buffer *b = f->tail;
		uint32_t n = 0;

		if (!b || (room < TAIL_ROOM && room < io->limit - io->read)) {
			b = pool_buffer_get(io->pool, io->buffer_size);
			if (!b)
				return PUMP_STARVED;
			room = b->size;
		}
		result = fill(io, b, at_most(room, io->limit - io->read), &n);
		if (b != f->tail && n)
			append(f, b);
		else if (b != f->tail)
			pool_buffer_put(io->pool, b);
	}
	return result;
}
