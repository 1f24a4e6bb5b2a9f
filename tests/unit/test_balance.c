/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Who gives how many sessions to whom, when the number of active workers changes.  Workers here are
 * counts; session_move(), which moves those that may, and the count of all are of this file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "relay/limits.h"
#include "relay/balance.h"
#include "relay/session_move.h"

#define MOST 8

static struct worker all[MOST];
static unsigned int stuck[MOST]; /* of its sessions, those that must stay */
static struct worker *list[MOST];
static struct balance balance;
static struct shared shared;
static unsigned int steered, live;
static uint64_t now_ms;

unsigned int session_move(struct worker *from, struct worker *to, unsigned int most)
{
	unsigned int may = from->n_sessions - stuck[from->index];
	unsigned int n = most < may ? most : may;

	assert_true(from != to);
	from->n_sessions -= n;
	to->n_sessions += n;
	return n;
}

unsigned int admission_sessions(struct admission *a)
{
	assert_null(a);
	return live;
}

static void steer(void *arg, unsigned int active)
{
	assert_ptr_equal(arg, &balance);
	steered = active;
}

static int close_all(void **state)
{
	(void)state;
	balance_close(&balance);
	return 0;
}

static void set_up(enum spread spread, unsigned int n)
{
	memset(all, 0, sizeof(all));
	memset(stuck, 0, sizeof(stuck));
	steered = 0;
	now_ms = 1000000;
	balance_open(&balance, spread, n, steer, &balance);
	for (unsigned int i = 0; i < n; i++) {
		list[i] = &all[i];
		all[i].index = i;
		all[i].shared = &shared;
	}
	shared.balance = &balance;
	balance_start(&balance, list);
}

/* As if it had just been judged so. */
static void set_active(unsigned int active)
{
	balance.crew.active = active;
	balance.active = active;
	atomic_fetch_add(&balance.changes, 1);
	balance.judged_ms = now_ms + 1000000; /* and for long */
}

static void give(unsigned int worker, unsigned int sessions)
{
	all[worker].n_sessions = sessions;
	all[worker].share.sessions = sessions;
}

static void look(unsigned int worker)
{
	all[worker].loop.now_ms = now_ms;
	all[worker].share.look_ms = 0;
	balance_look(&all[worker]);
}

static void count_live(unsigned int n)
{
	live = 0;
	for (unsigned int i = 0; i < n; i++)
		live += all[i].n_sessions;
}

static void check(unsigned int n, const unsigned int *want)
{
	for (unsigned int i = 0; i < n; i++)
		if (all[i].n_sessions != want[i])
			fail_msg("worker %u has %u sessions, not %u", i, all[i].n_sessions,
				 want[i]);
}

static void test_start(void **state)
{
	(void)state;
	set_up(SPREAD_AUTO, 4);
	assert_int_equal(steered, 1);
	assert_int_equal(balance.active, 1);
	balance_close(&balance);
	set_up(SPREAD_ALL, 4);
	assert_int_equal(steered, 0);
	assert_int_equal(balance.active, 4);
}

/* Those that have followed the change already get no more than their share. */
static void test_worker_goes(void **state)
{
	(void)state;
	set_up(SPREAD_AUTO, 4);
	for (unsigned int i = 0; i < 4; i++)
		give(i, 100);
	count_live(4);
	set_active(3);
	for (unsigned int i = 0; i < 4; i++)
		look(i);
	check(4, (const unsigned int[]){ 134, 134, 132, 0 });
	for (unsigned int i = 0; i < 3; i++)
		look(i);
	check(4, (const unsigned int[]){ 134, 134, 132, 0 });
}

static void test_worker_comes(void **state)
{
	(void)state;
	set_up(SPREAD_AUTO, 4);
	give(0, 100);
	count_live(4);
	set_active(4);
	for (unsigned int i = 0; i < 4; i++)
		look(i);
	check(4, (const unsigned int[]){ 26, 26, 26, 22 });
}

/* What must stay is looked at again, soon; what may go goes then. */
static void test_stuck(void **state)
{
	(void)state;
	set_up(SPREAD_AUTO, 2);
	give(0, 100);
	stuck[0] = 80;
	count_live(2);
	set_active(2);
	look(0);
	check(2, (const unsigned int[]){ 80, 20 });
	assert_int_equal(all[0].share.look_ms, now_ms + 10);
	stuck[0] = 0;
	look(0);
	check(2, (const unsigned int[]){ 51, 49 });
	assert_int_equal(all[0].share.look_ms, now_ms + CREW_LOOK_MS);
}

/* Some at a time, and the more a worker has to look at, the later it looks again. */
static void test_many(void **state)
{
	(void)state;
	set_up(SPREAD_AUTO, 2);
	give(1, 1280);
	count_live(2);
	look(1);
	check(2, (const unsigned int[]){ 256, 1024 });
	assert_int_equal(all[1].share.look_ms, now_ms + 10 + 8);
	for (unsigned int i = 0; i < 4; i++)
		look(1);
	check(2, (const unsigned int[]){ 1280, 0 });
	assert_int_equal(all[1].share.look_ms, now_ms + CREW_LOOK_MS);
	balance_close(&balance);
	set_up(SPREAD_ROTATE, 2);
	give(0, 1280);
	look(0);
	check(2, (const unsigned int[]){ 1024, 256 });
}

static void test_nothing_moves(void **state)
{
	(void)state;
	set_up(SPREAD_AUTO, 2);
	give(1, 100);
	count_live(2);
	balance_hold(&balance);
	look(1);
	check(2, (const unsigned int[]){ 0, 100 });
	assert_int_equal(all[1].share.look_ms, now_ms + 10);
	balance_release(&balance);
	look(1);
	check(2, (const unsigned int[]){ 100, 0 });
	give(1, 50);
	balance_stop(&balance);
	look(1);
	assert_int_equal(all[1].n_sessions, 50);
}

static void test_all_stays(void **state)
{
	(void)state;
	set_up(SPREAD_ALL, 3);
	give(1, 100);
	count_live(3);
	for (unsigned int i = 0; i < 30; i++, now_ms += 100)
		look(i % 3);
	check(3, (const unsigned int[]){ 0, 100, 0 });
	assert_int_equal(steered, 0);
}

static void test_rotate(void **state)
{
	(void)state;
	set_up(SPREAD_ROTATE, 3);
	give(2, 9);
	count_live(3);
	look(2);
	check(3, (const unsigned int[]){ 5, 0, 4 });
	assert_int_equal(all[2].share.look_ms, now_ms + 10);
	look(0);
	check(3, (const unsigned int[]){ 2, 3, 4 });
}

/* Worker 0 is busy with cheap events; it tells so itself, in the test's time. */
static void busy_look(void)
{
	struct load_share *sh = &all[0].share;

	now_ms += CREW_LOOK_MS;
	sh->told_ms = now_ms;
	sh->as_of_ms = now_ms;
	sh->busy = 600;
	sh->new_events = 1000000;
	look(0);
	assert_int_equal(balance.judged_ms, now_ms);
}

/*
 * The look after one that could not be read has nothing to compare with.  Next to no time passes
 * really, so the CPUs seem to be full otherwise.
 */
static void test_unreadable_uptime(void **state)
{
	int fd;

	(void)state;
	set_up(SPREAD_AUTO, 8);
	fd = balance.uptime;
	assert_true(fd >= 0);
	busy_look(); /* the first of all */
	busy_look();
	assert_true(balance.idle_ms > 0);
	assert_int_equal(balance.active, 1);
	balance.uptime = -1;
	all[0].share.busy = 0;
	now_ms += CREW_LOOK_MS;
	all[0].share.told_ms = now_ms;
	look(0);
	assert_int_equal(balance.idle_ms, 0);
	assert_int_equal(balance.active, 1);
	balance.uptime = fd;
	busy_look();
	assert_int_equal(balance.active, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(test_start, close_all),
		cmocka_unit_test_teardown(test_worker_goes, close_all),
		cmocka_unit_test_teardown(test_worker_comes, close_all),
		cmocka_unit_test_teardown(test_stuck, close_all),
		cmocka_unit_test_teardown(test_many, close_all),
		cmocka_unit_test_teardown(test_nothing_moves, close_all),
		cmocka_unit_test_teardown(test_all_stays, close_all),
		cmocka_unit_test_teardown(test_rotate, close_all),
		cmocka_unit_test_teardown(test_unreadable_uptime, close_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
