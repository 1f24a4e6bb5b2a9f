// SPDX-License-Identifier: BSD-2-Clause
/*
 * Programs and maps: load, attach, close.  By the main thread, before workers start and after they
 * end; interfaces are followed by the thread that reloads.  Maps outlive the daemon
 * (graft_pins.c): a session that is translated when the next daemon starts keeps its slot, and is
 * adopted.
 */
#include "datapath/graft/graft_slots.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/bits.h"
#include "base/log.h"
#include "base/minmax.h"
#include "config/config.h"
#include "datapath/graft/udp_graft.h"

_Static_assert(WORKERS_MAX <= GRAFT_WORKERS, "each worker has a time in graft_woken_ns");

/* Maps of an earlier daemon keep their size. */
static unsigned int open_slots(const struct graft_table *gs, unsigned int wanted)
{
	struct bpf_map_info info = { .max_entries = wanted };
	uint32_t len = sizeof(info);
	int fd = graft_pins_get(&gs->pins, "grafts");

	if (fd >= 0) {
		bpf_obj_get_info_by_fd(fd, &info, &len);
		close(fd);
	}
	if (info.max_entries < wanted)
		log_warning("graft: the maps keep their %u slots until culvert is stopped while no "
			    "session is grafted; max-sessions wants %u",
			    info.max_entries, wanted);
	return info.max_entries;
}

/* Map the maps that the daemon reads and writes. */
static int open_map(struct graft_table *gs)
{
	struct graft_index *ix = &gs->index;

	ix->grafts = bpf_values_map(gs->skel->maps.grafts);
	ix->flows = bpf_values_map(gs->skel->maps.udp_flows);
	ix->buckets = bpf_values_map(gs->skel->maps.tuples);
	if (!ix->grafts || !ix->flows || !ix->buckets)
		return -errno;
	for (uint32_t *seed = ix->buckets[ix->n_buckets].place; !*seed;)
		*seed = arc4random();
	gs->all = ix->grafts;
	if (gs->n_syn) {
		gs->stocks = bpf_values_map(gs->skel->maps.stocks);
		if (!gs->stocks)
			return -errno;
		gs->skel->bss->graft_half_most = gs->n_syn / 4;
	}
	return 0;
}

static int open_load(struct graft_table *gs, const struct graft_limits *limits)
{
	int r = graft_pins_choose(&gs->pins, gs->skel->obj);

	gs->n_slots = open_slots(gs, limits->slots + limits->syn_slots);
	/* maps of an earlier daemon may be small */
	gs->n_syn = (unsigned int)smaller(limits->syn_slots, gs->n_slots / 2);
	gs->syn_port = limits->syn_port;
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.grafts, gs->n_slots);
	if (gs->n_slots * 2 > bpf_map__max_entries(gs->skel->maps.handshakes))
		r = r ?: bpf_map__set_max_entries(gs->skel->maps.handshakes, gs->n_slots * 2);
	if (gs->n_syn) {
		r = r ?: bpf_map__set_max_entries(gs->skel->maps.stocks, GRAFT_STOCKS);
		r = r ?: bpf_map__set_max_entries(gs->skel->maps.proofs, gs->n_slots);
	}
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.graft_rings, WORKERS_MAX);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.addresses, gs->n_slots);
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.udp_flows, gs->n_slots);
	/* a bucket has 8 places, of which at most 2 are in use on the average */
	gs->index.n_buckets = 1U << (32 - __builtin_clz(2 * gs->n_slots - 1));
	r = r ?: bpf_map__set_max_entries(gs->skel->maps.tuples, gs->index.n_buckets + 1);
	gs->skel->rodata->graft_n_buckets = gs->index.n_buckets;
	r = r ?: graft_bpf__load(gs->skel);
	r = r ?: graft_pins_own(&gs->pins);
	r = r ?: open_map(gs);
	if (r)
		return r;
	gs->used = allocated(calloc(BITS_WORDS(2 * gs->n_slots), sizeof(*gs->used)));
	gs->slots = allocated(calloc(gs->n_slots, sizeof(*gs->slots)));
	for (uint32_t i = 0; i < gs->n_slots; i++)
		gs->slots[i].sockets[0] = gs->slots[i].sockets[1] = -1;
	gs->udp = udp_table_open(&gs->index, gs->n_slots, &gs->skel->bss->graft_ways, gs->used);
	return 0;
}

#define NAMED (1U << 31) /* the handle is made from a name, and is no pid */

static int open_attach(struct graft_table *gs, bool on_loopback)
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
	 * The last part of the folder makes the handle: a service and `graft --remove` may have
	 * different parent folders.  Without pins no later daemon looks for the filters.
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

void graft_table_keep(struct graft_table *gs, uint32_t slot)
{
	gs->slots[slot].kept = true;
}

int graft_table_begin(struct graft_table *gs, char *err, size_t errlen)
{
	const char *what = "cannot make ring buffers";
	int r = graft_pins_lock(&gs->pins) ?:
			bpf_rings_open(&gs->rings, gs->workers, gs->skel->maps.graft_rings,
				       &gs->skel->bss->graft_events_lost);

	if (!r) {
		gs->skel->bss->graft_syn_workers = gs->workers;
		gs->skel->bss->graft_hooks = 1; /* not counted yet */
		graft_slots_fill(gs);
		graft_ways_begin(gs);
		what = "cannot attach the packet programs to any interface";
		r = open_attach(gs, gs->on_loopback);
	}
	if (r)
		snprintf(err, errlen, "%s: %s" BPF_NEEDS, what, bpf_error(r));
	return r;
}

int graft_table_open(const struct graft_limits *limits, struct graft_table **ret, char *err,
		     size_t errlen)
{
	struct graft_table *gs = allocated(calloc(1, sizeof(*gs)));
	int pins, r;

	pthread_mutex_init(&gs->lock, NULL);
	pthread_mutex_init(&gs->index.lock, NULL);
	gs->workers = limits->workers;
	gs->on_loopback = limits->on_loopback;
	if (log_get_level() < LOG_DEBUG)
		libbpf_set_print(NULL); /* else it writes to stderr */
	pins = graft_pins_open(&gs->pins, limits->pins, limits->uid, limits->takes_over);
	gs->skel = graft_bpf__open();
	r = gs->skel ? open_load(gs, limits) : -errno;
	if (r)
		snprintf(err, errlen, "cannot load the packet programs: %s" BPF_NEEDS,
			 bpf_error(r));
	else if (!limits->takes_over)
		r = graft_table_begin(gs, err, errlen);
	if (r) {
		graft_table_close(gs, true);
		return r;
	}
	if (pins) /* told last: without grafts nobody would miss pins */
		log_warning("graft: no session survives the daemon, and a killed daemon leaves the "
			    "ends without a reset: %s: %s",
			    limits->pins,
			    pins == -EMEDIUMTYPE ? "not on a BPF file system" :
			    pins == -EWOULDBLOCK ? "another daemon uses it" :
						   strerror(-pins));
	*ret = gs;
	return 0;
}

uint64_t graft_table_pins(const struct graft_table *gs)
{
	return gs->pins.folder ? gs->pins.number : 0;
}

void graft_table_remove_others(const struct graft_table *gs)
{
	if (gs->pins.folder)
		graft_pins_remove_others(&gs->pins);
}

void graft_table_give_up(const struct graft_table *gs)
{
	graft_pins_unlock(&gs->pins);
}

int graft_table_follow_interfaces(struct graft_table *gs)
{
	return graft_attach_follow(&gs->attached);
}

struct clsact *graft_table_clsact(struct graft_table *gs)
{
	return gs->attached.is_clsact ? &gs->attached.clsact : NULL;
}

bool graft_table_survive(const struct graft_table *gs)
{
	return gs->pins.folder;
}

unsigned int graft_table_live(const struct graft_table *gs)
{
	unsigned int n = udp_table_live(gs->udp);

	for (uint32_t slot = 0; graft_next(gs, &slot); slot++)
		n += graft_state(gs, slot) != GRAFT_DONE;
	return n;
}

void graft_table_close(struct graft_table *gs, bool keep)
{
	if (!gs)
		return;
	/* maps that were not opened, or are another daemon's, are not ours to remove */
	keep = !gs->all || graft_pins_lock(&gs->pins) ||
	       (keep && gs->pins.folder && graft_table_live(gs));
	graft_attach_close(&gs->attached, keep);
	graft_pins_close(&gs->pins, !keep);
	udp_table_close(gs->udp);
	bpf_rings_close(&gs->rings);
	if (gs->skel) {
		bpf_values_unmap(gs->index.grafts, gs->skel->maps.grafts);
		bpf_values_unmap(gs->index.flows, gs->skel->maps.udp_flows);
		bpf_values_unmap(gs->index.buckets, gs->skel->maps.tuples);
		bpf_values_unmap(gs->stocks, gs->skel->maps.stocks);
	}
	graft_bpf__destroy(gs->skel);
	pthread_mutex_destroy(&gs->lock);
	pthread_mutex_destroy(&gs->index.lock);
	slot_queue_close(&gs->queue);
	slot_queue_close(&gs->syn_queue);
	free(gs->slots);
	free(gs->used);
	free(gs);
}
