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
 * Payload in the send and receive queues of the four IPv4 sockets of N relayed sessions of this
 * network namespace.  Session i is known by the port of its client, and by the port from which
 * the relay connected upstream.  RET_UNREAD: of it, what the relay has not read from its client.
 */
void kmem_queued(const int *client_port, const int *upstream_port, int n, int64_t *ret_bytes,
		 int64_t *ret_unread);

#endif
