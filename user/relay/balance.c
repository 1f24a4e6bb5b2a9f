// SPDX-License-Identifier: BSD-2-Clause
#include "relay/balance.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/syscalls_needed.h"
#include "relay/limits.h"
#include "relay/session_move.h"

/* The next try where sessions have to move and could not all. */
#define MOVE_MS 10
/* ... and a look at so many sessions costs less than 1 % of 1 ms. */
#define SESSIONS_PER_MS 128
/* Sessions that move in one go: the others of both workers wait meanwhile. */
#define AT_ONCE 256
/* A worker that has not told for so long had nothing to tell. */
#define STALE_MS (2 * CREW_LOOK_MS)
/* Permille, where it could not be read this once: neither room for a worker nor a crowd. */
#define IDLE_UNREAD 300

SYSCALLS_NEEDED(
	SYSCALL(pread64),
	/* CLOCK_THREAD_CPUTIME_ID is not in the vDSO */
	SYSCALL(clock_gettime));

void balance_open(struct balance *b, enum spread spread, unsigned int n,
		  void (*steer)(void *arg, unsigned int active), void *arg)
{
	*b = (struct balance){ .spread = spread, .n = n, .steer = steer, .arg = arg, .uptime = -1 };
	pthread_mutex_init(&b->lock, NULL);
	crew_init(&b->crew, n);
	if (spread != SPREAD_AUTO)
		b->crew.active = n;
	b->active = b->crew.active;
	if (spread != SPREAD_AUTO || n < 2)
		return;
	b->uptime = open("/proc/uptime", O_RDONLY | O_CLOEXEC);
	if (b->uptime < 0)
		log_warning("how idle the CPUs are is not known, so they count as idle, and more "
			    "workers are used than may be good: /proc/uptime: %s", strerror(errno));
}

void balance_start(struct balance *b, struct worker *const *workers)
{
	b->workers = workers;
	if (b->crew.active < b->n)
		b->steer(b->arg, b->crew.active);
}

void balance_stop(struct balance *b)
{
	pthread_mutex_lock(&b->lock);
	b->stopped = true;
	pthread_mutex_unlock(&b->lock);
}

void balance_close(struct balance *b)
{
	if (!b->n)
		return;
	if (b->uptime >= 0)
		close(b->uptime);
	pthread_mutex_destroy(&b->lock);
}

void balance_hold(struct balance *b)
{
	pthread_mutex_lock(&b->lock);
}

void balance_release(struct balance *b)
{
	pthread_mutex_unlock(&b->lock);
}

/* --- what the workers know --- */

static void tell(struct worker *w)
{
	struct load_share *sh = &w->share;
	uint64_t now = w->loop.now_ms, passed = now - sh->told_ms;
	uint64_t cpu = clock_ns_of(CLOCK_THREAD_CPUTIME_ID);

	atomic_store_explicit(&sh->busy, passed ? (unsigned int)((cpu - sh->cpu_ns) / passed / 1000)
						: 0, memory_order_relaxed);
	atomic_store_explicit(&sh->new_events,
			      (unsigned int)((w->loop.events - sh->events) * 1000 / (passed ?: 1)),
			      memory_order_relaxed);
	atomic_store_explicit(&sh->sessions, w->n_sessions, memory_order_relaxed);
	atomic_store_explicit(&sh->as_of_ms, now, memory_order_relaxed);
	sh->told_ms = now;
	sh->cpu_ns = cpu;
	sh->events = w->loop.events;
}

/* Of all CPUs together since the machine started; 0: not known. */
static uint64_t idle_ms(const struct balance *b)
{
	char text[64];
	ssize_t n = b->uptime < 0 ? -1 : pread(b->uptime, text, sizeof(text) - 1, 0);
	const char *second;

	if (n <= 0)
		return 0;
	text[n] = '\0';
	second = strchr(text, ' ');
	return second ? (uint64_t)(strtod(second, NULL) * 1000) : 0;
}

static struct crew_load measure(struct balance *b, uint64_t now)
{
	struct crew_load l = { .idle = b->uptime < 0 ? 1000 * b->n : IDLE_UNREAD };
	uint64_t idle = idle_ms(b), passed = now - b->judged_ms, events = 0;

	for (unsigned int i = 0; i < b->n; i++) {
		struct load_share *sh = &b->workers[i]->share;
		unsigned int busy = atomic_load_explicit(&sh->busy, memory_order_relaxed);

		if (atomic_load_explicit(&sh->as_of_ms, memory_order_relaxed) + STALE_MS < now)
			continue;
		l.sum += busy;
		events += atomic_load_explicit(&sh->new_events, memory_order_relaxed);
		if (busy > l.busiest)
			l.busiest = busy;
	}
	if (idle && b->idle_ms && passed)
		l.idle = idle < b->idle_ms ? 0
					   : (unsigned int)((idle - b->idle_ms) * 1000 / passed);
	l.event_us = events ? (unsigned int)((uint64_t)l.sum * 1000 / events) : 0;
	b->judged_ms = now;
	b->idle_ms = idle;
	return l;
}

/* --- what becomes of it --- */

static void judge(struct balance *b, uint64_t now)
{
	bool first = !b->judged_ms;
	struct crew_load l;

	if (b->spread != SPREAD_AUTO || now < b->judged_ms + CREW_LOOK_MS)
		return;
	l = measure(b, now);
	if (first || !crew_judge(&b->crew, &l))
		return;
	atomic_store(&b->active, b->crew.active);
	atomic_fetch_add(&b->changes, 1);
	b->steer(b->arg, b->crew.active);
}

static struct worker *least_loaded(const struct balance *b, const struct worker *but)
{
	struct worker *best = NULL;

	for (unsigned int i = 0; i < b->crew.active; i++) {
		struct worker *w = b->workers[i];

		if (w != but && (!best || atomic_load(&w->share.sessions) <
						  atomic_load(&best->share.sessions)))
			best = w;
	}
	return best;
}

/*
 * Up to N, each time to where there are fewest and no more than make FAIR there; the count there is
 * kept in step until that worker tells.
 */
static void shed(const struct balance *b, struct worker *w, unsigned int n, unsigned int fair)
{
	n = n < AT_ONCE ? n : AT_ONCE;
	while (n) {
		struct worker *to = least_loaded(b, w);
		unsigned int there = to ? atomic_load(&to->share.sessions) : 0;
		unsigned int room = there < fair && fair - there < n ? fair - there : n;
		unsigned int moved = to ? session_move(w, to, room) : 0;

		if (!moved)
			return;
		atomic_fetch_add(&to->share.sessions, moved);
		n -= moved;
	}
}

/* True: not yet as it should be. */
static bool even_out(struct balance *b, struct worker *w)
{
	uint64_t changes = atomic_load(&b->changes);
	unsigned int fair = admission_sessions(w->shared->admission) / b->crew.active + 1;
	unsigned int half = w->n_sessions / 2 + 1;

	if (b->spread == SPREAD_ROTATE) {
		session_move(w, b->workers[(w->index + 1) % b->n], half < AT_ONCE ? half : AT_ONCE);
		return true;
	}
	if (w->index >= b->crew.active) {
		shed(b, w, w->n_sessions, fair);
		return w->n_sessions;
	}
	if (w->share.change == changes)
		return false;
	if (w->n_sessions > fair)
		shed(b, w, w->n_sessions - fair, fair);
	if (w->n_sessions <= fair)
		w->share.change = changes;
	return w->n_sessions > fair;
}

void balance_look(struct worker *w)
{
	struct balance *b = w->shared->balance;
	uint64_t now = w->loop.now_ms;
	bool again = true;

	if (!b || b->n < 2 || now < w->share.look_ms)
		return;
	if (now >= w->share.told_ms + CREW_LOOK_MS)
		tell(w);
	/* somebody else is at it, or wants nothing to move */
	if (!pthread_mutex_trylock(&b->lock)) {
		if (!b->stopped) {
			judge(b, now);
			again = even_out(b, w);
		}
		pthread_mutex_unlock(&b->lock);
	}
	w->share.look_ms = now + (again ? MOVE_MS + w->n_sessions / SESSIONS_PER_MS : CREW_LOOK_MS);
}
