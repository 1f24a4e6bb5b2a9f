// SPDX-License-Identifier: BSD-2-Clause
/*
 * PARTING: one end has sent RST, or TCP has given it up.  Its last bytes are in its receive queue,
 * in the kernel's backlog or in buffers here.  Without culvert in between, these bytes would have
 * reached the other end ahead of the RST: a server may answer "too large", and close with the
 * request unread.  So the other end gets the bytes, and then RST.  Neither socket is watched
 * meanwhile, since the dead one would raise EPOLLHUP all the time.  A timer is enough: the bytes
 * fill one receive buffer at most.  RST follows when TCP has sent all bytes to the other end
 * (SIOCOUTQNSD), because close(2) would throw away unsent bytes.
 */
#include "relay/session_last_bytes.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "base/syscalls_allowed.h"
#include "relay/session_flow.h"
#include "relay/session_graft.h"
#include "relay/session_sockmap.h"

/* The longest PARTING: else a slow end would keep a session whose other end is dead. */
#define PARTING_MS 5000

SYSCALLS_ALLOWED(SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQNSD)));

/* Unix sockets do not know SIOCOUTQNSD: a write puts bytes into the other end's queue at once. */
static bool parting_is_sent(int fd)
{
	int unsent = 0;

	return ioctl(fd, SIOCOUTQNSD, &unsent) || !unsent;
}

/*
 * Take the last bytes of the dead side, from the kernel first, and then from its socket.  True: the
 * other end's TCP has all bytes that it can get.
 */
static bool parting_take_rest(struct session *s)
{
	unsigned int dir = s->parted;
	enum step step = s->flows[dir].phase == FLOW_USER ? STEP_DONE :
							    session_sockmap_rest(s, dir);
	enum pump r;
	int error;

	if (step != STEP_DONE)
		return step != STEP_WAIT;
	return session_flow_pump(s, dir, true, &r, &error) && r != PUMP_MORE && r != PUMP_BLOCKED &&
	       r != PUMP_STARVED;
}

void session_part_go_on(struct session *s)
{
	struct flow *f = &s->flows[s->parted];
	uint64_t before = f->user_in + f->user_out;
	bool taken = parting_take_rest(s);

	if (f->user_in + f->user_out != before)
		flow_look_reset(f);
	if ((taken && parting_is_sent(s->sides[!s->parted].fd)) ||
	    (uint32_t)s->worker->loop.now_ms - s->since_ms >= PARTING_MS) {
		session_reset(s, (enum cause)s->end_cause);
		return;
	}
	flow_look_later(f, s->worker->loop.now_ms);
}

void session_part_begin(struct session *s)
{
	struct flow *f = &s->flows[s->parted];

	s->ending = ENDING_NOT;
	if (!session_graft_withdraw(s) || f->phase == FLOW_DONE) {
		session_reset(s, (enum cause)s->end_cause);
		return;
	}
	session_set_state(s, SESSION_PARTING);
	s->since_ms = (uint32_t)s->worker->loop.now_ms;
	flow_look_reset(f);
	session_part_go_on(s);
}
