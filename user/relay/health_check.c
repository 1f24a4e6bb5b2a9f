// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: one lock guards the list of forwards; the attempts belong to the main thread
 * alone.  A forward may be freed by another thread while one of its servers is checked: the attempt
 * then has no forward any more, and its result is thrown away.  A check ends before the next one of
 * its server is due.
 *
 * A server with several addresses is well if one of them can be connected to.  A check that fails
 * because this machine is short of something says nothing.
 */
#include "relay/health_check.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/array.h"
#include "base/minmax.h"
#include "datapath/tcp.h"
#include "relay/upstream_socket.h"

#define AT_ONCE 32  /* checks that begin in a batch */
#define PAUSE_MS 10 /* until the next batch of them */

struct attempt {
	struct attempt *next;
	struct source source;
	struct checks *checks;
	struct forward *forward; /* NULL: it is gone */
	struct server *server;   /* a reference */
	struct addr_list *list;  /* its addresses; a reference */
	size_t tried;            /* of them */
	uint64_t late_ms;        /* for the address that is being tried */
	bool done;
};

struct checks {
	struct loop *loop;
	struct timer timer;
	struct attempt *attempts;
	/* Checks that were due by then begin before any that were due later: so all have their turn. */
	uint64_t round_ms;
	bool round_goes_on; /* some may not have begun */
	pthread_mutex_t lock; /* of what follows */
	struct forward *first;
};

/* --- one check --- */

/* The result is ERROR.  With the lock; the attempt is freed at the end of the batch. */
static void finish(struct attempt *a, int error)
{
	enum cause cause = upstream_cause(error);

	tcp_close(&a->source, true);
	a->done = true;
	if (a->forward && cause != CAUSE_NO_SOCKET && cause != CAUSE_NO_DESCRIPTOR &&
	    cause != CAUSE_NO_MEMORY)
		servers_checked(&a->forward->servers, a->server, error, a->checks->loop->now_ms);
}

/* Begin with the next address, after ERROR with the one before.  With the lock. */
static void try_next(struct attempt *a, int error)
{
	const struct forward_conf *fc = a->forward ? a->forward->conf : NULL;

	while (fc && a->tried < a->list->n) {
		const struct addr *to = &a->list->addrs[a->tried++];

		a->late_ms = a->checks->loop->now_ms +
			     smaller(fc->check_ms, fc->connect_timeout_ms) / a->list->n;
		tcp_close(&a->source, true);
		a->source.fd = upstream_socket(a->forward, NULL, to);
		/* a server logs whoever has connected: so the reset comes before */
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
	finish(a, error);
}

static void on_answer(struct source *source, uint32_t events)
{
	struct attempt *a = container_of(source, struct attempt, source);

	int error;

	(void)events;
	pthread_mutex_lock(&a->checks->lock);
	if (!a->done) {
		error = tcp_take_error(source->fd);
		if (error)
			try_next(a, error);
		else
			finish(a, 0);
	}
	pthread_mutex_unlock(&a->checks->lock);
}

/* Takes over the references to S, and to LIST, its addresses.  Without memory nothing is checked. */
static void begin(struct checks *c, struct forward *f, struct server *s, struct addr_list *list)
{
	struct attempt *a = malloc(sizeof(*a));

	if (!a) {
		server_put(s);
		addr_list_put(list);
		return;
	}
	*a = (struct attempt){ .next = c->attempts, .checks = c, .forward = f, .server = s,
			       .list = list, .source = { .handle = on_answer, .fd = -1 } };
	c->attempts = a;
	try_next(a, 0);
}

/* --- all of them --- */

struct due {
	struct server *server;
	struct addr_list *list;
};

/*
 * Those of F's servers that are due in this round, at most ROOM, with references; *NEXT: when others
 * are.
 */
static size_t find_due(struct checks *c, struct forward *f, struct due *due, size_t room,
		       uint64_t *next)
{
	struct servers *ss = &f->servers;
	uint64_t now = c->loop->now_ms;
	size_t n = 0;

	pthread_mutex_lock(ss->lock);
	servers_refresh(ss);
	for (size_t i = 0; i < ss->n; i++) {
		struct server *s = ss->members[i].server;
		struct addr_list *list;

		/* a reload may have made the time shorter */
		s->check_ms = smaller(s->check_ms, now + f->conf->check_ms);
		if (s->check_ms > c->round_ms || n == room) {
			*next = smaller(*next, larger(s->check_ms, now + PAUSE_MS));
			continue;
		}
		s->check_ms = now + f->conf->check_ms;
		*next = smaller(*next, s->check_ms);
		list = member_list(&ss->members[i]);
		if (list->n)
			due[n++] = (struct due){ server_get(s), list };
		else /* a name; its look-ups fail by themselves */
			addr_list_put(list);
	}
	pthread_mutex_unlock(ss->lock);
	return n;
}

static void reap(struct checks *c)
{
	for (struct attempt **at = &c->attempts, *a; (a = *at);) {
		if (!a->done) {
			at = &a->next;
			continue;
		}
		*at = a->next;
		server_put(a->server);
		addr_list_put(a->list);
		free(a);
	}
}

void checks_after_batch(struct checks *c)
{
	uint64_t now = c->loop->now_ms, next = UINT64_MAX;
	struct due due[AT_ONCE];
	size_t room = AT_ONCE;

	c->round_ms = c->round_goes_on ? c->round_ms : now;
	pthread_mutex_lock(&c->lock);
	for (struct forward *f = c->first; f; f = f->next_checked) {
		size_t n = find_due(c, f, due, room, &next);

		for (size_t i = 0; i < n; i++)
			begin(c, f, due[i].server, due[i].list);
		room -= n;
	}
	c->round_goes_on = !room;
	for (struct attempt *a = c->attempts; a; a = a->next) {
		if (!a->done && a->late_ms <= now)
			try_next(a, ETIMEDOUT);
		next = smaller(next, a->done ? next : a->late_ms);
	}
	reap(c);
	pthread_mutex_unlock(&c->lock);
	if (next != UINT64_MAX && (!c->timer.prev || next < c->timer.due_ms))
		timer_set(c->loop, &c->timer, larger(next, now + 1));
}

/* What is due begins after the batch. */
static void on_timer(struct timer *t)
{
	(void)t;
}

/* --- forwards --- */

void checks_add(struct checks *c, struct forward *f)
{
	if (!f->conf->check_ms)
		servers_unchecked(&f->servers);
	if (!f->conf->check_ms || f->checks)
		return;
	f->checks = c;
	pthread_mutex_lock(&c->lock);
	f->next_checked = c->first;
	c->first = f;
	pthread_mutex_unlock(&c->lock);
	loop_wake(c->loop);
}

void checks_remove(struct forward *f)
{
	struct checks *c = f->checks;

	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	for (struct forward **at = &c->first; *at; at = &(*at)->next_checked)
		if (*at == f) {
			*at = f->next_checked;
			break;
		}
	for (struct attempt *a = c->attempts; a; a = a->next)
		if (a->forward == f)
			a->forward = NULL;
	pthread_mutex_unlock(&c->lock);
	f->checks = NULL;
}

struct checks *checks_open(struct loop *loop)
{
	struct checks *c = allocated(calloc(1, sizeof(*c)));

	c->loop = loop;
	c->timer.fire = on_timer;
	pthread_mutex_init(&c->lock, NULL);
	return c;
}

void checks_close(struct checks *c)
{
	if (!c)
		return;
	while (c->first)
		checks_remove(c->first);
	for (struct attempt *a = c->attempts; a; a = a->next)
		if (!a->done) {
			a->forward = NULL;
			finish(a, 0);
		}
	reap(c);
	timer_cancel(c->loop, &c->timer);
	pthread_mutex_destroy(&c->lock);
	free(c);
}
