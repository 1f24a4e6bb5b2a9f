// SPDX-License-Identifier: BSD-2-Clause
#include "relay/session_idle.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"
#include "datapath/tcp.h"

SYSCALLS_NEEDED(SYSCALL(ioctl, SYSCALL_ARG(1, SIOCOUTQ)));

/* A session whose silence there was no memory to watch is looked at again. */
#define NO_MEMORY_MS 1000

/* How long S may be silent as it is now, and the name for its end; 0: for ever. */
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
	idle_update(s->idle, half_closed(s), now);
	limit = limit_ms(s, &cause);
	if (!limit)
		return UINT64_MAX;
	limit += s->idle->since_ms;
	return limit > s->idle->later_ms ? limit : s->idle->later_ms;
}

/* It is we who hold it up: it waits for its turn of the bandwidth, or for memory. */
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

/* Nobody knows when, but user space has read every byte of such a session itself. */
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
	/* as of now, and not of the begin of the batch, as what the sockets say */
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
