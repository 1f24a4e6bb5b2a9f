// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/bpf_ring.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"

struct bpf_ring {
	struct ring_buffer *rb;
	size_t size;
	bpf_ring_fn *handle;
	void *arg;
};

int bpf_rings_open(struct bpf_rings *rs, unsigned int n, uint32_t size, int outer)
{
	rs->fds = allocated(calloc(n, sizeof(*rs->fds)));
	while (rs->n < n) {
		uint32_t worker = rs->n;
		int fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "culvert_ring", 0, 0, size, NULL);

		if (fd < 0)
			return -errno;
		rs->fds[rs->n++] = fd;
		if (bpf_map_update_elem(outer, &worker, &fd, BPF_ANY))
			return -errno;
	}
	return 0;
}

void bpf_rings_close(struct bpf_rings *rs)
{
	while (rs->n)
		close(rs->fds[--rs->n]);
	free(rs->fds);
}

static int on_record(void *ctx, void *data, size_t size)
{
	struct bpf_ring *r = ctx;

	if (size >= r->size)
		r->handle(r->arg, data);
	return 0;
}

int bpf_ring_open(const struct bpf_rings *rs, unsigned int worker, size_t size, bpf_ring_fn *handle,
		  void *arg, struct bpf_ring **ret)
{
	struct bpf_ring *r = allocated(calloc(1, sizeof(*r)));

	*r = (struct bpf_ring){ .size = size, .handle = handle, .arg = arg };
	r->rb = ring_buffer__new(rs->fds[worker], on_record, r, NULL);
	if (!r->rb) {
		free(r);
		return -errno;
	}
	*ret = r;
	return 0;
}

void bpf_ring_close(struct bpf_ring *r)
{
	if (!r)
		return;
	ring_buffer__free(r->rb);
	free(r);
}

int bpf_ring_fd(const struct bpf_ring *r)
{
	return ring_buffer__epoll_fd(r->rb);
}

int bpf_ring_consume(struct bpf_ring *r)
{
	return ring_buffer__consume(r->rb);
}
