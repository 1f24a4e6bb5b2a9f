/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BENCH_SOURCE_RANGE_H
#define CULVERT_BENCH_SOURCE_RANGE_H

#include <stddef.h>
#include <stdint.h>

#include "base/addr.h"

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

#endif
