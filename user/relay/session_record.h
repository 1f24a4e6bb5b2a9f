/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_RECORD_H
#define CULVERT_SESSION_RECORD_H

#include <stdint.h>

#include "base/addr.h"
#include "datapath/flow.h"
#include "datapath/stats.h"
#include "relay/session.h"

/*
 * What the session log will say of one session: plain values, taken on its worker's thread when it
 * ends, and no pointers, since forwards and sessions may be gone when the line is made.
 */

#define SESSION_FINISHED CAUSES /* in place of a cause: both flows came to their end */
#define SESSION_NEVER_CONNECTED UINT32_MAX

struct flow_record {
	uint64_t bytes[CARRIERS]; /* delivered, by what has carried them */
	uint32_t handovers;
	uint8_t carrier; /* enum carrier: the last one */
	uint8_t reason;  /* enum reason: why that one */
};

struct session_record {
	uint32_t size;         /* of all, the tail included; a multiple of its alignment */
	uint16_t upstream_len; /* bytes of the upstream's address, which begins the tail; 0: none
				* was tried */
	uint16_t forward_len;  /* bytes of the forward's name, which follows */
	uint64_t id;           /* 0: the client was refused and had no session */
	uint64_t born_ms, ended_ms; /* CLOCK_MONOTONIC */
	uint32_t connect_ms;   /* SESSION_NEVER_CONNECTED, or how long that took */
	uint8_t end;           /* enum cause, or SESSION_FINISHED */
	union client_addr client;
	union client_addr via; /* who has told of the client in a PROXY header; AF_UNSPEC: nobody */
	struct flow_record flows[2];
	char tail[];
};

#define SESSION_FORWARD_MAX (ADDR_STRLEN + 128) /* room of endpoint.text, which may be the name */

/* Room for any record. */
union session_record_room {
	struct session_record record;
	char bytes[sizeof(struct session_record) + sizeof(struct sockaddr_storage) +
		   SESSION_FORWARD_MAX + 8];
};

/* S ends because of END; KERNEL: session_kernel_bytes() of either flow. */
void session_record_ended(union session_record_room *ret, const struct session *s,
			  const uint64_t kernel[2], unsigned int end);

/* A client of FORWARD was turned away because of WHY. */
void session_record_refused(union session_record_room *ret, const char *forward,
			    const struct sockaddr *client, uint64_t now_ms, enum cause why);

#endif
