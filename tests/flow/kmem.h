/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TEST_KMEM_H
#define CULVERT_TEST_KMEM_H

#include <stdint.h>

/* Memory of the whole machine, bytes. */
struct kmem {
	int64_t used;      /* neither free nor page cache nor reclaimable slab */
	int64_t slab;      /* unreclaimable slab */
	int64_t accounted; /* what TCP charges to sockets (/proc/net/sockstat) */
};

struct kmem kmem_read(void);

/*
 * Payload in the send and receive queues of both sockets of N IPv4 connections of this network
 * namespace: connection i was made from PORT[i] to port TO.  The other side's port alone may be
 * that of another connection, to another port.  RET_UNREAD: of it, what TO's side has not read.
 */
void kmem_queued(const int *port, int to, int n, int64_t *ret_bytes, int64_t *ret_unread);

#endif
