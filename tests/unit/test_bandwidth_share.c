/* SPDX-License-Identifier: BSD-2-Clause */
/* Flows that share a limit, in virtual time, by threads that may be late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "relay/bandwidth.h"
#include "seeded.h"

#define START 1000000

#define FLOWS 120
#define MS_MAX 120000

struct user {
	struct place place;
	uint64_t due, got;
	uint32_t size, bite; /* what it asks for; what it uses of that, at most */
	bool queued;
};

struct play {
	struct bandwidth b;
	struct user users[FLOWS];
	unsigned int n;
	uint64_t used[MS_MAX + 1]; /* up to the begin of each millisecond */
};

static struct play play;

static void begin(uint64_t rate, unsigned int n)
{
	memset(&play, 0, sizeof(play));
	bandwidth_init(&play.b, rate, START);
	play.n = n;
	for (unsigned int i = 0; i < n; i++)
		play.users[i] = (struct user){
			.size = bandwidth_ask(play.b.turn, 0), .bite = play.b.turn,
		};
}

/*
 * As session_pace.c does, once: one turn.  False: it waits, or uses little and finds nothing more
 * until the next millisecond.
 */
static bool run_user(struct user *u, uint64_t ms)
{
	struct lane *l = &play.b.ways[0];
	uint64_t now = START + 1 + ms;
	uint32_t use;

	if (!u->queued)
		u->due = lane_join(l, u->size, now, &u->place);
	u->queued = true;
	if (u->due > now || !lane_take(l, &u->place, u->size, now, &u->due))
		return false;
	u->queued = false;
	use = u->bite < u->size ? u->bite : u->size;
	lane_end(l, &u->place, u->size - use);
	u->got += use;
	play.used[ms + 1] += use;
	u->size = bandwidth_ask(play.b.turn, use);
	return u->bite == play.b.turn;
}

/* Those from FIRST on, as a loop does: a turn of each, and again.  Each is first at times. */
static void run_users(unsigned int first, uint64_t ms)
{
	unsigned int n = play.n - first;
	bool any;

	do {
		any = false;
		for (unsigned int i = 0; i < n; i++)
			any |= run_user(&play.users[first + (i + ms * 7) % n], ms);
	} while (any);
}

/* All used bytes are counted from the begin on. */
static void end_ms(uint64_t ms)
{
	play.used[ms + 1] += play.used[ms];
}

/* In each time of LENGTH ms no more was used than may be: of any second, 5 % more than the rate. */
static void check_length(uint64_t ms, uint64_t length)
{
	uint64_t rate = play.b.ways[0].average.rate, slack = rate < 80 ? 2 : 0;
	uint64_t most = rate * 105 / 100 * length / 1000 + rate / 10 + 3 + slack;
	uint64_t seconds = (length + 999) / 1000;

	if (length >= 1000)
		most = seconds * (rate * 105 / 100 + slack);
	for (uint64_t from = 0; from + length <= ms; from++)
		if (play.used[from + length] - play.used[from] > most)
			fail_msg("rate %llu: %llu bytes in %llu ms from %llu on",
				 (unsigned long long)rate,
				 (unsigned long long)(play.used[from + length] - play.used[from]),
				 (unsigned long long)length, (unsigned long long)from);
}

static void check_most(uint64_t ms)
{
	static const uint64_t lengths[] = { 1, 10, 100, 1000, 3333, 10000 };

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		check_length(ms, lengths[i]);
}

static void check_least(uint64_t ms, unsigned int permille)
{
	uint64_t rate = play.b.ways[0].average.rate, all = rate * ms / 1000;

	if (play.used[ms] < all / 1000 * permille)
		fail_msg("rate %llu: %llu bytes of %llu in %llu ms", (unsigned long long)rate,
			 (unsigned long long)play.used[ms], (unsigned long long)all,
			 (unsigned long long)ms);
	assert_true(play.used[ms] <= all + play.b.ways[0].burst + 1);
}

/*
 * From user FIRST on, all have as much, but for a tenth and some turns.  Where several turns
 * come in a millisecond that depends on the order of events.
 */
static void check_fair(unsigned int first)
{
	if (play.b.turn < play.b.ways[0].average.rate / 1000)
		return;
	for (unsigned int i = first; i < play.n; i++) {
		uint64_t one = play.users[first].got, other = play.users[i].got;
		uint64_t slack = one / 10 + 16 * (uint64_t)play.b.turn;

		if (other > one + slack || one > other + slack)
			fail_msg("%u users: %llu and %llu bytes", play.n, (unsigned long long)one,
				 (unsigned long long)other);
	}
}

static const uint64_t play_rates[] = { 1000, 64 << 10, 1 << 20, 50 << 20, UINT64_C(10) << 30 };
#define N_RATES (sizeof(play_rates) / sizeof(play_rates[0]))

/* Of each PERIOD it is SLEEP ms, in one piece, anywhere. */
static bool sleeps(uint64_t ms, uint64_t sleep, uint64_t period)
{
	struct seeded r = { ms / period };
	uint64_t from = seeded_below(&r, period - sleep + 1);

	return ms % period >= from && ms % period < from + sleep;
}

/* All of one thread, which sleeps for SLEEP ms of each PERIOD. */
static void share(uint64_t rate, unsigned int n, unsigned int small, uint64_t ms, uint64_t sleep,
		  uint64_t period)
{
	begin(rate, n);
	for (unsigned int i = 0; i < small; i++)
		play.users[i].bite = play.b.turn / 3;
	for (uint64_t now = 0; now < ms; now++) {
		if (!sleeps(now, sleep, period))
			run_users(0, now);
		end_ms(now);
	}
	check_most(ms);
	check_fair(small);
}

static void test_share(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_RATES; i++) {
		static const unsigned int of[][2] = { { 1, 0 }, { 16, 0 }, { 16, 15 }, { 64, 32 } };

		for (size_t k = 0; k < sizeof(of) / sizeof(of[0]); k++) {
			share(play_rates[i], of[k][0], of[k][1], 10000, 0, 1000);
			check_least(10000, 985);
		}
	}
}

/* What a thread that sleeps now and then could not use is made up for. */
static void test_late(void **state)
{
	static const struct {
		uint64_t sleep, period, ms;
		unsigned int least;
	} rows[] = {
		{ 3, 5, 10000, 990 },          { 20, 40, 10000, 990 },
		{ 20, 50, 10000, 990 },        { 40, 800, 20000, 990 },
		{ 30, 60, 20000, 990 },        { 45, 90, 20000, 990 },
		{ 60, 260, 20000, 990 },       { 100, 300, 20000, 965 },
		{ 100, 600, 20000, 975 },      { 50, 1000, 20000, 990 },
		{ 50, 3000, 60000, 990 },      { 200, 10000, 60000, 985 },
		{ 500, 30000, 120000, 985 },   { 1000, 60000, MS_MAX, 985 },
	};
	static const unsigned int flows[] = { 1, 3, 16, 64 };

	(void)state;
	for (size_t i = 0; i < N_RATES * sizeof(rows) / sizeof(rows[0]); i++) {
		size_t row = i / N_RATES;

		for (size_t k = 0; k < sizeof(flows) / sizeof(flows[0]); k++) {
			uint64_t rate = play_rates[i % N_RATES];

			/* few turns fit into the burst, or into the whole time */
			if (rate < 400 << 10 && (rate == 1000 || rows[row].sleep < 50))
				continue;
			share(rate, flows[k], 0, rows[row].ms, rows[row].sleep, rows[row].period);
			check_least(rows[row].ms, rows[row].least);
		}
	}
}

/* One of two threads sleeps: the other one's flows need not wait for it, and the rest is fair. */
static void test_other_sleeps(void **state)
{
	uint64_t before[16] = { 0 };

	(void)state;
	for (size_t k = 0; k < N_RATES; k++) {
		begin(play_rates[k], 16);
		for (uint64_t now = 0; now < 30000; now++) {
			bool asleep = now >= 10000 && now < 12000;

			run_users(asleep ? 8 : 0, now);
			end_ms(now);
			for (unsigned int i = 0; i < 16 && now == 13000; i++)
				before[i] = play.users[i].got;
		}
		check_most(30000);
		check_least(30000, 985);
		for (unsigned int i = 0; i < 16; i++)
			play.users[i].got -= before[i];
		check_fair(0);
	}
}

/* Two threads that sleep a third of the time each, and whose clocks differ. */
static void test_busy(void **state)
{
	static const unsigned int flows[] = { 2, 6, 16, 64 };

	(void)state;
	for (size_t k = 0; k < 4 * N_RATES; k++) {
		struct seeded r = { k };
		uint64_t wake[2] = { 0 };

		begin(play_rates[k % N_RATES], flows[k / N_RATES]);
		for (uint64_t now = 0; now < 60000; now++) {
			for (unsigned int t = 0; t < 2; t++) {
				if (now >= wake[t] && !seeded_below(&r, 40))
					wake[t] = now + seeded_below(&r, 40);
			}
			for (unsigned int i = 0; i < play.n; i++)
				while (now >= wake[i % 2] && run_user(&play.users[i], now - i % 2))
					;
			end_ms(now);
		}
		check_most(59000);
		check_least(60000, play.b.turn > play_rates[k % N_RATES] / 400 ? 850 : 950);
	}
}

/* A hundred that say a little now and then take nothing from one that always wants more. */
static void test_chatty(void **state)
{
	struct seeded r = { 5 };

	(void)state;
	for (size_t k = 1; k < N_RATES; k++) {
		begin(play_rates[k], FLOWS);
		for (unsigned int i = 1; i < FLOWS; i++)
			play.users[i].bite = play.b.turn / 100 + 1;
		for (uint64_t now = 0; now < 20000; now++) {
			for (unsigned int i = 1; i < FLOWS; i++)
				if (play.users[i].queued || !seeded_below(&r, 500))
					run_user(&play.users[i], now);
			while (run_user(&play.users[0], now))
				;
			end_ms(now);
		}
		check_most(20000);
		check_least(20000, 970);
	}
}

/* After a silence there is the burst, and nothing that makes the average too high. */
static void test_silence(void **state)
{
	(void)state;
	for (size_t k = 0; k < N_RATES; k++) {
		uint64_t silent = 60000, ms = 30000;

		begin(play_rates[k], 4);
		for (uint64_t now = 0; now < silent + ms; now++) {
			if (now < 100 || now >= silent)
				run_users(0, now);
			for (unsigned int i = 0; i < 4 && now >= 100 && now < silent; i++)
				if (play.users[i].queued) /* what it has asked for, it takes */
					run_user(&play.users[i], now);
			end_ms(now);
		}
		check_most(silent + ms);
		assert_true(play.used[silent + ms] - play.used[silent] <=
			    play_rates[k] * ms / 1000 + play.b.ways[0].burst + 1);
	}
}

/* Whatever happens, never too much. */
static void test_any(void **state)
{
	struct seeded r = { 11 };

	(void)state;
	for (unsigned int round = 0; round < 100; round++) {
		uint64_t ms = 12000, wake[2] = { 0 };
		bool wants[FLOWS] = { false };

		begin(1 + seeded_below(&r, UINT64_C(1) << seeded_below(&r, 36)),
		      1 + (unsigned int)seeded_below(&r, FLOWS));
		for (uint64_t now = 0; now < ms; now++) {
			for (unsigned int t = 0; t < 2; t++)
				if (!seeded_below(&r, 300))
					wake[t] = now + seeded_below(&r, 1500);
			for (unsigned int i = 0; i < play.n; i++) {
				if (!seeded_below(&r, 400))
					wants[i] = !wants[i];
				if (!seeded_below(&r, 1000))
					play.users[i].bite =
						1 + (uint32_t)seeded_below(&r, play.b.turn);
				if (wants[i] && now >= wake[i % 2])
					run_user(&play.users[i], now);
			}
			end_ms(now);
		}
		check_most(ms);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_share),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_other_sleeps),
		cmocka_unit_test(test_chatty),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_silence),
		cmocka_unit_test(test_any),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
