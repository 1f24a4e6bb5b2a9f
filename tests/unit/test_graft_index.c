// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/graft/graft_index.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "datapath/graft/udp_graft.h"
#include "unit.h"

#define SLOTS 24
#define BUCKETS 2

static struct graft_entry grafts[SLOTS];
static struct udp_flow flows[SLOTS];
static struct graft_bucket buckets[BUCKETS + 1];
static struct graft_index ix = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.grafts = grafts,
	.flows = flows,
	.buckets = buckets,
	.n_buckets = BUCKETS,
};

static struct graft_tuple tuple_of(uint16_t number)
{
	return (struct graft_tuple){ .remote_port = number, .local_port = 80 };
}

/* A session at work in SLOT of both protocols, with tuples A and B. */
static void set(uint32_t slot, uint16_t a, uint16_t b)
{
	grafts[slot].side[0].tuple = flows[slot].leg[0].tuple = tuple_of(a);
	grafts[slot].side[1].tuple = flows[slot].leg[1].tuple = tuple_of(b);
	grafts[slot].head.state = flows[slot].head.state = GRAFT_ACTIVE;
	grafts[slot].over = GRAFT_KEPT;
}

static int clear(void **state)
{
	(void)state;
	memset(grafts, 0, sizeof(grafts));
	memset(flows, 0, sizeof(flows));
	memset(buckets, 0, sizeof(buckets));
	buckets[BUCKETS].place[0] = 12345;
	return 0;
}

static void leads_to(bool udp, uint16_t number, uint32_t slot)
{
	struct graft_tuple t = tuple_of(number);

	assert_int_equal(graft_index_find(&ix, udp, &t), slot);
}

static bool add(bool udp, uint32_t slot)
{
	return graft_index_add(&ix, udp, slot, GRAFT_ACTIVE);
}

static unsigned int count(void)
{
	unsigned int n = 0;

	for (int i = 0; i < BUCKETS * GRAFT_PLACES; i++)
		n += buckets[i / GRAFT_PLACES].place[i % GRAFT_PLACES] != 0;
	return n;
}

TEST_WITH(tcp_and_udp_share_nothing, clear, NULL)
{
	set(1, 10, 11);
	set(2, 10, 11);
	assert_true(add(false, 1));
	leads_to(true, 10, NO_SLOT);
	assert_true(add(true, 2));
	assert_true(add(true, 2)); /* as at a start */
	assert_int_equal(count(), 4);
	leads_to(false, 11, 1);
	leads_to(true, 11, 2);
	graft_index_remove(&ix, false, 1);
	leads_to(false, 10, NO_SLOT);
	leads_to(true, 10, 2);
	graft_index_remove(&ix, true, 2);
	assert_int_equal(count(), 0);
}

TEST_WITH(a_session_that_is_over_loses_its_tuple, clear, NULL)
{
	static const struct {
		enum graft_state state;
		enum graft_over over;
		bool is_over;
	} rows[] = {
		{ GRAFT_ACTIVE, GRAFT_KEPT, false },
		{ GRAFT_STANDBY, GRAFT_KEPT, false },
		{ GRAFT_SETTING, GRAFT_KEPT, false },
		{ GRAFT_DONE, GRAFT_KEPT, false },
		{ GRAFT_DONE, GRAFT_ANEW, true },
		{ GRAFT_CLOSED, GRAFT_GIVEN_BACK, true },
		{ GRAFT_RETURNED, GRAFT_KEPT, false },
		{ GRAFT_CLOSED, GRAFT_ANEW, true },
		{ GRAFT_RETURNED, GRAFT_GIVEN_BACK, true },
		{ GRAFT_FREE, GRAFT_KEPT, true },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		clear(NULL);
		set(1, 10, 11);
		set(2, 10, 12); /* one tuple is the same */
		assert_true(add(false, 1));
		grafts[1].head.state = rows[i].state;
		grafts[1].over = rows[i].over;
		leads_to(false, 10, rows[i].is_over ? NO_SLOT : 1);
		assert_int_equal(add(false, 2), rows[i].is_over);
		leads_to(false, 10, rows[i].is_over ? 2 : 1);
		/* slot 1 is used again */
		graft_index_remove(&ix, false, 1);
		leads_to(false, 10, rows[i].is_over ? 2 : NO_SLOT);
		assert_int_equal(count(), rows[i].is_over ? 2 : 0);
	}
}

/* A worker offers a session, and an import has one with the same tuple: neither is at work yet. */
TEST_WITH(the_first_of_two_that_begin_has_the_tuple, clear, NULL)
{
	set(1, 10, 11);
	set(2, 10, 12);
	grafts[1].head.state = grafts[2].head.state = GRAFT_FREE;
	assert_true(graft_index_add(&ix, false, 1, GRAFT_OFFERED));
	assert_int_equal(grafts[1].head.state, GRAFT_OFFERED);
	assert_false(graft_index_add(&ix, false, 2, GRAFT_SETTING));
	assert_int_equal(grafts[2].head.state, GRAFT_FREE);
	leads_to(false, 10, 1);
}

TEST_WITH(a_full_table_keeps_the_flow_that_cannot_be_replaced, clear, NULL)
{
	uint32_t ways = 0, slot = NO_SLOT;
	uint64_t used[1] = { 0 };
	struct udp_table *us = udp_table_open(&ix, 1, &ways, used);
	uint64_t end = clock_ms() + 5000;
	struct udp_flow f = { .leg = { { .tuple = tuple_of(10) }, { .tuple = tuple_of(11) } } };
	int r;

	do /* slots rest after the start */
		r = udp_graft_import(us, &f, &slot);
	while (r == -ENOSPC && clock_ms() < end);
	assert_int_equal(r, 0);
	assert_int_equal(slot, 0);
	assert_int_equal(udp_graft_import(us, &f, &slot), -ENOSPC);
	leads_to(true, 10, 0);
	udp_table_close(us);
}

UNIT_MAIN(NULL, NULL)
