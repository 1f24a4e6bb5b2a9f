// SPDX-License-Identifier: BSD-2-Clause
/*
 * Records of grafted sessions (user/datapath/graft/standby_record.c): a stream of them.
 *
 * Each record needs its bytes and no others, and what is unpacked, packed, and unpacked again is
 * the same.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "datapath/graft/standby_record.h"
#include "fuzz.h"

/* Later than the longest age, 2^32 ms, and so that ticks have begun again. */
#define NOW_NS (60 * 86400 * NS_PER_S)

static int unpack(const uint8_t *bytes, size_t n, struct graft_record *ret)
{
	uint8_t *room = exact_copy(bytes, n);
	const char *why = NULL;
	int r;

	r = record_unpack(room, n, NOW_NS, ret, &why);
	must(!n || !memcmp(room, bytes, n), "the bytes are changed");
	free(room);
	must(r == 0 || r == -EPROTO || (r >= 4 && r <= RECORD_MAX && (size_t)r <= n),
	     "returned %d for %zu bytes", r, n);
	must(!r || (r < 0 || ret->kind == RECORD_NONE) == !!why, "%d, and a reason: %d", r, !!why);
	return r;
}

/* Byte by byte: what is not unpacked is zero. */
static bool is_same(const void *a, const void *b)
{
	return !memcmp(a, b, sizeof(struct graft_record));
}

static void check_again(const struct graft_record *r, size_t size)
{
	struct graft_record to_pack = *r, again;
	uint8_t room[RECORD_MAX];
	size_t n;

	if (r->kind < RECORD_BEGIN || r->kind >= RECORD_KINDS)
		return;
	n = record_pack(&to_pack, NOW_NS, room);
	must(n >= 4 && n <= size, "%zu bytes, packed into %zu", size, n);
	must(unpack(room, n, &again) == (int)n, "%zu bytes are not unpacked again", n);
	must(is_same(r, &again), "another one of kind %d", r->kind);
}

/* Of the next record: every prefix asks for more, or gets the answer that all bytes get. */
static void check_prefixes(const uint8_t *bytes, size_t n, int r)
{
	struct graft_record other;
	size_t end = r > 0 ? (size_t)r : n < RECORD_MAX ? n : RECORD_MAX;

	for (size_t k = 0; k < end; k++) {
		int got = unpack(bytes, k, &other);

		must(got == 0 || (got == r && r < 0), "%d for %zu bytes, then %d", got, k, r);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct graft_record r, other;
	int took;

	do {
		took = unpack(data, size, &r);
		check_prefixes(data, size, took);
		if (took <= 0)
			return 0;
		must(unpack(data, (size_t)took, &other) == took, "what is behind it counts");
		must(is_same(&r, &other), "what is behind it is in it");
		check_again(&r, (size_t)took);
		data += took;
		size -= (size_t)took;
	} while (size);
	return 0;
}
