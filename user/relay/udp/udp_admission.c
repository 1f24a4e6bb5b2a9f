// SPDX-License-Identifier: BSD-2-Clause
/* All of this runs on the thread of the worker whose socket got the datagram. */
#include "relay/udp/udp_admission.h"

#include <string.h>

#include "base/minmax.h"
#include "relay/admission.h"
#include "relay/udp/udp_life.h"
#include "relay/udp/udp_proof.h"

#define CROWD_MOST 64 /* sessions that are tried, in search of one that may be ended */

/*
 * End the oldest unproven session of F (NULL: of any forward) and of the host REMOTE (NULL: any),
 * to make room.  False: there is none.
 */
static bool udp_crowd_out(struct worker *w, const struct forward *f,
			  const struct graft_addr *remote)
{
	struct udp_session *s = w->udp->unproven, *next;

	for (unsigned int i = 0; s && i < CROWD_MOST; i++, s = next) {
		next = TAILQ_NEXT(s, in_worker);
		if ((f && s->forward->totals != f->totals) ||
		    (remote && memcmp(&s->tuple.remote, remote, sizeof(*remote)) != 0) ||
		    udp_proof_is_given(s))
			continue;
		udp_session_end(s, CAUSE_CROWDED_OUT);
		udp_settle(s);
		return true;
	}
	return false;
}

enum cause udp_admit(struct udp_listen_socket *us, const struct graft_tuple *tuple,
		     const union client_addr *client)
{
	struct worker *w = us->worker;
	const struct config *c = w->shared->config;
	unsigned int tries = 2;
	enum cause why;

	do { /* unproven sessions get a quarter of max-sessions, and each worker its part of that */
		why = CAUSE_SESSION_LIMIT;
		if (w->udp->n_unproven < larger(c->max_sessions / 4 / c->workers, 1))
			why = admission_enter_with(w->shared, us->forward, client, false);
	} while (--tries && why != CAUSE_NONE && why != CAUSE_NO_MEMORY &&
		 udp_crowd_out(w, why == CAUSE_SESSION_LIMIT ? NULL : us->forward,
			       why == CAUSE_CLIENT_LIMIT ? &tuple->remote : NULL));
	return why;
}
