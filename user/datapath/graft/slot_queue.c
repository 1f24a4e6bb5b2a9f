// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/graft/slot_queue.h"

#include <stdlib.h>

#include "base/array.h"
#include "base/bits.h"
#include "base/clock.h"

/* So many slots are looked at: the first ones may rest for long, and must not block all others. */
#define LOOKS 64

struct slot_rest {
	uint32_t next;
	uint32_t until_ms; /* low half */
};

void slot_queue_open(struct slot_queue *q, uint32_t n_slots, uint64_t *used, uint32_t place)
{
	*q = (struct slot_queue){ .slots = allocated(calloc(n_slots, sizeof(*q->slots))),
				  .used = used,
				  .place = place };
}

void slot_queue_close(struct slot_queue *q)
{
	free(q->slots);
}

static void slot_queue_append(struct slot_queue *q, uint32_t slot)
{
	*(q->n++ ? &q->slots[q->last].next : &q->first) = slot;
	q->last = slot;
}

uint32_t slot_queue_take(struct slot_queue *q)
{
	for (uint32_t i = 0, n = q->n; i < n && i < LOOKS; i++) {
		uint32_t slot = q->first;

		q->first = q->slots[slot].next;
		q->n--;
		if ((int32_t)(q->slots[slot].until_ms - (uint32_t)clock_ms()) <= 0) {
			slot_queue_keep(q, slot);
			return slot;
		}
		slot_queue_append(q, slot);
	}
	return NO_SLOT;
}

void slot_queue_put(struct slot_queue *q, uint32_t slot, uint32_t rest_ms)
{
	bit_set(q->used, q->place + slot, false);
	q->slots[slot].until_ms = (uint32_t)clock_ms() + rest_ms;
	slot_queue_append(q, slot);
}

void slot_queue_keep(struct slot_queue *q, uint32_t slot)
{
	bit_set(q->used, q->place + slot, true);
}
