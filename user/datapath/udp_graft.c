// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * The daemon alone writes both maps, through a mapping, but for the words and what the packet
 * programs remember.  A flow is complete before a chain leads to it, and stays as it is for
 * QUIET_MS after none does any more: no packet program looks at one for so long.
 *
 * A daemon may be killed at any point.  Each step is one store into a chain, so chains hold whole
 * flows at all times: the next daemon takes out those that nobody translates.
 */
#include "datapath/udp_graft.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "datapath/bpf_ring.h"

/* A slot is not used again for so long. */
#define QUIET_MS 10

struct slot {
	uint32_t next;     /* in the queue of free slots */
	uint32_t put_ms;   /* when it was left (low half) */
	uint32_t tried[2]; /* graft_ways when a leg was last activated */
};

struct chain {
	uint32_t place;
	uint32_t unused; /* values of a map have 8 bytes, or a multiple */
};

struct udp_grafts {
	struct udp_flow *flows; /* by slot, mapped */
	struct chain *chains;   /* mapped; behind the last one is the seed */
	struct bpf_map *flows_map, *chains_map;
	const uint32_t *ways;
	uint32_t n_slots, n_chains;

	pthread_mutex_t lock; /* of chains and queue; never taken on the payload path */
	struct slot *slots;
	uint32_t first, last, n_free; /* free slots, oldest first */
};

static uint32_t ticks(void)
{
	return (uint32_t)(clock_ns() >> UDP_TICK_SHIFT);
}

/* --- chains --- */

uint32_t udp_grafts_chains(uint32_t flows)
{
	uint32_t n = 2;

	while (n < 2 * flows)
		n *= 2;
	return n + 1;
}

static uint32_t *chain_of(const struct udp_grafts *us, const struct graft_tuple *t)
{
	uint32_t seed = us->chains[us->n_chains].place;

	return &us->chains[udp_hash(t, seed) & (us->n_chains - 1)].place;
}

/* Where the chain goes on behind PLACE. */
static uint32_t *behind(const struct udp_grafts *us, uint32_t place)
{
	return &us->flows[(place - 1) >> 1].next[(place - 1) & 1];
}

static void point(uint32_t *link, uint32_t place)
{
	__atomic_store_n(link, place, __ATOMIC_RELEASE);
}

/* No other flow has T, and there is room in its chain, for both legs of one. */
static bool is_free(const struct udp_grafts *us, const struct graft_tuple *t)
{
	unsigned int n = 0;

	for (uint32_t at = *chain_of(us, t); at; at = *behind(us, at))
		if (++n > UDP_CHAIN_MOST - 2 ||
		    !memcmp(&us->flows[(at - 1) >> 1].leg[(at - 1) & 1].tuple, t, sizeof(*t)))
			return false;
	return true;
}

static void link_flow(struct udp_grafts *us, uint32_t slot)
{
	struct udp_flow *f = &us->flows[slot];

	for (uint32_t leg = 0; leg < 2; leg++) {
		uint32_t *chain = chain_of(us, &f->leg[leg].tuple);

		point(&f->next[leg], *chain);
		point(chain, udp_place(slot, leg));
	}
}

/* Who is at the flow just now goes on from there. */
static void unlink_flow(struct udp_grafts *us, uint32_t slot)
{
	struct udp_flow *f = &us->flows[slot];

	for (uint32_t leg = 0; leg < 2; leg++) {
		uint32_t *at = chain_of(us, &f->leg[leg].tuple);

		while (*at && *at != udp_place(slot, leg))
			at = behind(us, *at);
		if (*at)
			point(at, f->next[leg]);
	}
}

/* --- slots --- */

static void put(struct udp_grafts *us, uint32_t slot)
{
	us->slots[slot].put_ms = (uint32_t)clock_ms();
	if (us->n_free++)
		us->slots[us->last].next = slot;
	else
		us->first = slot;
	us->last = slot;
}

static bool take(struct udp_grafts *us, uint32_t *ret)
{
	uint32_t slot = us->first;

	if (!us->n_free || (uint32_t)clock_ms() - us->slots[slot].put_ms < QUIET_MS)
		return false;
	us->first = us->slots[slot].next;
	us->n_free--;
	*ret = slot;
	return true;
}

/* At least one: 0 is never. */
static uint32_t idle_ticks(uint64_t idle_ms)
{
	uint64_t idle = (idle_ms * NS_PER_MS >> UDP_TICK_SHIFT) + (idle_ms != 0);

	return (uint32_t)smaller(idle, INT32_MAX);
}

static void fill(const struct udp_grafts *us, struct udp_flow *f, const struct udp_request *q)
{
	*f = (struct udp_flow){
		.id = q->id,
		.forward = q->forward,
		.idle = idle_ticks(q->idle_ms),
		.born = ticks(),
		.used = 1,
	};
	for (int leg = 0; leg < 2; leg++) {
		f->leg[leg].tuple = q->tuples[leg];
		f->leg[leg].way.ways = *us->ways - 1;
		f->at[leg].seen = *us->ways - 1;
	}
	f->at[0].heard = f->born;
}

uint32_t udp_graft_enter(struct udp_grafts *us, const struct udp_request *q)
{
	uint32_t slot = NO_UDP_SLOT;

	pthread_mutex_lock(&us->lock);
	if (is_free(us, &q->tuples[0]) && is_free(us, &q->tuples[1]) &&
	    memcmp(&q->tuples[0], &q->tuples[1], sizeof(q->tuples[0])) && take(us, &slot)) {
		fill(us, &us->flows[slot], q);
		us->slots[slot].tried[0] = us->slots[slot].tried[1] = *us->ways - 1;
		link_flow(us, slot);
	}
	pthread_mutex_unlock(&us->lock);
	return slot;
}

static uint32_t *word_of(const struct udp_grafts *us, uint32_t slot, unsigned int leg)
{
	return &us->flows[slot].at[leg].word;
}

uint32_t udp_graft_find(struct udp_grafts *us, const struct graft_tuple *t)
{
	uint32_t at;

	pthread_mutex_lock(&us->lock);
	at = *chain_of(us, t);
	while (at && memcmp(&us->flows[(at - 1) >> 1].leg[(at - 1) & 1].tuple, t, sizeof(*t)) != 0)
		at = *behind(us, at);
	pthread_mutex_unlock(&us->lock);
	return at ? (at - 1) >> 1 : NO_UDP_SLOT;
}

void udp_graft_client_gone(struct udp_grafts *us, uint32_t slot)
{
	us->flows[slot].at[0].gone = 1;
	__atomic_fetch_and(word_of(us, slot, 1), ~UDP_ACTIVE, __ATOMIC_SEQ_CST);
}

void udp_graft_leave(struct udp_grafts *us, uint32_t slot)
{
	for (unsigned int leg = 0; leg < 2; leg++)
		__atomic_fetch_and(word_of(us, slot, leg), ~UDP_ACTIVE, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&us->lock);
	unlink_flow(us, slot);
	__atomic_store_n(&us->flows[slot].used, 0, __ATOMIC_RELEASE);
	put(us, slot);
	pthread_mutex_unlock(&us->lock);
}

/* --- words --- */

bool udp_graft_carries(const struct udp_grafts *us, uint32_t slot, unsigned int leg)
{
	return __atomic_load_n(word_of(us, slot, leg), __ATOMIC_ACQUIRE) & UDP_ACTIVE;
}

uint32_t udp_graft_word(const struct udp_grafts *us, uint32_t slot, unsigned int leg)
{
	return __atomic_load_n(word_of(us, slot, leg), __ATOMIC_ACQUIRE);
}

/* What was found against LEG since it was last tried is still so, as long as no way has changed. */
static bool is_hopeless(const struct udp_grafts *us, uint32_t slot, unsigned int leg, uint32_t ways)
{
	const volatile struct udp_leg *at = &us->flows[slot].at[leg];

	return us->slots[slot].tried[leg] == ways && at->why && at->why != GRAFT_WAY &&
	       at->seen != ways;
}

bool udp_graft_activate(struct udp_grafts *us, uint32_t slot, unsigned int leg, uint32_t word)
{
	uint32_t ways = __atomic_load_n(us->ways, __ATOMIC_ACQUIRE);

	if (word & UDP_ACTIVE || is_hopeless(us, slot, leg, ways) ||
	    __atomic_load_n(&us->flows[slot].leg[!leg].way.ways, __ATOMIC_ACQUIRE) != ways)
		return false;
	us->slots[slot].tried[leg] = ways;
	return __atomic_compare_exchange_n(word_of(us, slot, leg), &word, word | UDP_ACTIVE, false,
					   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* --- what is known of a flow --- */

volatile struct udp_flow *udp_flow_of(const struct udp_grafts *us, uint32_t slot)
{
	return &us->flows[slot];
}

uint64_t udp_graft_heard_ms(const struct udp_grafts *us, uint32_t slot, unsigned int leg)
{
	uint32_t heard = us->flows[slot].at[leg].heard;
	int32_t ago = (int32_t)(ticks() - heard);

	if (!heard)
		return 0;
	return clock_ms() - (ago < 0 ? 0 : ((uint64_t)ago << UDP_TICK_SHIFT) / NS_PER_MS);
}

void udp_graft_address(const struct udp_grafts *us, uint32_t slot, unsigned int leg, bool local,
		       struct sockaddr_storage *ret, socklen_t *ret_len)
{
	graft_tuple_address(&us->flows[slot].leg[leg].tuple, local, ret, ret_len);
}

bool udp_graft_next(const struct udp_grafts *us, uint32_t *at)
{
	while (*at < us->n_slots && !__atomic_load_n(&us->flows[*at].used, __ATOMIC_ACQUIRE))
		++*at;
	return *at < us->n_slots;
}

unsigned int udp_grafts_live(const struct udp_grafts *us)
{
	unsigned int n = 0;

	for (uint32_t slot = 0; udp_graft_next(us, &slot); slot++)
		n += udp_graft_carries(us, slot, 0) || udp_graft_carries(us, slot, 1);
	return n;
}

/* --- opening, closing --- */

/* Take out of CHAIN what is not used.  Returns how many are left in it; -1: it is no chain. */
static int clean(struct udp_grafts *us, uint32_t *chain)
{
	uint32_t *at = chain;
	int n = 0, looked = 0;

	while (*at) {
		uint32_t slot = (*at - 1) >> 1, leg = (*at - 1) & 1;
		struct udp_flow *f = &us->flows[slot];

		if (slot >= us->n_slots || chain_of(us, &f->leg[leg].tuple) != chain ||
		    ++looked > UDP_CHAIN_MOST)
			return -1;
		if (f->used) {
			at = &f->next[leg];
			n++;
		} else {
			point(at, f->next[leg]);
		}
	}
	return n;
}

/* N flows are used, and the packet programs follow the chains: only what is wrong is made anew. */
static void clean_all(struct udp_grafts *us, uint32_t n)
{
	uint32_t found = 0;
	int r = 0;

	for (uint32_t i = 0; i < us->n_chains && r >= 0; i++) {
		r = clean(us, &us->chains[i].place);
		found += (uint32_t)(r > 0 ? r : 0);
	}
	if (r >= 0 && found == 2 * n)
		return;
	for (uint32_t i = 0; i < us->n_chains; i++)
		point(&us->chains[i].place, 0);
	for (uint32_t slot = 0; udp_graft_next(us, &slot); slot++)
		link_flow(us, slot);
}

/* Of flows that were left those go on that packet programs translate. */
static void find_left(struct udp_grafts *us)
{
	uint32_t n = 0;

	for (uint32_t slot = 0; slot < us->n_slots; slot++) {
		struct udp_flow *f = &us->flows[slot];

		f->used = f->used == 1 &&
			  (udp_graft_carries(us, slot, 0) || udp_graft_carries(us, slot, 1));
		n += f->used;
	}
	clean_all(us, n);
	for (uint32_t slot = 0; slot < us->n_slots; slot++)
		if (!us->flows[slot].used)
			put(us, slot);
}

int udp_grafts_open(struct bpf_map *flows, struct bpf_map *chains, const uint32_t *ways,
		    struct udp_grafts **ret)
{
	struct udp_grafts *us = allocated(calloc(1, sizeof(*us)));
	uint32_t *seed;

	*us = (struct udp_grafts){ .flows = bpf_values_map(flows),
				   .chains = bpf_values_map(chains),
				   .flows_map = flows,
				   .chains_map = chains,
				   .ways = ways,
				   .n_slots = bpf_map__max_entries(flows),
				   .n_chains = bpf_map__max_entries(chains) - 1 };
	pthread_mutex_init(&us->lock, NULL);
	us->slots = allocated(calloc(us->n_slots, sizeof(*us->slots)));
	*ret = us;
	if (!us->flows || !us->chains)
		return -errno;
	seed = &us->chains[us->n_chains].place;
	while (!*seed)
		if (getrandom(seed, sizeof(*seed), 0) < 0)
			return -errno;
	find_left(us);
	return 0;
}

void udp_grafts_close(struct udp_grafts *us)
{
	if (!us)
		return;
	bpf_values_unmap(us->flows, us->flows_map);
	bpf_values_unmap(us->chains, us->chains_map);
	pthread_mutex_destroy(&us->lock);
	free(us->slots);
	free(us);
}

/* --- addresses --- */

void graft_tuple_address(const struct graft_tuple *t, bool local, struct sockaddr_storage *ret,
			 socklen_t *ret_len)
{
	const struct graft_addr *a = local ? &t->local : &t->remote;
	in_port_t port = local ? t->local_port : t->remote_port;

	if (a->w[0] || a->w[1] || a->w[2] != htonl(0xffff)) {
		struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = port };

		memcpy(&in6.sin6_addr, a, sizeof(in6.sin6_addr));
		memcpy(ret, &in6, *ret_len = sizeof(in6));
	} else {
		struct sockaddr_in in = { .sin_family = AF_INET,
					  .sin_port = port,
					  .sin_addr.s_addr = a->w[3] };

		memcpy(ret, &in, *ret_len = sizeof(in));
	}
}
