/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/loop.h"
#include "options.h"
#include "report.h"
#include "wire.h"

/*
 * One process of the client side.
 *
 * Its phases: connections are opened, a bounded number at a time, and each is used once, so that
 * the path behind a relay is known to exist (PHASE_OPEN); the parent waits for all processes and
 * tells them when to start (PHASE_RUN: warm-up, then measured time, told apart by the clock at
 * each event); what is under way is brought to its end and both ends' totals are compared
 * (PHASE_END, bounded).
 *
 * What a connection does is up to the workload's engine: one for messages, one for streams.  A
 * timer (tick) looks after whatever has no event of its own: timeouts, pauses, slow reading.
 */

enum phase {
	PHASE_OPEN,
	PHASE_READY, /* waiting for the start */
	PHASE_RUN,
	PHASE_END,
};

enum conn_state {
	CONN_NEW, /* to be opened; crr: with the next tick, after an error */
	CONN_CONNECTING,
	CONN_OPENING, /* connected, used for the first time */
	CONN_READY,   /* open, nothing under way */
	CONN_ACTIVE,
	CONN_EXPIRED, /* exchange: no response in time; half-closed, to learn whether it was lost */
	CONN_ENDING,  /* everything sent, waiting for the other side's FIN */
	CONN_CLOSED,  /* for good */
};

#define DRAIN_NS (10 * NS_PER_S) /* to end in order */

struct generator;

struct conn {
	struct source source;
	struct generator *g;
	enum conn_state state;
	uint64_t seed;
	uint64_t since_ns; /* of the connect, the request */
	uint64_t wanted;   /* exchange: bytes of the response that are to come */
	bool tailed;       /* transfer: our tail is sent, or about to be */
	struct sender out;
	struct receiver in;
};

struct engine {
	/* The connection is established.  Leads to conn_ready() sooner or later. */
	void (*opened)(struct conn *c);
	/* CONN_READY -> CONN_ACTIVE, at the start. */
	void (*go)(struct conn *c, uint64_t now);
	/* Epoll events; never in CONN_CONNECTING. */
	void (*event)(struct conn *c, uint32_t events);
	/* At the end of the measured time.  Leads to conn_close() sooner or later. */
	void (*finish)(struct conn *c);
	void (*tick)(struct conn *c, uint64_t now);
	/* Epoll events to watch for at first. */
	uint32_t events;
};

extern const struct engine exchange_engine;  /* rr, crr, idle */
extern const struct engine transfer_engine;  /* bulk-*, slow */
extern const struct engine datagrams_engine; /* all of --protocol udp */

struct generator {
	struct loop loop;
	struct source control;
	struct timer tick;
	const struct options *o;
	const struct engine *engine;
	struct tally *tally;
	unsigned int index, processes;

	struct conn *conns;
	uint32_t n_conns;
	uint32_t next;      /* the next connection to open; in PHASE_END: to finish */
	uint32_t in_flight; /* of these, those which are neither ready nor closed */
	uint32_t limit;     /* of in_flight */
	uint32_t n_closed;
	uint64_t connects; /* so far: chooses source and target */
	uint64_t seed;

	enum phase phase;
	uint64_t begin_ns, end_ns; /* the measured time; NEVER while unknown */
	uint64_t give_up_ns;       /* the end of PHASE_END */
	uint8_t buffer[sizeof(struct frame) + PATTERN_PIECE]; /* room before the data */
};

/* --- conn.c --- */

/*
 * Begin to connect, anew if it has been.  Failures are counted; then the state is CONN_NEW or
 * CONN_CLOSED.
 */
void conn_open(struct conn *c);

/* Close it in order, for good. */
void conn_close(struct conn *c);

/* Count CAUSE and close it: for good, or crr until the next tick. */
void conn_fail(struct conn *c, enum cause cause);

/* It has been used once. */
void conn_ready(struct conn *c);

/* A request has its response. */
void conn_record(struct conn *c, uint64_t now);

/* It has not connected: ERROR, an errno. */
void conn_connect_failed(struct conn *c, int error);

/* Events have come in CONN_CONNECTING. */
void conn_connected(struct conn *c, uint32_t events);
