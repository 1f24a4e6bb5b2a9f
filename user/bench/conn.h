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
 * PHASE_OPEN   The process opens its connections, a bounded number at a time.  It uses each once,
 *              so the path behind a relay is known to exist.
 * PHASE_READY  The process waits for the parent, which starts all processes together.
 * PHASE_RUN    Warm-up, then measured time.  The clock at each event tells them apart.
 * PHASE_END    Requests and streams under way end, and the totals of both ends are compared.  This
 *              phase is bounded.
 *
 * The workload's engine decides what a connection does.  There is one engine for messages, one for
 * streams, and one for datagrams.  A timer (tick) handles all that has no event of its own:
 * timeouts, pauses, slow reading.
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
	CONN_EXPIRED, /* exchange: no response in time; half-closed, to see if the path works */
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
	uint64_t since_ns; /* when the connect, or the request, began */
	uint64_t wanted;   /* exchange: bytes of the response that are to come */
	bool tailed;       /* transfer: our tail is sent, or about to be */
	enum ends ends;
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
	uint32_t in_flight; /* connections before `next` that are neither ready nor closed */
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
 * Begin to connect C; its earlier socket, if any, is closed first.  A failure is counted, and makes
 * the state CONN_NEW or CONN_CLOSED.
 */
void conn_open(struct conn *c);

/* Close it in order, for good. */
void conn_close(struct conn *c);

/* Count CAUSE and close C: for good, or with crr until the next tick. */
void conn_fail(struct conn *c, enum cause cause);

/* C has been used once, so its path works. */
void conn_ready(struct conn *c);

/* A request has its response. */
void conn_record(struct conn *c, uint64_t now);

/* C could not connect, because of ERROR, an errno. */
void conn_connect_failed(struct conn *c, int error);

/* Events have come in CONN_CONNECTING. */
void conn_connected(struct conn *c, uint32_t events);
