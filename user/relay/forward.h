/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_FORWARD_H
#define CULVERT_FORWARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "config/config.h"
#include "datapath/policy.h"
#include "datapath/stats.h"
#include "relay/limits.h"
#include "relay/rates.h"
#include "relay/socket_stock.h"
#include "relay/names.h"

/*
 * A forward as it runs.  What the configuration says of it never changes: a reload that changes a
 * forward puts a new one in its place, and sessions go on with what they began with.  The totals
 * are those of the name, and go over from one to the next.
 *
 *   ACTIVE    sockets listen for it, unless it is draining
 *               -> REPLACED  a reload has put another of the same name in its place
 *               -> REMOVED   a reload has found none of its name
 *   REPLACED, REMOVED
 *             no new sessions; freed after the last one, by forwards_reap().  REMOVED stands for
 *             its name: after the last one also of those that it had replaced
 */
enum forward_state {
	FORWARD_ACTIVE,
	FORWARD_REPLACED,
	FORWARD_REMOVED,
};

/* Until when sessions may go on. */
struct forward_due {
	uint64_t ms;      /* of CLOCK_MONOTONIC; UINT64_MAX: for ever */
	const char *what; /* has set it: for the log; a literal */
};

/* What is counted under one name, and what holds for all sessions under it. */
struct forward_totals {
	_Atomic unsigned int live; /* sessions */
	unsigned int refs;         /* forwards; of the thread that reloads */
	unsigned int n_workers;
	struct forward_due due;    /* removed, or draining; written by whoever has the turn */
	struct clients *clients;   /* owned; NULL: no forward has limited clients yet */
	struct forward_stats *stats; /* by index of the worker, who alone writes it; owned */
};

/* The text of a configuration, for as long as forwards need it. */
struct config_version {
	struct config config;
	unsigned int refs; /* of the thread that reloads */
};

struct forward {
	const struct forward_conf *conf;
	struct policy policy;             /* of the configured engine */
	struct policy overrides[ENGINES]; /* of the others, once they were asked for */
	_Atomic(const struct policy *) policy_now; /* one of these; see forward_set_engine() */
	struct upstream upstream;
	struct forward_totals *totals;
	struct socket_stock *stock;    /* of sockets that need privileges; NULL: it needs none */
	struct bucket accepts;         /* accept-rate */
	struct bandwidth *bandwidth;   /* shared with the forward before, if it is the same */
	struct clients *clients;       /* of totals; NULL: this forward does not limit clients */
	_Atomic unsigned int sessions; /* that hold it */
	struct config_version *from;   /* where conf is; NULL: that of the start */
	enum forward_state state;      /* the rest is guarded by forwards->lock */
	bool draining;               /* ACTIVE: its sockets are closed, see reload.h */
	struct forward *next;
};

/* Those that are active, in the order of the configuration, and behind them those that are not. */
struct forwards {
	pthread_mutex_t lock; /* held by who goes through the list or changes it: never a worker.
			       * Who has the turn (reload.h) may go through it without */
	struct forward *first;
};

void forwards_init(struct forwards *all);
/* All sessions must be gone. */
void forwards_close(struct forwards *all);
/* Put F at the end. */
void forwards_add(struct forwards *all, struct forward *f);
/* The active one of that name, or NULL. */
struct forward *forwards_find(const struct forwards *all, const char *name);
/*
 * Free what is not active and has no sessions.  Takes the lock, but not while it frees: that may
 * wait for the privileged process, or the thread for names.
 */
void forwards_reap(struct forwards *all);

/*
 * Make one of FC, which must live as long: it is part of C, and that of FROM.  BEFORE, or NULL: the
 * one that it shall replace.  -ENOMEM.
 */
int forward_new(const struct forward_conf *fc, const struct config *c, struct config_version *from,
		struct forward *before, struct forward **ret);
void forward_free(struct forward *f);
/* Of what may not be meant so in FC, which is in force from now on. */
void forward_warn(const struct forward_conf *fc);
/* Give a reference back. */
void config_version_drop(struct config_version *v);

/* What carries its sessions, old and new, from now on.  By the control thread only. */
void forward_set_engine(struct forward *f, enum engine engine);

/* By any thread.  It may be another the next time, but this one stays as it is. */
static inline const struct policy *forward_policy(const struct forward *f)
{
	return atomic_load_explicit(&f->policy_now, memory_order_acquire);
}

static inline struct forward_stats *forward_stats(const struct forward *f, unsigned int worker)
{
	return &f->totals->stats[worker];
}

/* For people. */
const char *forward_state_name(const struct forward *f);

#endif
