/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Theory of operation: each thread runs an epoll loop over "ends".  A client end is made when the
 * thread has room for a session; a server end when its connection is accepted (by whichever thread)
 * and learns from the first line which session it belongs to.  The two ends of a session never
 * talk to each other but through the daemon; only the verdict of a session is shared.
 */
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <unistd.h>

#include "env.h"
#include "peer.h"
#include "plan.h"
#include "torture.h"

#define VERDICTS 65536 /* more than sessions can be under way at once */
#define MAX_REPORTS 20
#define GIVE_UP_AFTER 50 /* failures */

struct torture_stats torture_stats;

struct end {
	struct peer peer;
	LIST_ENTRY(end) link;
	enum plan_side side;
	uint64_t id, run;
	bool in_header;
	size_t header_len;
	char header[PLAN_HEADER_LEN];
	uint32_t registered; /* epoll events; 0: not in the set */
};

struct loop {
	const struct torture_conf *conf;
	pthread_t thread;
	int epoll_fd;
	LIST_HEAD(ends, end) list;
	unsigned int clients, share;
	int64_t next_stall_check;
};

static _Atomic uint64_t verdicts[VERDICTS];
static _Atomic uint64_t next_run;
static _Atomic unsigned int clients_live;
static _Atomic unsigned int reports;

uint64_t torture_failures(void)
{
	uint64_t n = 0;

	for (int r = PEER_WRONG; r < PEER_RESULTS; r++)
		n += r != PEER_RESET ? torture_stats.results[r] : 0;
	return n;
}

/*
 * Whether this is news about RUN: the end that finds a fault closes its socket, and what the other
 * end then sees is no second fault.  A reset by the daemon, though, excuses only resets.
 */
static bool claim(uint64_t run, bool severe)
{
	_Atomic uint64_t *v = &verdicts[run % VERDICTS];
	uint64_t mine = (run + 1) << 1, old = atomic_exchange(v, mine | severe);

	if ((old & ~1ULL) != mine)
		return true;
	if (old & 1)
		atomic_store(v, mine | 1);
	return severe && !(old & 1);
}

static void report(const struct loop *l, const struct end *e)
{
	char text[1000];

	peer_describe(&e->peer, text, sizeof(text));
	if (atomic_fetch_add(&reports, 1) < MAX_REPORTS)
		fprintf(stderr,
			"FAIL seed=%llu session=%llu run=%llu %s\n"
			"  replay: --seed %llu --only %llu\n",
			(unsigned long long)l->conf->seed, (unsigned long long)e->id,
			(unsigned long long)e->run, text, (unsigned long long)l->conf->seed,
			(unsigned long long)e->id);
}

static void judge(const struct loop *l, const struct end *e)
{
	struct torture_stats *s = &torture_stats;
	enum peer_result r = e->peer.result;
	bool first = torture_failures() == 0;

	s->bytes += e->peer.rx_off;
	if (e->peer.ended_by_eof && r == PEER_DONE)
		s->eof_for_rst++;
	if (e->side == PLAN_CLIENT)
		s->finished++;
	if (r == PEER_DONE || !claim(e->run, r != PEER_RESET))
		return;
	s->results[r]++;
	report(l, e);
	if (r != PEER_RESET && r != PEER_STALLED && first && l->conf->on_failure)
		l->conf->on_failure();
}

static void end_free(struct loop *l, struct end *e)
{
	LIST_REMOVE(e, link);
	peer_close(&e->peer);
	if (e->side == PLAN_CLIENT) {
		l->clients--;
		clients_live--;
	}
	free(e);
}

static struct end *end_new(struct loop *l, enum plan_side side)
{
	struct end *e = calloc(1, sizeof(*e));

	if (!e)
		err(1, "calloc");
	e->side = side;
	/* end_free() has taken what it freed off the list */
	// NOLINTNEXTLINE(clang-analyzer-unix.Malloc)
	LIST_INSERT_HEAD(&l->list, e, link);
	return e;
}

/* Bytes of the first line; afterwards the end has its script. */
static void read_header(struct loop *l, struct end *e, int64_t now)
{
	ssize_t n = recv(e->peer.fd, e->header + e->header_len, PLAN_HEADER_LEN - e->header_len,
			 MSG_DONTWAIT);
	struct plan plan;
	int r;

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) { /* gone before it said who it is: only a client that aborts does that */
		char want[PLAN_HEADER_LEN];

		plan_header(l->conf->seed, 0, 0, want);
		if (!l->conf->strangers &&
		    memcmp(want, e->header, e->header_len < 32 ? e->header_len : 32) != 0)
			torture_stats.results[PEER_WRONG]++;
		torture_stats.anonymous++;
		e->peer.result = PEER_DONE;
		return;
	}
	e->peer.last_progress = now;
	e->header_len += (size_t)n;
	if (e->header_len < PLAN_HEADER_LEN)
		return;
	r = plan_parse_header(e->header, l->conf->seed, &e->id, &e->run);
	if (r == -ESRCH && l->conf->strangers) {
		torture_stats.strangers++;
		e->peer.result = PEER_DONE;
		return;
	}
	if (r) {
		peer_fail(&e->peer, PEER_WRONG, "first line is not of this test: %.63s", e->header);
		return;
	}
	plan_make(l->conf->seed, e->id, &plan);
	plan_apply(&plan, PLAN_SERVER, l->conf->seed, e->id, e->run, &e->peer);
	e->peer.rx_off = e->peer.rx_goal = PLAN_HEADER_LEN;
	e->in_header = false;
}

static void watch(struct loop *l, struct end *e, int64_t now)
{
	struct epoll_event ev = { .data.ptr = e };
	int fd = e->peer.fd, op;

	/* poll and epoll agree on the values of IN and OUT */
	ev.events = POLLIN;
	if (!e->in_header)
		ev.events = (unsigned short)peer_events(&e->peer, now, &fd);
	if (ev.events == e->registered)
		return;
	/* Out of the set while nothing is wanted: errors would be reported again and again. */
	op = !e->registered ? EPOLL_CTL_ADD : ev.events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
	if (epoll_ctl(l->epoll_fd, op, fd, &ev) < 0)
		perror("epoll_ctl");
	e->registered = ev.events;
}

static void end_run(struct loop *l, struct end *e, int64_t now)
{
	if (e->in_header)
		read_header(l, e, now);
	if (!e->in_header && e->peer.result == PEER_RUNNING)
		peer_run(&e->peer, now);
	if (e->peer.result == PEER_RUNNING) {
		watch(l, e, now);
		return;
	}
	if (!e->in_header || e->peer.result != PEER_DONE)
		judge(l, e);
	end_free(l, e);
}

static bool may_start(const struct torture_conf *conf)
{
	if (torture_failures() >= GIVE_UP_AFTER)
		return false;
	if (conf->deadline)
		return now_ms() < conf->deadline;
	return atomic_load(&next_run) < conf->sessions;
}

static void start_session(struct loop *l, int64_t now)
{
	const struct torture_conf *conf = l->conf;
	uint64_t run = atomic_fetch_add(&next_run, 1);
	struct plan plan;
	struct end *e;
	int r;

	if (!conf->deadline && run >= conf->sessions)
		return;
	e = end_new(l, PLAN_CLIENT);
	e->run = run;
	e->id = conf->only ? conf->only_id : run;
	l->clients++;
	clients_live++;
	r = peer_init(&e->peer, "client", (const struct sockaddr *)&conf->to, conf->to_len);
	plan_make(conf->seed, e->id, &plan);
	plan_apply(&plan, PLAN_CLIENT, conf->seed, e->id, run, &e->peer);
	if (plan.aborts != PLAN_NOBODY)
		torture_stats.aborted_by_plan++;
	if (r < 0)
		peer_fail(&e->peer, PEER_FAILED, "socket: %s", strerror(-r));
	end_run(l, e, now);
}

static void accept_all(struct loop *l, int64_t now)
{
	int fd;

	while ((fd = accept4(l->conf->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		struct end *e = end_new(l, PLAN_SERVER);

		peer_init(&e->peer, "server", NULL, 0);
		e->peer.fd = fd;
		e->in_header = true;
		end_run(l, e, now);
	}
}

/* Also runs what is due by time; returns how long the loop may sleep. */
static int run_timers(struct loop *l, int64_t now)
{
	int64_t at = now + 50;
	bool check = now >= l->next_stall_check;
	struct end *next;

	if (check)
		l->next_stall_check = now + 250;
	for (struct end *e = LIST_FIRST(&l->list); e; e = next) {
		int64_t wake = e->in_header ? INT64_MAX : peer_wake(&e->peer, now);

		next = LIST_NEXT(e, link);
		if (check && now - e->peer.last_progress > l->conf->stall_ms) {
			if (torture_failures() == 0 && l->conf->on_failure)
				l->conf->on_failure(); /* while the daemon still has the session */
			peer_fail(&e->peer, PEER_STALLED, "no progress for %d ms%s",
				  l->conf->stall_ms, e->in_header ? " of the first line" : "");
			judge(l, e);
			end_free(l, e);
		} else if (wake <= now) {
			end_run(l, e, now);
			at = now;
		} else if (wake < at) {
			at = wake;
		}
	}
	return (int)(at - now);
}

static void *loop_main(void *arg)
{
	struct loop *l = arg;
	struct epoll_event ev = { .events = EPOLLIN | EPOLLEXCLUSIVE }, events[128];
	int64_t now = now_ms();

	epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->conf->listen_fd, &ev);
	for (;;) {
		int n, wait;

		while (l->clients < l->share && may_start(l->conf))
			start_session(l, now);
		if (LIST_EMPTY(&l->list) && !clients_live && !may_start(l->conf))
			break;
		wait = run_timers(l, now);
		n = epoll_wait(l->epoll_fd, events, 128, wait);
		now = now_ms();
		for (int i = 0; i < n; i++) {
			if (events[i].data.ptr)
				end_run(l, events[i].data.ptr, now);
			else
				accept_all(l, now);
		}
	}
	close(l->epoll_fd);
	return NULL;
}

void torture_run(const struct torture_conf *conf)
{
	struct loop *loops = calloc(conf->threads, sizeof(*loops));

	if (!loops)
		err(1, "calloc");
	for (unsigned int i = 0; i < conf->threads; i++) {
		struct loop *l = &loops[i];

		l->conf = conf;
		l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		l->share = conf->concurrency / conf->threads +
			   (i < conf->concurrency % conf->threads);
		if (pthread_create(&l->thread, NULL, loop_main, l))
			errx(1, "no thread");
	}
	for (unsigned int i = 0; i < conf->threads; i++)
		pthread_join(loops[i].thread, NULL);
	free(loops);
}
