/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_BALANCE_H
#define CULVERT_BALANCE_H

#include <pthread.h>
#include <stdatomic.h>

#include "config/config.h"
#include "relay/crew.h"
#include "relay/worker.h"

/*
 * Which workers carry the sessions: as many as crew.h says, and those evenly.  New connections are
 * steered to the active workers; when their number changes, sessions move (session_move.h).
 *
 * There is no thread for it: the workers look after batches of events, each at itself, and whoever
 * is first in a period at all.  So an idle daemon does nothing.
 */
struct balance {
	pthread_mutex_t lock; /* of all below but the atomics; held while sessions move */
	struct crew crew;
	enum spread spread;
	struct worker *const *workers;
	unsigned int n;
	int uptime;           /* /proc/uptime; -1: not known what the CPUs have left */
	uint64_t judged_ms, idle_ms;
	bool stopped;
	void (*steer)(void *arg, unsigned int active);
	void *arg;
	_Atomic unsigned int active;
	_Atomic uint64_t changes;
};

/*
 * Opens /proc/uptime, so to be called before there is a sandbox.  STEER is called with the number
 * of workers, 1 to N, that new connections should go to: if it is not N, by balance_start(); then
 * by any worker's thread, one at a time.
 */
void balance_open(struct balance *b, enum spread spread, unsigned int n,
		  void (*steer)(void *arg, unsigned int active), void *arg);
/* Before the workers run. */
void balance_start(struct balance *b, struct worker *const *workers);
/* From here on nothing moves, and STEER is not called; what has been moved is in its inbox. */
void balance_stop(struct balance *b);
void balance_close(struct balance *b);

/* By W's thread, after each batch of events: sessions may leave W. */
void balance_look(struct worker *w);

/* Nothing moves meanwhile: whoever asks all workers, one by one, finds each session once. */
void balance_hold(struct balance *b);
void balance_release(struct balance *b);

#endif
