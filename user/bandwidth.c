// SPDX-License-Identifier: BSD-2-Clause
#include "bandwidth.h"

/*
 * A turn is what comes within 5 ms: the loop's clock has milliseconds, and sixteen that share have
 * a turn each within a tenth of a second.  But not so little that a read is hardly worth its call,
 * and not more than a pipe holds.
 */
#define TURNS_PER_SECOND 200
#define TURN_MIN 1024
#define TURN_MAX (512 * 1024)
/*
 * What waits for somebody to read is at most what comes within 50 ms, 5 % of the first second.
 * Much less would be lost whenever a worker has other work to do, or the machine does.
 */
#define BURSTS_PER_SECOND 20

void bandwidth_init(struct bandwidth *b, uint64_t rate, uint64_t now_ms)
{
	uint64_t turn = rate / TURNS_PER_SECOND, burst = rate / BURSTS_PER_SECOND;

	if (turn < TURN_MIN)
		turn = rate < TURN_MIN ? rate : TURN_MIN;
	if (turn > TURN_MAX)
		turn = TURN_MAX;
	if (burst < 2 * turn)
		burst = 2 * turn;
	b->turn = (uint32_t)turn;
	for (unsigned int way = 0; way < 2; way++)
		bucket_init(&b->ways[way], rate, burst, now_ms);
}
