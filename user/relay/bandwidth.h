/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BANDWIDTH_H
#define CULVERT_BANDWIDTH_H

#include "base/bucket.h"
#include "base/window.h"

/*
 * A limit in bytes a second, in each direction on its own, as a line has it.  Who wants to read
 * joins a queue, and takes what he may read when his turn has come: those who always want to get as
 * much each.
 *
 * What holds:
 * - In any second, no more is taken than the rate and 5 % of it.  In a shorter time no more than
 *   1.05 * rate * time + 0.1 * rate.  (Of rates of less than 80 bytes a second, two bytes more.)
 * - In the long run no less is taken than the rate, if somebody always wants more, although whoever
 *   has his turn may come late, because his thread had no CPU.  Up to a second of that is made up
 *   for: up to 100 ms at once, the rest at a pace that is 5 % over the rate, as long as no second is
 *   over it by more than that.
 *
 * A thread that is late for 100 ms and less, however often, as on a busy machine, so loses nothing:
 * the seconds are full, if uneven.  Two buckets could not say so: their burst and what their rates
 * are over would have to share the 5 %.  Who has made up for much at once may have to wait for up to
 * 100 ms within the next second.
 *
 * Only somebody who was kept waiting has anything to make up for: after a time in which nobody had
 * anything to read, no more is taken than rate * time + 0.04 * rate.
 *
 * May be shared by threads, without a lock; the clock is given.
 */
struct lane {
	struct bucket average; /* of the rate; up to a second's worth may wait */
	struct bucket peak;    /* of a little more; what may be made up for at once */
	struct window second;  /* of the last one */
	uint64_t burst;        /* what waits for those who come after a time of silence */
	_Atomic uint64_t used_ms; /* when somebody took something last, */
	_Atomic bool used_up;     /* and used all of it, so that he will want more */
};

/* Where one is in the queue; and when one's turn came. */
struct place {
	uint64_t average, peak, taken_ms;
	uint32_t turns; /* in the queue up to here, if all are like this one */
};

struct bandwidth {
	struct lane ways[2]; /* by flow */
	uint32_t turn;       /* bytes that it makes sense to take at once, at most; 0: no limit */
};

/* RATE 0: no limit. */
void bandwidth_init(struct bandwidth *b, uint64_t rate, uint64_t now_ms);

/*
 * What to ask for, with turns of TURN bytes, after a turn in which USED were read: twice as much,
 * and at most a turn.  So who moves little makes nobody wait, and who moves much soon has whole
 * turns.
 */
uint32_t bandwidth_ask(uint32_t turn, uint32_t used);

/* Join the queue for N bytes, at most a turn.  Returns when it will be one's turn. */
uint64_t lane_join(struct lane *l, uint64_t n, uint64_t now_ms, struct place *ret);

/*
 * That time has come: leave with N bytes.  False: too many others are late as well; one has another
 * place in the queue, and it will be one's turn at *RET_DUE_MS.
 */
bool lane_take(struct lane *l, struct place *p, uint64_t n, uint64_t now_ms, uint64_t *ret_due_ms);

/* The turn is over; N of those that were taken were not used. */
void lane_end(struct lane *l, const struct place *p, uint64_t n);

/* Leave with nothing. */
void lane_leave(struct lane *l, const struct place *p, uint64_t n, uint64_t now_ms);

#endif
