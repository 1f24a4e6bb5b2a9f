/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"
#include "wire.h"

#define ADDRESSES_MAX 1024
#define PROCESSES_MAX 256

#define SOURCE_RANGE_MAX 65536 /* addresses */

/* Consecutive addresses of this host that connections come from.  Zeroed: the kernel chooses. */
struct source_range {
	struct addr first; /* with port 0 */
	uint32_t count;
};

/* "10.0.0.2", "10.0.0.2-10.0.0.9", "fd00::2-fd00::9".  NULL, or what is wrong. */
const char *source_range_parse(const char *text, struct source_range *ret);

/* Address number N (modulo the count) with port 0, for bind(2).  Only if there is a range. */
void source_range_at(const struct source_range *r, uint64_t n, struct addr *ret);

struct options {
	enum workload workload;
	bool udp;
	bool sample;                          /* verify no more than a sample */
	struct addr addresses[ADDRESSES_MAX]; /* a sink listens at them, others connect to them */
	size_t n_addresses;
	struct source_range source;
	unsigned int ends; /* of crr: enum ends */
	uint64_t connections;
	uint64_t in_flight; /* connections being opened at a time, in all processes together */
	uint64_t processes;
	uint64_t size; /* bytes of a message; bulk and slow: bytes per send(2) */
	uint64_t rate; /* slow: bytes per second and connection */
	uint64_t warmup_ms;
	uint64_t seconds_ms; /* measured; idle: 0 means until a signal */
	uint64_t timeout_ms; /* of a connect, a request, a transaction */
};

/* "rr", "bulk-up" and so on. */
const char *workload_name(enum workload w);

/* Parse the command line.  Prints help, or a mistake, and then ends the program. */
void options_parse(int argc, char **argv, struct options *ret);
