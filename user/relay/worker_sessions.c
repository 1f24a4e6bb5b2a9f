// SPDX-License-Identifier: BSD-2-Clause
#include "relay/worker_sessions.h"

#include <stdlib.h>

#include "base/array.h"
#include "relay/session_graft.h"
#include "relay/session_life.h"
#include "relay/udp/udp_life.h"

void worker_open_sessions(struct worker *w)
{
	struct sockmap *k = w->shared->kernel;
	struct graft_table *gs = w->shared->grafts;

	if (k)
		w->owners = allocated(calloc(sockmap_pairs_total(k), sizeof(struct session *)));
	if (gs)
		w->grafted = allocated(calloc(graft_table_total(gs), sizeof(struct session *)));
	udp_worker_open(w);
}

void worker_close_sessions(struct worker *w)
{
	udp_worker_close(w);
	free(w->owners);
	free(w->grafted);
}

static void count_view(void *arg, const struct session_view *v)
{
	uint64_t *flows = arg;

	flows[v->flows[CLIENT].carrier]++;
	flows[v->flows[UPSTREAM].carrier]++;
}

void worker_count_sessions(struct worker *w, uint64_t flows[CARRIERS])
{
	session_catch_up(w);
	for (struct session *s = w->sessions; s; s = s->next) { /* views take long */
		session_count_kernel(s);
		flows[session_carrier(s, CLIENT)]++;
		flows[session_carrier(s, UPSTREAM)]++;
	}
	udp_sessions_visit(w, 0, 1, count_view, flows);
}

void worker_visit_sessions(struct worker *w, uint64_t piece, uint64_t pieces, session_visit_fn *fn,
			   void *arg)
{
	struct session_view view;

	session_catch_up(w);
	for (struct session *s = w->sessions; s; s = s->next) {
		if (s->id % pieces != piece)
			continue;
		session_count_kernel(s);
		session_view(s, &view);
		fn(arg, &view);
	}
	udp_sessions_visit(w, piece, pieces, fn, arg);
}

unsigned int worker_end_sessions(struct worker *w, session_choice_fn *choose, const void *arg,
				 enum cause cause)
{
	return session_end_some(w, choose, arg, cause) +
	       udp_sessions_end_some(w, choose, arg, cause);
}

unsigned int worker_follow_engines(struct worker *w)
{
	unsigned int n = session_follow_engines(w);

	udp_sessions_follow_engines(w);
	return n;
}

void worker_leave_behind(struct worker *w)
{
	if (w->shared->grafts && graft_table_survive(w->shared->grafts))
		session_leave_behind(w);
	udp_sessions_leave_behind(w);
}

void worker_follow_news(struct worker *w)
{
	udp_sessions_follow_news(w, session_graft_news(w));
}
