/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/log.h"
#include "datapath/flow.h"

/*
 * Counters.  Each worker has its own set and is its only writer, so an increment is a plain load
 * and store; control threads read them at any time and add them up.
 */

/* How a session ended, or why something could not be done. */
enum cause {
	CAUSE_CLIENT_RESET,
	CAUSE_UPSTREAM_RESET,
	CAUSE_CLIENT_LOST, /* ETIMEDOUT and the like */
	CAUSE_UPSTREAM_LOST,
	CAUSE_IDLE_TIMEOUT,
	CAUSE_FIN_TIMEOUT, /* silent, and half closed */
	CAUSE_NO_ADDRESS,  /* the upstream's name has none: it was not found, or not in time */
	CAUSE_QUEUE_FULL,
	CAUSE_QUEUE_TIMEOUT, /* no server has had a place in time */
	CAUSE_NO_SERVER,     /* none of several servers may have a session */
	CAUSE_CONNECT_REFUSED,
	CAUSE_CONNECT_TIMEOUT,
	CAUSE_CONNECT_UNREACHABLE,
	CAUSE_CONNECT_FAILED,
	CAUSE_NO_DESCRIPTOR, /* EMFILE, ENFILE: waited or paused */
	CAUSE_NO_MEMORY,     /* ENOMEM, ENOBUFS: waited or paused */
	CAUSE_SESSION_LIMIT, /* --max-sessions reached: accepting paused */
	CAUSE_FORWARD_LIMIT, /* the same of one forward */
	CAUSE_ACCEPT_RATE,   /* a forward's accept-rate reached: accepting paused */
	CAUSE_CLIENT_LIMIT,  /* --max-sessions-per-client reached: refused with RST */
	CAUSE_DENIED,        /* by --allow, --deny: refused with RST */
	CAUSE_ACCEPT_FAILED,
	CAUSE_HEADER_BAD,        /* no PROXY header, a malformed one, or a part of one: reset */
	CAUSE_HEADER_LATE,       /* no whole PROXY header within --proxy-timeout: reset */
	CAUSE_HELLO_BAD,         /* no TLS hello, or one that cannot be read: alert and reset */
	CAUSE_HELLO_LARGE,       /* one of more than 16 KiB */
	CAUSE_HELLO_LATE,        /* not whole within --hello-timeout */
	CAUSE_SERVER_NO_TLS,     /* a server of PostgreSQL answers SSLRequest with no */
	CAUSE_NAME_UNKNOWN,      /* no forward takes the hello's name, or a hello without a name */
	CAUSE_HANDOVER_UNPROVED, /* an audit could not account for every byte: session reset */
	CAUSE_KERNEL_LOST,       /* the program reported bytes that it could not redirect: reset */
	CAUSE_KILLED,            /* `culvert kill` */
	CAUSE_SERVER_DOWN,       /* on-down, on-backup */
	CAUSE_GRACE_OVER,        /* ended by the daemon's own exit */
	CAUSE_NO_SOCKET,         /* the stock of marked or transparent sockets is empty */
	CAUSE_DRAIN_OVER,        /* a reload has removed the forward, --drain-timeout ago */
	CAUSE_NO_ROUTE, /* grafted, and its packets have to go a way that cannot be followed */
	CAUSE_UNTRANSLATABLE, /* a packet could be neither translated nor given to a socket */
	CAUSE_CROWDED_OUT,    /* UDP: its client had proved nothing, and others needed the room */
	CAUSE_NO_PORT,        /* UDP: each local port is in use, or rests */
	CAUSE_REPLY_LIMIT,    /* UDP: a datagram beyond max-reply-factor is dropped */
	CAUSE_OVER_BANDWIDTH, /* UDP: a datagram is dropped */
	CAUSE_SEND_BUFFER,    /* UDP: a datagram is dropped, since the socket has no room */
	CAUSE_INTERNAL,
	CAUSES,
	CAUSE_NONE = CAUSES, /* there is none */
};

extern const char *const cause_names[CAUSES];

/*
 * Log an event of CAUSE: the cause's name, as `culvert status` shows it, and the text.  Each cause
 * has a rate limit of its own: many lines of one cause hide none of another.
 */
#define log_cause(cause, level, fmt, ...)                                                          \
	log_write_limited(&cause_rates[cause], level, "%s: " fmt, cause_names[cause], __VA_ARGS__)
extern struct log_rate cause_rates[CAUSES];

/* Hand-overs of a flow: to each carrier, and those that failed. */
enum handover {
	HANDOVER_FAILED = CARRIERS, /* the kernel refused a socket: the flow stayed where it was */
	HANDOVERS,
};

typedef _Atomic uint64_t counter;

#define HISTOGRAM_BUCKETS 18

/* Counts of durations, by the least bound that a duration did not exceed. */
struct histogram {
	counter n[HISTOGRAM_BUCKETS];
	counter sum_us;
};

struct histogram_bound {
	double seconds;
	const char *text; /* 1.0, and not 1 */
};

/* In ascending order; the last is infinite. */
extern const struct histogram_bound histogram_bounds[HISTOGRAM_BUCKETS];

/* Workers count side by side: no two sets in one cache line. */
struct forward_stats {
	_Alignas(64) counter accepted;
	counter finished, denied;
	counter adopted, moved; /* sessions taken over from another daemon; left to another one */
	/* bytes read from each side; session_count_kernel() adds those of the kernel */
	counter carried[2][CARRIERS];
	counter datagrams[2];                 /* UDP: datagrams from each side, by all carriers */
	struct histogram connects, durations; /* of upstreams that answered; of ended sessions */
};

struct stats {
	counter errors[CAUSES];
	counter handovers[HANDOVERS][REASONS];
	counter carrier_bytes[CARRIERS]; /* as forward_stats.carried, of all forwards ever */
};

static inline void count_add(counter *c, uint64_t n)
{
	atomic_store_explicit(c, atomic_load_explicit(c, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static inline uint64_t count_get(counter *c)
{
	return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void histogram_add(struct histogram *h, uint64_t us)
{
	unsigned int i = 0;

	while ((double)us / 1e6 > histogram_bounds[i].seconds)
		i++;
	count_add(&h->n[i], 1);
	count_add(&h->sum_us, us);
}
