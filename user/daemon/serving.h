/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SERVING_H
#define CULVERT_SERVING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "relay/forward.h"
#include "relay/listening.h"
#include "relay/worker.h"

/*
 * Which addresses the workers serve, and for which forwards, and how that changes while they run.
 * A change is planned, which may fail and which nobody notices, and then made, which cannot fail:
 *
 *   serving_take_turn()    one change at a time
 *   serving_keep_all()     all addresses stay as they are; of those that do not, the caller sets
 *                          `becomes`: to the other forward, or NULL
 *   serving_open()         sockets for one more address, which nobody accepts from yet
 *   serving_prepare()      the last that may fail;    or at any time: serving_give_up()
 *   serving_change()
 *   serving_end_turn()
 */
struct serving {
	struct listening **list; /* of all addresses; changed by whoever has the turn */
	struct worker *const *workers;
	unsigned int n_workers;
	pthread_mutex_t turn; /* of changes to the list, and to that of forwards */
	bool taken;           /* the turn, by somebody */
	bool stopped;         /* guarded by the turn, see serving_stop() */
};

/* Addresses that are new with a change.  Zeroed, there are none. */
struct serving_plan {
	struct listening *opened; /* list */
	size_t n;
	struct listener **listeners; /* [place in OPENED][worker] */
};

/* Without workers: set them before the first turn. */
void serving_init(struct serving *s, struct listening **list);
void serving_destroy(struct serving *s);

void serving_take_turn(struct serving *s);
/* The same, but no longer than SECONDS: -EBUSY.  -ESHUTDOWN: there is nothing to change any more. */
int serving_ask_turn(struct serving *s, unsigned int seconds);
void serving_end_turn(struct serving *s);
/*
 * The workers are about to end, and with each of them its listeners, so who asks for a turn from
 * here on gets none.  A change that is under way is waited for.  Who takes turns without asking has
 * ended before.
 */
void serving_stop(struct serving *s);

void serving_keep_all(struct serving *s);

/*
 * Is something of ours in the way of A, from 0.0.0.0:80 to 10.0.0.1:80?  Then connections may go to
 * the new sockets as soon as those are open, and would be reset with them: to be opened last.
 */
bool serving_joins(const struct serving *s, const struct addr *a);

/*
 * Listen on A, which is one of FC, for F, with sockets that BY makes.  -errno, and ERR.
 */
int serving_open(struct serving *s, struct serving_plan *p, const struct listening_maker *by,
		 struct forward *f, const struct forward_conf *fc, const struct addr *a,
		 struct listening **ret, char *err, size_t errlen);
/*
 * The same where sockets listen already that do not fit (listening_fits()): those of OLD, which
 * stay open for a while beside the new ones.
 */
int serving_replace(struct serving *s, struct serving_plan *p, const struct listening_maker *by,
		    struct forward *f, const struct forward_conf *fc, struct listening *old,
		    struct listening **ret, char *err, size_t errlen);

/* Who has the address that L, which is leaving, had alone before; NULL: nobody any more. */
struct listening *serving_successor(const struct serving *s, const struct listening *l);

/*
 * What all others become has been set.  Sockets of one address, that a forward has from now on as
 * one of all, stay as well: handshakes are under way there.
 */
void serving_keep_handshakes(struct serving *s, const struct serving_plan *p);

/* Memory for listeners and their timers. */
int serving_prepare(struct serving *s, struct serving_plan *p, char *err, size_t errlen);

void serving_give_up(struct serving *s, struct serving_plan *p);

/*
 * All at once, as far as clients can tell: what a worker accepts belongs to the forward that each
 * address becomes one of, what is in P is accepted from, and the rest is closed.  Waits for
 * workers, however slow they are, since half a change is none.
 */
void serving_change(struct serving *s, struct serving_plan *p);

/*
 * Close what has been replaced long enough before NOW_MS, of CLOCK_MONOTONIC.  When there will be
 * something to close again; UINT64_MAX: not before another change.
 */
uint64_t serving_look(struct serving *s, uint64_t now_ms);

#endif
