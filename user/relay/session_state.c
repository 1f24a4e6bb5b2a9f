// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session.h"

#include <assert.h>

#define TO(state) (1U << (state))

static const uint8_t allowed[SESSION_STATES] = {
	[SESSION_HEADER] = TO(SESSION_CONNECTING) | TO(SESSION_DEAD),
	[SESSION_CONNECTING] = TO(SESSION_OPEN) | TO(SESSION_DEAD),
	[SESSION_OPEN] = TO(SESSION_PARTING) | TO(SESSION_DEAD),
	[SESSION_PARTING] = TO(SESSION_DEAD),
};

bool session_may(enum session_state from, enum session_state to)
{
	return from < SESSION_STATES && to < SESSION_STATES && (allowed[from] & TO(to));
}

void session_set_state(struct session *s, enum session_state to)
{
	assert(session_may(s->state, to));
	s->state = (uint8_t)to;
}
