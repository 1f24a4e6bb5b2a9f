// SPDX-License-Identifier: BSD-2-Clause
/* Requests to the offer program, which runs on the thread of the caller: any; and words for its answers. */
#include "datapath/graft/graft_slots.h"

#include <bpf/bpf.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <string.h>

#include "base/syscalls_allowed.h"

SYSCALLS_ALLOWED(
	BPF_IF(PART_GRAFT, BPF_PROG_TEST_RUN),
	BPF_IF(PART_GRAFT, BPF_MAP_LOOKUP_ELEM), BPF_IF(PART_GRAFT, BPF_MAP_UPDATE_ELEM));

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
	q->slot = graft_slot_take(gs);
	if (q->slot == NO_SLOT)
		return GRAFT_NO_SLOT;
	r = request_run(gs, q);
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
