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
		{ ONE(GRAFT_SETTING) | ONE(GRAFT_TAKEN), { ANY, ANY, ANY }, GRAFT_TO_NOWHERE },
		{ ONE(GRAFT_PREPARED) | ONE(GRAFT_GAVE_UP), { ANY, ANY, ANY }, GRAFT_TO_NOWHERE },
		{ ONE(GRAFT_SYN_SENT), { ANY, ANY, ANY }, GRAFT_TO_HANDSHAKE },
		{ ALL, { ANY, YES, ANY }, GRAFT_TO_SHIFTED },
		{ ONE(GRAFT_CLOSED), { ANY, NO, NO }, GRAFT_TO_FORGET },
		{ ONE(GRAFT_OFFERED) | ONE(GRAFT_LOCKED), { ANY, NO, ANY }, GRAFT_TO_LOOK },
		{ ONE(GRAFT_FREE) | ONE(GRAFT_RETURNED), { ANY, NO, ANY }, GRAFT_TO_SOCKET },
		{ ALL, { ANY, NO, ANY }, GRAFT_TO_WORK },
	};

	CHECK(rows, GRAFT_STATES, arrival);
}

/* A packet of a handshake is a number: four flags, and the end that has sent it. */
#define HAS_SYN 0xaaaaaaaaU
#define HAS_ACK 0xccccccccU
#define HAS_RST 0xf0f0f0f0U
#define HAS_FIN 0xff00ff00U
#define CLIENT 0x0000ffffU
#define SERVER 0xffff0000U

static unsigned int handshake(unsigned int packet, bool fits, bool payload, bool aged)
{
	const uint8_t flags =
		(uint8_t)((packet & 1 ? GRAFT_FLAGS_SYN : 0) | (packet & 2 ? GRAFT_FLAGS_ACK : 0) |
			  (packet & 4 ? GRAFT_FLAGS_RST : 0) | (packet & 8 ? GRAFT_FLAGS_FIN : 0));
	const uint32_t age_ms = GRAFT_SYN_AGAIN_MS - !aged;
	unsigned int is = graft_handshake(packet & 16, flags, fits, payload, age_ms);

	/* PSH, URG, ECE and CWR change nothing: a SYN may ask for ECN */
	assert_int_equal(graft_handshake(packet & 16, flags | 0xe8, fits, payload, age_ms), is);
	return is;
}

TEST(test_handshake)
{
	static const struct row rows[] = {
		{ CLIENT & HAS_SYN & ~(HAS_ACK | HAS_RST), { YES, ANY, NO }, GRAFT_SYN_AGAIN },
		{ CLIENT & HAS_SYN & ~(HAS_ACK | HAS_RST), { YES, ANY, YES }, GRAFT_SYN_SILENT },
		{ CLIENT & HAS_SYN & ~(HAS_ACK | HAS_RST), { NO, ANY, ANY }, GRAFT_SYN_ABANDONED },
		{ CLIENT & HAS_RST, { YES, ANY, ANY }, GRAFT_SYN_ABANDONED },
		{ CLIENT, { ANY, ANY, ANY }, GRAFT_SYN_DROP },
		{ SERVER & HAS_SYN & HAS_ACK & ~HAS_RST, { YES, ANY, ANY }, GRAFT_SYN_OPEN },
		{ SERVER & HAS_RST & HAS_ACK, { YES, ANY, ANY }, GRAFT_SYN_REFUSED },
		{ SERVER & HAS_ACK & ~(HAS_SYN | HAS_RST | HAS_FIN),
		  { NO, NO, ANY },
		  GRAFT_SYN_CHALLENGED },
		{ SERVER, { ANY, ANY, ANY }, GRAFT_SYN_DROP },
	};

	CHECK(rows, 32, handshake);
}

/*
 * A port that is used ten times a second: the server may still have the number of any of the last
 * 600 connections, in TIME_WAIT, and takes a SYN only if its number is above that one.
 */
TEST(test_isn)
{
	static const uint32_t begins[] = { 0, 0x7fffffff, 0x80000000, 0xffffffff - 65537 };
	uint32_t seq = 12345;

	assert_int_equal(graft_isn(false, 17, 4), 4);
	for (int i = 0; i < 4; i++) {
		uint32_t last = begins[i];
		uint64_t grown = 0;

		for (int use = 0; use < 600; use++) {
			uint32_t isn;

			seq = seq * 1664525 + 1013904223; /* a client's */
			isn = graft_isn(true, last, seq);
			assert_in_range(isn - last, 65537, 65537 + (1 << 22) - 1);
			assert_int_equal((isn - last - 65537) ^ (seq & 0x3fffff), 0);
			grown += isn - last;
			last = isn;
		}
		assert_in_range(grown, 600 << 16, INT32_MAX);
	}
}

/* PAWS: a clock that stands still is old, too. */
TEST(test_tsval)
{
	static const struct {
		bool known;
		uint32_t last, now, result;
	} rows[] = {
		{ false, 1000, 7, 7 },
		{ true, 1000, 1001, 1001 },
		{ true, 1000, 1000, 1001 },
		{ true, 1000, 999, 1001 },
		{ true, 1000, 0x800003e7, 0x800003e7 },
		{ true, 0xffffffff, 0, 0 },
		{ true, 0xffffffff, 0xffffffff, 0 },
		{ true, 5, 0xfffffff0, 6 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		assert_int_equal(graft_tsval(rows[i].known, rows[i].last, rows[i].now),
				 rows[i].result);
}

UNIT_MAIN(NULL, NULL)
