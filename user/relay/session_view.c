// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_view.h"

#include <stdio.h>

#include "relay/session_graft.h"

/* Why a grafted flow is: what F remembers is of the time before, but for these. */
static enum reason graft_reason(const struct flow *f)
{
	if (f->reason == REASON_ADOPTED || f->reason == REASON_ENGINE)
		return (enum reason)f->reason;
	return REASON_ELIGIBLE;
}

/* What the kernel has carried of flow DIR, in bytes, and how much of that the counters have. */
static uint64_t kernel_bytes(const struct session *s, unsigned int dir,
			     volatile __u64 **ret_counted)
{
	struct shared *shared = s->worker->shared;
	uint32_t slot = s->pair * 2 + dir;

	if (s->graft != NO_GRAFT) {
		*ret_counted = &graft_of(shared->grafts, s->graft)->counted[dir];
		return graft_bytes(shared->grafts, s->graft, dir);
	}
	if (s->pair == NO_PAIR)
		return 0;
	*ret_counted = &sockmap_ctl(shared->kernel, slot)->counted;
	return sockmap_stat(shared->kernel, slot)->bytes;
}

void session_count_kernel(struct session *s)
{
	bool grafted = !s->graft_counted && session_is_grafted(s);
	/* if anything carries it in the kernel: a session never has both */
	enum carrier carrier = s->graft != NO_GRAFT ? CARRIER_GRAFT : CARRIER_SOCKMAP;
	counter *handovers = s->worker->stats.handovers[CARRIER_GRAFT];

	for (unsigned int dir = 0; dir < 2; dir++) {
		volatile __u64 *counted = NULL;
		uint64_t bytes = kernel_bytes(s, dir, &counted);

		if (bytes && bytes > *counted) { /* what packets write is read without a lock */
			session_count_carried(s, dir, carrier, bytes - *counted);
			*counted = bytes;
		}
		if (grafted)
			count_add(&handovers[graft_reason(&s->flows[dir])], 1);
	}
	s->graft_counted = s->graft_counted || grafted;
}

/* A session that is RETURNING may be at its sockets at any moment. */
static enum flow_phase graft_phase(const struct session *s)
{
	return graft_state(s->worker->shared->grafts, s->graft) == GRAFT_RETURNING ? FLOW_LEAVING :
										     FLOW_KERNEL;
}

/* GRAFTED: as of one look at the state, so that carrier, reason and phase agree. */
static struct flow_view view_flow(const struct session *s, unsigned int dir, bool grafted)
{
	const struct flow *f = &s->flows[dir];
	const struct sockmap *k = s->worker->shared->kernel;
	uint32_t slot = s->pair * 2 + dir;
	/*
	 * Bytes that wait in the pipe of splice are not delivered yet.  All other bytes that user
	 * space has written were copied, be it after the program had passed them on.
	 */
	uint64_t spliced = f->spliced - (f->pipe ? f->pending : 0);
	volatile __u64 *counted;

	return (struct flow_view){
		.carrier = grafted ? CARRIER_GRAFT : flow_carrier(f),
		.reason = grafted ? graft_reason(f) : (enum reason)f->reason,
		.phase = grafted ? graft_phase(s) : (enum flow_phase)f->phase,
		.eof = f->phase == FLOW_DONE,
		.handovers = f->handovers + grafted,
		.copied = f->user_out - spliced,
		.spliced = spliced,
		.kernel = kernel_bytes(s, dir, &counted),
		.backlog_max = s->pair == NO_PAIR ? 0 : sockmap_stat(k, slot)->backlog_max,
	};
}

void session_view(const struct session *s, struct session_view *ret)
{
	uint64_t now = s->worker->loop.now_ms;
	bool grafted = session_is_grafted(s);
	const struct shared *shared = s->worker->shared;

	*ret = (struct session_view){
		.id = s->id,
		.forward = s->forward,
		.server = s->server,
		.worker = s->worker->index,
		.state = (enum session_state)s->state,
		.age_ms = now > s->born_ms ? now - s->born_ms : 0,
		.connect_ms = s->connect_ms,
		.client = s->client,
		.not_grafted = session_graft_hindrance(s),
		.shaped = s->shaped,
		.standby = standby_text(
			shared, grafted,
			grafted && __atomic_load_n(&graft_of(shared->grafts, s->graft)->mirrored,
						   __ATOMIC_RELAXED) == GRAFT_TOLD),
		.flows = { view_flow(s, CLIENT, grafted), view_flow(s, UPSTREAM, grafted) },
	};
	if (s->told && s->told->header.has_addresses)
		ret->via = s->told->peer;
	if (s->told)
		snprintf(ret->server_name, sizeof(ret->server_name), "%s", s->told->server_name);
	if (s->addrs)
		ret->upstream = session_address(s, s->upstream);
}
