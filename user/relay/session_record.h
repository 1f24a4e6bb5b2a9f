/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/codec.h"
#include "base/tls_hello.h"
#include "relay/session.h"

/*
 * A session of TCP that user space carries, as one daemon hands it to the next.  Its sockets travel
 * beside the record, and its bytes in hand behind it.  A field that is added comes last: an older
 * daemon does not read it, and a newer one finds 0.
 */
struct flow_record {
	uint64_t user_in, user_out,
		spliced; /* as in struct flow; with bytes that sockmap carried */
	uint32_t handovers;
	uint32_t pending; /* bytes in hand */
	bool done;
};

struct session_record {
	uint64_t id, born_ns;
	uint32_t forward; /* graft_tag() of its name */
	uint32_t slot;    /* of a session that has returned from a graft; NO_GRAFT: none */
	bool open;        /* else it has no server yet, and the client's socket alone */
	bool has_told, admitted, nodelay_due;
	uint8_t shaped, refusal; /* graft_refusal */
	uint16_t port_offset, header_in;
	uint8_t header_out;
	uint32_t connect_ms;
	union client_addr client;
	struct flow_record flows[2];
	/* if it HAS_TOLD */
	union client_addr peer;
	struct proxy_header header;
	char server_name[TLS_NAME_MAX + 1];
};

/* An address of a client, or of a server that is no unix socket. */
void record_client(struct codec *c, union client_addr *a);

/* Pack R, or unpack it. */
void session_record_code(struct codec *c, struct session_record *r);

/*
 * The record of S, whose worker waits.  The bytes of S that are in a pipe go to a buffer.  False: S
 * has to stay with this daemon, or is grafted, and so needs none.
 */
bool session_record_of(struct session *s, struct session_record *ret);
/* Give S, which is new and not OPEN, what R says and SIDES has; BYTES are those in hand. */
int session_record_apply(struct session *s, const struct session_record *r,
			 const uint8_t *const bytes[2]);
