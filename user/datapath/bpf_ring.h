/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <errno.h>
#include <linux/types.h>
#include <string.h>

struct bpf_map;

/* The meaning of error R of loading or attaching: libbpf returns -ESRCH without BTF. */
static inline const char *bpf_error(int r)
{
	return r == -ESRCH ? "the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)" : strerror(-r);
}

#define BPF_NEEDS                                                                                  \
	"; it needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN (start as root), and Linux 6.1 with "   \
	"kernel BTF"

/*
 * Ring buffers from a BPF program to the workers, one for each worker, in a map by worker.  Workers
 * read them by libbpf: ring_buffer__new().
 */
struct bpf_rings {
	int *fds; /* by worker */
	unsigned int n;
	const volatile __u64 *lost; /* the program's: events that did not fit since the start */
};

/* Make N, and put them into the map OUTER.  -errno: close RS in that case, too. */
int bpf_rings_open(struct bpf_rings *rs, unsigned int n, const struct bpf_map *outer,
		   const volatile __u64 *lost);
void bpf_rings_close(struct bpf_rings *rs);

/* Map the values of MAP, an array (BPF_F_MMAPABLE), by index.  NULL: errno says why. */
void *bpf_values_map(const struct bpf_map *map);
/* VALUES may be NULL. */
void bpf_values_unmap(void *values, const struct bpf_map *map);
