/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"
#include "config/endpoint.h"

#define ENDPOINTS_MAX 1024
#define PROCESSES_MAX 256

#define SOURCE_RANGE_MAX 65536 /* addresses */

/* Consecutive addresses of this host that connections come from.  Zeroed: the kernel chooses. */
struct source_range {
	int family;        /* AF_INET, AF_INET6; AF_UNSPEC: no range */
	uint8_t first[16]; /* in network byte order; IPv4: 4 bytes */
	uint32_t count;
};

/*
 * "10.0.0.2", "10.0.0.2-10.0.0.9", "[fd00::2]-[fd00::9]" (brackets optional).  Returns 0 or
 * -EINVAL; then ERR (ERRLEN bytes) holds one line that says what is wrong, without TEXT.
 */
int source_range_parse(const char *text, struct source_range *ret, char *err, size_t errlen);

/* Address number N (modulo the count) with port 0, for bind(2).  Only if there is a range. */
void source_range_at(const struct source_range *r, uint64_t n, struct addr *ret);

enum workload {
	WORKLOAD_SINK,
	WORKLOAD_RR,
	WORKLOAD_CRR,
	WORKLOAD_BULK_UP,
	WORKLOAD_BULK_DOWN,
	WORKLOAD_BULK_BOTH,
	WORKLOAD_IDLE,
	WORKLOAD_SLOW,
	N_WORKLOADS,
};

struct endpoints {
	struct endpoint list[ENDPOINTS_MAX];
	size_t n;
};

enum verify {
	VERIFY_FULL,
	VERIFY_SAMPLE,
};

struct options {
	enum workload workload;
	uint32_t udp;             /* 0: TCP */
	struct endpoints listen;  /* sink */
	struct endpoints connect; /* the others */
	struct source_range source;
	uint32_t connections;
	uint32_t in_flight; /* connections being opened at a time, in all processes together */
	uint32_t processes;
	uint32_t size; /* bytes of a message; bulk and slow: bytes per send(2) */
	uint64_t rate; /* slow: bytes per second and connection */
	uint32_t warmup_ms;
	uint32_t seconds_ms; /* measured; idle: 0 means until a signal */
	uint32_t timeout_ms; /* of a connect, a request, a transaction */
	uint32_t verify;     /* enum verify */
};

/* "rr", "bulk-up" and so on. */
const char *workload_name(enum workload w);

/* A transfer, with throughput as its result; the others exchange messages. */
bool workload_is_transfer(enum workload w);

/*
 * Parse the command line.  Returns 0, 1 if help or version was asked for and printed, or -errno
 * (mostly -EINVAL) when stderr says what is wrong.  In each case RET needs options_close().
 */
int options_parse(int argc, char **argv, struct options *ret);

void options_close(struct options *o);

/* One line on stderr that begins with "culvert-bench: ". */
void bench_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
