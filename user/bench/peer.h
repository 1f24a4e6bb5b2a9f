/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/loop.h"
#include "options.h"
#include "report.h"
#include "wire.h"

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

/* One connection of the sink. */
struct peer {
	struct source source;
	struct sink *sink;
	struct peer *next; /* of those that are closed */
	enum peer_state state;
	struct header header;
	struct sender out;
	struct receiver in;
	uint64_t wanted; /* exchange: bytes of the current request that are to come */
	union {          /* as far as it has come */
		struct frame frame;
		uint8_t word[sizeof(struct frame)]; /* PROTOCOL_GO */
	};
	uint8_t word_n;
	bool tailed; /* transfer: our tail is sent, or about to be */
};

struct sink_listener {
	struct source source;
	struct sink *sink;
};

/* A sink process. */
struct sink {
	struct loop loop;
	const struct options *o;
	struct sink_listener *listeners; /* one for each address, by process */
	struct sink_tally *tally;
	struct peer *closed;                                  /* to be freed after the batch */
	int error;                                            /* why it cannot accept any more */
	uint8_t buffer[sizeof(struct frame) + PATTERN_PIECE]; /* room before the data */
};

/* FD has been accepted.  Returns 0 or -errno; FD is taken or closed in each case. */
int peer_open(struct sink *s, int fd);

/* Free those that are closed. */
void peer_free_closed(void *sink);
