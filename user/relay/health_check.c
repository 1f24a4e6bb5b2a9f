// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: all of this happens on the main thread, which begins checks under the
 * lock of the forwards.  The thread that reloads may hold that lock for long: then the main thread
 * tries again after PAUSE_MS.  A forward is freed when no check of its servers is under way.  A
 * check ends before the next one of its server is due.
 *
 * A server with several addresses is well if one of them can be connected to.  A check that fails
 * because this machine is short of something says nothing.
 */
#include "relay/health_check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/queue.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "datapath/tcp.h"
#include "relay/upstream_socket.h"

#define PAUSE_MS 10 /* until the next look, if the list of forwards is in use */

struct check {
	LIST_ENTRY(check) in_checks;
	struct source source;
	struct checks *checks;
	struct forward *forward; /* its `checks` counts this one */
	struct server *server;   /* a reference */
	struct addr_list *list;  /* its addresses; a reference */
	size_t tried;            /* of them */
	uint64_t late_ms;        /* for the address that is being tried; 0: none is yet */
	bool done;
};

struct checks {
	struct loop *loop;
	struct forwards *forwards;
	struct timer timer; /* wakes the loop: checks_after_batch() begins the due checks */
	LIST_HEAD(check_list, check) running;
	/* a round has the checks due by this time; later ones wait, so that no server starves */
	uint64_t round_ms;
	/* checks that may still begin after this batch; at first as many as a stock has sockets */
	unsigned int room;
};

/* --- one check --- */

/* The result is ERROR.  The check is freed after the batch. */
static void check_finish(struct check *a, int error)
{
	enum cause cause = upstream_cause(error);

	tcp_close(a->checks->loop, &a->source, true);
	a->done = true;
	if (cause != CAUSE_NO_SOCKET && cause != CAUSE_NO_DESCRIPTOR && cause != CAUSE_NO_MEMORY)
		servers_checked(&a->forward->servers, a->server, error, a->checks->loop->now_ms);
}

/* Begin with the next address, after ERROR with the one before. */
static void check_try_next(struct check *a, int error)
{
	const struct forward_conf *fc = a->forward->conf;

	while (a->tried < a->list->n) {
		const struct addr *to = &a->list->addrs[a->tried++];

		a->late_ms = a->checks->loop->now_ms +
			     smaller(fc->check_ms, fc->connect_timeout_ms) / a->list->n;
		tcp_close(a->checks->loop, &a->source, true);
		a->source.fd = upstream_socket(a->forward, NULL, to);
		/* hold the ACK, and send RST in its place: servers log complete handshakes */
		if (a->source.fd >= 0 && addr_is_inet(to))
			tcp_hold_ack(a->source.fd);
		error = a->source.fd < 0 ? -a->source.fd : upstream_connect(a->source.fd, to);
		if (error == EAGAIN && !addr_is_inet(to)) /* full, so somebody listens */
			error = 0;
		if (error == EINPROGRESS &&
		    !(error = -loop_watch(a->checks->loop, &a->source, EPOLLOUT, true)))
			return;
		if (!error) /* a unix socket connects at once */
			break;
	}
	check_finish(a, error);
}

static void check_on_answer(struct source *source, uint32_t events)
{
	struct check *a = container_of(source, struct check, source);
	int error;

	(void)events;
	if (a->done)
		return;
	error = tcp_take_error(source->fd);
	if (error)
		check_try_next(a, error);
	else
		check_finish(a, 0);
}

/* --- all of them --- */

/*
 * Add a check of M, a server of F.  Its late_ms is 0, so the check begins after this.  There is no
 * check without memory, and none of a name without an address: the look-ups report such a name.
 */
static void check_add(struct checks *c, struct forward *f, const struct member *m)
{
	struct check *a = m->list->n ? malloc(sizeof(*a)) : NULL;

	if (!a)
		return;
	*a = (struct check){ .checks = c,
			     .forward = f,
			     .server = server_get(m->server),
			     .list = addr_list_get(m->list),
			     .source = { .handle = check_on_answer, .fd = -1 } };
	LIST_INSERT_HEAD(&c->running, a, in_checks);
	atomic_fetch_add(&f->checks, 1);
}

/* Add checks of those of F's servers that are due.  Returns when the next one will be. */
static uint64_t check_add_due(struct checks *c, struct forward *f)
{
	uint64_t now = c->loop->now_ms, next = NEVER;
	struct servers *ss = &f->servers;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++) {
		struct server *s = ss->members[i].server;

		if (s->check_ms <= c->round_ms && c->room) {
			c->room--;
			s->check_ms = NEVER;
			check_add(c, f, &ss->members[i]);
		}
		/* a reload may have made the time shorter */
		s->check_ms = smaller(s->check_ms, now + f->conf->check_ms);
		next = smaller(next, s->check_ms);
	}
	pthread_mutex_unlock(ss->lock);
	return next;
}

static void checks_reap(struct checks *c)
{
	struct check *a, *next;

	for (a = LIST_FIRST(&c->running); a; a = next) {
		next = LIST_NEXT(a, in_checks);
		if (!a->done)
			continue;
		LIST_REMOVE(a, in_checks);
		server_put(a->server);
		addr_list_put(a->list);
		atomic_fetch_sub(&a->forward->checks, 1); /* last: it may be freed then */
		free(a);
	}
}

void checks_after_batch(struct checks *c)
{
	uint64_t now = c->loop->now_ms, next = NEVER;
	struct forward *f;
	struct check *a;

	if (pthread_mutex_trylock(&c->forwards->lock)) {
		next = now + PAUSE_MS;
	} else {
		if (c->room) /* else the round goes on */
			c->round_ms = now;
		c->room = MARKED_SOCKETS;
		TAILQ_FOREACH(f, &c->forwards->list, in_forwards)
			if (f->state == FORWARD_ACTIVE && f->conf->check_ms)
				next = smaller(next, check_add_due(c, f));
		pthread_mutex_unlock(&c->forwards->lock);
	}
	LIST_FOREACH(a, &c->running, in_checks) {
		if (!a->done && a->late_ms <= now)
			check_try_next(a, ETIMEDOUT);
		if (!a->done)
			next = smaller(next, a->late_ms);
	}
	checks_reap(c);
	timer_set(c->loop, &c->timer, larger(next, now + 1));
}

/* --- beginning and end --- */

void checks_wake(struct checks *c)
{
	loop_wake(c->loop);
}

struct checks *checks_open(struct loop *loop, struct forwards *forwards)
{
	struct checks *c = allocated(calloc(1, sizeof(*c)));

	c->loop = loop;
	c->forwards = forwards;
	return c;
}
