// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/graft/slot_queue.h"

#include "base/bits.h"
#include "unit.h"

#define SLOTS 5
#define PLACE 70
#define LONG_MS 600000

TEST(slots_that_rest_are_passed_by)
{
	uint64_t used[BITS_WORDS(PLACE + SLOTS)] = { 0 };
	struct slot_queue q;

	slot_queue_open(&q, SLOTS, used, PLACE);
	assert_int_equal(slot_queue_take(&q), NO_SLOT);
	slot_queue_keep(&q, 4);
	slot_queue_put(&q, 0, LONG_MS);
	slot_queue_put(&q, 1, LONG_MS);
	slot_queue_put(&q, 3, 0);
	slot_queue_put(&q, 2, 0);
	/* those that rest do not keep those behind them, of which the first comes first */
	assert_int_equal(slot_queue_take(&q), 3);
	assert_int_equal(slot_queue_take(&q), 2);
	assert_int_equal(slot_queue_take(&q), NO_SLOT);
	slot_queue_put(&q, 4, 0);
	assert_int_equal(slot_queue_take(&q), 4);
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		assert_int_equal(bit_is(used, PLACE + slot), slot >= 2);
	assert_int_equal(used[0], 0);
	slot_queue_close(&q);
}

UNIT_MAIN(NULL, NULL)
