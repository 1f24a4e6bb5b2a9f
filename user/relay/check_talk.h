/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "config/config.h"
#include "relay/server_health.h"

/*
 * The question of a health check, and the judgement of its answer (check-http, check-send,
 * check-expect).  Pure: no system calls.
 */

#define CHECK_BYTES 4096 /* of an answer that are looked at, or of a question */
#define CHECK_WHY_LEN 64

enum check_verdict {
	CHECK_GOOD,
	CHECK_BAD,
	CHECK_MORE, /* the answer is not whole */
};

/* True if a check of FC does more than connect. */
bool check_talks(const struct forward_conf *fc);
/* Write to TO (CHECK_BYTES) what a check of FC says to HOST, as in "10.0.0.2:8008"; its length. */
size_t check_question(const struct forward_conf *fc, const char *host, char *to);
/*
 * Judge the LEN bytes of ANSWER that have come, which a NUL follows.  ENDED: no more come.  WHY gets
 * a line about the answer: it is what users see.
 */
enum check_verdict check_judge(const struct forward_conf *fc, const char *answer, size_t len,
			       bool ended, char why[CHECK_WHY_LEN]);

/* The advice of an agent, in a line of HAProxy's words. */
struct check_advice {
	enum {
		ADVICE_STATE = 1,
		ADVICE_ORDER = 2,
		ADVICE_WEIGHT = 4,
		ADVICE_IGNORED = 8, /* a word of HAProxy's that has no meaning here */
	} said; /* a set: which of the fields count; 0: nothing was understood */
	bool down;
	enum server_order order;
	unsigned int percent; /* of the configured weight; 0: no new sessions */
};

/* Read LINE, as "up 50%"; words that are not known are skipped, and case does not matter. */
struct check_advice check_read_advice(const char *line);
