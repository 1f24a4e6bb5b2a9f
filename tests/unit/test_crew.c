/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How many workers carry sessions: the rules of crew.c as a table of looks, then what holds of them
 * under every constant load and under random ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "relay/crew.h"
#include "seeded.h"

#define LOOKS 400 /* more than any rule needs in a row, many times over */

static struct crew crew_of(unsigned int active, unsigned int most)
{
	struct crew c;

	crew_init(&c, most);
	c.active = active;
	return c;
}

static void test_init(void **state)
{
	struct crew c;

	(void)state;
	crew_init(&c, 7);
	assert_int_equal(c.active, 1);
	assert_int_equal(c.most, 7);
	assert_int_equal(c.crowded, 0);
	assert_int_equal(c.calm, 0);
}

/* The same load again and again, from ACTIVE: the number after so many looks, or -1: no matter. */
static const struct row {
	const char *what;
	unsigned int active, most;
	struct crew_load load;
	int after_1, after_4, after_5, after_24, after_25;
} table[] = {
	/*                                          busiest sum  idle  us     1   4   5  24  25 */
	{ "nothing to do", 1, 4,                  { 0, 0, 4000, 0 },          1,  1,  1,  1,  1 },
	{ "little to do", 1, 4,                   { 399, 399, 3000, 5 },      1,  1,  1,  1,  1 },
	/* where CPUs idle */
	{ "busy, half a CPU idles", 1, 2,         { 600, 600, 500, 5 },       2,  2,  2,  2,  2 },
	{ "just busy, just idle", 1, 2,           { 400, 400, 350, 0 },       2,  2,  2,  2,  2 },
	{ "not quite busy", 1, 2,                 { 399, 399, 350, 0 },       1,  1,  1,  1,  1 },
	{ "not quite idle", 1, 2,                 { 400, 400, 349, 24 },      1,  1,  1,  1,  1 },
	/* dear events, wherever */
	{ "dear events on a full machine", 1, 2,  { 900, 900, 0, 25 },        2,  2,  2,  2,  2 },
	{ "dear events of a calm worker", 1, 2,   { 399, 399, 0, 500 },       1,  1,  1,  1,  1 },
	/* a full machine, cheap events */
	{ "full, cheap events", 1, 2,             { 1000, 1000, 0, 24 },      1,  1,  1,  1,  1 },
	{ "full, cheap events, 64 CPUs", 1, 64,   { 1000, 1000, 349, 3 },     1,  1,  1,  1,  1 },
	/* big machines: twice as many at a look, if so many CPUs idle */
	{ "1 to 2", 1, 64,                        { 1000, 1000, 63000, 5 },   2, -1, -1, -1, -1 },
	{ "4 to 8", 4, 64,                        { 1000, 4000, 60000, 5 },   8, -1, -1, -1, -1 },
	{ "32 to 64", 32, 64,                     { 1000, 32000, 32000, 5 },  64, 64, 64, 64, 64 },
	{ "as many as idle", 8, 64,               { 1000, 8000, 3999, 5 },    11, -1, -1, -1, -1 },
	{ "one at least", 8, 64,                  { 1000, 8000, 350, 5 },     9, -1, -1, -1, -1 },
	{ "not above most", 8, 10,                { 1000, 8000, 60000, 5 },   10, 10, 10, 10, 10 },
	{ "dear, full: one by one", 8, 64,        { 1000, 8000, 0, 25 },      9, -1, -1, -1, -1 },
	/* never so many that they would be calm: the busy one's work may not be divisible */
	{ "one busy worker of four", 1, 4,        { 450, 450, 3500, 5 },      2,  2,  2,  2,  2 },
	{ "one worker at its end", 1, 64,         { 1000, 1000, 60000, 5 },   2,  4,  4,  4,  4 },
	{ "four with little each", 4, 16,         { 500, 1100, 12000, 5 },    5,  5,  5,  5,  5 },
	/* crowded: five looks in a row */
	{ "crowded", 2, 2,                        { 475, 950, 299, 24 },      2,  2,  1,  1,  1 },
	{ "too much for one", 2, 2,               { 476, 951, 299, 24 },      2,  2,  2,  2,  2 },
	{ "not crowded, some idle", 2, 2,         { 450, 900, 300, 24 },      2,  2,  2,  2,  2 },
	{ "dear events are worth it", 2, 2,       { 475, 950, 0, 25 },        2,  2,  2,  2,  2 },
	{ "crowded, of eight", 8, 8,              { 900, 6650, 0, 5 },        8,  8,  7,  7,  7 },
	/* calm: 25 looks in a row */
	{ "calm", 2, 2,                           { 125, 250, 1500, 5 },      2,  2,  2,  2,  1 },
	{ "calm, dear events", 2, 2,              { 125, 250, 1500, 500 },    2,  2,  2,  2,  1 },
	{ "not calm", 2, 2,                       { 126, 251, 1500, 5 },      2,  2,  2,  2,  2 },
	{ "all asleep", 4, 4,                     { 0, 0, 4000, 0 },          4,  4,  4,  4,  3 },
	/* there is only one */
	{ "one of one, busy", 1, 1,               { 1000, 1000, 3000, 99 },   1,  1,  1,  1,  1 },
	{ "one of one, crowded", 1, 1,            { 100, 100, 0, 1 },         1,  1,  1,  1,  1 },
};

static void check_after(const struct row *r, unsigned int looks, unsigned int active)
{
	int want = looks == 1	 ? r->after_1
		   : looks == 4	 ? r->after_4
		   : looks == 5	 ? r->after_5
		   : looks == 24 ? r->after_24
		   : looks == 25 ? r->after_25
				 : -1;

	if (want >= 0 && active != (unsigned int)want)
		fail_msg("%s: %u workers after %u looks, not %d", r->what, active, looks, want);
}

static void test_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const struct row *r = &table[i];
		struct crew c = crew_of(r->active, r->most);

		c.patience = 1; /* see test_patience() */
		for (unsigned int looks = 1; looks <= 25; looks++) {
			unsigned int before = c.active;
			bool changed = crew_judge(&c, &r->load);

			assert_true(changed == (c.active != before));
			check_after(r, looks, c.active);
		}
	}
}

static const struct crew_load crowded = { 450, 900, 0, 5 }, idling = { 100, 200, 1800, 5 },
			      steady = { 350, 700, 900, 5 };

static unsigned int after(struct crew *c, const struct crew_load *l, unsigned int looks)
{
	while (looks--)
		crew_judge(c, l);
	return c->active;
}

/* One look that says otherwise, and it begins anew. */
static void test_in_a_row(void **state)
{
	struct crew c = crew_of(2, 2);

	(void)state;
	assert_int_equal(after(&c, &crowded, 4), 2);
	assert_int_equal(after(&c, &steady, 1), 2);
	assert_int_equal(after(&c, &crowded, 4), 2);
	assert_int_equal(after(&c, &crowded, 1), 1);
	c = crew_of(2, 2);
	assert_int_equal(after(&c, &idling, 24), 2);
	assert_int_equal(after(&c, &steady, 1), 2);
	assert_int_equal(after(&c, &idling, 24), 2);
	assert_int_equal(after(&c, &idling, 1), 1);
}

/* Idle CPUs must be seen three times in a row; dear events need not. */
static void test_patience(void **state)
{
	const struct crew_load room = { 600, 600, 500, 5 }, dear = { 600, 600, 0, 500 };
	const struct crew_load none = { 600, 600, 300, 5 };
	struct crew c = crew_of(1, 2);

	(void)state;
	assert_int_equal(after(&c, &room, 2), 1);
	assert_int_equal(after(&c, &none, 1), 1);
	assert_int_equal(after(&c, &room, 2), 1);
	assert_int_equal(after(&c, &room, 1), 2);
	c = crew_of(1, 2);
	assert_int_equal(after(&c, &dear, 1), 2);
}

/* A change begins both counts anew: workers go one by one, each for a reason of its own. */
static void test_one_by_one(void **state)
{
	const struct crew_load full = { 300, 800, 0, 5 };
	struct crew c = crew_of(4, 4);

	(void)state;
	assert_int_equal(after(&c, &full, 5), 3);
	assert_int_equal(after(&c, &full, 4), 3);
	assert_int_equal(after(&c, &full, 1), 2);
	assert_int_equal(after(&c, &full, 100), 1);
	c = crew_of(4, 4);
	assert_int_equal(after(&c, &idling, 25), 3);
	assert_int_equal(after(&c, &idling, 24), 3);
	assert_int_equal(after(&c, &idling, 1), 2);
	assert_int_equal(after(&c, &idling, 100), 1);
}

static void check_bounds(const struct crew *c, unsigned int before, bool changed)
{
	assert_in_range(c->active, 1, c->most);
	assert_true(changed == (c->active != before));
	assert_true(c->active <= 2 * before);
	assert_true(c->active + 1 >= before);
	assert_true(c->active > 1 || !c->crowded || !changed);
}

/*
 * The load stays what it is however many workers there are: then their number goes one way, if any,
 * and comes to rest.
 */
static void settle(struct crew c, const struct crew_load *l)
{
	unsigned int start = c.active, rested = 0;
	int way = 0;

	for (unsigned int i = 0; i < LOOKS + 30 * c.most; i++) {
		unsigned int before = c.active;
		bool changed = crew_judge(&c, l);
		int step = c.active > before ? 1 : -1;

		check_bounds(&c, before, changed);
		rested = changed ? 0 : rested + 1;
		if (!changed)
			continue;
		if (way && way != step)
			fail_msg("from %u of %u: %u and back to %u under busiest %u, sum %u, "
				 "idle %u, %u us", start, c.most, before, c.active, l->busiest,
				 l->sum, l->idle, l->event_us);
		way = step;
	}
	assert_true(rested >= LOOKS / 2);
}

static void test_no_flapping(void **state)
{
	static const unsigned int busy[] = { 0, 100, 250, 399, 400, 450, 700, 1000 };
	static const unsigned int idle[] = { 0, 199, 200, 349, 350, 1500, 7000 };
	static const unsigned int cost[] = { 0, 24, 25, 300 };
	static const unsigned int most[] = { 1, 2, 3, 4, 8, 64 };
	struct crew_load l;

	(void)state;
	for (unsigned int m = 0; m < 6; m++)
		for (unsigned int active = 1; active <= most[m]; active += active < 9 ? 1 : 11)
			for (unsigned int b = 0; b < 8; b++)
				for (unsigned int i = 0; i < 7 * 4; i++)
					for (unsigned int n = 1; n <= most[m]; n *= 2) {
						l = (struct crew_load){ busy[b], busy[b] * n,
									idle[i % 7], cost[i / 7] };
						settle(crew_of(active, most[m]), &l);
					}
}

/* Divided evenly among those that are active, and CPUs enough for all. */
static struct crew_load divided(unsigned int work, unsigned int active, unsigned int cpus)
{
	unsigned int can = 1000 * active, done = work < can ? work : can;

	return (struct crew_load){
		.busiest = active ? done / active : 0,
		.sum = done,
		.idle = 1000 * cpus - done,
		.event_us = 5,
	};
}

static void grow_and_rest(unsigned int work, unsigned int cpus)
{
	struct crew c = crew_of(1, cpus);

	for (unsigned int i = 0; i < LOOKS; i++) {
		struct crew_load l = divided(work, c.active, cpus);
		unsigned int before = c.active;

		crew_judge(&c, &l);
		if (c.active < before)
			fail_msg("work %u on %u CPUs: %u workers, and one less", work, cpus,
				 before);
	}
	assert_true(1000 * c.active >= work);
}

static void test_no_flapping_divided(void **state)
{
	(void)state;
	for (unsigned int cpus = 2; cpus <= 64; cpus *= 2)
		for (unsigned int work = 0; work < 1000 * cpus / 2; work += 50)
			grow_and_rest(work, cpus);
}

/*
 * CPUs idle beside one worker and not beside two: it is tried more and more rarely, and after a
 * change of load soon again.
 */
static void test_circle(void **state)
{
	const struct crew_load alone = { 850, 850, 500, 5 }, two = { 450, 850, 0, 5 };
	const struct crew_load full = { 900, 900, 100, 5 };
	unsigned int changes = 0, looks = 0;
	struct crew c;

	(void)state;
	crew_init(&c, 2);
	for (unsigned int i = 0; i < 1000; i++)
		changes += crew_judge(&c, c.active == 1 ? &alone : &two);
	assert_in_range(changes, 4, 20);
	while (c.active == 2)
		crew_judge(&c, &two);
	for (unsigned int i = 0; i < 10000; i++)
		assert_false(crew_judge(&c, &full));
	while (!crew_judge(&c, &alone))
		looks++;
	assert_true(looks < 4);
}

static struct crew_load random_load(struct seeded *r, unsigned int most)
{
	unsigned int busiest = (unsigned int)seeded_below(r, 1100);

	return (struct crew_load){
		.busiest = busiest,
		.sum = busiest + (unsigned int)seeded_below(r, busiest * (most - 1) + 1),
		.idle = (unsigned int)seeded_size(r, 17),
		.event_us = (unsigned int)seeded_size(r, 10),
	};
}

/* What may change the number, said once more and without a state but the last looks. */
static void test_random(void **state)
{
	struct seeded r = { 11 };
	unsigned int grown = 0, shrunk = 0;

	(void)state;
	for (unsigned int life = 0; life < 400; life++) {
		struct crew c;
		unsigned int same = 0, since = 0;
		struct crew_load l = { 0 };

		crew_init(&c, 1 + (unsigned int)seeded_below(&r, life % 2 ? 4 : 128));
		for (unsigned int i = 0; i < 500; i++) {
			unsigned int before = c.active;
			bool changed;

			if (!same--) {
				l = random_load(&r, c.most);
				same = (unsigned int)seeded_size(&r, 7);
			}
			changed = crew_judge(&c, &l);
			check_bounds(&c, before, changed);
			if (c.active > before) {
				grown++;
				assert_true(l.busiest >= 400);
				assert_true(l.idle >= 350 || l.event_us >= 25);
				assert_true(l.sum > 250 * (c.active - 1));
			} else if (c.active < before) {
				shrunk++;
				assert_true(since >= 4);
				assert_true(l.sum <= 950 * c.active);
			}
			since = changed ? 0 : since + 1;
		}
	}
	/* the loads have led both ways */
	assert_true(grown > 1000);
	assert_true(shrunk > 300);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_init),
		cmocka_unit_test(test_table),
		cmocka_unit_test(test_in_a_row),
		cmocka_unit_test(test_patience),
		cmocka_unit_test(test_one_by_one),
		cmocka_unit_test(test_no_flapping),
		cmocka_unit_test(test_no_flapping_divided),
		cmocka_unit_test(test_circle),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
