/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Ring buffers from a BPF program to the workers, one each, in a map by worker. */
struct bpf_rings {
	int *fds; /* by worker */
	unsigned int n;
};

/* Make N, of SIZE bytes each (a power of two), and put them into the map OUTER.  -errno; close it also then. */
int bpf_rings_open(struct bpf_rings *rs, unsigned int n, uint32_t size, int outer);
void bpf_rings_close(struct bpf_rings *rs);

/* The end that reads one: the fd is readable when there are events. */
struct bpf_ring;
typedef void bpf_ring_fn(void *arg, const void *event);
/* Events of at least SIZE bytes are given to HANDLE.  -errno. */
int bpf_ring_open(const struct bpf_rings *rs, unsigned int worker, size_t size, bpf_ring_fn *handle,
		  void *arg, struct bpf_ring **ret);
void bpf_ring_close(struct bpf_ring *r); /* NULL is fine */
int bpf_ring_fd(const struct bpf_ring *r);
/* Returns how many there were. */
int bpf_ring_consume(struct bpf_ring *r);
