// SPDX-License-Identifier: BSD-2-Clause
/* Records of other relays (RECORD_HEARD) end a session if their numbers are right. */
#include "unit.h"
#include "base/clock.h"
#include "datapath/graft/graft_slots.h"

#define CLIENT_END 1000U
#define SERVER_END 500000U
#define WINDOW 100000U

/*
 * The state of a session after another relay has heard a reset of its client, with NUMBER.
 * UNDER_WAY: bytes of the server that the client has not acknowledged.
 */
static enum graft_state after_reset(uint32_t under_way, uint32_t number)
{
	static struct graft_entry g;
	struct graft_table gs = { .all = &g };
	struct graft_heard heard[2][2] = { 0 };

	g = (struct graft_entry){
		.head.state = GRAFT_ACTIVE,
		.side = { { .end = CLIENT_END, .window = WINDOW, .heard_ns = NS_PER_S },
			  { .end = SERVER_END, .acked = CLIENT_END, .heard_ns = NS_PER_S } },
	};
	g.side[0].acked = SERVER_END - under_way;
	heard[0][1] = (struct graft_heard){ .ns = 2 * NS_PER_S,
					    .end = number,
					    .acked = SERVER_END - under_way,
					    .flags = HEARD_RESET };
	heard[0][1].from = heard[0][1].end;
	heard[0][1].acked_to = heard[0][1].acked;
	graft_merge(&gs, 0, heard);
	return graft_state_of(&g.head);
}

TEST(test_reset)
{
	assert_int_equal(after_reset(WINDOW / 2, CLIENT_END), GRAFT_DONE);
	assert_int_equal(after_reset(2 * WINDOW, CLIENT_END), GRAFT_DONE);
	assert_int_equal(after_reset(2 * WINDOW, CLIENT_END + 1), GRAFT_ACTIVE);
}

UNIT_MAIN(NULL, NULL)
