/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/loop.h"
#include "config/config.h"
#include "datapath/graft/graft.h"
#include "datapath/sockmap/sockmap.h"
#include "datapath/buffer_pool.h"
#include "datapath/stats.h"
#include "probe/probe.h"
#include "relay/clients.h"
#include "relay/server_queue.h"

/* Data that all workers share.  Only the atomics are written after the workers have started. */
struct shared {
	const struct config *config;
	struct sockmap *kernel;          /* NULL: sockmap carries no flow */
	struct graft_table *grafts;      /* NULL: no session is grafted */
	_Atomic unsigned int live;       /* sessions of all workers; written by admission.c */
	struct clients clients;          /* that have sessions; written by admission.c */
	struct session_log *session_log; /* NULL: none */
	struct names *names;             /* NULL: no server is a name, now or after a reload */
	struct checks *checks;
	_Atomic uint64_t news;         /* changes that may have ended sessions */
	_Atomic unsigned int standbys; /* other relays that know all grafted sessions */
	_Atomic uint64_t standbys_ms;  /* when the last one left */
	_Atomic uint64_t missing_ms; /* when another relay was missing last; see daemon/standby.c */
	_Atomic uint64_t last_id;    /* of sessions */
	_Atomic unsigned int grace_ms; /* a reload may change it */
	struct worker *workers;        /* config->workers, once they are made */
	_Atomic uint64_t server_news;  /* changes in the known handshakes of servers */
	/* The carriers that can be used.  Until the probe ends, user space carries new sessions. */
	const struct probe_start *probe;
	struct syn *syn; /* NULL: no session begins in the kernel */
	/*
	 * The loop of the thread that reloads is woken when a session has no sockets: its look gives
	 * them.  SOCKETLESS: there is such a session since the last look.
	 */
	struct loop *reload_loop;
	_Atomic bool socketless;
	_Atomic bool revives; /* that thread runs, and makes sockets */
	const char *no_syn;   /* why not; NULL: as nothing is grafted */
	/* of a hand-over to the next daemon, see daemon/hand_over.c */
	bool ends; /* this daemon stops, and hands nothing over; with the lock of forwards */
	_Atomic bool hands_over; /* no flow enters the kernel */
	_Atomic enum handed_over {
		HANDED_OVER_NOT,
		HANDED_OVER_MAPS, /* this daemon ends, and the next one has its pinned maps */
		HANDED_OVER,      /* this daemon ends */
	} handed_over;
	_Atomic bool pauses; /* the workers wait, or will: see threads_pause() */
	pthread_barrier_t pause;
};

/*
 * An id is the number of the relay that gives it (0: `relay` is not set), and a counter below.  Both
 * fit into the 53 bits of a JSON number.
 */
#define ID_COUNTER_BITS 37
#define ID_RELAY_MASK 0xffff

/* Two relays of a fleet need different numbers, see check_fleet(). */
static inline uint64_t id_relay(const char *name)
{
	return (graft_tag(name) & ID_RELAY_MASK) ?: 1;
}

/*
 * A session of an earlier daemon or another relay has ID: new sessions get higher ids, unless it has
 * the number of another relay.  By any thread.
 */
static inline void shared_saw_id(struct shared *shared, uint64_t id)
{
	uint64_t last = atomic_load(&shared->last_id);

	while (last < id && !((last ^ id) >> ID_COUNTER_BITS) &&
	       !atomic_compare_exchange_weak(&shared->last_id, &last, id))
		continue;
}

/* A session of the caller needs sockets soon: wake the thread that makes them.  By any thread. */
static inline void shared_want_sockets(struct shared *shared)
{
	if (!atomic_exchange(&shared->socketless, true))
		loop_wake(shared->reload_loop);
}

/* The head of a struct that is freed after the batch, whose events may still point at it. */
struct leftover {
	SLIST_ENTRY(leftover) in_worker;
};

/* One thread: its loop, its sessions, the buffers and pipes that it lends them, its counters. */
struct worker {
	struct shared *shared;
	unsigned int index;
	struct loop loop;
	struct pool pool;
	struct stats stats;

	LIST_HEAD(session_list, session) sessions; /* of TCP, not DEAD */
	unsigned int n_sessions;                   /* of TCP and UDP, not DEAD */
	SLIST_HEAD(leftover_list, leftover) leftovers;
	struct session **owners; /* by slot pair: the session of this worker that has it, or NULL */

	LIST_HEAD(listener_list, listener) listeners; /* see listener.h */
	struct udp_worker *udp;
	struct woken woken; /* see server_queue.h */
	uint64_t server_news_seen;
	uint64_t shape_ms;   /* when the listeners follow the servers again */
	struct timer resume; /* when the next pause of a listener is over */

	struct ring_buffer *ring; /* of sockmap's events, and of grafts'; NULL: neither */
	struct source ring_source;
	struct session **grafted; /* by slot: the session of this worker that has it, or NULL */
	struct timer catch_up;    /* wakes the loop: the next batch takes events that woke nobody */
	uint64_t news_seen;       /* of shared->news, plus lost graft events */
	struct timer sweep;       /* looks for events that did not fit into the ring */
	uint64_t events_lost_seen;
	struct timer syn_sweep; /* looks at sessions from the SYN on that have no object */

	pthread_t thread;
	bool started;              /* of the thread that starts and stops it */
	uint64_t grace_ms;         /* when the sessions that are left are reset */
	struct timer leave_behind; /* while the worker stops: leaves sessions to the next daemon */
};

/* How often a worker looks at the program's counters, while sessions are in the kernel. */
#define WORKER_SWEEP_MS 1000

/* How often a worker that stops looks which sessions are grafted by now. */
#define WORKER_LEAVE_MS 10

/* Some sessions may have ended, or moved to another relay: wake all workers.  By any thread. */
static inline void shared_tell_news(struct shared *shared)
{
	atomic_fetch_add(&shared->news, 1);
	for (unsigned int i = 0; i < shared->config->workers; i++)
		loop_wake(&shared->workers[i].loop);
}

static inline void worker_free_later(struct worker *w, struct leftover *what)
{
	SLIST_INSERT_HEAD(&w->leftovers, what, in_worker);
}
