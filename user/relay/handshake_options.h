/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "relay/session.h"

/*
 * Makes both connections of a session alike, so that the session can be grafted (docs/design.md,
 * "Shaped handshakes").  On the thread of the worker that has the session or the listener.
 */

/* The shape of connections that a socket accepts. */
struct listener_shape {
	uint16_t mss;   /* a size that all servers take; 0: any */
	uint16_t stock; /* of graft_shape */
	uint8_t lack;   /* enum shaped: options that all servers lack */
};

/* FD is about to connect for S: let its handshake be as that of the client. */
void handshake_shape(struct session *s, int fd);
/* S is connected: note the segment size that its server was told. */
void handshake_connected(struct session *s);
/* S cannot be grafted because of WHY.  Options that its server lacks are remembered. */
void handshake_refused(struct session *s, enum graft_refusal why);
/*
 * Shape the handshakes of FD, a listener of F, by the least MSS that F's servers take, and without
 * options that all servers lack.  LAST: the present shape, which is updated.
 */
void handshake_shape_listener(struct shared *shared, struct forward *f, int fd, uint64_t now_ms,
			      struct listener_shape *last);
