// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * The daemon writes the map of flows, through a mapping.  The packet programs write words too, and
 * fields of their own.  A flow is complete before the index leads to it.  A flow that has left the
 * index stays unchanged for QUIET_MS, which is longer than any packet program looks at a flow.
 *
 * A daemon may be killed at any point.  Translated flows then go on, and the next daemon takes out
 * the rest.  A flow is FREE before its tuples leave the index, so the next daemon does not find a
 * flow that was being taken out.  A flow that was being entered may lack a tuple, which the next
 * daemon adds.
 */
#include "datapath/graft/udp_graft.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "datapath/graft/graft_index.h"
#include "datapath/graft/slot_queue.h"

/* A slot is not used again for so long. */
#define QUIET_MS 10

struct udp_table {
	struct graft_index *index;
	struct udp_flow *flows; /* by slot, mapped */
	const uint32_t *ways;
	uint32_t n_slots;

	/* number of STANDBY flows with a port towards the server; index: the port, as in a tuple */
	uint16_t held[1 << 16];

	pthread_mutex_t lock; /* of states and the queue; never taken on the payload path */
	struct slot_queue queue;
};

static uint32_t udp_ticks(void)
{
	return (uint32_t)(clock_ns() >> UDP_TICK_SHIFT);
}

/* --- words --- */

uint32_t udp_graft_word(const volatile struct udp_flow *f, unsigned int leg)
{
	return __atomic_load_n(&f->at[leg].word, __ATOMIC_ACQUIRE);
}

bool udp_graft_carries(const struct udp_table *us, uint32_t slot, unsigned int leg)
{
	return udp_graft_word(&us->flows[slot], leg) & UDP_ACTIVE;
}

bool udp_graft_activate(struct udp_table *us, uint32_t slot, unsigned int leg, uint32_t word)
{
	volatile struct udp_flow *f = &us->flows[slot];
	uint32_t ways = __atomic_load_n(us->ways, __ATOMIC_ACQUIRE);
	uint8_t why = f->at[leg].why;
	bool hindered = why == GRAFT_INTERFACE || why == GRAFT_XFRM;
	bool silent = !leg && f->at[1].heard && udp_ticks() - f->at[1].heard >= UDP_SILENT_TICKS;

	if (word & UDP_ACTIVE || silent || f->leg[!leg].way.ways != ways ||
	    (hindered && f->at[leg].seen == ways))
		return false;
	return __atomic_compare_exchange_n(&f->at[leg].word, &word, word | UDP_ACTIVE, false,
					   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

void udp_graft_pass(struct udp_table *us, uint32_t slot, unsigned int leg)
{
	__atomic_fetch_and(&us->flows[slot].at[leg].word, ~UDP_ACTIVE, __ATOMIC_SEQ_CST);
}

void udp_graft_client_gone(struct udp_table *us, uint32_t slot)
{
	__atomic_store_n(&us->flows[slot].at[0].gone, 1, __ATOMIC_RELAXED);
	udp_graft_pass(us, slot, 1);
}

bool udp_graft_take_gone(struct udp_table *us, uint32_t slot)
{
	uint8_t *gone = &us->flows[slot].at[0].gone;

	return __atomic_load_n(gone, __ATOMIC_RELAXED) &&
	       __atomic_exchange_n(gone, 0, __ATOMIC_RELAXED);
}

/* --- slots --- */

/* The lock is held.  No other flow gets the port of a STANDBY flow. */
static void udp_slot_set_state(struct udp_table *us, uint32_t slot, enum graft_state state)
{
	struct udp_flow *f = &us->flows[slot];
	uint16_t *held = &us->held[f->leg[1].tuple.local_port];
	int more = (state == GRAFT_STANDBY) - (f->head.state == GRAFT_STANDBY);

	__atomic_fetch_add(held, (uint16_t)more, __ATOMIC_SEQ_CST);
	__atomic_store_n(&f->head.state, state, __ATOMIC_RELEASE);
}

bool udp_graft_has_port(const struct udp_table *us, in_port_t port)
{
	return us && __atomic_load_n(&us->held[port], __ATOMIC_SEQ_CST);
}

/* The lock is held. */
static void udp_slot_put(struct udp_table *us, uint32_t slot)
{
	udp_graft_pass(us, slot, 0);
	udp_graft_pass(us, slot, 1);
	udp_slot_set_state(us, slot, GRAFT_FREE);
	graft_index_remove(us->index, true, slot);
	slot_queue_put(&us->queue, slot, QUIET_MS);
}

/* At least one tick: 0 means never. */
uint32_t udp_graft_idle(uint64_t idle_ms)
{
	uint64_t idle = (idle_ms * NS_PER_MS >> UDP_TICK_SHIFT) + (idle_ms != 0);

	return (uint32_t)smaller(idle, INT32_MAX);
}

/* Enter F, which is FREE, as STATE into SLOT, if there is one.  The lock is held. */
static uint32_t udp_slot_enter(struct udp_table *us, uint32_t slot, const struct udp_flow *f,
			       enum graft_state state)
{
	if (slot == NO_SLOT)
		return slot;
	us->flows[slot] = *f;
	udp_slot_set_state(us, slot, state);
	if (graft_index_add(us->index, true, slot, state))
		return slot;
	udp_slot_put(us, slot);
	return NO_SLOT;
}

uint32_t udp_graft_enter(struct udp_table *us, const struct udp_flow *f)
{
	struct udp_flow new = *f;
	uint32_t slot;

	new.head.state = GRAFT_FREE;
	new.born = new.at[0].heard = udp_ticks();
	for (int leg = 0; leg < 2; leg++)
		new.leg[leg].way.ways = new.at[leg].seen =
			__atomic_load_n(us->ways, __ATOMIC_ACQUIRE) - 1;
	pthread_mutex_lock(&us->lock);
	slot = udp_slot_enter(us, slot_queue_take(&us->queue), &new, GRAFT_ACTIVE);
	pthread_mutex_unlock(&us->lock);
	return slot;
}

/* --- flows of other relays --- */

static enum graft_state udp_slot_state(const struct udp_table *us, uint32_t slot)
{
	return (enum graft_state)__atomic_load_n(&us->flows[slot].head.state, __ATOMIC_ACQUIRE);
}

/* Make F a STANDBY flow to which no datagram has come. */
static void udp_flow_stand_by(const struct udp_table *us, struct udp_flow *f)
{
	for (struct udp_leg *at = f->at; at < f->at + 2; at++) {
		at->heard = udp_ticks() | 1;
		at->seen = __atomic_load_n(us->ways, __ATOMIC_ACQUIRE) - 1;
		at->why = at->gone = 0;
		at->packets = at->bytes = 0;
		__atomic_store_n(&at->word, UDP_ACTIVE, __ATOMIC_RELEASE);
	}
	f->head.alone_ms = 0;
}

void udp_graft_part(struct udp_table *us, uint32_t slot)
{
	pthread_mutex_lock(&us->lock);
	if (us->flows[slot].head.state) {
		if (us->flows[slot].head.mirrored == GRAFT_YIELD)
			us->flows[slot].head.mirrored = GRAFT_CAME;
		udp_flow_stand_by(us, &us->flows[slot]);
		udp_slot_set_state(us, slot, GRAFT_STANDBY);
	}
	pthread_mutex_unlock(&us->lock);
}

void udp_graft_help(struct udp_table *us, uint32_t slot)
{
	pthread_mutex_lock(&us->lock);
	for (int leg = 0; leg < 2 && us->flows[slot].head.state == GRAFT_STANDBY; leg++)
		__atomic_store_n(&us->flows[slot].at[leg].word, UDP_ACTIVE, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&us->lock);
}

void udp_graft_hear(const struct udp_table *us, uint32_t slot, struct graft_heard ret[2])
{
	const volatile struct udp_flow *f = &us->flows[slot];

	for (int leg = 0; leg < 2; leg++) {
		uint32_t heard = f->at[leg].heard;  /* before the clock */
		uint64_t ago = udp_ticks() - heard; /* ticks wrap */

		ret[leg] = (struct graft_heard){ 0 };
		if (f->at[leg].packets)
			ret[leg].ns = clock_ns() - (ago << UDP_TICK_SHIFT);
	}
}

void udp_graft_merge(struct udp_table *us, uint32_t slot, const struct graft_heard heard[2])
{
	for (int leg = 0; leg < 2; leg++) {
		uint32_t *at = &us->flows[slot].at[leg].heard;
		uint32_t was = __atomic_load_n(at, __ATOMIC_RELAXED);
		uint32_t is = (uint32_t)(heard[leg].ns >> UDP_TICK_SHIFT) | 1;

		/* the program writes, too: what is later counts */
		if ((int32_t)(is - was) > 0 && (int32_t)(is - udp_ticks()) <= 0)
			__atomic_compare_exchange_n(at, &was, is, false, __ATOMIC_RELAXED,
						    __ATOMIC_RELAXED);
	}
}

void udp_graft_adopt(struct udp_table *us, uint32_t slot)
{
	pthread_mutex_lock(&us->lock);
	udp_slot_set_state(us, slot, GRAFT_ACTIVE);
	pthread_mutex_unlock(&us->lock);
}

bool udp_graft_is_held(struct udp_table *us, const struct graft_tuple *t)
{
	uint32_t slot = us ? graft_index_find(us->index, true, t) : NO_SLOT;

	return slot != NO_SLOT && udp_slot_state(us, slot) == GRAFT_STANDBY;
}

int udp_graft_import(struct udp_table *us, const struct udp_flow *f, uint32_t *ret_slot)
{
	struct udp_flow new = *f;
	uint32_t was[2], slot;
	bool taken = false;
	int r;

	udp_flow_stand_by(us, &new);
	new.head.state = GRAFT_FREE;
	new.head.mirrored = GRAFT_CAME;
	pthread_mutex_lock(&us->lock);
	for (int leg = 0; leg < 2; leg++) {
		was[leg] = graft_index_find(us->index, true, &f->leg[leg].tuple);
		taken = taken ||
			(was[leg] != NO_SLOT && udp_slot_state(us, was[leg]) != GRAFT_STANDBY);
	}
	/* before old flows give up slots, which rest: without a new slot the old flows stay */
	slot = taken ? NO_SLOT : slot_queue_take(&us->queue);
	for (int leg = 0; leg < 2 && slot != NO_SLOT; leg++)
		if (graft_index_find(us->index, true, &f->leg[leg].tuple) != NO_SLOT)
			udp_slot_put(us, was[leg]);
	r = was[0] == was[1] ? -EEXIST : -EADDRINUSE;
	if (!taken) {
		*ret_slot = udp_slot_enter(us, slot, &new, GRAFT_STANDBY);
		r = *ret_slot == NO_SLOT ? -ENOSPC : 0;
	}
	pthread_mutex_unlock(&us->lock);
	return r;
}

void udp_graft_put(struct udp_table *us, uint32_t slot)
{
	pthread_mutex_lock(&us->lock);
	udp_slot_put(us, slot);
	pthread_mutex_unlock(&us->lock);
}

/* --- what is known of a flow --- */

volatile struct udp_flow *udp_flow_of(const struct udp_table *us, uint32_t slot)
{
	return &us->flows[slot];
}

uint64_t udp_graft_heard_ms(const volatile struct udp_flow *f, unsigned int leg)
{
	uint32_t heard = f->at[leg].heard;
	int32_t ago = (int32_t)(udp_ticks() - heard);

	if (!heard)
		return 0;
	return clock_ms() - (ago < 0 ? 0 : ((uint64_t)ago << UDP_TICK_SHIFT) / NS_PER_MS);
}

bool udp_graft_next(const struct udp_table *us, uint32_t *at)
{
	while (*at < us->n_slots && udp_slot_state(us, *at) != GRAFT_ACTIVE)
		++*at;
	return *at < us->n_slots;
}

static bool udp_slot_is_live(const struct udp_table *us, uint32_t slot)
{
	return udp_graft_carries(us, slot, 0) || udp_graft_carries(us, slot, 1);
}

unsigned int udp_table_live(const struct udp_table *us)
{
	unsigned int n = 0;

	for (uint32_t slot = 0; udp_graft_next(us, &slot); slot++)
		n += udp_slot_is_live(us, slot);
	return n;
}

/* --- opening, closing --- */

/* Keep the flows of an earlier daemon that are STANDBY or translated; free the rest. */
static void udp_slots_find_left(struct udp_table *us)
{
	for (uint32_t slot = 0; slot < us->n_slots; slot++) {
		struct udp_flow *f = &us->flows[slot];

		if (f->head.state == GRAFT_STANDBY)
			us->held[f->leg[1].tuple.local_port]++;
		else if (!udp_slot_is_live(us, slot))
			f->head.state = GRAFT_FREE;
		if (f->head.state &&
		    graft_index_add(us->index, true, slot, udp_slot_state(us, slot)))
			slot_queue_keep(&us->queue, slot);
		else
			udp_slot_put(us, slot);
	}
}

struct udp_table *udp_table_open(struct graft_index *ix, uint32_t slots, const uint32_t *ways,
				 uint64_t *used)
{
	struct udp_table *us = allocated(calloc(1, sizeof(*us)));

	*us = (struct udp_table){ .index = ix, .flows = ix->flows, .ways = ways, .n_slots = slots };
	pthread_mutex_init(&us->lock, NULL);
	slot_queue_open(&us->queue, slots, used, slots);
	udp_slots_find_left(us);
	return us;
}

void udp_table_close(struct udp_table *us)
{
	if (!us)
		return;
	slot_queue_close(&us->queue);
	pthread_mutex_destroy(&us->lock);
	free(us);
}
