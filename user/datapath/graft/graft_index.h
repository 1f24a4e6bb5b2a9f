/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "udp_contract.h"

/*
 * The index of tuples of TCP and UDP: `tuples` of the packet programs, and the maps that it leads
 * to, mapped by the owner.  Any thread may call.
 */
struct graft_index {
	pthread_mutex_t lock;       /* never taken on the payload path */
	struct graft_entry *grafts; /* by slot */
	struct udp_flow *flows;     /* by slot */
	struct graft_bucket *buckets;
	uint32_t n_buckets; /* a power of 2; the seed of the hash is behind them */
};

/* The slot of the session with tuple T, which is not over; or NO_SLOT. */
uint32_t graft_index_find(struct graft_index *ix, bool udp, const struct graft_tuple *t);
/*
 * Let both tuples of SLOT's session lead to SLOT, and let it be in STATE.  A session that is over
 * loses its tuple.  False: a tuple is another session's, or there is no room.  The session may have
 * its tuples already.
 */
bool graft_index_add(struct graft_index *ix, bool udp, uint32_t slot, enum graft_state state);
/* The tuples of SLOT's session lead nowhere: SLOT may get another session. */
void graft_index_remove(struct graft_index *ix, bool udp, uint32_t slot);
