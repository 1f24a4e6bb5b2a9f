/* SPDX-License-Identifier: BSD-2-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "datapath/policy.h"
#include "policy_rig.h"
#include "seeded.h"

/* What holds of the policy whatever the habit: thousands of random ones, the same in each run. */

static bool same(struct decision a, struct decision b)
{
	return a.carrier == b.carrier && a.reason == b.reason;
}

static struct habit random_habit(struct seeded *r, const struct policy *p)
{
	struct habit h;

	memset(&h, 0, sizeof(h)); /* padding too: habits are compared as bytes */
	h.bytes[0] = seeded_size(r, 40);
	h.bytes[1] = seeded_size(r, 40);
	h.reads[0] = (uint32_t)seeded_size(r, 20);
	h.reads[1] = (uint32_t)seeded_size(r, 20);
	h.run = seeded_size(r, 24);
	h.turns = (uint32_t)seeded_size(r, 14);
	h.last_dir = (uint8_t)seeded_below(r, 2);
	h.demotions = (uint8_t)seeded_below(r, p->max_demotions + 1U);
	return h;
}

static struct flow random_flow(struct seeded *r)
{
	struct flow f;

	memset(&f, 0, sizeof(f));
	f.user_carrier = seeded_below(r, 2) ? CARRIER_SPLICE : CARRIER_COPY;
	f.reason = (uint8_t)seeded_below(r, REASONS);
	f.user_in = seeded_next(r);
	f.pending = (uint32_t)seeded_size(r, 20);
	return f;
}

static const struct setting settled = { .kernel_ok = true, .watch_ms = UINT32_MAX };

/* The rules of policy.h once more, without a division. */
static struct decision model_auto(const struct policy *p, const struct habit *h, unsigned int dir,
				  const struct flow *f, struct setting around)
{
	uint64_t total = h->bytes[0] + h->bytes[1], turns = h->turns + UINT64_C(1);
	bool big = total >= turns * p->big_turn;
	bool small = h->bytes[dir] < h->reads[dir] * (UINT64_C(1) + p->small_read);
	uint64_t factor = 1;

	for (unsigned int i = 0; i < h->demotions; i++)
		factor *= 2;
	if ((h->last_dir == dir && h->run >= p->bulk_run) || (big && total >= p->window))
		return (struct decision){ CARRIER_SPLICE, REASON_BULK };
	if (around.kernel_ok && (around.busy || around.watch_ms < p->settle_ms) &&
	    ((!big && h->turns >= factor * p->promote_turns) ||
	     (small && h->reads[dir] >= factor * p->promote_reads)))
		return around.busy ? (struct decision){ CARRIER_COPY, REASON_BUSY_WORKER }
				   : (struct decision){ f->user_carrier, f->reason };
	if (around.kernel_ok && !big && h->turns >= factor * p->promote_turns)
		return (struct decision){ CARRIER_SOCKMAP, REASON_CONVERSATION };
	if (around.kernel_ok && small && h->reads[dir] >= factor * p->promote_reads)
		return (struct decision){ CARRIER_SOCKMAP, REASON_SMALL_READS };
	return (struct decision){ f->user_carrier, f->reason };
}

/* What holds of a decision of any engine. */
static void check_decision(const struct policy *p, const struct habit *h, unsigned int dir,
			   const struct flow *f)
{
	struct decision own = { f->user_carrier, f->reason };
	const struct setting calm = { .kernel_ok = true, .watch_ms = UINT32_MAX };
	const struct setting busy = { .kernel_ok = true, .busy = true };
	const struct setting early = { .kernel_ok = true, .watch_ms = p->settle_ms - 1 };
	const struct setting bare = { .kernel_ok = false, .watch_ms = p->settle_ms };
	struct decision with = policy_user(p, h, dir, f, calm);
	struct decision without = policy_user(p, h, dir, f, bare);
	struct decision crowded = policy_user(p, h, dir, f, busy);

	assert_true(same(with, policy_user(p, h, dir, f, calm)));
	assert_true(same(without, policy_user(p, h, dir, f, bare)));
	assert_int_not_equal(without.carrier, CARRIER_SOCKMAP);
	/* a kernel adds one choice and takes none away */
	assert_true(with.carrier == CARRIER_SOCKMAP || same(with, without));
	/* nothing leads back to copy but having it, or a busy worker instead of the kernel */
	assert_true(with.carrier != CARRIER_COPY || same(with, own));
	assert_true(with.carrier == CARRIER_SOCKMAP || same(crowded, with));
	switch (p->engine) {
	case ENGINE_COPY:
	case ENGINE_SPLICE:
		assert_true(same(with, own));
		assert_true(same(without, own));
		break;
	case ENGINE_SOCKMAP:
		assert_true(same(with, (struct decision){ CARRIER_SOCKMAP, REASON_ENGINE }));
		assert_true(same(without, own));
		break;
	default:
		assert_true(same(with, model_auto(p, h, dir, f, calm)));
		assert_true(same(without, model_auto(p, h, dir, f, bare)));
		assert_true(same(crowded, model_auto(p, h, dir, f, busy)));
		assert_true(same(policy_user(p, h, dir, f, early),
				 model_auto(p, h, dir, f, early)));
	}
}

static void test_properties(void **state)
{
	unsigned int seen[ENGINE_COPY + 1][CARRIERS] = { { 0 } };
	struct seeded r = { 3 };

	(void)state;
	for (unsigned int i = 0; i < 40000; i++) {
		struct policy p = policy_of((enum engine)(i % 4));
		struct habit h = random_habit(&r, &p), h_before;
		struct flow f = random_flow(&r), f_before;
		unsigned int dir = (unsigned int)seeded_below(&r, 2);
		struct decision d;

		memcpy(&h_before, &h, sizeof(h));
		memcpy(&f_before, &f, sizeof(f));
		d = policy_user(&p, &h, dir, &f, settled);
		check_decision(&p, &h, dir, &f);
		assert_memory_equal(&h, &h_before, sizeof(h));
		assert_memory_equal(&f, &f_before, sizeof(f));
		seen[p.engine][d.carrier]++;
		/* more demotions never help a flow into the kernel */
		h.demotions += h.demotions < p.max_demotions;
		if (p.engine == ENGINE_AUTO && d.carrier != CARRIER_SOCKMAP)
			assert_true(same(policy_user(&p, &h, dir, &f, settled), d));
	}
	/* the random habits have led everywhere */
	for (unsigned int c = 0; c < CARRIERS; c++)
		assert_true(seen[ENGINE_AUTO][c] > 200);
	assert_int_equal(seen[ENGINE_SOCKMAP][CARRIER_SOCKMAP], 10000);
	assert_int_equal(seen[ENGINE_COPY][CARRIER_SOCKMAP], 0);
	assert_int_equal(seen[ENGINE_SPLICE][CARRIER_SOCKMAP], 0);
}

/* A session as judge() of session_flow.c sees it, with traffic of every sort. */
static void test_random_sessions(void **state)
{
	struct seeded r = { 4 };

	(void)state;
	for (unsigned int life = 0; life < 300; life++) {
		struct policy p = policy_of((enum engine)(life % 4));
		struct decision start = policy_start(&p);
		struct flow f = { .user_carrier = (uint8_t)start.carrier,
				  .reason = (uint8_t)start.reason };
		struct habit h;
		unsigned int bits = 1 + (unsigned int)seeded_below(&r, 22);
		struct setting around = { seeded_below(&r, 2), seeded_below(&r, 2),
					  seeded_below(&r, 2) * SETTLE_MS,
					  seeded_below(&r, 2), seeded_below(&r, 2) };

		memset(&h, 0, sizeof(h));
		for (unsigned int i = 0; i < 500; i++) {
			unsigned int dir = (unsigned int)seeded_below(&r, 2);
			struct decision d;

			habit_read(&h, dir, seeded_size(&r, bits), 1 + seeded_below(&r, 16));
			check_decision(&p, &h, dir, &f);
			d = policy_user(&p, &h, dir, &f, around);
			assert_false((around.limited || around.memory_short) &&
				     d.carrier == CARRIER_SOCKMAP);
			if (d.carrier == CARRIER_SOCKMAP)
				habit_demoted(&p, &h); /* in and out again */
			else if (d.carrier != f.user_carrier || habit_full(&p, &h))
				habit_restart(&h);
			if (d.carrier != CARRIER_SOCKMAP)
				f.user_carrier = (uint8_t)d.carrier;
			assert_true(h.demotions <= p.max_demotions);
			assert_true(h.run <= h.bytes[0] + h.bytes[1]);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_properties),
		cmocka_unit_test(test_random_sessions),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
