/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "base/tls_hello.h"
#include "config/config.h"
#include "datapath/stats.h"
#include "relay/bandwidth.h"
#include "relay/clients.h"
#include "relay/marked_sockets.h"
#include "relay/servers.h"

/*
 * A forward at run time.  Its configuration never changes: a reload that changes a forward replaces
 * the struct.  Sessions keep the struct that they began with, but sessions that wait for a server's
 * place follow the new one.  A forward and those that replace it share totals.  A name that was
 * removed and comes back gets new totals.
 *
 *   ACTIVE    accepts sessions, unless it is draining
 *     -> REPLACED  a reload has put another forward of its name in its place; freed after the last
 *                  of its sessions
 *     -> REMOVED   a reload has found no forward of its name; `culvert forwards` shows it until the
 *                  last session of the name has ended, and then it is freed
 */
enum forward_state {
	FORWARD_ACTIVE,
	FORWARD_REPLACED,
	FORWARD_REMOVED,
};

/* A name of an [sni] section, in a bucket of the forward to which the section belongs. */
struct sni_name {
	const char *text; /* without its "*", if it has one */
	size_t len;
	bool any; /* the name has a "*" */
	struct forward *forward;
	STAILQ_ENTRY(sni_name) in_bucket;
};

#define SNI_BUCKETS 4096

STAILQ_HEAD(sni_bucket, sni_name);

/* The counters of one name, and the data that all sessions of that name share. */
struct forward_totals {
	_Atomic unsigned int live;    /* sessions */
	_Atomic unsigned int limited; /* LIVE plus the sessions of its [sni] sections */
	unsigned int refs;            /* forwards; for the thread that reloads only */
	unsigned int n_workers;
	/*
	 * When the sessions of a removed or draining forward are reset.  Like `refs`, for the
	 * thread that reloads only.
	 */
	uint64_t due_ms;
	struct clients clients;
	struct bandwidth bandwidth;
	struct server_queue queue;    /* for a place at a server */
	pthread_mutex_t servers_lock; /* of struct servers, `active`, `sni` and `nameless` */
	struct forward *active;       /* NULL: it is removed */
	struct sni_bucket *sni; /* SNI_BUCKETS, with the names of the active [sni] sections, in
				       * their order; NULL: there was no section so far */
	bool nameless;          /* the forward is removed, and serves no hello any more */
	struct forward_stats stats[]; /* one for each worker, its only writer */
};

/* A configuration, kept as long as a forward points into it. */
struct config_version {
	struct config config;
	unsigned int refs; /* for the thread that reloads only */
};

struct forward {
	const struct forward_conf *conf;
	_Atomic enum engine engine; /* of its sessions, old and new; may change */
	struct servers servers;
	_Atomic unsigned int checks; /* checks of its servers under way */
	struct forward_totals *totals;
	struct forward_totals *limits; /* totals that its limits apply to: its own; those of the
					* section's forward, if it is an [sni] section */
	struct sni_name *sni;          /* of its [sni] section; owned */
	size_t n_sni;
	uint32_t tag;                     /* graft_tag() of its name */
	struct syn_stock *_Atomic syn;    /* see session_syn.c; NULL: none */
	struct marked_sockets *stock;     /* of sockets that need privileges; NULL: it needs none */
	struct bucket accepts;            /* accept-rate */
	_Atomic unsigned int sessions;    /* that point to it */
	_Atomic unsigned int old_sockets; /* old sockets of UDP that point to it */
	struct config_version *from;      /* has CONF; NULL: the configuration of the start */
	/*
	 * After the planned change: itself, or the forward that replaces it; NULL: to be removed.
	 * Written without the lock, by the thread that reloads alone.
	 */
	struct forward *becomes;
	enum forward_state state;  /* the rest is guarded by forwards->lock */
	bool draining;             /* its sockets are closed, see drain_forward() */
	bool leaves;               /* the next daemon has it, too: see daemon/hand_over.c */
	enum engine engine_before; /* of the hand-over, if it does not leave */
	TAILQ_ENTRY(forward) in_forwards;
};

/* A list: active forwards in the order of the configuration, then the others. */
struct forwards {
	/* Guards the list.  The thread that reloads may read without it; no worker does. */
	pthread_mutex_t lock;
	TAILQ_HEAD(forward_list, forward) list;
};

/* Find the active forward of that name, or NULL. */
struct forward *forwards_find(const struct forwards *all, const char *name);
/* Find the first forward whose graft_tag() is TAG, or NULL. */
struct forward *forward_with_tag(const struct forwards *all, uint32_t tag);
/* Free the forwards that are not active and have no sessions.  Takes the lock. */
void forwards_reap(struct forwards *all);

/*
 * Make a forward of FC, a forward of the configuration C.  FROM holds C, and the forward takes a
 * reference to it; NULL: C is the configuration of the start.  BEFORE: the forward that the new one
 * replaces, or NULL; servers that both have keep their state.  OF: the forward that has FC as an
 * [sni] section, or NULL.  Returns NULL without memory.
 */
struct forward *forward_new(const struct forward_conf *fc, const struct config *c,
			    struct config_version *from, struct forward *before,
			    const struct forward *of);
void forward_free(struct forward *f);
/* F is the active forward of its name from now on; or is removed, if not IS.  Wakes nobody. */
void forward_set_active(struct forward *f, bool is);
/*
 * Find the [sni] sections of F among the N forwards ALL, which are in the order of the
 * configuration.  ALL is NULL: F is removed.
 */
void forward_set_sni(struct forward *f, struct forward *const *all, size_t n);
/*
 * The forward for a session of F whose TLS hello is H; NULL: it does not speak TLS.  F itself, or an
 * [sni] section of F, to which the session is then counted.  NULL: there is none.  By any thread.
 */
struct forward *forward_route(struct forward *f, const struct tls_hello *h);
/*
 * The forward for a session of F that waits for a server's place: the one that has replaced F, to
 * which the session is then counted; or F.  *OFFSET: see forward_port_offset().  By any thread.
 */
struct forward *forward_follow(struct forward *f, uint16_t *offset);
/*
 * The offset of PORT, to which a client sends, in the range of the listener.  The client is served
 * at the same offset in the range of the servers.  0: the servers have no range.
 */
uint16_t forward_port_offset(const struct forward *f, in_port_t port);
/* The pace of a session of F and CLIENT: see pace_new().  -ENOMEM. */
int forward_pace(struct forward *f, const struct sockaddr *client, struct pace **ret);
/* Warn about settings of FC that are legal but suspicious. */
void forward_warn(const struct forward_conf *fc);
/* Drop a reference; NULL is fine. */
void config_version_drop(struct config_version *v);

/* Are its sessions to be grafted, if they can be? */
static inline bool forward_grafts(const struct forward *f)
{
	enum engine engine = f->engine;

	return engine == ENGINE_GRAFT || (engine == ENGINE_AUTO && f->conf->graft);
}

static inline struct forward_stats *forward_stats(const struct forward *f, unsigned int worker)
{
	return &f->totals->stats[worker];
}

/* The sum over all workers of the counter at AT bytes in the struct forward_stats of F. */
uint64_t forward_sum(const struct forward *f, size_t at);

/* "active", "draining", "replaced", "removed". */
const char *forward_state_name(const struct forward *f);
