/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sockmap_contract.h"
#include "datapath/bpf_ring.h"

/*
 * The kernel side as the daemon sees it: the maps of include/sockmap_contract.h, and the slot pairs
 * that sessions borrow.  All functions but sockmap_open() and sockmap_close() may be called by any
 * worker at any time, and need no privilege.
 */
struct sockmap;

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
unsigned int sockmap_pairs_used(struct sockmap *k);
unsigned int sockmap_pairs_total(const struct sockmap *k);

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
 * The counters of SLOT, mapped: reading them is no system call.
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
 *     bucket's of the sockmap, the socket's), so what was written before it is seen by every
 *     verdict that depends on it.
 *   - A pair of slots goes from one worker to another through the mutex of sockmap_pair_put() and
 *     sockmap_pair_get().
 */
const volatile struct culvert_stat *sockmap_stat(const struct sockmap *k, uint32_t slot);
volatile struct culvert_ctl *sockmap_ctl(const struct sockmap *k, uint32_t slot);

/* Of struct culvert_event. */
const struct bpf_rings *sockmap_rings(const struct sockmap *k);

/*
 * The stay of SLOT's flow in the kernel is over, and its memory is free again: "Memory of all
 * flows" of include/sockmap_contract.h says when that is.  A second call does no harm.
 */
void sockmap_stay_over(struct sockmap *k, uint32_t slot);

/* Memory that all flows are charged, and its limit; both in bytes. */
uint64_t sockmap_memory(const struct sockmap *k);
uint64_t sockmap_memory_limit(const struct sockmap *k);
/*
 * True once more than three quarters of the limit are in use, and until half of it is free: no flow
 * should enter the kernel, and those that are charged should leave it.
 */
bool sockmap_memory_short(struct sockmap *k);
/* CULVERT_EVENT_MEMORY has come: memory is short, even if a look finds enough again. */
void sockmap_memory_told(struct sockmap *k);
/* True if SLOT's flow is charged in its present stay. */
bool sockmap_is_charged(const struct sockmap *k, uint32_t slot);
