/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef CULVERT_SESSION_COUNT_H
#define CULVERT_SESSION_COUNT_H

#include "relay/session.h"

/* What flows count as they go, for their worker as a whole and for themselves. */

/* BYTES of flow F were read by carrier C. */
static inline void session_count_read(struct session *s, struct flow *f, enum carrier c,
				      uint64_t bytes)
{
	if (!bytes)
		return;
	if (c == CARRIER_SPLICE)
		f->spliced += bytes;
	count_add(&s->worker->stats.carrier_bytes[c], bytes);
}

/* Flow F has got another carrier, or is about to: C. */
static inline void session_count_handover(struct session *s, struct flow *f, enum carrier c)
{
	static const enum handover to[CARRIERS] = {
		[CARRIER_COPY] = HANDOVER_TO_COPY,
		[CARRIER_SPLICE] = HANDOVER_TO_SPLICE,
		[CARRIER_SOCKMAP] = HANDOVER_TO_SOCKMAP,
	};

	f->handovers++;
	count_add(&s->worker->stats.handovers[to[c]], 1);
}

#endif
