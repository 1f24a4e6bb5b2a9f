// SPDX-License-Identifier: BSD-2-Clause
#include "relay/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/syscalls_needed.h"

SYSCALLS_NEEDED(
	SYSCALL(clock_gettime), /* CLOCK_THREAD_CPUTIME_ID is not in the vDSO */
	SYSCALL(fcntl, SYSCALL_ARG(1, F_DUPFD_CLOEXEC)), /* the spare */
	SYSCALL(close));

static void on_ring(struct source *source, uint32_t events)
{
	struct worker *w = (struct worker *)((char *)source - offsetof(struct worker, ring_source));

	(void)events;
	kernel_ring_consume(w->ring);
}

/*
 * The backstop for a full ring: the program counts the events it could not send.  The same for
 * kernel memory that is short: a quiet flow may be charged more than it has.  And the review:
 * whether a worker is busy shows only while it carries flows itself, so some that the kernel has
 * carried for long are judged again.  It costs one wake-up a second, and only while sessions are in
 * the kernel.
 */
static void on_sweep(struct timer *timer)
{
	struct worker *w = (struct worker *)((char *)timer - offsetof(struct worker, sweep));
	uint64_t lost = kernel_events_lost(w->shared->kernel);

	if (w->policy.review_packets)
		w->hooks.review(w);
	if (lost != w->events_lost_seen || kernel_memory_short(w->shared->kernel)) {
		w->events_lost_seen = lost;
		w->hooks.sweep(w);
	}
	if (w->in_kernel)
		timer_set(&w->loop, &w->sweep, w->loop.now_ms + WORKER_SWEEP_MS);
}

static void after_batch(void *arg)
{
	struct worker *w = arg;

	if (load_batch(&w->load, w->loop.now_ms))
		load_look(&w->policy, &w->load, w->loop.now_ms,
			  clock_ns_of(CLOCK_THREAD_CPUTIME_ID));
	w->hooks.after_batch(w);
}

int worker_reserve_timer(struct worker *w)
{
	return loop_reserve_timers(&w->loop, w->n_sessions + 1 + w->own_timers);
}

int worker_own_timers(struct worker *w, int n)
{
	int r;

	w->own_timers += (uint32_t)n;
	r = worker_reserve_timer(w);
	if (r)
		w->own_timers -= (uint32_t)n;
	return r;
}

static int open_ring(struct worker *w)
{
	struct kernel *k = w->shared->kernel;
	int r;

	w->owners = calloc(kernel_pairs_total(k), sizeof(struct session *));
	if (!w->owners)
		return -ENOMEM;
	r = kernel_ring_open(k, w->index, w->hooks.kernel_event, w, &w->ring);
	if (r)
		return r;
	w->ring_source = (struct source){ .handle = on_ring, .fd = kernel_ring_fd(w->ring) };
	w->sweep.fire = on_sweep;
	return loop_watch(&w->loop, &w->ring_source, EPOLLIN, true);
}

bool worker_have_spare(struct worker *w)
{
	if (w->spare < 0)
		w->spare = fcntl(w->loop.epoll, F_DUPFD_CLOEXEC, 0);
	return w->spare >= 0;
}

bool worker_spend_spare(struct worker *w)
{
	if (w->spare < 0)
		return false;
	close(w->spare);
	w->spare = -1;
	return true;
}

int worker_open(struct worker *w, struct shared *shared, unsigned int index,
		const struct worker_hooks *hooks)
{
	int r;

	memset(w, 0, sizeof(*w));
	w->spare = -1;
	w->shared = shared;
	w->index = index;
	w->hooks = *hooks;
	w->own_timers = WORKER_TIMERS;
	policy_init(&w->policy, ENGINE_AUTO, shared->config->settle_ms,
		    shared->config->review_packets);
	pool_init(&w->pool, shared->config->defaults.copy_buffer);
	r = loop_open(&w->loop, after_batch, w);
	if (r)
		return r;
	worker_have_spare(w);
	r = worker_reserve_timer(w);
	if (!r && shared->kernel)
		r = open_ring(w);
	return r;
}

void worker_close(struct worker *w)
{
	worker_spend_spare(w);
	kernel_ring_close(w->ring);
	pool_close(&w->pool);
	free(w->owners);
	loop_close(&w->loop);
}
