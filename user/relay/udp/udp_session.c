// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp/udp_session.h"

#include <assert.h>
#include <string.h>

#define TO(state) (1U << (state))

static const uint8_t allowed[UDP_STATES] = {
	[UDP_ASKED] = TO(UDP_ANSWERED) | TO(UDP_DEAD),
	[UDP_ANSWERED] = TO(UDP_PROVEN) | TO(UDP_DEAD),
	[UDP_PROVEN] = TO(UDP_DEAD),
};

void udp_session_set_state(struct udp_session *s, enum udp_state to)
{
	assert(allowed[s->state] & TO(to));
	s->state = (uint8_t)to;
}

void udp_session_end(struct udp_session *s, unsigned int end)
{
	if (!s->ends)
		s->end = (uint8_t)end;
	s->ends = true;
}

struct udp_session_list *udp_session_bucket(struct worker *w, const struct graft_tuple *tuple)
{
	return &w->udp->buckets[udp_hash(tuple, w->udp->seed) & w->udp->mask];
}

struct udp_session *udp_session_find(struct worker *w, const struct graft_tuple *tuple,
				     const union client_addr *client)
{
	struct udp_session *s;

	LIST_FOREACH(s, udp_session_bucket(w, tuple), in_bucket)
		if (!memcmp(&s->tuple, tuple, sizeof(*tuple)) &&
		    client_addr_equal(&s->client, client))
			break;
	return s;
}

/* --- counters --- */

struct udp_count udp_grafted(const struct udp_session *s, unsigned int dir)
{
	const volatile struct udp_leg *at = &udp_slot_of(s)->at[dir];

	if (s->slot == NO_UDP_SLOT)
		return s->counted[dir];
	return (struct udp_count){ .bytes = at->bytes, .datagrams = at->packets };
}

uint64_t udp_all_datagrams(const struct udp_session *s, unsigned int dir)
{
	return s->copied[dir].datagrams + udp_grafted(s, dir).datagrams;
}

/* Carrier C has carried MORE from side DIR; TOTAL has the sum. */
static void udp_count_carried(struct udp_session *s, unsigned int dir, enum carrier c,
			      struct udp_count *total, struct udp_count more)
{
	struct forward_stats *fs = forward_stats(s->forward, s->worker->index);

	total->bytes += more.bytes;
	total->datagrams += more.datagrams;
	count_add(&s->worker->stats.carrier_bytes[c], more.bytes);
	count_add(&fs->carried[dir][c], more.bytes);
	count_add(&fs->datagrams[dir], more.datagrams);
}

void udp_session_count(struct udp_session *s, unsigned int dir, const struct udp_message *m)
{
	struct udp_count more = { .bytes = m->len, .datagrams = udp_datagrams(m) };

	udp_count_carried(s, dir, CARRIER_COPY, &s->copied[dir], more);
}

void udp_session_count_kernel(struct udp_session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		struct udp_count more = udp_grafted(s, dir);

		more.bytes -= s->counted[dir].bytes;
		more.datagrams -= s->counted[dir].datagrams;
		udp_count_carried(s, dir, CARRIER_GRAFT, &s->counted[dir], more);
	}
}
