/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "udp_contract.h"

/*
 * The records by which a relay exports its grafted sessions, as a stream.  A record begins with its
 * kind and its version, of one byte each, and its length in two bytes, these four included.  All
 * numbers are in network byte order.  standby_record.c has the layout.  No system calls here.
 *
 * A stream is RECORD_BEGIN; then forwards, all sessions, and RECORD_SYNC; then changes as they happen.
 */
enum record_kind {
	RECORD_NONE,
	RECORD_BEGIN,
	RECORD_TCP,
	RECORD_UDP,
	RECORD_GONE,     /* the session is over, */
	RECORD_LEFT,     /* or the client's destination address is not here any more */
	RECORD_SYNC,     /* all sessions have been exported */
	RECORD_ALIVE,    /* each second */
	RECORD_PORTS,    /* from which this relay connects to servers */
	RECORD_FORWARD,  /* of this relay: its sessions need one of that name at the peer */
	RECORD_RELAY,    /* later records are of that one; before the first, of the stream */
	RECORD_HELD_TCP, /* as TCP and UDP, of a session whose own relay tells no more */
	RECORD_HELD_UDP,
	RECORD_HEARD,  /* of a session of another relay, some packets of which go by this one */
	RECORD_KILLED, /* as GONE, by a reset */
	RECORD_END,    /* the relay that has the session is to reset it */
	RECORD_KINDS,
};

#define RECORD_VERSION 2
#define RECORD_NAME_MAX 64
#define RECORD_MAX 256 /* bytes; 200 for a session that never went back to its sockets */

/* One end of a session, as a relay has seen it.  Numbers are those of that end; UDP has none. */
struct graft_heard {
	uint64_t ns; /* CLOCK_MONOTONIC of its last packet; 0: none */
	uint32_t end, acked;
	uint8_t flags;           /* HEARD_* */
	uint32_t from, acked_to; /* not sent: `end` and `acked` as they were told before */
};
#define HEARD_FIN 1   /* its stream ends at `end` */
#define HEARD_RESET 2 /* it has sent a reset */

struct graft_record {
	enum record_kind kind;
	bool udp; /* HEARD, GONE, LEFT, KILLED, END, FORWARD */
	union {
		struct {                           /* HEARD, GONE, LEFT, KILLED, END */
			struct graft_tuple client; /* the tuple of the client's packets */
			uint64_t id;               /* another session may have the tuple by now */
			struct graft_heard heard[2];
		};
		struct graft_head head; /* of the next two */
		struct graft_entry tcp; /* fields that are for one machine alone are 0 */
		struct udp_flow flow;   /* the same */
		unsigned int ports[2];  /* PORTS: the first and the last */
		struct {
			uint32_t tag; /* graft_tag() of its whole name; of a relay made odd */
			char name[RECORD_NAME_MAX];
		} named; /* FORWARD, RELAY */
	};
};

static inline bool record_is_tcp(const struct graft_record *r)
{
	return r->kind == RECORD_TCP || r->kind == RECORD_HELD_TCP;
}

static inline bool record_is_end(const struct graft_record *r)
{
	return r->kind == RECORD_GONE || r->kind == RECORD_LEFT || r->kind == RECORD_KILLED ||
	       r->kind == RECORD_END;
}

static inline bool record_is_udp(const struct graft_record *r)
{
	return r->kind == RECORD_UDP || r->kind == RECORD_HELD_UDP;
}

/* R has no more of its session than its name: `udp`, `client` and `id`. */
static inline bool record_is_short(const struct graft_record *r)
{
	return record_is_end(r) || r->kind == RECORD_HEARD;
}

/* Of a session: 0 to the client, 1 to the server. */
struct graft_leg *record_leg(struct graft_record *r, int i);

/* Put R into BUF.  Times of R are by the clock of NOW_NS, CLOCK_MONOTONIC; their ages are sent. */
size_t record_pack(struct graft_record *r, uint64_t now_ns, uint8_t buf[RECORD_MAX]);

/*
 * Take a record from the LEN bytes at P.  Returns its length; 0: the record is not whole yet;
 * -EPROTO: there is no record, and RET_WHY says why.  For an unknown kind RET has the kind
 * alone.  If values are impossible, the kind is RECORD_NONE, and RET_WHY says why.
 */
int record_unpack(const uint8_t *p, size_t len, uint64_t now_ns, struct graft_record *ret,
		  const char **ret_why);
