// SPDX-License-Identifier: BSD-2-Clause
/* Time-outs of silent sessions: when a session was last at work, and what ends it.  See idle.h. */
#include "relay/idle.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"
#include "datapath/tcp.h"
#include "relay/session.h"

SYSCALLS_NEEDED(SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQ)));

/* --- since when it is silent --- */

/* TCP's clock for these has ticks of up to 10 ms (CONFIG_HZ=100). */
#define TICK_MS 10

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/*
 * While some bytes are owed, TCP may be sending them again and again to an end that is gone.  Then
 * only what the end has taken counts, as of the latest time at which it can have done so.
 */
static uint64_t last_byte(const struct idle *i, const struct idle_side *side, unsigned int which)
{
	if (!side->owed && !i->owed[which])
		return later(side->heard_ms, side->sent_ms);
	if (side->taken != i->taken[which])
		return later(side->heard_ms, side->took_ms);
	return side->heard_ms;
}

void idle_look(struct idle *i, const struct idle_side sides[2])
{
	i->since_ms = later(i->since_ms, i->read_ms);
	for (unsigned int which = 0; which < 2; which++) {
		const struct idle_side *side = &sides[which];

		i->since_ms = later(i->since_ms, last_byte(i, side, which));
		i->taken[which] = side->taken;
		i->owed[which] = side->owed;
	}
}

uint64_t idle_ago(uint64_t now_ms, uint32_t ago_ms)
{
	if (ago_ms <= TICK_MS)
		return now_ms;
	ago_ms -= TICK_MS;
	return ago_ms < now_ms ? now_ms - ago_ms : 0;
}

uint64_t idle_turn(struct idle_turns *t, uint32_t batch, uint64_t now_ms)
{
	if (batch != t->batch && now_ms != t->now_ms) {
		t->batch = batch;
		t->now_ms = now_ms;
		t->looks = 0;
	}
	if (t->looks < IDLE_LOOKS) {
		t->looks++;
		return now_ms;
	}
	if (t->last_ms <= now_ms || t->at_last == IDLE_LOOKS) {
		t->last_ms = (t->last_ms > now_ms ? t->last_ms : now_ms) + 1;
		t->at_last = 0;
	}
	t->at_last++;
	return t->last_ms;
}

/* --- a session --- */

/* Wait so long after there was no memory to watch a session. */
#define NO_MEMORY_MS 1000

/* How long S may be silent as it is now (0: for ever), and the cause of its end. */
static uint64_t limit_ms(const struct session *s, enum cause *ret_cause)
{
	const struct forward_conf *fc = forward_of(s);

	if (s->idle->half && fc->fin_timeout_ms) {
		*ret_cause = CAUSE_FIN_TIMEOUT;
		return fc->fin_timeout_ms;
	}
	*ret_cause = CAUSE_IDLE_TIMEOUT;
	return fc->idle_timeout_ms;
}

static bool half_closed(const struct session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++) {
		enum flow_phase phase = s->flows[dir].phase;

		if (phase == FLOW_FINISHING || phase == FLOW_DONE)
			return true;
	}
	return false;
}

/* The silence begins now if S has just been opened, or half closed. */
static void update(struct idle *i, bool half, uint64_t now_ms)
{
	if (i->since_ms && half == i->half)
		return;
	i->since_ms = now_ms;
	i->half = half;
}

uint64_t session_idle_due(struct session *s)
{
	const struct forward_conf *fc = forward_of(s);
	uint64_t now = s->worker->loop.now_ms, limit;
	enum cause cause;

	if (!fc->idle_timeout_ms && !fc->fin_timeout_ms)
		return UINT64_MAX;
	if (!s->idle)
		s->idle = calloc(1, sizeof(*s->idle));
	if (!s->idle)
		return now + NO_MEMORY_MS;
	update(s->idle, half_closed(s), now);
	limit = limit_ms(s, &cause);
	if (!limit)
		return UINT64_MAX;
	limit += s->idle->since_ms;
	return limit > s->idle->later_ms ? limit : s->idle->later_ms;
}

/* True if culvert itself holds S up, for want of bandwidth or memory. */
static bool held_up(const struct session *s)
{
	for (unsigned int dir = 0; dir < 2; dir++)
		if (s->flows[dir].paced || s->flows[dir].starved)
			return true;
	return false;
}

static int look_at_tcp(int fd, uint64_t now_ms, struct idle_side *ret)
{
	struct tcp_activity a;
	int r = tcp_activity(fd, &a);

	if (r)
		return r;
	*ret = (struct idle_side){
		.heard_ms = idle_ago(now_ms, a.data_received_ago_ms),
		.sent_ms = idle_ago(now_ms, a.data_sent_ago_ms),
		.took_ms = idle_ago(now_ms, a.ack_received_ago_ms),
		.taken = a.acked,
		.owed = a.owed,
	};
	return 0;
}

/* The kernel knows no times of a unix socket, but user space has read each of its bytes. */
static int look_at_unix(const struct session *s, unsigned int side, uint64_t now_ms,
			struct idle_side *ret)
{
	int queued;

	if (ioctl(s->sides[side].fd, SIOCOUTQ, &queued))
		return -errno;
	*ret = (struct idle_side){
		.took_ms = now_ms,
		.taken = s->flows[!side].user_out - (uint64_t)queued,
		.owed = queued > 0,
	};
	return 0;
}

static int look_at(const struct session *s, unsigned int side, uint64_t now_ms,
		   struct idle_side *ret)
{
	int r = look_at_tcp(s->sides[side].fd, now_ms, ret);

	return r == -EOPNOTSUPP ? look_at_unix(s, side, now_ms, ret) : r;
}

void session_idle_timer(struct session *s)
{
	/* not the time at which the batch began: sockets tell the time that has passed until now */
	uint64_t now = clock_ms();
	struct idle_side sides[2];
	enum cause cause;
	uint64_t limit;
	int r = 0;

	if (s->state != SESSION_OPEN || now < session_idle_due(s) || !s->idle)
		return;
	if (held_up(s)) {
		s->idle->since_ms = now;
		return;
	}
	s->idle->later_ms = idle_turn(&s->worker->idle_turns, s->worker->loop.batch, now);
	if (s->idle->later_ms > now)
		return;
	for (unsigned int side = 0; !r && side < 2; side++)
		r = look_at(s, side, now, &sides[side]);
	if (r) { /* TCP itself does not refuse this, but a BPF program of the cgroup may */
		log_limited(LOG_WARNING, "session %llu: cannot see whether it is idle: %s",
			    (unsigned long long)s->id, strerror(-r));
		s->idle->since_ms = now;
		return;
	}
	idle_look(s->idle, sides);
	limit = limit_ms(s, &cause);
	if (now - s->idle->since_ms >= limit)
		session_reset(s, cause);
}
