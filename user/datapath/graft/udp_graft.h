/* SPDX-License-Identifier: BSD-2-Clause */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/addr.h"
#include "udp_contract.h"
#include "datapath/graft/standby_record.h"

/*
 * Flows of UDP at packet level: slots and words; include/udp_contract.h explains them.
 * Mechanism only: relay/udp/udp_activate.c decides.
 */
struct udp_table;
struct graft_index;

/*
 * IX may have flows of an earlier daemon.  WAYS is graft_ways of the packet programs.  USED, the
 * caller's, gets a bit (bits.h) for each slot that is not free, behind as many bits for TCP.
 */
struct udp_table *udp_table_open(struct graft_index *ix, uint32_t slots, const uint32_t *ways,
				 uint64_t *used);
/* Flows go on.  NULL is fine. */
void udp_table_close(struct udp_table *us);
/* Flows of which packets are translated. */
unsigned int udp_table_live(const struct udp_table *us);

/*
 * Enter the flow F of a session.  The caller sets its tuples, as in arriving packets, and all that
 * the session knows.  Its datagrams pass, and count.  NO_SLOT: no slot is free, or another flow has
 * a tuple.  By any thread, as the next function.
 */
uint32_t udp_graft_enter(struct udp_table *us, const struct udp_flow *f);
/* Let datagrams of LEG pass from now on, but for one that a packet program has in hand. */
void udp_graft_pass(struct udp_table *us, uint32_t slot, unsigned int leg);
/* Let the server's datagrams pass from now on: an error says that the client is gone. */
void udp_graft_client_gone(struct udp_table *us, uint32_t slot);
/* True if udp_graft_client_gone() was called since the last call. */
bool udp_graft_take_gone(struct udp_table *us, uint32_t slot);
/* The value of `idle` for idle-timeout IDLE_MS; 0: the flow is never over. */
uint32_t udp_graft_idle(uint64_t idle_ms);
/* Take the flow out.  The slot is used again when no packet program can look at it any more. */
void udp_graft_put(struct udp_table *us, uint32_t slot);

/*
 * The flow of SLOT becomes STANDBY: its address is not here any more, and another relay knows the
 * session.
 */
void udp_graft_part(struct udp_table *us, uint32_t slot);
/*
 * Enter F, of another relay, as STANDBY, in place of STANDBY flows with its tuples.  The caller
 * sets `source` afterwards.  -EEXIST: a session here has both tuples; -EADDRINUSE: another session
 * has one; -ENOSPC.
 */
int udp_graft_import(struct udp_table *us, const struct udp_flow *f, uint32_t *ret_slot);
/* Datagrams of SLOT, which is STANDBY, are translated, though some have passed. */
void udp_graft_help(struct udp_table *us, uint32_t slot);
/* When datagrams of SLOT were translated here last, by leg; the rest of RET is 0. */
void udp_graft_hear(const struct udp_table *us, uint32_t slot, struct graft_heard ret[2]);
/* Another relay has HEARD the ends of SLOT, by leg: that counts as heard here. */
void udp_graft_merge(struct udp_table *us, uint32_t slot, const struct graft_heard heard[2]);
/* The flow of SLOT is a session's from now on. */
void udp_graft_adopt(struct udp_table *us, uint32_t slot);
/* T is a tuple of a flow that is STANDBY.  US may be NULL, as in the next function. */
bool udp_graft_is_held(struct udp_table *us, const struct graft_tuple *t);
/* A flow that is STANDBY has local port PORT at its server. */
bool udp_graft_has_port(const struct udp_table *us, in_port_t port);
/* The word of LEG: it changes with each datagram that passes. */
uint32_t udp_graft_word(const volatile struct udp_flow *f, unsigned int leg);
/*
 * Translate datagrams that arrive on LEG from now on, if the word of LEG is WORD, the other leg's
 * way is known, and no hindrance is known.  True: LEG is active.
 */
bool udp_graft_activate(struct udp_table *us, uint32_t slot, unsigned int leg, uint32_t word);
bool udp_graft_carries(const struct udp_table *us, uint32_t slot, unsigned int leg);

/* The flow of SLOT.  The caller may write the fields that are the daemon's. */
volatile struct udp_flow *udp_flow_of(const struct udp_table *us, uint32_t slot);
/* When the end of LEG was heard last, by the clock of clock_ms(); 0: it has not been. */
uint64_t udp_graft_heard_ms(const volatile struct udp_flow *f, unsigned int leg);

/* Set *AT to the next slot, from *AT on, that has a session's flow.  False: there is none. */
bool udp_graft_next(const struct udp_table *us, uint32_t *at);
