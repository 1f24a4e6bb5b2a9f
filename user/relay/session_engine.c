// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_engine.h"

#include "datapath/tcp.h"
#include "relay/session.h"

void session_engine_begin(struct session *s, unsigned int dir, const struct policy *p)
{
	struct decision d = policy_start(p);
	struct flow *f = &s->flows[dir];

	s->engines[dir] = (uint8_t)p->engine;
	f->user_carrier = d.carrier;
	f->reason = d.reason;
	if (p->engine == ENGINE_AUTO || p->engine == ENGINE_SOCKMAP) {
		if (!s->tcp)
			f->reason = REASON_NOT_TCP;
		else if (!s->worker->shared->kernel)
			f->reason = REASON_NO_KERNEL;
	}
}

static void count_change(struct session *s, struct flow *f)
{
	enum handover h = f->user_carrier == CARRIER_SPLICE ? HANDOVER_TO_SPLICE : HANDOVER_TO_COPY;

	f->handovers++;
	count_add(&s->worker->stats.handovers[h], 1);
}

void session_engine_follow(struct session *s, unsigned int dir, const struct policy *p)
{
	struct flow *f = &s->flows[dir];
	uint8_t before = f->user_carrier;

	if (s->engines[dir] == p->engine)
		return;
	session_engine_begin(s, dir, p);
	f->no_enter = false;
	if (s->pair != NO_PAIR && p->engine != ENGINE_SOCKMAP) /* see sockmap_io.returns */
		tcp_free_buffer(s->sides[dir].fd);
	if (f->user_carrier != before)
		count_change(s, f);
	habit_restart(&s->habit);
	s->watched_ms = (uint32_t)s->worker->loop.now_ms;
}
