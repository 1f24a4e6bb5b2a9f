/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "report.h"
#include "wire.h"

#define PEER_HEADER_NS (30 * NS_PER_S) /* for the header to come */

enum peer_state {
	PEER_HEADER,   /* it has not come */
	PEER_EXCHANGE, /* messages */
	PEER_GREETED,  /* transfer: waiting for PROTOCOL_GO */
	PEER_TRANSFER,
	PEER_DEAF,    /* has said its last word: reads and forgets, until the client closes */
	PEER_CLOSING, /* the client has sent FIN: closes when everything is sent */
	PEER_CLOSED,
};

struct sink;
struct peer;

struct peer_list {
	struct peer *first, **end;
};

/* One connection of the sink. */
struct peer {
	struct source source;
	struct sink *sink;
	struct peer *next, **link; /* of the list that it is in */
	enum peer_state state;
	uint64_t opened_ns;
	struct header header;
	struct sender out;
	struct receiver in;
	uint64_t wanted;               /* exchange: bytes of the current request that are to come */
	uint8_t word[PROTOCOL_HEADER]; /* header or PROTOCOL_GO, as far as it has come */
	uint8_t word_n;
	bool tailed; /* transfer: our tail is sent, or about to be */
};

/* A sink process. */
struct sink {
	struct loop loop;
	struct source control;
	struct timer tick;
	struct sink_listener *listeners;
	size_t n_listeners;
	bool full; /* out of descriptors or memory: not accepting */
	struct sink_tally *tally;
	struct peer_list waiting; /* for their header; oldest first */
	struct peer_list served;
	struct peer_list dead; /* to be freed after the batch */
	uint32_t n_peers;
	uint8_t *buffer; /* PROTOCOL_TAIL bytes of room, then PATTERN_PIECE of data */
};

void peer_lists_open(struct sink *s);

/* FD has been accepted.  Returns 0 or -errno; FD is taken or closed in each case. */
int peer_open(struct sink *s, int fd);

void peer_close(struct peer *p);

/* Free those that are closed. */
void peer_free_dead(struct sink *s);

/* Close and free all. */
void peer_close_all(struct sink *s);

/* Close those whose header has not come in time. */
void peer_expire(struct sink *s, uint64_t now);
