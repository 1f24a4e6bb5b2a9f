/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sockmap_contract.h"
#include "datapath/bpf_ring.h"

/*
 * The kernel side as the daemon sees it: the maps of include/sockmap_contract.h, and the slot pairs
 * that sessions borrow.  All functions but sockmap_open() and sockmap_close() may be called by any
 * worker at any time, and need no privilege.
 *
 * `stats` and `ctls` are mapped: a read or a write is no system call.
 *
 * Memory order.  The other side of these words is the program, which follows the kernel's memory
 * model (LKMM); ours is C11.  The two models meet where both become the same instructions:
 *   - Each word has one writer: the program for stat (with the source's socket lock held), for ctl
 *     the worker that owns the session.  sockmap_pair_get() clears some of stat, while no socket
 *     has the slot, so that the program cannot write it.  A volatile access to an aligned word of
 *     up to 64 bits is one load or store, as READ_ONCE() and WRITE_ONCE() are: it is neither torn
 *     nor left out nor repeated.  A volatile access orders nothing.
 *   - A seq_cst fence is smp_mb(): it becomes mfence, or a locked instruction, on x86, and dmb ish
 *     on arm64, as smp_mb() does.  The fence pairs with the atomic add in pass() of the program.
 *     The pair is Dekker's pattern, so acquire and release would not do: on x86, too, a store may
 *     become visible after a later load.
 *   - A release fence is smp_wmb() and more, an acquire fence smp_rmb() and more (nothing on x86,
 *     dmb ish and dmb ishld on arm64).
 *   - A system call on a map or a socket takes locks that the program's callers take as well (the
 *     bucket's of the sockmap, the socket's), so every verdict that depends on the call sees what
 *     was written before.
 *   - A pair of slots goes from one worker to another through the mutex of sockmap_pair_put() and
 *     sockmap_pair_get().
 */
struct sockmap {
	struct sockmap_bpf *skel;
	volatile struct culvert_stat *stats; /* by slot; the program's */
	volatile struct culvert_ctl *ctls;   /* by slot; of the worker whose session has the slot */
	uint64_t *cookies;      /* by slot: its socket's key in the map `slots`, or 0 */
	struct bpf_rings rings; /* of struct culvert_event */
	uint64_t memory_limit;  /* of all flows together, in bytes */
	_Atomic bool is_short;  /* of memory: set by CULVERT_EVENT_MEMORY; sockmap_memory_short()
				 * sets or clears it */
	unsigned int n_pairs;

	pthread_mutex_t lock; /* of the free list; never taken on the payload path */
	uint32_t *free;
	_Atomic unsigned int n_free; /* read by status without the lock */
};

struct sockmap_limits {
	unsigned int pairs;   /* sessions that can be in the kernel at once */
	unsigned int workers; /* one ring buffer each */
	uint64_t memory;      /* of all flows' backlogs, in bytes; 0: no limit */
};

/*
 * Load and attach the program.  Needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN.  On failure returns
 * -errno and ERR says what is missing and how to get it.
 */
int sockmap_open(const struct sockmap_limits *limits, struct sockmap **ret, char *err,
		 size_t errlen);
void sockmap_close(struct sockmap *k);

/*
 * Borrow a pair of slots (2 * pair and 2 * pair + 1), with new epochs.  -ENOSPC when all are in
 * use.
 */
int sockmap_pair_get(struct sockmap *k, uint32_t *ret_pair);
/*
 * Give PAIR back.  Calls sockmap_forget() and sockmap_stay_over() for both slots.  Both sockets
 * must be closed or out of rx.
 */
void sockmap_pair_put(struct sockmap *k, uint32_t pair);

/*
 * Make FD known as SLOT: its cookie in slots, the socket in tx.  -errno of the map update
 * (EOPNOTSUPP: not ESTABLISHED; see sock_map_update_elem_sys() in net/core/sock_map.c).
 */
int sockmap_admit(struct sockmap *k, uint32_t slot, int fd);
/* Undo sockmap_admit(): forget the cookie, and leave tx. */
void sockmap_forget(struct sockmap *k, uint32_t slot);

/* Put the socket into, or take it out of, rx. */
int sockmap_rx_add(struct sockmap *k, uint32_t slot, int fd);
int sockmap_rx_del(struct sockmap *k, uint32_t slot);

/*
 * Attach the program's gate to the socket FD, or detach the gate.  A socket has its gate from
 * before it is put into rx until it is out of rx.  -ENOMEM: net.core.optmem_max, or memory.
 */
int sockmap_gate(struct sockmap *k, int fd, bool on);

/*
 * The stay of SLOT's flow in the kernel is over, and its memory is free again: "Memory of all
 * flows" of include/sockmap_contract.h says when that is.  A second call does no harm.
 */
void sockmap_stay_over(struct sockmap *k, uint32_t slot);

/* Memory that all flows are charged, in bytes. */
uint64_t sockmap_memory(const struct sockmap *k);
/*
 * True once more than three quarters of the limit are in use, and until half of it is free: no flow
 * should enter the kernel, and those that are charged should leave it.
 */
bool sockmap_memory_short(struct sockmap *k);
/* True if SLOT's flow is charged in its present stay. */
bool sockmap_is_charged(const struct sockmap *k, uint32_t slot);
