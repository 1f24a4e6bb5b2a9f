/* SPDX-License-Identifier: BSD-2-Clause */
/* Which carrier a flow has, and for what reason, on each engine: without a socket. */
#include <stdbool.h>

#include "unit.h"
#include "sockmap_contract.h"
#include "datapath/policy.h"
#include "seeded.h"

#define SETTLE_MS 500
#define KIB UINT64_C(1024)

static const struct flow on_copy = { .user_carrier = CARRIER_COPY, .reason = REASON_START };
static const struct flow on_splice = { .user_carrier = CARRIER_SPLICE, .reason = REASON_BULK };

/* What a flow finds around it: a worker with little to do, with and without the kernel path. */
static const struct setting calm = { .kernel_ok = true, .watch_ms = SETTLE_MS, .bulk = REASON_BULK };
static const struct setting without_kernel = { .watch_ms = SETTLE_MS, .bulk = REASON_BULK };

static void expect(struct decision d, enum carrier carrier, enum reason reason)
{
	if (d.carrier != carrier || d.reason != reason)
		fail_msg("%s (%s), not %s (%s)", carrier_names[d.carrier], reason_names[d.reason],
			 carrier_names[carrier], reason_names[reason]);
}

/* --- fixed engines --- */

/* What the kernel has sent back stays with splice, the longer the more often that happens. */
TEST(test_engine_sockmap_returns)
{
	enum engine e = ENGINE_SOCKMAP;
	struct habit h = { 0 };
	uint32_t wait = RETURN_MS;

	for (unsigned int i = 1; i <= MAX_DEMOTIONS + 1U; i++) {
		struct setting around = calm;

		around.watch_ms = wait - 1;
		habit_demoted(&h);
		expect(policy_user(e, &h, 0, &on_splice, around), CARRIER_SPLICE, REASON_BULK);
		around.watch_ms = wait;
		expect(policy_user(e, &h, 0, &on_splice, around), CARRIER_SOCKMAP, REASON_ENGINE);
		if (i < MAX_DEMOTIONS)
			wait *= 2;
	}
}

/* --- auto --- */

static struct decision automatic(const struct habit *h, unsigned int dir)
{
	return policy_user(ENGINE_AUTO, h, dir, &on_copy, calm);
}

/* N times one message of SIZE each way; DIR begins.  Returns the decision after the last read. */
static struct decision ping_pong(struct habit *h, unsigned int dir, unsigned int n, uint64_t size)
{
	struct decision d = { CARRIER_COPY, REASON_START };

	for (unsigned int i = 0; i < n; i++) {
		habit_read(h, (dir + i) % 2, size, 1);
		d = automatic(h, (dir + i) % 2);
		if (d.carrier != CARRIER_COPY && i + 1 < n)
			fail_msg("%s after %u of %u reads", carrier_names[d.carrier], i + 1, n);
	}
	return d;
}

/* The read that begins the last turn needed promotes, and none before it. */
TEST(test_ping_pong)
{
	static const uint64_t sizes[] = { 1, 64, 1000, 16 * KIB, 48 * KIB - 1 };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct habit h = { 0 };

		expect(ping_pong(&h, 0, PROMOTE_TURNS, sizes[i]), CARRIER_COPY, REASON_START);
		expect(ping_pong(&h, PROMOTE_TURNS % 2, 1, sizes[i]), CARRIER_SOCKMAP,
		       REASON_CONVERSATION);
		/* ... as a whole */
		expect(automatic(&h, 0), CARRIER_SOCKMAP, REASON_CONVERSATION);
		expect(automatic(&h, 1), CARRIER_SOCKMAP, REASON_CONVERSATION);
	}
}

/*
 * Each demotion doubles the proof that is asked for, up to a limit.  However often it was sent back: it
 * can return, before its habit is judged afresh.
 */
TEST(test_demotions)
{
	static const uint64_t sizes[] = { 1, 64, 1 * KIB, 16 * KIB };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		unsigned int needed = PROMOTE_TURNS;
		struct habit h = { 0 };

		for (unsigned int demotions = 0; demotions < MAX_DEMOTIONS + 3U; demotions++) {
			unsigned int first =
				h.last_dir; /* the first read is no change of direction */

			expect(ping_pong(&h, first, needed, sizes[i]), CARRIER_COPY, REASON_START);
			expect(ping_pong(&h, (first + needed) % 2, 1, sizes[i]), CARRIER_SOCKMAP,
			       REASON_CONVERSATION);
			assert_false(habit_full(&h));
			habit_demoted(&h);
			if (demotions < MAX_DEMOTIONS)
				needed *= 2;
		}
		assert_int_equal(h.demotions, MAX_DEMOTIONS);
	}
}

TEST(test_bulk_run)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct habit h = { 0 };

		habit_read(&h, dir, BULK_RUN - 1, 4);
		expect(automatic(&h, dir), CARRIER_COPY, REASON_START);
		habit_read(&h, dir, 1, 1);
		expect(automatic(&h, dir), CARRIER_SPLICE, REASON_BULK);
		/* the other direction has done nothing to deserve it */
		expect(automatic(&h, !dir), CARRIER_COPY, REASON_START);
		/* an answer ends the run */
		habit_read(&h, !dir, 1, 1);
		expect(automatic(&h, dir), CARRIER_COPY, REASON_START);
	}
}

TEST(test_small_reads)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct habit h = { 0 };

		for (unsigned int i = 0; i + 1 < PROMOTE_READS; i++)
			habit_read(&h, dir, 200, 1);
		expect(automatic(&h, dir), CARRIER_COPY, REASON_START);
		habit_read(&h, dir, 200, 1);
		expect(automatic(&h, dir), CARRIER_SOCKMAP, REASON_SMALL_READS);
		expect(policy_user(ENGINE_AUTO, &h, dir, &on_copy, without_kernel), CARRIER_COPY,
		       REASON_START);
		/* one way: the other has said nothing */
		expect(automatic(&h, !dir), CARRIER_COPY, REASON_START);
		/* a demotion asks for twice as many */
		habit_demoted(&h);
		habit_read(&h, dir, 200 * (2 * PROMOTE_READS - 1), 2 * PROMOTE_READS - 1);
		expect(automatic(&h, dir), CARRIER_COPY, REASON_START);
		habit_read(&h, dir, 200, 1);
		expect(automatic(&h, dir), CARRIER_SOCKMAP, REASON_SMALL_READS);
	}
}

/* A conversation shows its kind only after a while. */
TEST(test_settles)
{
	struct setting early = calm;
	struct habit h = { 0 };

	early.watch_ms--;
	ping_pong(&h, 0, PROMOTE_TURNS + 1, 64);
	expect(policy_user(ENGINE_AUTO, &h, 0, &on_copy, early), CARRIER_COPY, REASON_START);
	expect(policy_user(ENGINE_AUTO, &h, 0, &on_splice, early), CARRIER_SPLICE, REASON_BULK);
	expect(automatic(&h, 0), CARRIER_SOCKMAP, REASON_CONVERSATION);
}

/* A limit keeps a flow out of the kernel, and that is the reason, whatever else could be one. */
TEST(test_limited)
{
	struct setting limited = calm;
	enum engine e = ENGINE_AUTO;
	struct habit h = { 0 };

	limited.limited = true;
	expect(policy_user(e, &h, 0, &on_copy, limited), CARRIER_COPY, REASON_BANDWIDTH);
	for (unsigned int i = 0; i <= PROMOTE_TURNS; i++)
		habit_read(&h, i % 2, 64, 1);
	expect(automatic(&h, 0), CARRIER_SOCKMAP, REASON_CONVERSATION);
	expect(policy_user(e, &h, 0, &on_copy, limited), CARRIER_COPY, REASON_BANDWIDTH);
	h = (struct habit){ 0 };
	habit_read(&h, 0, BULK_RUN, 1);
	expect(policy_user(e, &h, 0, &on_copy, limited), CARRIER_SPLICE, REASON_BANDWIDTH);
	e = ENGINE_SOCKMAP;
	expect(policy_user(e, &h, 0, &on_splice, limited), CARRIER_SPLICE, REASON_BANDWIDTH);
	e = ENGINE_COPY;
	expect(policy_user(e, &h, 0, &on_copy, limited), CARRIER_COPY, REASON_START);
}

/* While kernel memory is short nothing enters, and that is shown of what else would. */
TEST(test_memory_short)
{
	struct setting full = calm;
	enum engine e = ENGINE_AUTO;
	struct habit h = { 0 };

	full.memory_short = true;
	expect(policy_user(e, &h, 0, &on_copy, full), CARRIER_COPY, REASON_START);
	ping_pong(&h, 0, PROMOTE_TURNS + 1, 64);
	expect(policy_user(e, &h, 0, &on_copy, full), CARRIER_COPY, REASON_KERNEL_MEMORY);
	expect(policy_user(e, &h, 0, &on_splice, full), CARRIER_COPY, REASON_KERNEL_MEMORY);
	expect(automatic(&h, 0), CARRIER_SOCKMAP, REASON_CONVERSATION);
	full.kernel_ok = false;
	expect(policy_user(e, &h, 0, &on_copy, full), CARRIER_COPY, REASON_START);
	full.kernel_ok = true;
	e = ENGINE_SOCKMAP;
	expect(policy_user(e, &h, 0, &on_splice, full), CARRIER_SPLICE, REASON_KERNEL_MEMORY);
	e = ENGINE_SPLICE;
	expect(policy_user(e, &h, 0, &on_splice, full), CARRIER_SPLICE, REASON_BULK);
}

/* --- whatever the traffic --- */

static bool same(struct decision a, struct decision b)
{
	return a.carrier == b.carrier && a.reason == b.reason;
}

/* What holds of a decision of any engine. */
static void check_decision(enum engine e, const struct habit *h, unsigned int dir,
			   const struct flow *f)
{
	struct setting settled = calm, bare = without_kernel;
	struct decision own = { f->user_carrier, f->reason }, with, without;

	settled.watch_ms = bare.watch_ms = UINT32_MAX;
	with = policy_user(e, h, dir, f, settled);
	without = policy_user(e, h, dir, f, bare);
	assert_int_not_equal(without.carrier, CARRIER_SOCKMAP);
	/* a kernel adds one choice and takes none away */
	assert_true(with.carrier == CARRIER_SOCKMAP || same(with, without));
	/* nothing leads back to copy but having it */
	assert_true(with.carrier != CARRIER_COPY || same(with, own));
	if (e == ENGINE_COPY || e == ENGINE_SPLICE)
		assert_true(same(with, own));
	if (e == ENGINE_SOCKMAP)
		assert_true(same(with, (struct decision){ CARRIER_SOCKMAP, REASON_ENGINE }));
}

/* Sessions as judge() of session_flow.c sees them, with traffic of every sort. */
TEST(test_random_sessions)
{
	unsigned int seen[CARRIERS] = { 0 }; /* with auto */
	struct seeded r = { 4 };

	for (unsigned int life = 0; life < 400; life++) {
		enum engine e = (enum engine)(life % 4);
		struct decision d = policy_start(e);
		struct flow f = { .user_carrier = (uint8_t)d.carrier, .reason = (uint8_t)d.reason };
		struct habit h = { 0 };
		unsigned int bits = 1 + (unsigned int)seeded_below(&r, 22);
		struct setting around = { .kernel_ok = seeded_below(&r, 2),
					  .watch_ms = seeded_below(&r, 2) * SETTLE_MS,
					  .limited = seeded_below(&r, 2),
					  .bulk = REASON_BULK,
					  .memory_short = seeded_below(&r, 2) };

		for (unsigned int i = 0; i < 500; i++) {
			unsigned int dir = (unsigned int)seeded_below(&r, 2);

			habit_read(&h, dir, seeded_size(&r, bits), 1 + seeded_below(&r, 16));
			check_decision(e, &h, dir, &f);
			d = policy_user(e, &h, dir, &f, around);
			assert_false((around.limited || around.memory_short) &&
				     d.carrier == CARRIER_SOCKMAP);
			seen[d.carrier] += e == ENGINE_AUTO;
			if (d.carrier == CARRIER_SOCKMAP)
				habit_demoted(&h); /* in and out again */
			else if (d.carrier != f.user_carrier || habit_full(&h))
				habit_restart(&h);
			if (d.carrier != CARRIER_SOCKMAP)
				f.user_carrier = (uint8_t)d.carrier;
			assert_true(h.demotions <= MAX_DEMOTIONS);
			assert_true(h.run <= h.bytes[0] + h.bytes[1]);
		}
	}
	for (unsigned int c = 0; c < CARRIER_GRAFT; c++) /* no policy */
		assert_true(seen[c] > 10);
}

/* --- graft --- */

/* A far session is grafted once it converses; bulk ends that, and each return asks for more. */
TEST(test_far)
{
	struct setting far = calm;
	struct habit h = { 0 };

	for (unsigned int returns = 0; returns < 3; returns++) {
		unsigned int needed = FAR_TURNS << returns;

		for (unsigned int turns = 0; turns < needed; turns++) {
			assert_false(policy_graft_far(&h, 0));
			habit_read(&h, turns % 2, FAR_TURN, 1);
		}
		habit_read(&h, 0, 1, 1); /* which ends the last one */
		assert_true(policy_graft_far(&h, 0));
		habit_restart(&h);
		assert_true(policy_graft_far(&h, 0));
		habit_read(&h, 0, FAR_TURN + 1, 2);
		assert_false(policy_graft_far(&h, 0));
		assert_true(policy_graft_far(&h, FAR_IDLE_MS << returns));
		assert_false(policy_graft_far(&h, (FAR_IDLE_MS << returns) - 1));
		habit_demoted(&h);
	}
	far.bulk = REASON_FAR_BULK;
	habit_read(&h, 0, BULK_RUN, 1);
	expect(policy_user(ENGINE_AUTO, &h, 0, &on_copy, far), CARRIER_SPLICE, REASON_FAR_BULK);
}

/*
 * On a kernel whose splice(2) cannot be trusted, copy does what splice would, for the same reason.
 * The last test, since it holds for what follows.
 */
TEST(test_without_splice)
{
	struct habit h = { 0 };

	policy_allow_splice(false);
	expect(policy_start(ENGINE_SOCKMAP), CARRIER_COPY, REASON_ENGINE);
	expect(policy_kernel(CULVERT_EVENT_BULK), CARRIER_COPY, REASON_BULK);
	expect(policy_kernel(CULVERT_EVENT_PASSED), CARRIER_COPY, REASON_HARD_LIMIT);
	habit_read(&h, 0, BULK_RUN, 1);
	expect(policy_user(ENGINE_AUTO, &h, 0, &on_copy, without_kernel), CARRIER_COPY,
	       REASON_BULK);
}

int main(void)
{
	policy_settle_ms = SETTLE_MS;
	return unit_run(NULL, NULL);
}
