// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session.h"

#include <assert.h>
#include <netinet/tcp.h>

#include "base/socket_set.h"
#include "datapath/tcp.h"

#define TO(state) (1U << (state))

static const uint8_t allowed[SESSION_STATES] = {
	[SESSION_HEADER] = TO(SESSION_CONNECTING) | TO(SESSION_DEAD),
	[SESSION_CONNECTING] = TO(SESSION_OPEN) | TO(SESSION_DEAD),
	[SESSION_OPEN] = TO(SESSION_PARTING) | TO(SESSION_DEAD),
	[SESSION_PARTING] = TO(SESSION_DEAD),
};

void session_set_state(struct session *s, enum session_state to)
{
	assert(allowed[s->state] & TO(to));
	s->state = (uint8_t)to;
}

struct addr session_address(const struct session *s, uint16_t index)
{
	return addr_plus_offset(&s->addrs->addrs[index], s->port_offset);
}

void session_set_nodelay(struct session *s)
{
	if (s->nodelay_due)
		socket_set(s->sides[UPSTREAM].fd, IPPROTO_TCP, TCP_NODELAY, 1);
	s->nodelay_due = false;
}

/* --- marks for its end --- */

bool session_reset(struct session *s, enum cause cause)
{
	if (s->ending != ENDING_RESETS)
		s->end_cause = (uint8_t)cause;
	s->ending = ENDING_RESETS;
	return false;
}

void session_finish(struct session *s)
{
	if (s->ending < ENDING_FINISHES)
		s->ending = ENDING_FINISHES;
}

bool session_lose_side(struct session *s, unsigned int side, int error)
{
	enum cause cause = tcp_cause(side, error);

	if (s->state == SESSION_PARTING && s->parted == side)
		return false; /* a write has found it out, and epoll says so as well */
	if (s->state != SESSION_OPEN)
		return session_reset(s, cause);
	if (!s->ending) {
		s->ending = ENDING_PARTS;
		s->parted = side;
		s->end_cause = (uint8_t)cause;
	}
	return false;
}

/* --- counting --- */

void session_count_carried(struct session *s, unsigned int dir, enum carrier c, uint64_t bytes)
{
	count_add(&s->worker->stats.carrier_bytes[c], bytes);
	count_add(&forward_stats(s->forward, s->worker->index)->carried[dir][c], bytes);
}

void session_hand_over(struct session *s, unsigned int dir, struct decision d)
{
	struct flow *f = &s->flows[dir];

	f->reason = d.reason;
	if (d.carrier != CARRIER_SOCKMAP)
		f->user_carrier = d.carrier;
	f->handovers++;
	count_add(&s->worker->stats.handovers[d.carrier][d.reason], 1);
}
