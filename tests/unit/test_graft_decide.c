// SPDX-License-Identifier: BSD-2-Clause
/* The tables of graft_decide.h, row by row: of each case the first row that matches is the decision. */
#include "unit.h"
#include "graft_decide.h"

enum { NO, YES, ANY };

struct row {
	unsigned int states; /* a bit for each state, or looseness */
	int inputs[3];       /* in the order of the table */
	unsigned int result;
};

#define ONE(state) (1U << (state))
#define ALL (ONE(GRAFT_STATES) - 1)

typedef unsigned int decide_fn(unsigned int state, bool a, bool b, bool c);

/* The last one of ROWS matches all cases that no other does. */
static void check(const struct row *rows, size_t n, unsigned int states, decide_fn *decide)
{
	unsigned int used = 0;

	for (unsigned int at = 0; at < states * 8; at++) {
		const struct row *r = rows;

		for (; r < rows + n; r++) {
			bool matches = r->states & ONE(at / 8);

			for (int i = 0; i < 3; i++)
				matches = matches && (r->inputs[i] == ANY ||
						      r->inputs[i] == (int)(at >> i & 1));
			if (matches)
				break;
		}
		assert_true(r < rows + n);
		used |= ONE(r - rows);
		if (decide(at / 8, at & 1, at & 2, at & 4) != r->result)
			fail_msg("state %u, inputs %u%u%u: %u, and not row %zu", at / 8, at & 1,
				 at >> 1 & 1, at >> 2 & 1, decide(at / 8, at & 1, at & 2, at & 4),
				 (size_t)(r - rows));
	}
	assert_int_equal(used, ONE(n) - 1); /* no row is idle */
}

#define CHECK(rows, states, decide) check(rows, sizeof(rows) / sizeof(*(rows)), states, decide)

static unsigned int judge(unsigned int loose, bool mirrored, bool fits, bool proves)
{
	return graft_judge((enum graft_loose)loose, mirrored, fits, proves);
}

TEST(test_judge)
{
	static const struct row rows[] = {
		{ ONE(GRAFT_LOOSE), { ANY, ANY, YES }, GRAFT_CONFIRM },
		{ ONE(GRAFT_LOOSE), { ANY, YES, NO }, GRAFT_BELIEVE },
		{ ONE(GRAFT_LOOSE), { ANY, NO, NO }, GRAFT_SEND },
		{ ALL, { ANY, YES, ANY }, GRAFT_BELIEVE },
		{ ONE(GRAFT_FOUND), { ANY, NO, YES }, GRAFT_CONFIRM },
		{ ONE(GRAFT_STRICT), { YES, NO, YES }, GRAFT_CONFIRM },
		{ ALL, { ANY, NO, ANY }, GRAFT_DROP },
	};

	CHECK(rows, GRAFT_FOUND + 1, judge);
}

static unsigned int follow(unsigned int none, bool fits, bool agrees, bool believed)
{
	(void)none;
	return graft_follow(fits, agrees, believed);
}

TEST(test_follow)
{
	static const struct row rows[] = {
		{ ALL, { YES, ANY, YES }, GRAFT_FOLLOW_NOTHING },
		{ ALL, { YES, ANY, NO }, GRAFT_FOLLOW_PACKET },
		{ ALL, { NO, YES, ANY }, GRAFT_FOLLOW_BOTH },
		{ ALL, { NO, NO, ANY }, GRAFT_FOLLOW_APART },
	};

	CHECK(rows, 1, follow);
}

static unsigned int arrival(unsigned int state, bool here, bool killed, bool fits)
{
	return graft_arrival((enum graft_state)state, here, killed, fits);
}

TEST(test_arrival)
{
	static const struct row rows[] = {
		{ ONE(GRAFT_STANDBY), { NO, ANY, ANY }, GRAFT_TO_PAST },
		{ ONE(GRAFT_SETTING), { ANY, ANY, ANY }, GRAFT_TO_NOWHERE },
		{ ALL, { ANY, YES, ANY }, GRAFT_TO_SHIFTED },
		{ ONE(GRAFT_CLOSED), { ANY, NO, NO }, GRAFT_TO_FORGET },
		{ ONE(GRAFT_OFFERED) | ONE(GRAFT_LOCKED), { ANY, NO, ANY }, GRAFT_TO_LOOK },
		{ ONE(GRAFT_FREE) | ONE(GRAFT_RETURNED), { ANY, NO, ANY }, GRAFT_TO_SOCKET },
		{ ALL, { ANY, NO, ANY }, GRAFT_TO_WORK },
	};

	CHECK(rows, GRAFT_STATES, arrival);
}

UNIT_MAIN(NULL, NULL)
