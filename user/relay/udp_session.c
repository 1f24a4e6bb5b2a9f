// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp_session.h"

void udp_sessions_visit(struct worker *w, udp_visit_fn *fn, void *arg)
{
	(void)w, (void)fn, (void)arg;
}

unsigned int udp_sessions_end_some(struct worker *w, session_choice_fn *choose, const void *arg,
				   enum cause cause)
{
	(void)w, (void)choose, (void)arg, (void)cause;
	return 0;
}

void udp_sessions_follow_engines(struct worker *w)
{
	(void)w;
}
