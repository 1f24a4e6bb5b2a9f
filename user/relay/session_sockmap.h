/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include "datapath/sockmap/carrier_sockmap.h"
#include "relay/session.h"

/* True: nothing that is known here forbids the kernel to carry flow DIR. */
bool session_sockmap_may_enter(const struct session *s, unsigned int dir);

/*
 * Flow DIR, of ENGINE, enters the kernel for REASON if it can.  Otherwise user space goes on: until
 * the next turn of reads if bytes have come, or for good if the kernel has refused.
 */
void session_sockmap_enter(struct session *s, unsigned int dir, enum engine engine,
			   enum reason reason);

/* Flow DIR, which is in the kernel, begins to leave it, to be carried as D says. */
void session_sockmap_leave(struct session *s, unsigned int dir, struct decision d);

/* Try STEP of flow DIR.  True: it is done; false: it goes on, or the session ends. */
bool session_sockmap_try(struct session *s, unsigned int dir,
			 enum step (*step)(struct sockmap_io *io));

/*
 * Flow DIR has read EOF.  True: the cause was FIN.  RST may end in EOF, too, once a socket has been
 * in the kernel's maps.
 */
bool session_sockmap_is_fin(struct session *s, unsigned int dir);

/*
 * The source of flow DIR is gone: read and write the bytes that the kernel held.  DONE: nothing is
 * left.
 */
enum step session_sockmap_rest(struct session *s, unsigned int dir);

/*
 * The program has reported KIND (enum culvert_event_kind) for flow DIR, or session_sockmap_missed()
 * has found it.  True: the other flow leaves with it.
 */
bool session_sockmap_event(struct session *s, unsigned int dir, unsigned int kind);

/* The event of flow DIR that the ring may have lost; 0: none.  S has slots. */
unsigned int session_sockmap_missed(const struct session *s, unsigned int dir);

/* The bytes of flow DIR that the kernel has redirected. */
uint64_t session_sockmap_bytes(const struct session *s, unsigned int dir);

/* Give back the slots of S, if it has some. */
void session_sockmap_give_slots(struct session *s);
