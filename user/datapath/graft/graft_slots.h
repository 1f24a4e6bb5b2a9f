/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "bpf/graft.skel.h"
#include "datapath/graft/graft.h"
#include "datapath/graft/graft_attach.h"
#include "datapath/graft/graft_index.h"
#include "datapath/graft/graft_pins.h"
#include "datapath/graft/slot_queue.h"

/* Shared by the modules behind graft.h: graft_open, _slots, _ways, _standby. */

struct slot {
	uint32_t asked;    /* graft_ways when its sockets were asked last */
	bool probing;      /* the sockets were asked; their keepalive is not reset yet */
	uint8_t judged;    /* times asked again since, without an answer */
	uint32_t asked_ms; /* when (low half) */
	int sockets[2];    /* made anew, and not taken; -1: none */
	bool given;        /* by graft_give_sockets() */
	bool kept;         /* see graft_table_keep() */
	bool bare;         /* the session has no sockets, */
	bool wanted;       /* and they are urgent; atomic, as `bare` */
};

struct graft_table {
	struct graft_bpf *skel;
	struct graft_entry *all; /* by slot, mapped */
	struct graft_index index;
	struct udp_table *udp;
	struct graft_pins pins;
	struct graft_attachments attached;
	uint32_t routes, policies; /* as seen last */
	uint32_t look_from;        /* slot, for strays */
	_Atomic bool doubtful;     /* a session was so since the last graft_table_are_doubtful() */
	struct bpf_rings rings;
	unsigned int workers;
	bool on_loopback;

	/* of the queue, and of slot.sockets and slot.given; never taken on the payload path */
	pthread_mutex_t lock;
	struct slot_queue queue;
	struct slot_queue syn_queue; /* of the first n_syn slots: graft_syn.c */
	struct slot *slots;
	uint64_t *used; /* a bit for each slot that is not free, then those of UDP */
	unsigned int n_slots;
	unsigned int n_syn;         /* slots for sessions from the SYN on; 0: none */
	unsigned int syn_port;      /* of the first of them, in host byte order */
	struct graft_stock *stocks; /* mapped; NULL: n_syn is 0 */
};

/* graft_slots.c.  A free slot of Q, which is a queue of GS; or NO_SLOT. */
uint32_t graft_slot_take(struct graft_table *gs, struct slot_queue *q);
/* The lock is not held. */
void graft_slot_put(struct graft_table *gs, uint32_t slot);
/*
 * Fill the queue with all slots but those of sessions that were left.  A session that was only
 * offered has lost its sockets with the daemon.  A session that was to return has no sockets
 * either.
 */
void graft_slots_fill(struct graft_table *gs);
/* Change the state from FROM to TO.  Wait while a packet holds LOCKED: less than a microsecond. */
bool graft_change_state(struct graft_table *gs, uint32_t slot, enum graft_state from,
			enum graft_state to);

/* An answer of the offer program: enum graft_refusal. */
int graft_request_run(struct graft_table *gs, enum graft_op op, uint32_t slot);

/*
 * graft_ways.c.  Let graft_ways go on from the highest `ways` of the sessions that an earlier
 * daemon has left.
 */
void graft_ways_begin(struct graft_table *gs);
/* Older ways are not used. */
uint32_t graft_ways_least(const struct graft_table *gs);
