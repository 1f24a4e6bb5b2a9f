// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/carrier.h"

#include <errno.h>

enum pump carrier_dst_error(struct pump_io *io, int error)
{
	if (error == EAGAIN)
		return PUMP_BLOCKED;
	/* the socket may well be writable: waiting for EPOLLOUT would spin */
	if (error == ENOBUFS || error == ENOMEM)
		return PUMP_STARVED;
	io->error = error;
	return PUMP_DST_ERROR;
}

void carrier_release(struct flow *f, struct pool *pool)
{
	while (f->head) {
		struct buffer *b = f->head;

		f->head = b->next;
		pool_buffer_put(pool, b);
	}
	if (f->pipe)
		pool_pipe_put(pool, f->pipe, f->pending == 0);
	f->tail = NULL;
	f->pipe = NULL;
	f->pending = 0;
}
