// SPDX-License-Identifier: BSD-2-Clause
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "datapath/flow.h"
#include "seeded.h"

/* The books of a flow: what has drained, and what is lost. */

struct book_case {
	uint64_t redirected, user, unread; /* USER: user_in of the audits, user_out of drained */
};

#define BIG (UINT64_C(1) << 62)
#define WORD (UINT64_C(1) << 32)

static const struct book_case book_cases[] = {
	{ 0, 0, 0 },
	{ 1, 0, 0 },
	{ 0, 1, 0 },
	{ 0, 0, 1 },
	{ 1, 2, 4 },
	{ WORD - 1, 1, 0 },
	{ WORD, WORD, WORD },
	{ BIG, 1, 1 },
	{ BIG, BIG, BIG - 1 },
	{ UINT64_MAX - 2, 1, 1 },
	{ 0, UINT64_MAX, 0 },
};

/* Differences that arithmetic in too few bits, or with a sign, would miss. */
static const uint64_t diffs[] = { 1, 2, 255, 256, 65536, WORD - 1, WORD, WORD + 1, BIG,
				  UINT64_C(1) << 63 };

#define N_CASES (sizeof(book_cases) / sizeof(book_cases[0]))
#define N_DIFFS (sizeof(diffs) / sizeof(diffs[0]))

static void test_drained(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_CASES; i++) {
		const struct book_case *c = &book_cases[i];
		uint64_t sum = c->redirected + c->user;
		/* what was read, received or is unread does not matter to the target */
		struct flow f = { .user_out = c->user, .user_in = c->user / 2 };
		struct flow_books b = { .accepted = sum, .redirected = c->redirected,
					.received = sum / 3, .unread = c->unread };

		assert_true(flow_drained(&f, &b));
		for (size_t j = 0; j < N_DIFFS; j++) {
			b.accepted = sum - diffs[j];
			assert_false(flow_drained(&f, &b));
			b.accepted = sum + diffs[j];
			assert_false(flow_drained(&f, &b));
		}
	}
}

static void test_audit_left(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_CASES; i++) {
		const struct book_case *c = &book_cases[i];
		uint64_t sum = c->redirected + c->user + c->unread;
		struct flow f = { .user_in = c->user, .user_out = c->user / 2 };
		struct flow_books b = { .received = sum, .redirected = c->redirected,
					.unread = c->unread, .accepted = sum / 3 };

		assert_int_equal(flow_audit_left(&f, &b), AUDIT_OK);
		for (size_t j = 0; j < N_DIFFS; j++) {
			b.received = sum + diffs[j];
			assert_int_equal(flow_audit_left(&f, &b), AUDIT_LOST);
			b.received = sum - diffs[j];
			assert_int_equal(flow_audit_left(&f, &b), AUDIT_LOST);
		}
	}
}

static void test_audit_fin(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_CASES; i++) {
		const struct book_case *c = &book_cases[i];
		uint64_t sum = c->redirected + c->user;
		struct flow f = { .user_in = c->user, .user_out = c->user / 2 };
		struct flow_books b = { .received = sum, .redirected = c->redirected,
					.unread = c->unread, .accepted = sum / 3 };

		assert_int_equal(flow_audit_fin(&f, &b), AUDIT_OK);
		for (size_t j = 0; j < N_DIFFS; j++) {
			b.received = sum + diffs[j];
			if (b.received > sum)
				assert_int_equal(flow_audit_fin(&f, &b), AUDIT_LATE);
			b.received = sum - diffs[j];
			if (b.received < sum)
				assert_int_equal(flow_audit_fin(&f, &b), AUDIT_LOST);
		}
	}
}

/* Follow bytes from place to place: the books tell what happened, whatever the order. */
static void test_books_of_a_life(void **state)
{
	struct seeded r = { 2 };

	(void)state;
	for (int life = 0; life < 200; life++) {
		struct flow f = { 0 };
		struct flow_books b = { 0 };
		uint64_t backlog = 0;

		for (int i = 0; i < 50; i++) {
			uint64_t n = seeded_size(&r, 40);

			switch (seeded_below(&r, 5)) {
			case 0: /* TCP receives, the program redirects */
				b.received += n;
				b.redirected += n;
				backlog += n;
				break;
			case 1: /* TCP receives */
				b.received += n;
				b.unread += n;
				break;
			case 2: /* user space reads */
				n = n > b.unread ? b.unread : n;
				b.unread -= n;
				f.user_in += n;
				break;
			case 3: /* the kernel's worker writes */
				n = n > backlog ? backlog : n;
				backlog -= n;
				b.accepted += n;
				break;
			default: /* user space writes */
				n = n > f.user_in - f.user_out ? f.user_in - f.user_out : n;
				f.user_out += n;
				b.accepted += n;
			}
			assert_int_equal(flow_audit_left(&f, &b), AUDIT_OK);
			assert_int_equal(flow_audit_fin(&f, &b),
					 b.unread ? AUDIT_LATE : AUDIT_OK);
			assert_int_equal(flow_drained(&f, &b), backlog == 0);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_drained),
		cmocka_unit_test(test_audit_left),
		cmocka_unit_test(test_audit_fin),
		cmocka_unit_test(test_books_of_a_life),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
