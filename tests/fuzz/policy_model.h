/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_TESTS_POLICY_MODEL_H
#define CULVERT_TESTS_POLICY_MODEL_H

#include "policy.h"

/*
 * The rules of policy.h and of the table in docs/design.md once more, by other means: a list of
 * what was read instead of counters, products of 128 bits instead of averages, and thresholds of
 * its own.  Whoever changes a rule or a threshold changes it here, too.
 */
#define MODEL_WORDS_MAX 4096

/* User space has read so much of flow DIR. */
struct model_word {
	uint8_t dir;
	uint32_t reads;
	uint64_t bytes; /* at least one a read */
};

/* What the words amount to. */
struct model_sums {
	uint64_t bytes[2], reads[2];
	uint64_t turns;
	uint64_t run, run_reads; /* since the last turn */
	unsigned int last;       /* whose turn it is; 2: nobody has spoken */
};

struct model_habit {
	struct model_word words[MODEL_WORDS_MAX]; /* since the session was last judged afresh */
	size_t n;
	unsigned int returns; /* from the kernel, unless it was for review */
	struct model_sums sums; /* of the first `summed` words */
	size_t summed;
};

void model_begin(struct model_habit *h);
void model_add(struct model_habit *h, struct model_word word);
/* Judge afresh from here. */
void model_restart(struct model_habit *h);

struct model_load {
	uint64_t looked_ms, events, wakeups; /* at the last look */
	bool was_busy;
	uint64_t busy_ms;
};

struct model_sums model_sums(struct model_habit *h);
/* What must be multiplied with what a promotion asks for: 1, 2, 4 ... 64. */
unsigned int model_factor(const struct model_habit *h);
bool model_full(struct model_habit *h);

void model_load_look(struct model_load *l, uint64_t events, uint64_t wakeups, uint64_t now_ms);
bool model_busy(const struct model_load *l, uint32_t settle_ms, uint64_t now_ms);

/* What a session's policy is made from. */
struct model_rules {
	enum engine engine;
	bool no_splice; /* copy does what splice would do */
	uint32_t settle_ms;
};

struct decision model_start(const struct model_rules *r);
struct decision model_user(const struct model_rules *r, struct model_habit *h, unsigned int dir,
			   struct decision own, struct setting around);
struct decision model_kernel(const struct model_rules *r, unsigned int kind);

#endif
