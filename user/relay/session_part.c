// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: neither socket is watched, the dead one would raise EPOLLHUP all the time;
 * the clock is enough for what is at most a receive buffer.  Each look takes what the other end has
 * room for.  When it has all, and its TCP has sent it (SIOCOUTQNSD), RST follows: close(2) would
 * throw away what is not yet sent.
 */
#include "relay/session_part.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "base/syscalls_needed.h"
#include "relay/session_flow.h"
#include "relay/session_stay.h"

SYSCALLS_NEEDED(SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQNSD)));

/*
 * Then the other end is reset, whatever it has got: it may be slow, or its bandwidth limited, and
 * nobody waits for what a dead end has said.
 */
#define PARTING_MS 5000

/* Unix sockets know it not: what is written there is the other end's already. */
static bool is_sent(int fd)
{
	int unsent = 0;

	return ioctl(fd, SIOCOUTQNSD, &unsent) || !unsent;
}

/* True: the other end's TCP has all that it can get. */
static bool take(struct session *s)
{
	enum step r = STEP_DONE;

	if (s->flows[s->parted].phase != FLOW_USER)
		r = session_stay_rest(s, s->parted);
	if (r == STEP_DONE)
		return session_flow_rest(s, s->parted);
	return r != STEP_WAIT;
}

static void look(struct session *s)
{
	struct flow *f = &s->flows[s->parted];
	uint64_t before = f->user_in + f->user_out;
	bool taken = take(s);

	if (f->user_in + f->user_out != before)
		flow_look_reset(f);
	if ((taken && is_sent(s->sides[!s->parted].fd)) ||
	    (uint32_t)s->worker->loop.now_ms - s->parted_ms >= PARTING_MS) {
		session_reset(s, (enum cause)s->end_cause);
		return;
	}
	flow_look_later(f, s->worker->loop.now_ms);
}

void session_part(struct session *s, unsigned int side, enum cause cause)
{
	struct flow *f = &s->flows[side];

	if (s->state == SESSION_PARTING && s->parted == side)
		return; /* a write has found it out, and epoll says so as well */
	if (s->state != SESSION_OPEN || f->phase == FLOW_DONE) {
		session_reset(s, cause);
		return;
	}
	session_set_state(s, SESSION_PARTING);
	s->end_cause = (uint8_t)cause;
	s->parted = (uint8_t)side;
	s->parted_ms = (uint32_t)s->worker->loop.now_ms;
	flow_look_reset(f);
	look(s);
}

uint64_t session_part_due(struct session *s)
{
	return s->flows[s->parted].due_ms;
}

void session_part_timer(struct session *s)
{
	if (s->flows[s->parted].due_ms <= s->worker->loop.now_ms)
		look(s);
}
