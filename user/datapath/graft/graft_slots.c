// SPDX-License-Identifier: BSD-2-Clause
/*
 * Slots and states, by any thread: the queue of free slots has a lock, states change atomically.
 *
 * A slot that was given back is used again only after all others: until then its tuples stay in the
 * index, and late packets are translated (CLOSED), or shifted (RETURNED).
 *
 * Requests to the offer program run on the caller's thread, which may be any.
 */
#include "datapath/graft/graft_slots.h"

#include <bpf/bpf.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <string.h>

#include "base/array.h"
#include "base/bits.h"
#include "base/clock.h"
#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(
	BPF_IF(PART_GRAFT, BPF_PROG_TEST_RUN),
	BPF_IF(PART_GRAFT, BPF_MAP_LOOKUP_ELEM), BPF_IF(PART_GRAFT, BPF_MAP_UPDATE_ELEM));

/* TIME_WAIT, and then some: late packets of a returned and closed session are shifted so long. */
#define RETURNED_MS 70000

/* --- the queue of free slots --- */

uint32_t graft_slot_take(struct graft_table *gs, struct slot_queue *q)
{
	uint32_t slot;

	pthread_mutex_lock(&gs->lock);
	slot = slot_queue_take(q);
	pthread_mutex_unlock(&gs->lock);
	if (slot == NO_SLOT)
		return slot;
	__atomic_store_n(&gs->all[slot].head.state, GRAFT_FREE, __ATOMIC_SEQ_CST);
	__atomic_store_n(&gs->slots[slot].bare, false, __ATOMIC_RELEASE);
	__atomic_store_n(&gs->slots[slot].wanted, false, __ATOMIC_RELEASE);
	graft_index_remove(&gs->index, false, slot);
	return slot;
}

void graft_slot_put(struct graft_table *gs, uint32_t slot)
{
	uint32_t rest_ms = graft_state(gs, slot) == GRAFT_RETURNED ? RETURNED_MS : 0;

	pthread_mutex_lock(&gs->lock);
	slot_queue_put(slot < gs->n_syn ? &gs->syn_queue : &gs->queue, slot, rest_ms);
	pthread_mutex_unlock(&gs->lock);
}

void graft_table_skip_slot(struct graft_table *gs)
{
	uint32_t slot = slot_queue_take(&gs->queue);

	if (slot != NO_SLOT)
		bit_set(gs->used, slot, false); /* it has no session of ours */
}

void graft_slots_fill(struct graft_table *gs)
{
	slot_queue_open(&gs->queue, gs->n_slots, gs->used, 0);
	slot_queue_open(&gs->syn_queue, gs->n_syn ?: 1, gs->used, 0);
	for (uint32_t i = 0; i < gs->n_slots; i++) {
		graft_withdraw(gs, i);
		graft_return(gs, i, false);
		/* in the order of a session's life: a packet may move it on meanwhile */
		for (enum graft_state was = GRAFT_SETTING; was < GRAFT_STATES; was++)
			graft_change_state(gs, i, was, GRAFT_FREE);
		if (graft_state(gs, i) == GRAFT_STANDBY || graft_carries(gs, i) ||
		    gs->slots[i].kept ||
		    (gs->slots[i].given && graft_state(gs, i) == GRAFT_RETURNED))
			slot_queue_keep(&gs->queue, i);
		else
			graft_put(gs, i);
	}
}

/* --- states --- */

static uint32_t slot_raw_state(const struct graft_table *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].head.state, __ATOMIC_ACQUIRE);
}

enum graft_state graft_state(const struct graft_table *gs, uint32_t slot)
{
	return graft_state_of(&gs->all[slot].head);
}

bool graft_carries(const struct graft_table *gs, uint32_t slot)
{
	return graft_state_carries(graft_state(gs, slot));
}

volatile struct graft_entry *graft_of(const struct graft_table *gs, uint32_t slot)
{
	return &gs->all[slot];
}

bool graft_change_state(struct graft_table *gs, uint32_t slot, enum graft_state from,
			enum graft_state to)
{
	while (graft_state(gs, slot) == from) {
		uint32_t state = from;

		if (__atomic_compare_exchange_n(&gs->all[slot].head.state, &state, (uint32_t)to,
						false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

bool graft_withdraw(struct graft_table *gs, uint32_t slot)
{
	return graft_change_state(gs, slot, GRAFT_OFFERED,
				  gs->all[slot].shifted ? GRAFT_RETURNED : GRAFT_FREE);
}

void graft_hold(struct graft_table *gs, uint32_t slot)
{
	gs->all[slot].held_ms = (uint32_t)clock_ms();
	__atomic_store_n(&gs->all[slot].hold, 1, __ATOMIC_RELEASE);
}

bool graft_return(struct graft_table *gs, uint32_t slot, bool back)
{
	return back ? graft_change_state(gs, slot, GRAFT_ACTIVE, GRAFT_RETURNING) :
		      graft_change_state(gs, slot, GRAFT_RETURNING, GRAFT_ACTIVE);
}

void graft_put(struct graft_table *gs, uint32_t slot)
{
	uint32_t over = GRAFT_KEPT;

	__atomic_compare_exchange_n(&gs->all[slot].over, &over, GRAFT_GIVEN_BACK, false,
				    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	graft_change_state(gs, slot, GRAFT_DONE, GRAFT_CLOSED);
	gs->slots[slot].probing = false;
	graft_slot_put(gs, slot);
}

bool graft_next(const struct graft_table *gs, uint32_t *at)
{
	while (*at < gs->n_slots && !graft_carries(gs, *at))
		++*at;
	return *at < gs->n_slots;
}

/* --- counts --- */

uint64_t graft_bytes(const struct graft_table *gs, uint32_t slot, unsigned int dir)
{
	const volatile struct graft_side *from = &gs->all[slot].side[dir];
	uint32_t state;
	uint64_t n;

	/* both numbers change when a graft begins */
	do {
		state = slot_raw_state(gs, slot);
		n = __atomic_load_n(&from->end, __ATOMIC_RELAXED) - from->begun -
		    (__atomic_load_n(&from->fin, __ATOMIC_RELAXED) != 0);
	} while ((state & GRAFT_STATE_MASK) == GRAFT_LOCKED || slot_raw_state(gs, slot) != state);
	return n;
}

const uint64_t *graft_table_used(const struct graft_table *gs)
{
	return gs->used;
}

unsigned int graft_table_total(const struct graft_table *gs)
{
	return gs->n_slots;
}

struct udp_table *graft_table_udp(const struct graft_table *gs)
{
	return gs ? gs->udp : NULL;
}

const struct bpf_rings *graft_rings(const struct graft_table *gs)
{
	return &gs->rings;
}

/* --- requests, and words for their answers --- */

const char *graft_refusal_name(enum graft_refusal r)
{
	static const char *const names[GRAFT_REFUSALS] = {
		[GRAFT_OK] = "no packet seen yet",
		[GRAFT_NO_SOCKET] = "socket not found",
		[GRAFT_CLOSING] = "closing",
		[GRAFT_TIMESTAMPS] = "timestamps differ",
		[GRAFT_MSS] = "mss",
		[GRAFT_ECN] = "ecn",
		[GRAFT_MPTCP] = "mptcp",
		[GRAFT_INTERFACE] = "interface not supported",
		[GRAFT_IN_HAND] = "never quiet",
		[GRAFT_BAD_REQUEST] = "slot in use",
		[GRAFT_NO_SLOT] = "no slot",
		[GRAFT_WINDOW] = "small window",
		[GRAFT_XFRM] = "ipsec",
		[GRAFT_ENCAP] = "route with encapsulation",
		[GRAFT_FRAGMENTS] = "fragments",
		[GRAFT_HEADERS] = "ip options",
		[GRAFT_TOO_BIG] = "too big, without df",
		[GRAFT_ORDER] = "out of order",
		[GRAFT_NO_TIMESTAMP] = "no timestamp",
		[GRAFT_NO_ROOM] = "slow receiver",
		[GRAFT_UNSEEN] = "packets of an end not seen",
		[GRAFT_WAY] = "route not seen yet",
		[GRAFT_FAR] = "far",
		[GRAFT_LOSS] = "loss",
		[GRAFT_SILENT] = "server silent",
		[GRAFT_FOREIGN] = "in another sockmap",
	};

	return (unsigned int)r < GRAFT_REFUSALS && names[r] ? names[r] : "?";
}

uint32_t graft_tag(const char *name)
{
	uint32_t hash = 2166136261; /* FNV-1a */

	for (; *name; name++)
		hash = (hash ^ (uint8_t)*name) * 16777619;
	return hash;
}

static int request_run(struct graft_table *gs, const struct graft_request *q)
{
	/* a frame, of which the offer program reads the part behind the header */
	struct {
		struct ethhdr eth;
		struct graft_request q;
	} __attribute__((packed)) in = { .eth.h_proto = htons(ETH_P_IP), .q = *q };
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = &in, .data_size_in = sizeof(in),
		    .repeat = 1);
	int r = bpf_prog_test_run_opts(bpf_program__fd(gs->skel->progs.graft_offer), &opts);

	return r ? GRAFT_BAD_REQUEST : (int)opts.retval;
}

int graft_request_run(struct graft_table *gs, enum graft_op op, uint32_t slot)
{
	const struct graft_request q = { .op = op, .slot = slot };

	return request_run(gs, &q);
}

static void request_set_addr(struct graft_addr *a, uint16_t *port, const struct sockaddr *sa)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

	if (sa->sa_family == AF_INET) {
		*a = (struct graft_addr){ { 0, 0, htonl(0xffff), in->sin_addr.s_addr } };
		*port = in->sin_port;
	} else {
		memcpy(a, &in6->sin6_addr, sizeof(*a));
		*port = in6->sin6_port;
	}
}

void graft_tuple_set(struct graft_tuple *t, const struct sockaddr *remote,
		     const struct sockaddr *local)
{
	request_set_addr(&t->remote, &t->remote_port, remote);
	request_set_addr(&t->local, &t->local_port, local);
}

enum graft_refusal graft_try(struct graft_table *gs, struct graft_request *q)
{
	int r;

	q->op = GRAFT_OFFER;
	q->slot = graft_slot_take(gs, &gs->queue);
	if (q->slot == NO_SLOT)
		return GRAFT_NO_SLOT;
	r = request_run(gs, q);
	if (!r && !graft_index_add(&gs->index, false, q->slot, GRAFT_OFFERED))
		r = GRAFT_NO_SLOT;
	if (r)
		graft_slot_put(gs, q->slot);
	return (enum graft_refusal)r;
}

enum graft_refusal graft_try_again(struct graft_table *gs, uint32_t slot, struct graft_request *q)
{
	q->op = GRAFT_OFFER_AGAIN;
	q->slot = slot;
	return (enum graft_refusal)request_run(gs, q);
}

void graft_kill(struct graft_table *gs, uint32_t slot)
{
	if (!graft_change_state(gs, slot, GRAFT_ACTIVE, GRAFT_DONE) &&
	    !graft_change_state(gs, slot, GRAFT_RETURNING, GRAFT_DONE) &&
	    (graft_state(gs, slot) != GRAFT_DONE || gs->all[slot].side[0].reset ||
	     gs->all[slot].side[1].reset))
		return;
	graft_request_run(gs, GRAFT_KILL, slot);
}

int graft_shape(struct graft_table *gs, int fd, const struct graft_shape *shape)
{
	return bpf_map_update_elem(bpf_map__fd(gs->skel->maps.shapes), &fd, shape, BPF_ANY);
}

void graft_shape_of(struct graft_table *gs, int fd, struct graft_shape *ret)
{
	if (bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.shapes), &fd, ret))
		*ret = (struct graft_shape){ 0 };
}
