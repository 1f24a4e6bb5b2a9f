/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BANDWIDTH_H
#define CULVERT_BANDWIDTH_H

#include "bucket.h"

/*
 * A limit in bytes a second, in each direction on its own, as a line has it.  Who wants to read
 * waits for his turn, in which he may read so many bytes: those who always want to get as much
 * each.
 */
struct bandwidth {
	struct bucket ways[2]; /* by flow; rate 0: no limit */
	uint32_t turn;         /* bytes */
};

/* RATE 0: no limit. */
void bandwidth_init(struct bandwidth *b, uint64_t rate, uint64_t now_ms);

#endif
