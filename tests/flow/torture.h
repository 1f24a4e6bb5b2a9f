/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "peer.h"

struct torture_conf {
	uint64_t seed;
	uint64_t sessions; /* how many; ignored while DEADLINE is set */
	int64_t deadline;  /* now_ms(): start no session after it; 0: none */
	bool only;         /* every session is the plan of ONLY_ID */
	uint64_t only_id;
	unsigned int concurrency;
	unsigned int threads;
	int stall_ms;
	int listen_fd;  /* of the upstream side */
	bool strangers; /* another run had its address before, and may have left sessions */
	struct sockaddr_storage to; /* the daemon */
	socklen_t to_len;
	void (*on_failure)(void); /* called once, on the first failure, from any thread */
};

/* All counters of ends are of sessions, not of the two ends. */
struct torture_stats {
	_Atomic uint64_t finished, aborted_by_plan, anonymous;
	_Atomic uint64_t strangers; /* sessions of another run, by their first line */
	_Atomic uint64_t bytes;
	_Atomic uint64_t results[PEER_RESULTS]; /* of those that did not end as they should */
	_Atomic uint64_t eof_for_rst; /* planned aborts that the other side saw as a plain EOF */
};

extern struct torture_stats torture_stats;

/* Run all sessions; returns when the last end of the last one is gone. */
void torture_run(const struct torture_conf *conf);

/* How many of the results were worse than a reset. */
uint64_t torture_failures(void);
