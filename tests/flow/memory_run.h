/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* One daemon, sessions that are filled by their senders, and what memory they take. */

#define MEMORY_PAIRS 32
#define MEMORY_HARD_LIMIT "1M"
#define MEMORY_HARD (1 << 20)
#define MEMORY_UPSTREAM "127.0.0.1:9100"
#define MEMORY_UPSTREAM_PORT 9100

struct memory_variant {
	const char *name;
	bool one_byte;
	bool stop;       /* SIGSTOP in the middle; with one_byte before the one-byte writes begin */
	bool stop_first; /* SIGSTOP before anything is sent but the conversation */
	bool slow;       /* the receivers read, 1 MB/s each */
	bool both;       /* the receivers send as well, and nobody reads */
};

struct memory_conf {
	const char *engine;
	const struct memory_variant *variant;
	double seconds;
	int listen_fd; /* at MEMORY_UPSTREAM */
};

/* Bytes. */
struct figures {
	int64_t slab;
	int64_t queue_max;  /* of the sources' receive queues, seen at the end */
	int64_t hidden_max; /* payload of the session with most */
};

struct memory_result {
	struct figures figures;
	uint64_t sent; /* and received, and verified */
	char why[1500];
};

/* 0, -1 (RET->why says why) or -ENOTSUP (the kernel cannot; RET->why). */
int memory_run(const struct memory_conf *conf, struct memory_result *ret);
