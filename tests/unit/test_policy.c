/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "culvert.h"
#include "datapath/policy.h"
#include "policy_rig.h"

#define KIB UINT64_C(1024)

static const struct flow on_copy = { .user_carrier = CARRIER_COPY, .reason = REASON_START };
static const struct flow on_splice = { .user_carrier = CARRIER_SPLICE, .reason = REASON_BULK };

/* What a flow finds around it: a worker with little to do, with and without the kernel path. */
static const struct setting calm = { .kernel_ok = true, .watch_ms = SETTLE_MS };
static const struct setting without_kernel = { .kernel_ok = false, .watch_ms = SETTLE_MS };

static void expect(struct decision d, enum carrier carrier, enum reason reason)
{
	if (d.carrier != carrier || d.reason != reason)
		fail_msg("%s (%s), not %s (%s)", carrier_name(d.carrier), reason_name(d.reason),
			 carrier_name(carrier), reason_name(reason));
}

/* --- the parts --- */

/*
 * On a kernel whose splice(2) cannot be trusted, copy does what splice would, for the same reason.
 */
static void test_without_splice(void **state)
{
	static const enum engine engines[] = { ENGINE_AUTO, ENGINE_SOCKMAP };

	(void)state;
	for (size_t i = 0; i < 2; i++) {
		struct policy p = policy_of(engines[i]);
		struct habit h = { 0 };

		p.no_splice = true;
		assert_int_equal(policy_start(&p).carrier, CARRIER_COPY);
		expect(policy_kernel(&p, CULVERT_EVENT_BULK), CARRIER_COPY, REASON_BULK);
		expect(policy_kernel(&p, CULVERT_EVENT_PASSED), CARRIER_COPY, REASON_HARD_LIMIT);
		expect(policy_kernel(&p, CULVERT_EVENT_SOFT), CARRIER_COPY, REASON_SLOW_TARGET);
		habit_read(&h, 0, p.bulk_run, 1);
		if (engines[i] == ENGINE_AUTO)
			expect(policy_user(&p, &h, 0, &on_copy, without_kernel), CARRIER_COPY,
			       REASON_BULK);
	}
}

static void test_init(void **state)
{
	static const enum engine engines[] = { ENGINE_AUTO, ENGINE_SOCKMAP, ENGINE_SPLICE,
					       ENGINE_COPY };

	(void)state;
	for (size_t i = 0; i < 4; i++) {
		struct policy p = policy_of(engines[i]);

		assert_int_equal(p.engine, engines[i]);
		assert_true(p.promote_turns > 0 && p.promote_reads > 0);
		assert_true(p.small_read < p.big_turn);
		assert_true(p.big_turn < p.bulk_run);
		assert_true(p.bulk_run < p.window);
		/* only auto takes a flow out of the kernel because it is bulk */
		assert_int_equal(p.kernel_bulk != 0, engines[i] == ENGINE_AUTO);
		assert_true(p.max_demotions < 16); /* promote_* is shifted by so much */
	}
}

static void test_start(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);

	(void)state;
	expect(policy_start(&p), CARRIER_COPY, REASON_START);
	p = policy_of(ENGINE_COPY);
	expect(policy_start(&p), CARRIER_COPY, REASON_ENGINE);
	p = policy_of(ENGINE_SPLICE);
	expect(policy_start(&p), CARRIER_SPLICE, REASON_ENGINE);
	p = policy_of(ENGINE_SOCKMAP); /* until it is in the kernel, and whenever it is not */
	expect(policy_start(&p), CARRIER_SPLICE, REASON_ENGINE);
}

static void test_kernel_events(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);

	(void)state;
	expect(policy_kernel(&p, CULVERT_EVENT_SOFT), CARRIER_SPLICE, REASON_SLOW_TARGET);
	expect(policy_kernel(&p, CULVERT_EVENT_PASSED), CARRIER_SPLICE, REASON_HARD_LIMIT);
	expect(policy_kernel(&p, CULVERT_EVENT_BULK), CARRIER_SPLICE, REASON_BULK);
	expect(policy_kernel(&p, CULVERT_EVENT_MEMORY), CARRIER_SPLICE, REASON_KERNEL_MEMORY);
	/* the program may be newer than the daemon; out of the kernel is always safe */
	assert_int_equal(policy_kernel(&p, 0).carrier, CARRIER_SPLICE);
	assert_int_equal(policy_kernel(&p, 9999).carrier, CARRIER_SPLICE);
}

/* --- fixed engines --- */

static void test_engine_sockmap(void **state)
{
	struct policy p = policy_of(ENGINE_SOCKMAP);
	struct habit h = { 0 };

	(void)state;
	/* at once, without proof, however bulky */
	expect(policy_user(&p, &h, 0, &on_splice, calm), CARRIER_SOCKMAP, REASON_ENGINE);
	habit_read(&h, 0, 100000 * KIB, 1000);
	expect(policy_user(&p, &h, 0, &on_splice, calm), CARRIER_SOCKMAP, REASON_ENGINE);
	expect(policy_user(&p, &h, 0, &on_splice, without_kernel), CARRIER_SPLICE, REASON_BULK);
	expect(policy_user(&p, &h, 0, &on_copy, without_kernel), CARRIER_COPY, REASON_START);
}

/* What the kernel has sent back stays with splice, the longer the more often that happens. */
static void test_engine_sockmap_returns(void **state)
{
	struct policy p = policy_of(ENGINE_SOCKMAP);
	struct habit h = { 0 };
	uint32_t wait = p.return_ms;

	(void)state;
	for (unsigned int i = 1; i <= p.max_demotions + 1U; i++) {
		struct setting around = { .kernel_ok = true, .watch_ms = wait - 1 };

		habit_demoted(&p, &h);
		expect(policy_user(&p, &h, 0, &on_splice, around), CARRIER_SPLICE, REASON_BULK);
		around.watch_ms = wait;
		expect(policy_user(&p, &h, 0, &on_splice, around), CARRIER_SOCKMAP, REASON_ENGINE);
		if (i < p.max_demotions)
			wait *= 2;
	}
}

/* --- auto --- */

/* N times one message of SIZE each way; DIR begins.  Returns the decision after the last read. */
static struct decision ping_pong(const struct policy *p, struct habit *h, unsigned int dir,
				 unsigned int n, uint64_t size)
{
	struct decision d = { CARRIER_COPY, REASON_START };

	for (unsigned int i = 0; i < n; i++) {
		habit_read(h, (dir + i) % 2, size, 1);
		d = policy_user(p, h, (dir + i) % 2, &on_copy, calm);
		if (d.carrier != CARRIER_COPY && i + 1 < n)
			fail_msg("%s after %u of %u reads", carrier_name(d.carrier), i + 1, n);
	}
	return d;
}

static void test_fresh_session_stays(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	for (unsigned int dir = 0; dir < 2; dir++) {
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_COPY, REASON_START);
		expect(policy_user(&p, &h, dir, &on_splice, calm), CARRIER_SPLICE, REASON_BULK);
	}
}

/* The read that begins the last turn needed promotes, and none before it. */
static void test_ping_pong(void **state)
{
	static const uint64_t sizes[] = { 1, 64, 1000, 16 * KIB, 48 * KIB - 1 };
	struct policy p = policy_of(ENGINE_AUTO);

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct habit h = { 0 };

		expect(ping_pong(&p, &h, 0, p.promote_turns, sizes[i]), CARRIER_COPY, REASON_START);
		expect(ping_pong(&p, &h, p.promote_turns % 2, 1, sizes[i]), CARRIER_SOCKMAP,
		       REASON_CONVERSATION);
		/* ... as a whole */
		expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SOCKMAP,
		       REASON_CONVERSATION);
		expect(policy_user(&p, &h, 1, &on_copy, calm), CARRIER_SOCKMAP,
		       REASON_CONVERSATION);
	}
}

static void test_ping_pong_upstream_first(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	expect(ping_pong(&p, &h, 1, p.promote_turns, 64), CARRIER_COPY, REASON_START);
	expect(ping_pong(&p, &h, (p.promote_turns + 1) % 2, 1, 64), CARRIER_SOCKMAP,
	       REASON_CONVERSATION);
}

static void test_no_kernel(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	for (unsigned int i = 0; i < 500; i++) {
		habit_read(&h, i % 2, 64, 1);
		expect(policy_user(&p, &h, i % 2, &on_copy, without_kernel), CARRIER_COPY,
		       REASON_START);
	}
	/* without a kernel, bulk is still bulk */
	habit_read(&h, 1, p.bulk_run, 4);
	expect(policy_user(&p, &h, 1, &on_copy, without_kernel), CARRIER_SPLICE, REASON_BULK);
}

/* Each demotion doubles the proof that is asked for, up to a limit. */
static void test_demotions(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };
	unsigned int needed = p.promote_turns;

	(void)state;
	for (unsigned int demotions = 0; demotions < p.max_demotions + 3U; demotions++) {
		unsigned int first = h.last_dir; /* the first read is no change of direction */

		assert_int_equal(ping_pong(&p, &h, first, needed, 64).carrier, CARRIER_COPY);
		expect(ping_pong(&p, &h, (first + needed) % 2, 1, 64), CARRIER_SOCKMAP,
		       REASON_CONVERSATION);
		habit_demoted(&p, &h);
		if (demotions < p.max_demotions)
			needed *= 2;
		assert_int_equal(h.demotions, demotions < p.max_demotions ? demotions + 1
									   : p.max_demotions);
	}
	assert_int_equal(needed, p.promote_turns << p.max_demotions);
}

/*
 * What session_flow.c does with the decisions: judge() without the sockets.  N messages of SIZE,
 * each way in turn.  True: promoted.
 */
static bool is_ever_promoted(const struct policy *p, struct habit *h, unsigned int n, uint64_t size)
{
	struct flow flows[2] = { on_copy, on_copy };

	for (unsigned int i = 0; i < n; i++) {
		struct flow *f = &flows[i % 2];
		struct decision d;

		habit_read(h, i % 2, size, 1);
		d = policy_user(p, h, i % 2, f, calm);
		if (d.carrier == CARRIER_SOCKMAP)
			return true;
		if (d.carrier != f->user_carrier) {
			f->user_carrier = (uint8_t)d.carrier;
			habit_restart(h);
		} else if (habit_full(p, h)) {
			habit_restart(h);
		}
	}
	return false;
}

/* However often it was sent back: a conversation of small messages can return to the kernel. */
static void test_way_back_stays_open(void **state)
{
	static const uint64_t sizes[] = { 1, 64, 1 * KIB, 4 * KIB };
	struct policy p = policy_of(ENGINE_AUTO);

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct habit h = { .demotions = p.max_demotions };

		assert_true(is_ever_promoted(&p, &h, 100000, sizes[i]));
	}
}

static void test_way_back_stays_open_for_16k(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { .demotions = p.max_demotions };

	(void)state;
	assert_true(is_ever_promoted(&p, &h, 100000, 16 * KIB));
}

static void test_bulk_run(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);

	(void)state;
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct habit h = { 0 };

		habit_read(&h, dir, p.bulk_run - 1, 4);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_COPY, REASON_START);
		habit_read(&h, dir, 1, 1);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_SPLICE, REASON_BULK);
		/* the other direction has done nothing to deserve it */
		expect(policy_user(&p, &h, !dir, &on_copy, calm), CARRIER_COPY, REASON_START);
		/* an answer ends the run */
		habit_read(&h, !dir, 1, 1);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_COPY, REASON_START);
	}
}

/* A long run wins over many turns before it: what counts is what happens now. */
static void test_bulk_run_in_conversation(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	for (unsigned int i = 0; i < 100; i++)
		habit_read(&h, i % 2, 64, 1);
	habit_read(&h, 1, p.bulk_run, 4);
	expect(policy_user(&p, &h, 1, &on_copy, calm), CARRIER_SPLICE, REASON_BULK);
}

/* Small questions, big answers: no turn is long enough to be a run, but all of them are bulk. */
static void test_big_turns(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };
	struct decision d = { CARRIER_COPY, REASON_START };
	uint64_t answer = 128 * KIB, total = 0;

	(void)state;
	while (total < p.window) {
		expect(d, CARRIER_COPY, REASON_START);
		habit_read(&h, 0, 100, 1);
		expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_COPY, REASON_START);
		habit_read(&h, 1, answer, 2);
		d = policy_user(&p, &h, 1, &on_copy, calm);
		total += answer + 100;
	}
	expect(d, CARRIER_SPLICE, REASON_BULK);
}

/* The average turn decides, exactly at big_turn. */
static void test_big_turn_boundary(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { .last_dir = 0, .turns = 99, .reads = { 50, 50 } };

	(void)state;
	assert_true(100 * (uint64_t)p.big_turn >= p.window);
	h.bytes[0] = 100 * (uint64_t)p.big_turn;
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SPLICE, REASON_BULK);
	h.bytes[0]--;
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SOCKMAP, REASON_CONVERSATION);
	expect(policy_user(&p, &h, 0, &on_copy, without_kernel), CARRIER_COPY, REASON_START);
}

/* Both ways at full speed: the direction changes all the time, and yet it is bulk. */
static void test_both_ways_bulk(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };
	struct flow flows[2] = { on_copy, on_copy };
	uint64_t total = 0;

	(void)state;
	for (unsigned int i = 0; total < 16 * p.window; i++) {
		unsigned int dir = i % 2;
		struct decision d;

		habit_read(&h, dir, 64 * KIB, 1);
		total += 64 * KIB;
		d = policy_user(&p, &h, dir, &flows[dir], calm);
		if (d.carrier == CARRIER_SOCKMAP)
			fail_msg("sockmap (%s) after %u reads", reason_name(d.reason), i + 1);
		if (d.carrier != flows[dir].user_carrier) {
			flows[dir].user_carrier = (uint8_t)d.carrier;
			flows[dir].reason = (uint8_t)d.reason;
			habit_restart(&h);
		} else if (habit_full(&p, &h)) {
			habit_restart(&h);
		}
	}
	for (unsigned int dir = 0; dir < 2; dir++)
		expect((struct decision){ flows[dir].user_carrier, flows[dir].reason },
		       CARRIER_SPLICE, REASON_BULK);
}

static void test_small_reads(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);

	(void)state;
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct habit h = { 0 };

		for (unsigned int i = 0; i + 1 < p.promote_reads; i++)
			habit_read(&h, dir, 200, 1);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_COPY, REASON_START);
		habit_read(&h, dir, 200, 1);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_SOCKMAP,
		       REASON_SMALL_READS);
		expect(policy_user(&p, &h, dir, &on_copy, without_kernel), CARRIER_COPY,
		       REASON_START);
		/* one way: the other has said nothing */
		expect(policy_user(&p, &h, !dir, &on_copy, calm), CARRIER_COPY, REASON_START);
		/* a demotion asks for twice as many */
		habit_demoted(&p, &h);
		habit_read(&h, dir, 200 * (2 * p.promote_reads - 1), 2 * p.promote_reads - 1);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_COPY, REASON_START);
		habit_read(&h, dir, 200, 1);
		expect(policy_user(&p, &h, dir, &on_copy, calm), CARRIER_SOCKMAP,
		       REASON_SMALL_READS);
	}
}

/* A busy worker keeps its flows; and whether it is busy takes a while to tell. */
static void test_busy_worker(void **state)
{
	struct setting busy = { .kernel_ok = true, .busy = true, .watch_ms = 10 * SETTLE_MS };
	struct setting early = { .kernel_ok = true, .watch_ms = SETTLE_MS - 1 };
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	ping_pong(&p, &h, 0, p.promote_turns + 1, 64);
	expect(policy_user(&p, &h, 0, &on_copy, busy), CARRIER_COPY, REASON_BUSY_WORKER);
	expect(policy_user(&p, &h, 0, &on_splice, busy), CARRIER_COPY, REASON_BUSY_WORKER);
	expect(policy_user(&p, &h, 0, &on_copy, early), CARRIER_COPY, REASON_START);
	expect(policy_user(&p, &h, 0, &on_splice, early), CARRIER_SPLICE, REASON_BULK);
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SOCKMAP, REASON_CONVERSATION);
	busy.kernel_ok = false;
	expect(policy_user(&p, &h, 0, &on_copy, busy), CARRIER_COPY, REASON_START);
	expect(policy_review(), CARRIER_COPY, REASON_REVIEW);

	/* --engine sockmap means it */
	p = policy_of(ENGINE_SOCKMAP);
	busy.kernel_ok = true;
	expect(policy_user(&p, &h, 0, &on_splice, busy), CARRIER_SOCKMAP, REASON_ENGINE);
	assert_int_equal(p.review_packets, 0);
	p = policy_of(ENGINE_AUTO);
	assert_int_equal(p.review_packets, REVIEW_PACKETS);
}

static void test_small_read_boundary(void **state)
{
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { .last_dir = 1, .turns = 1, .reads = { 1000, 1 } };

	(void)state;
	h.bytes[0] = 1000 * (uint64_t)p.small_read;
	expect(policy_user(&p, &h, 0, &on_splice, without_kernel), CARRIER_SPLICE, REASON_BULK);
	p.big_turn = UINT32_MAX; /* so that only the size of the reads decides */
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SOCKMAP, REASON_SMALL_READS);
	h.bytes[0] += 1000;
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_COPY, REASON_START);
}

/* A limit keeps a flow out of the kernel, and that is the reason, whatever else could be one. */
static void test_limited(void **state)
{
	struct setting limited = calm;
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	limited.limited = true;
	expect(policy_user(&p, &h, 0, &on_copy, limited), CARRIER_COPY, REASON_BANDWIDTH);
	for (unsigned int i = 0; i <= p.promote_turns; i++)
		habit_read(&h, i % 2, 64, 1);
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SOCKMAP, REASON_CONVERSATION);
	expect(policy_user(&p, &h, 0, &on_copy, limited), CARRIER_COPY, REASON_BANDWIDTH);
	h = (struct habit){ 0 };
	habit_read(&h, 0, p.bulk_run, 1);
	expect(policy_user(&p, &h, 0, &on_copy, limited), CARRIER_SPLICE, REASON_BANDWIDTH);
	p = policy_of(ENGINE_SOCKMAP);
	expect(policy_user(&p, &h, 0, &on_splice, limited), CARRIER_SPLICE, REASON_BANDWIDTH);
	p = policy_of(ENGINE_COPY);
	expect(policy_user(&p, &h, 0, &on_copy, limited), CARRIER_COPY, REASON_START);
}

/* While kernel memory is short nothing enters, and that is shown of what else would. */
static void test_memory_short(void **state)
{
	struct setting full = calm;
	struct policy p = policy_of(ENGINE_AUTO);
	struct habit h = { 0 };

	(void)state;
	full.memory_short = true;
	expect(policy_user(&p, &h, 0, &on_copy, full), CARRIER_COPY, REASON_START);
	ping_pong(&p, &h, 0, p.promote_turns + 1, 64);
	expect(policy_user(&p, &h, 0, &on_copy, full), CARRIER_COPY, REASON_KERNEL_MEMORY);
	expect(policy_user(&p, &h, 0, &on_splice, full), CARRIER_COPY, REASON_KERNEL_MEMORY);
	expect(policy_user(&p, &h, 0, &on_copy, calm), CARRIER_SOCKMAP, REASON_CONVERSATION);
	full.kernel_ok = false;
	expect(policy_user(&p, &h, 0, &on_copy, full), CARRIER_COPY, REASON_START);
	full.kernel_ok = true;
	p = policy_of(ENGINE_SOCKMAP);
	expect(policy_user(&p, &h, 0, &on_splice, full), CARRIER_SPLICE, REASON_KERNEL_MEMORY);
	p = policy_of(ENGINE_SPLICE);
	expect(policy_user(&p, &h, 0, &on_splice, full), CARRIER_SPLICE, REASON_BULK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_limited),
		cmocka_unit_test(test_memory_short),
		cmocka_unit_test(test_init),
		cmocka_unit_test(test_start),
		cmocka_unit_test(test_kernel_events),
		cmocka_unit_test(test_engine_sockmap),
		cmocka_unit_test(test_engine_sockmap_returns),
		cmocka_unit_test(test_fresh_session_stays),
		cmocka_unit_test(test_ping_pong),
		cmocka_unit_test(test_ping_pong_upstream_first),
		cmocka_unit_test(test_no_kernel),
		cmocka_unit_test(test_demotions),
		cmocka_unit_test(test_way_back_stays_open),
		cmocka_unit_test(test_way_back_stays_open_for_16k),
		cmocka_unit_test(test_bulk_run),
		cmocka_unit_test(test_bulk_run_in_conversation),
		cmocka_unit_test(test_big_turns),
		cmocka_unit_test(test_big_turn_boundary),
		cmocka_unit_test(test_both_ways_bulk),
		cmocka_unit_test(test_without_splice),
		cmocka_unit_test(test_small_reads),
		cmocka_unit_test(test_busy_worker),
		cmocka_unit_test(test_small_read_boundary),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
