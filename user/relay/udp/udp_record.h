/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "base/codec.h"
#include "relay/udp/udp_session.h"

/*
 * A session of UDP that user space carries, as one daemon hands it to the next.  Its socket to the
 * server travels beside the record.  A field that is added comes last.
 */
struct udp_record {
	uint64_t id, born_ns, heard_ns[2];
	uint32_t forward; /* graft_tag() of its name */
	uint8_t state;    /* enum udp_state */
	uint32_t connect_ms;
	uint64_t asked;
	struct udp_count copied[2];
	union client_addr client, destination, peer, local;
};

/* Pack R, or unpack it. */
void udp_record_code(struct codec *c, struct udp_record *r);
/* The record of S, whose worker waits.  False: packet programs carry S, which needs none. */
bool udp_record_of(struct udp_session *s, struct udp_record *ret);
