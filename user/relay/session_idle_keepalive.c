// SPDX-License-Identifier: BSD-2-Clause
/* When a session was last at work, and which time-out ends it.  See session_idle_keepalive.h. */
#include "relay/session_idle_keepalive.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "relay/session.h"
#include "relay/session_graft.h"

SYSCALLS_ALLOWED(SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQ)));

/* --- since when it is silent --- */

/* TCP's clock, and that of the packet programs, has ticks of up to 10 ms (CONFIG_HZ=100). */
#define TICK_MS 10

/* Turn an age, as TCP_INFO gives it, into a time that is not too early. */
static uint64_t ago(uint64_t now_ms, uint32_t ago_ms)
{
	uint64_t least = ago_ms > TICK_MS ? ago_ms - TICK_MS : 0;

	return least < now_ms ? now_ms - least : 0;
}

/*
 * While some bytes are owed, TCP may be sending them again and again to an end that is gone.  Then
 * only bytes that the end has acknowledged count, at the time of its last ACK.
 */
static uint64_t last_byte(const struct idle *i, uint64_t now_ms, const struct tcp_activity *side,
			  unsigned int which)
{
	uint64_t heard_ms = ago(now_ms, side->data_received_ago_ms);

	if (!side->owed && !i->owed[which])
		return larger(heard_ms, ago(now_ms, side->data_sent_ago_ms));
	if (side->acked != i->taken[which])
		return larger(heard_ms, ago(now_ms, side->ack_received_ago_ms));
	return heard_ms;
}

void idle_look(struct idle *i, uint64_t now_ms, const struct tcp_activity sides[2])
{
	for (unsigned int which = 0; which < 2; which++) {
		i->since_ms = larger(i->since_ms, last_byte(i, now_ms, &sides[which], which));
		i->taken[which] = sides[which].acked;
		i->owed[which] = sides[which].owed;
	}
}

/* --- an end that is gone --- */

#define TCP_GIVES_UP_MS 1920000 /* by itself: 16 times TCP_RTO_MAX */
#define LEAST_ASK_MS 1000       /* longer than an answer takes */
#define LEAST_GONE_MS 6000      /* least time in which TCP's own probes give up */

uint64_t idle_ask_ms(unsigned int keepalive_ms)
{
	if (!keepalive_ms || 2 * keepalive_ms >= TCP_GIVES_UP_MS)
		return 0;
	return larger(keepalive_ms / 4, LEAST_ASK_MS);
}

bool idle_is_gone(struct idle *i, uint64_t now_ms, unsigned int keepalive_ms,
		  const struct tcp_activity *side, unsigned int which)
{
	uint64_t each = idle_ask_ms(keepalive_ms), *since = &i->mute_ms[which];

	if (!side->asked || side->ack_received_ago_ms < now_ms - i->asked_ms)
		*since = 0;
	else if (!*since)
		*since = now_ms;
	return *since && now_ms - *since >= 3 * each &&
	       side->ack_received_ago_ms >= larger(keepalive_ms * 2ULL, LEAST_GONE_MS) - each;
}

/* --- a session --- */

/* Until the next try, after there was no memory to watch a session. */
#define NO_MEMORY_MS 1000
/*
 * Added to the time-outs of a session for which session_graft_is_shared() is true: another relay may
 * carry its packets, and no export is in sync.
 */
#define SHARED_MS 10000

/* The present time-out of S (0: none), and whether it is fin-timeout. */
static uint64_t limit_ms(const struct session *s, bool *ret_fin)
{
	const struct forward_conf *fc = s->forward->conf;
	uint64_t limit;

	*ret_fin = s->idle->half && fc->fin_timeout_ms;
	limit = *ret_fin ? fc->fin_timeout_ms : fc->idle_timeout_ms;
	return limit && session_graft_is_shared(s) ? limit + SHARED_MS : limit;
}

void session_idle_begin(struct session *s)
{
	s->idle = calloc(1, sizeof(*s->idle));
	if (s->idle)
		s->idle->since_ms = s->worker->loop.now_ms;
}

uint64_t session_idle_due(struct session *s)
{
	const struct forward_conf *fc = s->forward->conf;
	uint64_t now = s->worker->loop.now_ms, ask_ms = idle_ask_ms(fc->keepalive_ms), limit, due;
	bool half, fin;

	if (!fc->idle_timeout_ms && !fc->fin_timeout_ms && !ask_ms)
		return s->probe_at_ms;
	if (!s->idle)
		s->idle = calloc(1, sizeof(*s->idle));
	if (!s->idle)
		return now + NO_MEMORY_MS;
	half = s->flows[CLIENT].phase >= FLOW_FINISHING ||
	       s->flows[UPSTREAM].phase >= FLOW_FINISHING;
	if (session_is_grafted(s)) {
		uint64_t last = session_graft_active_ms(s, &half) + TICK_MS;

		s->idle->half = half; /* data_ns counts a FIN as well */
		s->idle->since_ms = larger(s->idle->since_ms, smaller(last, clock_ms()));
	}
	if (!s->idle->since_ms || half != s->idle->half) { /* the silence begins now */
		s->idle->since_ms = now;
		s->idle->half = half;
	}
	limit = limit_ms(s, &fin);
	due = smaller(limit ? s->idle->since_ms + limit : NEVER, s->probe_at_ms);
	/* no event reports a FIN of a grafted session: the timer finds it in time */
	if (s->graft != NO_GRAFT && fc->fin_timeout_ms)
		due = smaller(due, now + fc->fin_timeout_ms);
	s->idle->asked_ms = s->idle->asked_ms ?: now;
	return ask_ms ? smaller(due, s->idle->asked_ms + ask_ms) : due;
}

/* True if culvert itself holds F up, for want of bandwidth or memory. */
static bool is_held_up(const struct flow *f)
{
	return f->paced || f->starved;
}

/* As tcp_activity().  The kernel knows no times of a unix socket: pump_once() sees its bytes. */
static int activity(const struct session *s, unsigned int side, struct tcp_activity *ret)
{
	int queued, r = tcp_activity(s->sides[side].fd, ret);

	if (r != -EOPNOTSUPP)
		return r;
	if (ioctl(s->sides[side].fd, SIOCOUTQ, &queued))
		return -errno;
	*ret = (struct tcp_activity){
		.data_received_ago_ms = UINT32_MAX,
		.data_sent_ago_ms = UINT32_MAX,
		.acked = s->flows[!side].user_out - (uint64_t)queued,
		.owed = queued > 0,
	};
	return 0;
}

/* Has S lost an end?  If S is grafted, SIDES is all 0, and the frozen sockets probe their ends. */
static bool has_lost_one(struct session *s, uint64_t now, const struct tcp_activity sides[2])
{
	unsigned int keepalive_ms = s->forward->conf->keepalive_ms;
	uint64_t ask_ms = idle_ask_ms(keepalive_ms);

	if (!ask_ms || now < s->idle->asked_ms + ask_ms)
		return false;
	for (unsigned int side = 0; side < 2; side++)
		if (idle_is_gone(s->idle, now, keepalive_ms, &sides[side], side)) {
			session_lose_side(s, side, ETIMEDOUT);
			return true;
		}
	s->idle->asked_ms = now;
	return false;
}

void session_idle_timer(struct session *s)
{
	/* not the time of the batch: sockets report ages as of now */
	uint64_t now = clock_ms(), limit;
	bool grafted = session_is_grafted(s); /* session_idle_due() has set since_ms */
	struct tcp_activity sides[2] = { 0 };
	bool fin;
	int r = 0;

	if (now >= s->probe_at_ms) {
		for (unsigned int side = 0; side < 2; side++)
			tcp_set_keepalive(s->sides[side].fd, s->forward->conf->keepalive_ms, 0);
		s->probe_at_ms = NEVER;
	}
	if (!session_runs(s) || now < session_idle_due(s) || !s->idle)
		return;
	for (unsigned int side = 0; !grafted && !r && side < 2; side++)
		r = activity(s, side, &sides[side]);
	if (r) /* TCP itself does not refuse this, but a BPF program of the cgroup may */
		log_limited(LOG_WARNING,
			    "session %llu, forward %s: its sockets do not say whether it is idle: "
			    "%s",
			    (unsigned long long)s->id, forward_name(s->forward->conf),
			    strerror(-r));
	if (has_lost_one(s, now, sides)) /* a side that could not be asked counts as present */
		return;
	if (r || is_held_up(&s->flows[CLIENT]) || is_held_up(&s->flows[UPSTREAM]))
		s->idle->since_ms = now;
	else if (!grafted)
		idle_look(s->idle, now, sides);
	limit = limit_ms(s, &fin);
	if (limit && now >= s->idle->since_ms + limit)
		session_reset(s, fin ? CAUSE_FIN_TIMEOUT : CAUSE_IDLE_TIMEOUT);
}
