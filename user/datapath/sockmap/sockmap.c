// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/sockmap/sockmap.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/array.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "bpf/sockmap.skel.h"

SYSCALLS_ALLOWED(
	BPF_IF(PART_SOCKMAP, BPF_MAP_UPDATE_ELEM), BPF_IF(PART_SOCKMAP, BPF_MAP_DELETE_ELEM),
	SYSCALL_IF(PART_SOCKMAP, getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_COOKIE)),
	SETSOCKOPT_IF(PART_SOCKMAP, SOL_SOCKET, SO_ATTACH_BPF),
	SETSOCKOPT_IF(PART_SOCKMAP, SOL_SOCKET, SO_DETACH_BPF), SYSCALL(close));

struct sockmap {
	struct sockmap_bpf *skel;
	struct culvert_stat *stats;
	struct culvert_ctl *ctls;
	uint64_t *cookies; /* by slot: its socket's key in the map `slots`, or 0 */
	struct bpf_rings rings;
	_Atomic bool is_short; /* of memory; see sockmap_memory_short() */

	pthread_mutex_t lock; /* of the free list; never taken on the payload path */
	uint32_t *free;
	_Atomic unsigned int n_free; /* read by status without the lock */
	unsigned int n_pairs;
};

/* Words of 64 bits are shared without a lock: they must not be read in halves. */
_Static_assert(sizeof(long) == 8, "culvert needs a 64-bit machine");

static int sockmap_load(struct sockmap *k, const struct sockmap_limits *limits)
{
	uint32_t n = limits->pairs * 2;
	int r;

	k->skel = sockmap_bpf__open();
	if (!k->skel)
		return -errno;
	if (limits->memory && limits->memory < INT64_MAX)
		k->skel->rodata->memory_limit = (int64_t)limits->memory;
	r = bpf_map__set_max_entries(k->skel->maps.rx, n);
	r = r ?: bpf_map__set_max_entries(k->skel->maps.tx, n);
	r = r ?: bpf_map__set_max_entries(k->skel->maps.slots, n);
	r = r ?: bpf_map__set_max_entries(k->skel->maps.stats, n);
	r = r ?: bpf_map__set_max_entries(k->skel->maps.ctls, n);
	r = r ?: bpf_map__set_max_entries(k->skel->maps.rings, limits->workers);
	r = r ?: sockmap_bpf__load(k->skel);
	if (!r)
		r = bpf_prog_attach(bpf_program__fd(k->skel->progs.culvert_verdict),
				    bpf_map__fd(k->skel->maps.rx), BPF_SK_SKB_STREAM_VERDICT, 0);
	if (r)
		return r;
	k->stats = bpf_values_map(k->skel->maps.stats);
	k->ctls = bpf_values_map(k->skel->maps.ctls);
	if (!k->stats || !k->ctls)
		return -errno;
	return bpf_rings_open(&k->rings, limits->workers, k->skel->maps.rings,
			      &k->skel->bss->events_lost);
}

int sockmap_open(const struct sockmap_limits *limits, struct sockmap **ret, char *err,
		 size_t errlen)
{
	struct sockmap *k = allocated(calloc(1, sizeof(*k)));
	int r;

	if (log_get_level() < LOG_DEBUG)
		libbpf_set_print(NULL); /* else it writes to stderr */
	pthread_mutex_init(&k->lock, NULL);
	k->free = allocated(malloc(limits->pairs * sizeof(*k->free)));
	k->cookies = allocated(calloc(2 * (size_t)limits->pairs, sizeof(*k->cookies)));
	for (unsigned int i = 0; i < limits->pairs; i++)
		k->free[i] = limits->pairs - 1 - i;
	k->n_free = k->n_pairs = limits->pairs;
	r = sockmap_load(k, limits);
	if (r) {
		snprintf(err, errlen, "cannot load the verdict program: %s" BPF_NEEDS,
			 bpf_error(r));
		sockmap_close(k);
		return r;
	}
	*ret = k;
	return 0;
}

void sockmap_close(struct sockmap *k)
{
	if (!k)
		return;
	bpf_rings_close(&k->rings);
	if (k->skel) {
		bpf_values_unmap(k->stats, k->skel->maps.stats);
		bpf_values_unmap(k->ctls, k->skel->maps.ctls);
	}
	sockmap_bpf__destroy(k->skel);
	pthread_mutex_destroy(&k->lock);
	free(k->free);
	free(k->cookies);
	free(k);
}

int sockmap_pair_get(struct sockmap *k, uint32_t *ret_pair)
{
	int r = -ENOSPC;

	pthread_mutex_lock(&k->lock);
	if (k->n_free) {
		*ret_pair = k->free[--k->n_free];
		r = 0;
	}
	pthread_mutex_unlock(&k->lock);
	for (uint32_t slot = *ret_pair * 2; !r && slot < *ret_pair * 2 + 2; slot++) {
		/* events of the slot's last owner are told apart by the epoch */
		k->ctls[slot].epoch++;
		k->ctls[slot].counted = 0;
		/* no socket is there, so no program writes these */
		k->stats[slot].bytes = k->stats[slot].passed = k->stats[slot].dropped = 0;
		k->stats[slot].backlog_max = 0;
	}
	return r;
}

unsigned int sockmap_pairs_used(struct sockmap *k)
{
	return k->n_pairs - atomic_load(&k->n_free);
}

unsigned int sockmap_pairs_total(const struct sockmap *k)
{
	return k->n_pairs;
}

static int sockmap_add(const struct bpf_map *map, uint32_t slot, int fd)
{
	uint64_t value = (uint64_t)fd;

	return bpf_map_update_elem(bpf_map__fd(map), &slot, &value, BPF_NOEXIST) ? -errno : 0;
}

/*
 * A hash map may refuse to delete (EBUSY).  A single entry does no harm, since no socket ever has
 * that cookie again.  Many such entries would fill the map, so the slot's next owner tries again.
 */
static int sockmap_forget_cookie(struct sockmap *k, uint32_t slot)
{
	int slots = bpf_map__fd(k->skel->maps.slots);

	if (k->cookies[slot] && bpf_map_delete_elem(slots, &k->cookies[slot]) && errno != ENOENT)
		return -errno;
	k->cookies[slot] = 0;
	return 0;
}

int sockmap_admit(struct sockmap *k, uint32_t slot, int fd)
{
	int r = sockmap_forget_cookie(k, slot);
	socklen_t len = sizeof(uint64_t);
	uint64_t cookie;

	if (r)
		return r;
	if (getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) ||
	    bpf_map_update_elem(bpf_map__fd(k->skel->maps.slots), &cookie, &slot, BPF_NOEXIST))
		return -errno;
	k->cookies[slot] = cookie;
	r = sockmap_add(k->skel->maps.tx, slot, fd);
	if (r)
		sockmap_forget_cookie(k, slot);
	return r;
}

void sockmap_forget(struct sockmap *k, uint32_t slot)
{
	bpf_map_delete_elem(bpf_map__fd(k->skel->maps.tx), &slot); /* a closed socket has left it */
	sockmap_forget_cookie(k, slot);
}

void sockmap_pair_put(struct sockmap *k, uint32_t pair)
{
	for (unsigned int i = 0; i < 2; i++) {
		sockmap_forget(k, pair * 2 + i);
		sockmap_stay_over(k, pair * 2 + i);
	}
	pthread_mutex_lock(&k->lock);
	k->free[k->n_free++] = pair;
	pthread_mutex_unlock(&k->lock);
}

int sockmap_rx_add(struct sockmap *k, uint32_t slot, int fd)
{
	return sockmap_add(k->skel->maps.rx, slot, fd);
}

int sockmap_rx_del(struct sockmap *k, uint32_t slot)
{
	return bpf_map_delete_elem(bpf_map__fd(k->skel->maps.rx), &slot) ? -errno : 0;
}

int sockmap_gate(struct sockmap *k, int fd, bool on)
{
	int prog = bpf_program__fd(k->skel->progs.culvert_gate);
	int name = on ? SO_ATTACH_BPF : SO_DETACH_BPF;

	return setsockopt(fd, SOL_SOCKET, name, &prog, sizeof(prog)) ? -errno : 0;
}

const volatile struct culvert_stat *sockmap_stat(const struct sockmap *k, uint32_t slot)
{
	return &k->stats[slot];
}

volatile struct culvert_ctl *sockmap_ctl(const struct sockmap *k, uint32_t slot)
{
	return &k->ctls[slot];
}

bool sockmap_is_charged(const struct sockmap *k, uint32_t slot)
{
	const volatile struct culvert_stat *st = sockmap_stat(k, slot);

	return st->backlog && st->epoch == k->ctls[slot].epoch;
}

void sockmap_stay_over(struct sockmap *k, uint32_t slot)
{
	if (sockmap_is_charged(k, slot))
		__atomic_fetch_add(&k->skel->bss->memory.released, sockmap_stat(k, slot)->backlog,
				   __ATOMIC_RELEASE);
	sockmap_ctl(k, slot)->epoch++;
}

uint64_t sockmap_memory(const struct sockmap *k)
{
	/* memory is charged before it is released: in this order the difference is never below 0 */
	uint64_t released = __atomic_load_n(&k->skel->bss->memory.released, __ATOMIC_ACQUIRE);

	return __atomic_load_n(&k->skel->bss->memory.charged, __ATOMIC_RELAXED) - released;
}

uint64_t sockmap_memory_limit(const struct sockmap *k)
{
	return (uint64_t)k->skel->rodata->memory_limit;
}

bool sockmap_memory_short(struct sockmap *k)
{
	bool was = atomic_load_explicit(&k->is_short, memory_order_relaxed), is;
	uint64_t limit = sockmap_memory_limit(k);

	is = sockmap_memory(k) > (was ? limit / 2 : limit / 4 * 3);
	if (is != was)
		atomic_store_explicit(&k->is_short, is, memory_order_relaxed);
	return is;
}

void sockmap_memory_told(struct sockmap *k)
{
	atomic_store_explicit(&k->is_short, true, memory_order_relaxed);
}

const struct bpf_rings *sockmap_rings(const struct sockmap *k)
{
	return &k->rings;
}
