// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Slots.  A slot that was given back is used again only after all others: until then its tuples
 * stay in `flows`, and what comes late is translated (CLOSED), or shifted (RETURNED).  The offer
 * program removes them when the slot gets its next session.
 *
 * Sessions that were left.  Maps outlive the daemon (graft_pins.c).  A session that is translated
 * when the next one starts keeps its slot, and is adopted.
 */
#include "datapath/graft.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <limits.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bits.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_allowed.h"
#include "bpf/graft.skel.h"
#include "config/config.h"
#include "datapath/graft_attach.h"
#include "datapath/graft_pins.h"
#include "datapath/graft_tuple.h"
#include "datapath/route.h"
#include "datapath/tcp.h"
#include "datapath/udp_graft.h"

SYSCALLS_ALLOWED(
	BPF_IF(PART_GRAFT, BPF_PROG_TEST_RUN),
	BPF_IF(PART_GRAFT, BPF_MAP_LOOKUP_ELEM), BPF_IF(PART_GRAFT, BPF_MAP_UPDATE_ELEM),
	SYSCALL_IF(PART_GRAFT, close));

/* TIME_WAIT, and then some: so long are packets of a closed session that is back shifted. */
#define RETURNED_MS 70000

_Static_assert(WORKERS_MAX <= GRAFT_WORKERS, "each worker has a time in graft_woken_ns");

struct slot {
	uint32_t next;     /* in the queue of free slots */
	uint32_t put_ms;   /* when it was given back (low half) */
	uint32_t asked;    /* graft_ways when its sockets were asked last */
	bool probing;      /* they were, and are to be as they were before */
	uint8_t judged;    /* so often since, without an answer */
	uint32_t asked_ms; /* when (low half) */
	int sockets[2];    /* made anew, and not taken; -1: none */
	bool given;        /* they were, or could not be */
	bool bare;         /* its session has none */
};

struct grafts {
	struct graft_bpf *skel;
	struct graft_entry *all; /* by slot, mapped */
	struct udp_grafts *udp;
	struct graft_pins pins;
	struct graft_attachments attached;
	uint32_t routes, policies; /* as seen last */
	uint32_t look_from;        /* slot, for strays */
	_Atomic bool doubtful;     /* a session was, since the main thread has looked */
	struct bpf_rings rings;

	pthread_mutex_t lock; /* of the queue; never taken on the payload path */
	struct slot *slots;
	uint64_t *used;       /* a bit for each slot that is not in the queue, then those of UDP */
	uint32_t first, last; /* of free slots, oldest first */
	unsigned int n_slots, n_free;
};

/* --- names --- */

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

/* --- the queue of free slots --- */

/* The slot that was given back first, if it can be used again; or NO_SLOT. */
static uint32_t take(struct grafts *gs)
{
	uint32_t slot = NO_SLOT;

	pthread_mutex_lock(&gs->lock);
	if (gs->n_free && (graft_state(gs, gs->first) != GRAFT_RETURNED ||
			   (uint32_t)clock_ms() - gs->slots[gs->first].put_ms >= RETURNED_MS)) {
		slot = gs->first;
		gs->first = gs->slots[slot].next;
		gs->n_free--;
		__atomic_store_n(&gs->all[slot].state, GRAFT_FREE, __ATOMIC_SEQ_CST);
		__atomic_store_n(&gs->slots[slot].bare, false, __ATOMIC_RELEASE);
		bit_set(gs->used, slot, true);
	}
	pthread_mutex_unlock(&gs->lock);
	return slot;
}

void grafts_leave_slot(struct grafts *gs)
{
	if (!gs->n_free)
		return;
	gs->first = gs->slots[gs->first].next;
	gs->n_free--;
}

static void put(struct grafts *gs, uint32_t slot)
{
	pthread_mutex_lock(&gs->lock);
	bit_set(gs->used, slot, false);
	gs->slots[slot].put_ms = (uint32_t)clock_ms();
	*(gs->n_free++ ? &gs->slots[gs->last].next : &gs->first) = slot;
	gs->last = slot;
	pthread_mutex_unlock(&gs->lock);
}

/* --- opening, closing --- */

/*
 * All slots but those of sessions that were left.  What a daemon had only offered has lost its
 * sockets; what was to go back to its sockets has none to go back to.
 */
static void fill_queue(struct grafts *gs)
{
	gs->slots = allocated(calloc(gs->n_slots, sizeof(*gs->slots)));
	for (uint32_t i = 0; i < gs->n_slots; i++) {
		gs->slots[i].sockets[0] = gs->slots[i].sockets[1] = -1;
		graft_withdraw(gs, i);
		graft_return(gs, i, false);
		if (graft_state(gs, i) == GRAFT_STANDBY || graft_carries(gs, i))
			bit_set(gs->used, i, true);
		else if (graft_state(gs, i) != GRAFT_RETURNED)
			put(gs, i);
	}
	/* last: the first of the queue would keep all others waiting while it rests */
	for (uint32_t i = 0; i < gs->n_slots; i++)
		if (graft_state(gs, i) == GRAFT_RETURNED)
			put(gs, i);
}

static uint32_t ways_of(const struct grafts *gs, uint32_t slot, int side)
{
	return __atomic_load_n(&gs->all[slot].side[side].way.ways, __ATOMIC_ACQUIRE);
}

static uint32_t least_ways(const struct grafts *gs)
{
	return __atomic_load_n(&gs->skel->bss->graft_ways_least, __ATOMIC_ACQUIRE);
}

/* Another daemon has counted the ways of sessions that were left. */
static void begin_ways(struct grafts *gs)
{
	int interfaces = bpf_map__fd(gs->skel->maps.interfaces);
	uint32_t ways = 1, policies = GRAFT_IF_POLICIES;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++)
		for (int side = 0; side < 2; side++)
			if ((int32_t)(ways_of(gs, slot, side) - ways) > 0)
				ways = ways_of(gs, slot, side);
	for (uint32_t slot = 0; udp_graft_next(gs->udp, &slot); slot++)
		for (int leg = 0; leg < 2; leg++) {
			uint32_t seen = udp_flow_of(gs->udp, slot)->leg[leg].way.ways;

			if ((int32_t)(seen - ways) > 0)
				ways = seen;
		}
	gs->skel->bss->graft_ways = ways;
	gs->skel->bss->graft_ways_least = ways - INT_MAX / 2;
	bpf_map_lookup_elem(interfaces, &policies, &gs->policies);
}

/* The maps that a daemon before has left keep their size. */
static unsigned int slots_of(const struct grafts *gs, unsigned int wanted)
{
	struct bpf_map_info info = { .max_entries = wanted };
	uint32_t len = sizeof(info);
	int fd = graft_pins_get(&gs->pins, "grafts");

	if (fd >= 0) {
		bpf_obj_get_info_by_fd(fd, &info, &len);
		close(fd);
	}
	if (info.max_entries < wanted)
		log_warning("graft: %u slots, as the daemon before had, until culvert is stopped "
			    "while no session is grafted; max-sessions wants %u",
			    info.max_entries, wanted);
	return info.max_entries;
}

static int load(struct grafts *gs, unsigned int slots)
{
	int r = graft_pins_choose(&gs->pins, gs->skel->obj);
	uint32_t buckets;

	gs->n_slots = slots_of(gs, slots);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.grafts, gs->n_slots);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.flows, gs->n_slots * 2);
	if (gs->n_slots * 2 > bpf_map__max_entries(gs->skel->maps.handshakes))
		r = r ?: bpf_map__set_max_entries(gs->skel->maps.handshakes, gs->n_slots * 2);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.graft_rings, WORKERS_MAX);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.addresses, gs->n_slots);
	buckets = udp_grafts_buckets(gs->n_slots);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.udp_flows, gs->n_slots);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.udp_buckets, buckets);
	gs->skel->rodata->udp_n_buckets = buckets - 1;
	r = r ?: graft_bpf__load(gs->skel);
	r = r ?: graft_pins_own(&gs->pins);
	if (r)
		return r;
	gs->all = bpf_values_map(gs->skel->maps.grafts);
	if (!gs->all)
		return -errno;
	gs->used = allocated(calloc(BITS_WORDS(2 * gs->n_slots), sizeof(*gs->used)));
	return udp_grafts_open(gs->skel->maps.udp_flows, gs->skel->maps.udp_buckets,
			       &gs->skel->bss->graft_ways, gs->used, &gs->udp);
}

#define NAMED (1U << 31) /* of a handle that is no pid */

/* Say where the packet programs are to be attached, and do so. */
static int attach(struct grafts *gs, bool on_loopback)
{
	const struct graft_bpf *skel = gs->skel;
	const char *folder = gs->pins.folder;
	struct clsact *c = &gs->attached.clsact;
	uint32_t ports = GRAFT_IF_PORTS;
	int r;

	gs->attached = (struct graft_attachments){
		.pins = &gs->pins,
		.interfaces = bpf_map__fd(skel->maps.interfaces),
		.on_loopback = on_loopback,
	};
	/*
	 * A service may have its folder elsewhere than `graft --remove`: the last part tells.
	 * Without pins nobody looks for the filters later.
	 */
	c->handle = folder ? graft_tag(strrchr(folder, '/')) | NAMED : (uint32_t)getpid();
	c->pinned = folder;
	c->programs[0][HOOK_IN] = bpf_program__fd(skel->progs.graft_in_l3);
	c->programs[0][HOOK_OUT] = bpf_program__fd(skel->progs.graft_out_l3);
	c->programs[1][HOOK_IN] = bpf_program__fd(skel->progs.graft_in);
	c->programs[1][HOOK_OUT] = bpf_program__fd(skel->progs.graft_out);
	gs->attached.at_ports = !bpf_map_lookup_elem(gs->attached.interfaces, &ports, &ports);
	gs->skel->bss->graft_bridged = gs->attached.at_ports;
	graft_attach_choose(&gs->attached);
	r = graft_attach_follow(&gs->attached);
	gs->pins.uid = (uid_t)-1; /* from now on we may be that account */
	return r < 0 ? r : 0;
}

int grafts_open(const struct graft_limits *limits, struct grafts **ret, char *err, size_t errlen)
{
	struct grafts *gs = allocated(calloc(1, sizeof(*gs)));
	const char *what = "cannot load the packet programs";
	int pins, r;

	pthread_mutex_init(&gs->lock, NULL);
	if (log_get_level() < LOG_DEBUG)
		libbpf_set_print(NULL); /* else it writes to stderr */
	pins = graft_pins_open(&gs->pins, limits->pins, limits->uid);
	gs->skel = graft_bpf__open();
	r = gs->skel ? load(gs, limits->slots) : -errno;
	r = r     ?:
		    bpf_rings_open(&gs->rings, limits->workers, gs->skel->maps.graft_rings,
				   &gs->skel->bss->graft_events_lost);
	if (!r) {
		fill_queue(gs);
		begin_ways(gs);
		what = "cannot attach the packet programs to any interface";
		r = attach(gs, limits->on_loopback);
	}
	if (r) {
		snprintf(err, errlen, "%s: %s" BPF_NEEDS, what, bpf_error(r));
		grafts_close(gs, true);
		return r;
	}
	if (pins) /* where nothing can be grafted that is no news */
		log_warning("graft: no session survives the daemon, and if it is killed their ends "
			    "are not told: %s: %s",
			    limits->pins,
			    pins == -EMEDIUMTYPE ? "not on a BPF file system" :
			    pins == -EWOULDBLOCK ? "another daemon uses it" :
						   strerror(-pins));
	*ret = gs;
	return 0;
}

int grafts_follow_interfaces(struct grafts *gs)
{
	return graft_attach_follow(&gs->attached);
}

struct clsact *grafts_clsact(struct grafts *gs)
{
	return gs->attached.is_clsact ? &gs->attached.clsact : NULL;
}

bool grafts_survive(const struct grafts *gs)
{
	return gs->pins.folder;
}

unsigned int grafts_live(const struct grafts *gs)
{
	unsigned int n = udp_grafts_live(gs->udp);

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++)
		n += graft_state(gs, slot) != GRAFT_DONE;
	return n;
}

void grafts_close(struct grafts *gs, bool keep)
{
	if (!gs)
		return;
	/* what could not be opened is not ours to remove */
	keep = !gs->all || (keep && gs->pins.folder && grafts_live(gs));
	graft_attach_close(&gs->attached, keep);
	graft_pins_close(&gs->pins, !keep);
	udp_grafts_close(gs->udp);
	bpf_rings_close(&gs->rings);
	if (gs->skel)
		bpf_values_unmap(gs->all, gs->skel->maps.grafts);
	graft_bpf__destroy(gs->skel);
	pthread_mutex_destroy(&gs->lock);
	free(gs->slots);
	free(gs->used);
	free(gs);
}

bool graft_close_sockets(struct grafts *gs, uint32_t slot)
{
	int *fds = gs->slots[slot].sockets;
	bool some = fds[0] >= 0;

	for (int side = 0; side < 2 && some; side++) {
		tcp_arm_reset(fds[side]);
		close(fds[side]);
		fds[side] = -1;
	}
	gs->slots[slot].given = false;
	return some;
}

void grafts_close_sockets(struct grafts *gs)
{
	for (uint32_t slot = 0; slot < gs->n_slots; slot++) {
		if (graft_close_sockets(gs, slot) && graft_state(gs, slot) == GRAFT_RETURNED)
			graft_put(gs, slot);
	}
}

/* --- states --- */

static uint32_t raw_state(const struct grafts *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].state, __ATOMIC_ACQUIRE);
}

enum graft_state graft_state(const struct grafts *gs, uint32_t slot)
{
	uint32_t state = raw_state(gs, slot) & GRAFT_STATE_MASK;

	if (state == GRAFT_LOCKED)
		return GRAFT_OFFERED;
	return state == GRAFT_LOCKED_2 ? GRAFT_RETURNING : (enum graft_state)state;
}

bool graft_carries(const struct grafts *gs, uint32_t slot)
{
	enum graft_state state = graft_state(gs, slot);

	return state == GRAFT_ACTIVE || state == GRAFT_RETURNING || state == GRAFT_DONE;
}

volatile struct graft_entry *graft_of(const struct grafts *gs, uint32_t slot)
{
	return &gs->all[slot];
}

/* From FROM to TO, waiting for a packet that holds a lock: it does so for less than a microsecond. */
static bool change(struct grafts *gs, uint32_t slot, enum graft_state from, enum graft_state to)
{
	while (graft_state(gs, slot) == from) {
		uint32_t state = from;

		if (__atomic_compare_exchange_n(&gs->all[slot].state, &state, (uint32_t)to, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return true;
	}
	return false;
}

bool graft_withdraw(struct grafts *gs, uint32_t slot)
{
	return change(gs, slot, GRAFT_OFFERED, gs->all[slot].shifted ? GRAFT_RETURNED : GRAFT_FREE);
}

void graft_hold(struct grafts *gs, uint32_t slot)
{
	gs->all[slot].held_ms = (uint32_t)clock_ms();
	__atomic_store_n(&gs->all[slot].hold, 1, __ATOMIC_RELEASE);
}

bool graft_return(struct grafts *gs, uint32_t slot, bool back)
{
	return back ? change(gs, slot, GRAFT_ACTIVE, GRAFT_RETURNING) :
		      change(gs, slot, GRAFT_RETURNING, GRAFT_ACTIVE);
}

/* --- requests --- */

static int run_request(struct grafts *gs, const struct graft_request *q)
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

static int run(struct grafts *gs, enum graft_op op, uint32_t slot)
{
	const struct graft_request q = { .op = op, .slot = slot };

	return run_request(gs, &q);
}

static void set_addr(struct graft_addr *a, uint16_t *port, const struct sockaddr *sa)
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
	set_addr(&t->remote, &t->remote_port, remote);
	set_addr(&t->local, &t->local_port, local);
}

enum graft_refusal graft_try_again(struct grafts *gs, uint32_t slot, struct graft_request *q)
{
	q->op = GRAFT_OFFER_AGAIN;
	q->slot = slot;
	return (enum graft_refusal)run_request(gs, q);
}

int graft_shape(struct grafts *gs, int fd, const struct graft_shape *shape)
{
	return bpf_map_update_elem(bpf_map__fd(gs->skel->maps.shapes), &fd, shape, BPF_ANY);
}

void graft_shape_of(struct grafts *gs, int fd, struct graft_shape *ret)
{
	if (bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.shapes), &fd, ret))
		*ret = (struct graft_shape){ 0 };
}

enum graft_refusal graft_try(struct grafts *gs, struct graft_request *q)
{
	int r;

	q->op = GRAFT_OFFER;
	q->slot = take(gs);
	if (q->slot == NO_SLOT)
		return GRAFT_NO_SLOT;
	r = run_request(gs, q);
	if (r)
		put(gs, q->slot);
	return (enum graft_refusal)r;
}

void graft_kill(struct grafts *gs, uint32_t slot)
{
	if (!change(gs, slot, GRAFT_ACTIVE, GRAFT_DONE) &&
	    !change(gs, slot, GRAFT_RETURNING, GRAFT_DONE) &&
	    (graft_state(gs, slot) != GRAFT_DONE || gs->all[slot].side[0].reset ||
	     gs->all[slot].side[1].reset))
		return;
	run(gs, GRAFT_KILL, slot);
}

void graft_put(struct grafts *gs, uint32_t slot)
{
	change(gs, slot, GRAFT_DONE, GRAFT_CLOSED);
	gs->all[slot].over = 1;
	gs->slots[slot].probing = false;
	put(gs, slot);
}

bool graft_next(const struct grafts *gs, uint32_t *at)
{
	while (*at < gs->n_slots && !graft_carries(gs, *at))
		++*at;
	return *at < gs->n_slots;
}

/* --- sessions that are at one of several relays --- */

bool grafts_set_here(struct grafts *gs, const struct graft_addr *address, bool here)
{
	int addresses = bpf_map__fd(gs->skel->maps.addresses);
	uint32_t one = 1;

	if (here)
		return !bpf_map_update_elem(addresses, address, &one, BPF_ANY);
	bpf_map_delete_elem(addresses, address);
	return true;
}

uint8_t *grafts_unsynced(const struct grafts *gs)
{
	return gs->skel->bss->graft_unsynced;
}

void grafts_set_way(const struct grafts *gs, struct graft_way *w, uint32_t ifindex, uint32_t mtu)
{
	uint32_t ways = __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE);

	/* whom policies of IPsec concern, only sockets know */
	if (__atomic_load_n(&gs->policies, __ATOMIC_RELAXED))
		ways = least_ways(gs);
	w->via = GRAFT_VIA_LOOKUP;
	w->mtu = mtu;
	w->ifindex = ifindex;
	__atomic_store_n(&w->ways, ways - 1, __ATOMIC_RELEASE);
}

static void set_free(struct grafts *gs, uint32_t slot)
{
	run(gs, GRAFT_FORGET, slot);
	__atomic_store_n(&gs->all[slot].state, GRAFT_FREE, __ATOMIC_SEQ_CST);
	put(gs, slot);
}

uint32_t graft_find(const struct grafts *gs, const struct graft_tuple *tuple)
{
	struct graft_place place;

	if (bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.flows), tuple, &place) ||
	    memcmp(&gs->all[place.slot].side[place.side].tuple, tuple, sizeof(*tuple)) != 0)
		return NO_SLOT;
	return bit_is(gs->used, place.slot) ? place.slot : NO_SLOT; /* else it is over */
}

bool graft_drop(struct grafts *gs, uint32_t slot)
{
	if (!change(gs, slot, GRAFT_STANDBY, GRAFT_SETTING))
		return false;
	set_free(gs, slot);
	return true;
}

int graft_import(struct grafts *gs, struct graft_entry *e, uint32_t *ret_slot)
{
	uint32_t was = graft_find(gs, &e->side[0].tuple), slot;
	bool same = was != NO_SLOT && was == graft_find(gs, &e->side[1].tuple);
	struct graft_entry *g;
	int r;

	for (int side = 0; side < 2; side++) {
		slot = graft_find(gs, &e->side[side].tuple);
		if (slot != NO_SLOT && !graft_drop(gs, slot))
			return same ? -EEXIST : -EADDRINUSE;
	}
	slot = take(gs);
	if (slot == NO_SLOT)
		return -ENOSPC;
	g = &gs->all[slot];
	e->loose = GRAFT_LOOSE;
	e->worker = GRAFT_NOBODY;
	e->mirrored = GRAFT_CAME;
	__atomic_store_n(&g->state, GRAFT_SETTING, __ATOMIC_SEQ_CST);
	run(gs, GRAFT_FORGET, slot);
	/* all but the state, which others look at meanwhile */
	memcpy(&g->looks, &e->looks, sizeof(*g) - offsetof(struct graft_entry, looks));
	r = run(gs, GRAFT_ENTER, slot);
	if (r == GRAFT_IN_HAND && same) /* it has just left, and its socket is being closed */
		r = 0;
	if (r) {
		set_free(gs, slot);
		return r == GRAFT_IN_HAND ? -EADDRINUSE : -ENOSPC;
	}
	__atomic_store_n(&g->state, GRAFT_STANDBY, __ATOMIC_SEQ_CST);
	*ret_slot = slot;
	return 0;
}

void graft_wake(struct grafts *gs, uint32_t slot)
{
	change(gs, slot, GRAFT_STANDBY, GRAFT_ACTIVE);
}

static uint32_t worker_of(const struct grafts *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->all[slot].worker, __ATOMIC_RELAXED);
}

bool graft_is_orphan(const struct grafts *gs, uint32_t slot)
{
	return graft_carries(gs, slot) && worker_of(gs, slot) == GRAFT_NOBODY;
}

void graft_give_sockets(struct grafts *gs, uint32_t slot, const int fds[2])
{
	memcpy(gs->slots[slot].sockets, fds, sizeof(gs->slots[slot].sockets));
	gs->slots[slot].given = true;
}

bool graft_has_sockets(const struct grafts *gs, uint32_t slot)
{
	return gs->slots[slot].given;
}

bool graft_is_bare(const struct grafts *gs, uint32_t slot)
{
	enum graft_state state = graft_state(gs, slot);

	return __atomic_load_n(&gs->slots[slot].bare, __ATOMIC_ACQUIRE) &&
	       worker_of(gs, slot) != GRAFT_NOBODY &&
	       (state == GRAFT_ACTIVE || state == GRAFT_RETURNING);
}

bool grafts_have(const struct grafts *gs, const volatile struct graft_addr *address)
{
	uint32_t one;

	return !bpf_map_lookup_elem(bpf_map__fd(gs->skel->maps.addresses), (const void *)address,
				    &one);
}

bool graft_leave(struct grafts *gs, uint32_t slot)
{
	struct graft_entry *g = &gs->all[slot];

	graft_return(gs, slot, false);
	gs->slots[slot].probing = false;
	/* nobody touches it in between, and packets are sent again */
	if (!change(gs, slot, GRAFT_ACTIVE, GRAFT_SETTING))
		return false;
	g->alone_ms = 0;
	__atomic_store_n(&g->worker, GRAFT_NOBODY, __ATOMIC_RELAXED);
	change(gs, slot, GRAFT_SETTING, GRAFT_STANDBY);
	if (__atomic_load_n(&g->mirrored, __ATOMIC_RELAXED) == GRAFT_OVER)
		graft_drop(gs, slot);
	return true;
}

/* --- ways --- */

enum graft_change grafts_look(struct grafts *gs)
{
	uint32_t routes = gs->routes, policies = gs->policies, none = 0;

	if (run(gs, GRAFT_ROUTES, 0))
		return GRAFT_CHANGE_NONE;
	gs->routes = *(volatile __u32 *)&gs->skel->bss->graft_routes;
	__atomic_store_n(&gs->policies, *(volatile __u32 *)&gs->skel->bss->graft_policies,
			 __ATOMIC_RELAXED);
	if (policies == gs->policies)
		return routes == gs->routes ? GRAFT_CHANGE_NONE : GRAFT_CHANGE_ROUTES;
	bpf_map_update_elem(gs->attached.interfaces, &none, &gs->policies, BPF_ANY);
	return GRAFT_CHANGE_POLICIES;
}

#define LOOKS 256 /* at slots in use, each time */

bool grafts_miss_programs(struct grafts *gs)
{
	struct graft_attachments *as = &gs->attached;
	volatile __u32 *stray = &gs->skel->bss->graft_stray;
	uint32_t ports = GRAFT_IF_PORTS, one = 1;

	*stray = 0;
	for (unsigned int i = 0; i < LOOKS; i++, gs->look_from++) {
		if (!bit_next(gs->used, gs->used, gs->n_slots, &gs->look_from)) {
			gs->look_from = 0;
			break;
		}
		if (graft_state(gs, gs->look_from) == GRAFT_ACTIVE)
			run(gs, GRAFT_STRAYS, gs->look_from);
	}
	as->stray = *stray;
	if (*(volatile __u32 *)&gs->skel->bss->graft_bridged && !as->at_ports) {
		bpf_map_update_elem(as->interfaces, &ports, &one, BPF_ANY);
		as->at_ports = true;
		return true;
	}
	return as->stray || graft_attach_is_lost(as);
}

void grafts_doubt_ways(struct grafts *gs, enum graft_change change)
{
	uint32_t ways = __atomic_add_fetch(&gs->skel->bss->graft_ways, 1, __ATOMIC_SEQ_CST);

	if (change == GRAFT_CHANGE_POLICIES)
		__atomic_store_n(&gs->skel->bss->graft_ways_least, ways, __ATOMIC_SEQ_CST);
}

/* Nothing is to be grafted on an interface of SLOT any more. */
static bool must_leave(const struct grafts *gs, uint32_t slot)
{
	uint32_t used = GRAFT_IF_USED, found = used;

	for (int side = 0; side < 2 && found & used; side++)
		if (bpf_map_lookup_elem(gs->attached.interfaces,
					(void *)&gs->all[slot].side[side].way.ifindex, &found))
			found = used; /* it is gone, and may come again */
	return !(found & used);
}

/* The older way of SLOT's two. */
static uint32_t oldest(const struct grafts *gs, uint32_t slot)
{
	uint32_t a = ways_of(gs, slot, 0), b = ways_of(gs, slot, 1);

	return (int32_t)(a - b) < 0 ? a : b;
}

/* A socket of SLOT has not answered, since a route or a rule refuses its packets: so for others. */
static bool is_refused(const struct grafts *gs, uint32_t slot)
{
	uint32_t ways = gs->skel->bss->graft_ways;
	bool refused = false;

	for (int side = 0; side < 2; side++) {
		struct graft_side *s = &gs->all[slot].side[side];

		if (ways_of(gs, slot, side) == ways ||
		    !route_is_refused(&s->tuple.remote, s->way.mark))
			continue;
		__atomic_store_n(&s->refused, 1, __ATOMIC_RELEASE);
		refused = true;
	}
	return refused;
}

#define PROBE_MS 1200  /* TCP has probed by then */
#define JUDGED_MOST 16 /* then its way is taken for lost: that many calls */

static enum graft_doubt doubt_of(struct grafts *gs, uint32_t slot)
{
	uint32_t ways = __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE);
	uint32_t asked = gs->slots[slot].asked;
	bool known = oldest(gs, slot) == ways;
	bool probing = gs->slots[slot].probing;

	if (known && !probing)
		return GRAFT_DOUBT_NONE;
	if (asked != ways) {
		gs->slots[slot].asked = ways;
		gs->slots[slot].asked_ms = (uint32_t)clock_ms();
		gs->slots[slot].probing = true;
		gs->slots[slot].judged = 0;
		if (must_leave(gs, slot))
			return GRAFT_DOUBT_LEAVE;
		return probing && run(gs, GRAFT_WAYS, slot) ? GRAFT_DOUBT_LOST : GRAFT_DOUBT_ASK;
	}
	if (probing && (uint32_t)clock_ms() - gs->slots[slot].asked_ms < PROBE_MS)
		return GRAFT_DOUBT_NONE;
	gs->slots[slot].probing = false;
	if (must_leave(gs, slot))
		return probing ? GRAFT_DOUBT_LEAVE : GRAFT_DOUBT_NONE;
	if (known)
		return probing ? GRAFT_DOUBT_ASKED : GRAFT_DOUBT_NONE;
	if (run(gs, GRAFT_WAYS, slot))
		return GRAFT_DOUBT_LOST;
	if (is_refused(gs, slot))
		return GRAFT_DOUBT_REFUSED;
	/* unless policies have changed, and a socket has not answered since */
	if ((int32_t)(oldest(gs, slot) - least_ways(gs)) >= 0)
		return probing ? GRAFT_DOUBT_ASKED : GRAFT_DOUBT_NONE;
	gs->slots[slot].probing = true;
	return ++gs->slots[slot].judged > JUDGED_MOST ? GRAFT_DOUBT_LOST : GRAFT_DOUBT_ASK;
}

enum graft_doubt graft_doubt(struct grafts *gs, uint32_t slot)
{
	enum graft_doubt d = doubt_of(gs, slot);

	if (d != GRAFT_DOUBT_NONE || gs->slots[slot].probing)
		atomic_store_explicit(&gs->doubtful, true, memory_order_relaxed);
	return d;
}

bool grafts_are_doubtful(struct grafts *gs)
{
	return atomic_exchange_explicit(&gs->doubtful, false, memory_order_relaxed);
}

bool graft_forget_doubt(struct grafts *gs, uint32_t slot)
{
	bool was = gs->slots[slot].probing;

	gs->slots[slot].probing = false;
	return was;
}

unsigned int graft_asked(const struct grafts *gs, uint32_t slot)
{
	return __atomic_load_n(&gs->skel->bss->graft_ways, __ATOMIC_ACQUIRE) - oldest(gs, slot);
}

/* --- sockets of sessions that were left --- */

void grafts_revive(struct grafts *gs, uid_t uid)
{
	unsigned int without = 0;
	int why = 0;

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++) {
		const struct graft_side *side = gs->all[slot].side;
		int *fds = gs->slots[slot].sockets;

		if (!gs->all[slot].id) /* of a trial, whose process is gone */
			continue;
		fds[0] = tcp_revive(&side[0], uid);
		fds[1] = fds[0] < 0 ? fds[0] : tcp_revive(&side[1], uid);
		if (fds[1] >= 0)
			continue;
		why = fds[1];
		without++;
		if (fds[0] >= 0)
			close(fds[0]);
		fds[0] = fds[1] = -1;
	}
	if (without)
		log_warning("graft: %u sessions that were left have no sockets: nothing probes "
			    "their ends, or tells them of a reset: %s",
			    without, strerror(-why));
}

void graft_take_sockets(struct grafts *gs, uint32_t slot, int ret[2])
{
	int *fds = gs->slots[slot].sockets;

	memcpy(ret, fds, 2 * sizeof(*fds));
	fds[0] = fds[1] = -1;
	gs->slots[slot].given = false;
	gs->slots[slot].asked = 0; /* those were others */
	gs->slots[slot].probing = false;
	__atomic_store_n(&gs->slots[slot].bare, ret[0] < 0, __ATOMIC_RELEASE);
}

uint64_t graft_bytes(const struct grafts *gs, uint32_t slot, unsigned int dir)
{
	const volatile struct graft_side *from = &gs->all[slot].side[dir];
	uint32_t state;
	uint64_t n;

	/* both numbers change when a graft begins */
	do {
		state = raw_state(gs, slot);
		n = from->end - from->begun - (from->fin != 0);
	} while ((state & GRAFT_STATE_MASK) == GRAFT_LOCKED || raw_state(gs, slot) != state);
	return n;
}

const uint64_t *grafts_used(const struct grafts *gs)
{
	return gs->used;
}

unsigned int grafts_total(const struct grafts *gs)
{
	return gs->n_slots;
}

struct udp_grafts *grafts_udp(const struct grafts *gs)
{
	return gs ? gs->udp : NULL;
}

/* --- events --- */

const struct bpf_rings *graft_rings(const struct grafts *gs)
{
	return &gs->rings;
}
