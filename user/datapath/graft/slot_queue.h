/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "graft_contract.h"

/*
 * The free slots of a map, first in, first out.  A slot rests before it is used
 * again: packets of its last session may come late.  No locks: the caller has one.
 */
struct slot_queue {
	struct slot_rest *slots; /* by slot */
	uint32_t first, last, n;
	uint64_t *used; /* a bit (bits.h) for each slot that is not free, at its place */
	uint32_t place; /* of slot 0 */
};

/* An empty queue for N_SLOTS.  USED lives as long as Q, and its bits from PLACE on are 0. */
void slot_queue_open(struct slot_queue *q, uint32_t n_slots, uint64_t *used, uint32_t place);
void slot_queue_close(struct slot_queue *q);
/* The first slot that has rested, or NO_SLOT.  It is marked as used. */
uint32_t slot_queue_take(struct slot_queue *q);
/* SLOT is free, and rests for REST_MS. */
void slot_queue_put(struct slot_queue *q, uint32_t slot, uint32_t rest_ms);
/* SLOT, which is not in the queue, has a session: mark it as used. */
void slot_queue_keep(struct slot_queue *q, uint32_t slot);
