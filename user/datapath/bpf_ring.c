// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/bpf_ring.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/array.h"

/* Each event has 16 bytes or more.  A lost event is counted; then all sessions are looked at. */
#define RING_SIZE (256U * 1024)

int bpf_rings_open(struct bpf_rings *rs, unsigned int n, const struct bpf_map *outer,
		   const volatile __u64 *lost)
{
	rs->lost = lost;
	rs->fds = allocated(calloc(n, sizeof(*rs->fds)));
	while (rs->n < n) {
		uint32_t worker = rs->n;
		int fd = bpf_map_create(BPF_MAP_TYPE_RINGBUF, "culvert_ring", 0, 0, RING_SIZE,
					NULL);

		if (fd < 0)
			return -errno;
		rs->fds[rs->n++] = fd;
		if (bpf_map_update_elem(bpf_map__fd(outer), &worker, &fd, BPF_ANY))
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

static size_t size_of(const struct bpf_map *map)
{
	return (size_t)bpf_map__value_size(map) * bpf_map__max_entries(map);
}

void *bpf_values_map(const struct bpf_map *map)
{
	void *values = mmap(NULL, size_of(map), PROT_READ | PROT_WRITE, MAP_SHARED,
			    bpf_map__fd(map), 0);

	/* cppcheck-suppress memleak ; the caller unmaps it */
	return values == MAP_FAILED ? NULL : values;
}

void bpf_values_unmap(void *values, const struct bpf_map *map)
{
	if (values)
		munmap(values, size_of(map));
}
