// SPDX-License-Identifier: BSD-2-Clause
#include "datapath/graft/graft_index.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

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
		{ GRAFT_PREPARED, GRAFT_KEPT, true },
		{ GRAFT_TAKEN, GRAFT_KEPT, false },
		{ GRAFT_SYN_SENT, GRAFT_KEPT, false },
		{ GRAFT_ANSWERED, GRAFT_KEPT, false },
		{ GRAFT_GAVE_UP, GRAFT_KEPT, true },
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

/* --- a SYN is the second writer: syn_begin() of bpf/graft_from_syn.h, in few words --- */

enum { WAS_EMPTY, WAS_OWN, WAS_OVER, WAS_RIVAL, WAS_OTHER };

static int place_is(uint32_t place, uint32_t own, uint16_t number)
{
	const struct graft_tuple t = tuple_of(number);
	uint32_t is = place >> GRAFT_PLACE_SLOT, state;

	if (!place)
		return WAS_EMPTY;
	if (place == own)
		return WAS_OWN;
	if (memcmp(&grafts[is].side[!!(place & GRAFT_PLACE_SIDE)].tuple, &t, sizeof(t)))
		return WAS_OTHER;
	state = __atomic_load_n(&grafts[is].head.state, __ATOMIC_SEQ_CST);
	if (state == GRAFT_FREE || state == GRAFT_PREPARED)
		return WAS_OTHER;
	return state == GRAFT_GAVE_UP || grafts[is].over ? WAS_OVER : WAS_RIVAL;
}

/* Does OWN lead to the tuple NUMBER, and no other session has it?  ADD: enter OWN first. */
static bool owns(uint32_t own, uint16_t number, bool add)
{
	const struct graft_tuple t = tuple_of(number);
	uint32_t hash = graft_hash(&t, buckets[BUCKETS].place[0]), was[WAS_OTHER + 1] = { 0 };
	uint32_t *at[WAS_OTHER + 1] = { NULL };

	for (uint32_t i = 0; i < GRAFT_PLACES; i++) {
		uint32_t *p = &buckets[hash & (BUCKETS - 1)].place[i];
		uint32_t place = __atomic_load_n(p, __ATOMIC_SEQ_CST);
		int is = place_is(place, own, number);

		at[is] = at[is] ?: p;
		was[is] = was[is] ?: place;
	}
	if (at[WAS_RIVAL] || at[WAS_OWN] || !add)
		return at[WAS_OWN] && !at[WAS_RIVAL];
	add = at[WAS_OVER];
	return (add || at[WAS_EMPTY]) &&
	       __atomic_compare_exchange_n(add ? at[WAS_OVER] : at[WAS_EMPTY], &was[WAS_OVER], own,
					   false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* A SYN takes SLOT, whose tuples are CLIENT and SERVER. */
static bool syn(uint32_t slot, uint16_t client, uint16_t server)
{
	uint32_t *state = &grafts[slot].head.state, place = graft_place(false, slot, 0);
	bool won;

	__atomic_store_n(state, GRAFT_TAKEN, __ATOMIC_SEQ_CST);
	won = owns(place, client, true);
	if (won) {
		__atomic_store_n(state, GRAFT_SYN_SENT, __ATOMIC_SEQ_CST);
		won = owns(place, client, false) &&
		      owns(graft_place(false, slot, 1), server, false);
	}
	if (!won)
		__atomic_store_n(state, GRAFT_GAVE_UP, __ATOMIC_SEQ_CST);
	return won;
}

/* Put PLACE into the last empty place of the bucket of NUMBER. */
static void put_last(uint16_t number, uint32_t place)
{
	const struct graft_tuple t = tuple_of(number);
	uint32_t hash = graft_hash(&t, buckets[BUCKETS].place[0]), i = GRAFT_PLACES;
	uint32_t *places = buckets[hash & (BUCKETS - 1)].place;

	while (places[--i])
		;
	places[i] = place;
}

/* Two places have one tuple for a moment: a slot that is used again takes its own one out. */
TEST_WITH(removal_takes_the_own_place_alone, clear, NULL)
{
	for (uint32_t gone = 1; gone < 3; gone++) {
		clear(NULL);
		set(1, 10, 11);
		set(2, 10, 12);
		put_last(10, graft_place(false, 1, 0));
		put_last(10, graft_place(false, 2, 0));
		graft_index_remove(&ix, false, gone);
		leads_to(false, 10, 3 - gone);
		assert_int_equal(count(), 1);
	}
}

/* A SYN has no place before it comes; until then, an import may have the server's tuple. */
TEST_WITH(what_is_prepared_has_its_server_alone, clear, NULL)
{
	set(1, 10, 11);
	set(2, 20, 11);
	grafts[1].head.state = GRAFT_FREE;
	assert_true(graft_index_add(&ix, false, 1, GRAFT_PREPARED));
	assert_int_equal(grafts[1].head.state, GRAFT_PREPARED);
	assert_int_equal(count(), 1);
	leads_to(false, 11, NO_SLOT);
	assert_true(syn(1, 10, 11));
	leads_to(false, 10, 1);
	leads_to(false, 11, 1);
	assert_false(add(false, 2));
	grafts[1].head.state = GRAFT_PREPARED;
	assert_true(add(false, 2));
	leads_to(false, 11, 2);
	graft_index_remove(&ix, false, 1);
	leads_to(false, 11, 2);
}

/* The place of a session that is over may stand in front of its rival's. */
TEST_WITH(a_rival_is_found_behind_others, clear, NULL)
{
	set(1, 10, 11);
	set(2, 10, 12);
	set(3, 10, 13);
	grafts[1].head.state = GRAFT_FREE;
	grafts[2].head.state = GRAFT_SYN_SENT;
	grafts[3].over = GRAFT_ANEW;
	put_last(10, graft_place(false, 2, 0));
	put_last(10, graft_place(false, 3, 0));
	assert_false(graft_index_add(&ix, false, 1, GRAFT_SETTING));
	assert_int_equal(grafts[1].head.state, GRAFT_FREE);
	leads_to(false, 10, 2);
	assert_int_equal(count(), 2);
	graft_index_remove(&ix, false, 2);
	assert_true(graft_index_add(&ix, false, 1, GRAFT_SETTING));
	leads_to(false, 10, 1);
}

static struct {
	_Atomic unsigned int begun, ready, done; /* rounds */
	_Atomic bool over, won;
} race;

static void idle(unsigned int n)
{
	for (volatile unsigned int i = 0; i < n; i++)
		;
}

/* Without a system call at first: both writers are to begin at once. */
static void wait_for(const _Atomic unsigned int *at, unsigned int round)
{
	for (unsigned int i = 0; *at != round && !race.over; i++)
		if (i > 1000)
			sched_yield();
}

static void *second_writer(void *arg)
{
	for (unsigned int round = 1;; round++) {
		wait_for(&race.begun, round);
		if (race.over)
			return arg;
		race.ready = round; /* both are at a CPU now, mostly */
		idle(round * 7 % 256);
		race.won = syn(2, 10, 12);
		race.done = round;
	}
}

/* The daemon has prepared slot 2.  Slot 3 is over. */
static void begin_round(unsigned int round)
{
	static const uint16_t tuples[][2] = { { 10, 11 }, { 20, 12 } };

	set(1, tuples[round / 2 % 2][0], tuples[round / 2 % 2][1]);
	set(2, 10, 12);
	set(3, 10, 13);
	grafts[1].head.state = grafts[2].head.state = GRAFT_FREE;
	grafts[3].over = GRAFT_ANEW;
	if (round % 2)
		put_last(10, graft_place(false, 3, 0));
	assert_true(graft_index_add(&ix, false, 2, GRAFT_PREPARED));
}

static struct {
	unsigned int rounds, daemon, syn;
} wins;

/* The daemon has WON, or not.  At most one has, and no place is left behind. */
static void end_round(unsigned int round, bool won)
{
	if (won && race.won)
		fail_msg("both have won round %u", round);
	leads_to(false, round / 2 % 2 ? 12 : 10, race.won ? 2 : won ? 1 : NO_SLOT);
	assert_int_equal(grafts[1].head.state, won ? GRAFT_SETTING : GRAFT_FREE);
	for (uint32_t slot = 1; slot <= 3; slot++)
		graft_index_remove(&ix, false, slot);
	assert_int_equal(count(), 0);
	wins.rounds++;
	wins.daemon += won;
	wins.syn += race.won;
}

static int anew(void **state)
{
	memset(&race, 0, sizeof(race));
	memset(&wins, 0, sizeof(wins));
	return clear(state);
}

static void print_wins(void)
{
	print_message("%u rounds: the daemon has won %u, the SYN %u\n", wins.rounds, wins.daemon,
		      wins.syn);
}

/*
 * An import wants the client's tuple of a SYN, or the server's of the slot that the SYN takes.
 * Both may lose.
 */
TEST_WITH(two_writers_may_both_lose, anew, NULL)
{
	uint64_t end = clock_ms() + 300;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, second_writer, NULL), 0);
	for (unsigned int round = 0; clock_ms() < end; round++) {
		bool won;

		begin_round(round);
		race.begun = round + 1;
		wait_for(&race.ready, round + 1);
		idle(round * 13 % 128);
		won = graft_index_add(&ix, false, 1, GRAFT_SETTING);
		wait_for(&race.done, round + 1);
		end_round(round, won);
	}
	race.over = true;
	pthread_join(thread, NULL);
	print_wins();
}

static void interrupt(int signal)
{
	(void)signal;
	race.won = syn(2, 10, 12);
	race.done = 1;
}

/*
 * The same, with all of the SYN between two instructions of the import: by a timer, for whose delay
 * the import waits.
 */
TEST_WITH(a_syn_interrupts_an_import, anew, NULL)
{
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	uint64_t end = clock_ms() + 300;
	unsigned int wait = 10000, early, hits = 0;
	timer_t timer;

	assert_int_not_equal(signal(SIGUSR1, interrupt), SIG_ERR);
	assert_int_equal(timer_create(CLOCK_MONOTONIC, &ev, &timer), 0);
	for (unsigned int round = 0; clock_ms() < end; round++) {
		struct itimerspec in = { .it_value.tv_nsec = 20000 };
		bool won;

		begin_round(round);
		race.done = 0;
		timer_settime(timer, 0, &in, NULL);
		idle(wait + round * 7 % 256);
		early = race.done;
		won = graft_index_add(&ix, false, 1, GRAFT_SETTING);
		hits += !early && race.done;
		wait = early ? wait - wait / 64 : wait + wait / 64 + 1;
		wait_for(&race.done, 1);
		end_round(round, won);
	}
	timer_delete(timer);
	print_message("%u times in the middle\n", hits);
	print_wins();
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
