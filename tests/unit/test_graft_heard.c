// SPDX-License-Identifier: BSD-2-Clause
/* What an owner believes of the words of relays by which packets of its session go. */
#include "unit.h"
#include "base/clock.h"
#include "datapath/graft/graft_slots.h"

#define CLIENT_END 1000U
#define SERVER_END 500000U
#define WINDOW 100000U

/* The client of a download was heard last with ON_ITS_WAY bytes before the server's last one. */
static enum graft_state after_reset(uint32_t on_its_way, uint32_t number)
{
	static struct graft_entry g;
	struct graft_table gs = { .all = &g };
	struct graft_heard heard[2][2] = { 0 };

	g = (struct graft_entry){
		.head.state = GRAFT_ACTIVE,
		.side = { { .end = CLIENT_END, .window = WINDOW, .heard_ns = NS_PER_S },
			  { .end = SERVER_END, .acked = CLIENT_END, .heard_ns = NS_PER_S } },
	};
	g.side[0].acked = SERVER_END - on_its_way;
	heard[0][1] = (struct graft_heard){ .ns = 2 * NS_PER_S,
					    .end = number,
					    .acked = SERVER_END - on_its_way,
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
