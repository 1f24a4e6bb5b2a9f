// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: all of this happens on the main thread, which begins checks under the
 * lock of the forwards.  The thread that reloads may hold that lock for long: then the main thread
 * tries again after PAUSE_MS.  A forward is freed when no check of its servers is under way.  A
 * check ends before the next one of its server is due.
 *
 * A server with several addresses is well if one of them is.  A check that fails because this
 * machine is short of something says nothing.
 */
#include "relay/health_check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/minmax.h"
#include "datapath/tcp.h"
#include "relay/session_syn.h"
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
	in_port_t port;          /* of TCP, in host order; 0: where the server serves */
	bool udp;                /* this check sends datagrams */
	bool agent;              /* it asks the server's agent */
	bool asked;              /* the question is sent */
	bool done;
	size_t got;              /* bytes of ANSWER */
	char *answer;            /* owned; NULL: this check only connects */
	char why[CHECK_WHY_LEN]; /* what the answer was */
};

struct checks {
	struct shared *shared;
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

/* The servers of A's forward have other states: sessions follow. */
static void check_tell(const struct check *a)
{
	session_syn_order(a->checks->shared, a->forward);
	shared_tell_news(a->checks->shared);
}

/* The agent's line has come, or nothing: then all stays as it is. */
static void check_finish_agent(struct check *a)
{
	struct check_advice advice = check_read_advice(a->answer);

	a->answer[strcspn(a->answer, "\r\n")] = '\0';

	tcp_close(a->checks->loop, &a->source, false);
	a->done = true;
	if (*a->answer && servers_told(&a->forward->servers, a->server, &advice, a->answer,
				       a->checks->loop->now_ms))
		check_tell(a);
}

/* The result is ERROR.  The check is freed after the batch. */
static void check_finish(struct check *a, int error)
{
	enum cause cause = upstream_cause(error);

	if (a->agent) {
		check_finish_agent(a);
		return;
	}

	/* servers log a RST where they have answered, and a handshake where they have not */
	tcp_close(a->checks->loop, &a->source, !a->answer);
	a->done = true;
	if (!*a->why)
		snprintf(a->why, sizeof(a->why), "%s", error ? strerror(error) : "connects");
	if (cause == CAUSE_NO_SOCKET || cause == CAUSE_NO_DESCRIPTOR || cause == CAUSE_NO_MEMORY ||
	    !servers_checked(&a->forward->servers, a->server, error, a->why,
			     a->checks->loop->now_ms))
		return;
	check_tell(a);
}

/* Begin to connect to TO.  0; EINPROGRESS: A waits; or errno. */
static int check_connect(struct check *a, const struct addr *to)
{
	int error;

	a->source.fd = upstream_check_socket(a->forward, to, a->udp);
	/* hold the ACK, and send RST in its place: servers log complete handshakes */
	if (a->source.fd >= 0 && addr_is_inet(to) && !a->answer)
		tcp_hold_ack(a->source.fd);
	error = a->source.fd < 0 ? -a->source.fd : upstream_connect(a->source.fd, to);
	if (error == EAGAIN && !addr_is_inet(to)) /* full, so somebody listens */
		return 0;
	if ((error && error != EINPROGRESS) || (!error && !a->answer))
		return error;
	return -loop_watch(a->checks->loop, &a->source, EPOLLOUT, true) ?: EINPROGRESS;
}

/* Begin with the next address, after ERROR with the one before. */
static void check_try_next(struct check *a, int error)
{
	const struct forward_conf *fc = a->forward->conf;
	unsigned int ms = fc->check_timeout_ms ?: fc->connect_timeout_ms;

	while (a->tried < a->list->n) {
		struct addr to = a->list->addrs[a->tried++];

		if (a->port)
			addr_set_port(&to, htons(a->port));
		a->late_ms = a->checks->loop->now_ms + smaller(fc->check_ms, ms) / a->list->n;
		tcp_close(a->checks->loop, &a->source, true);
		a->asked = false;
		a->got = 0;
		*a->why = '\0';
		error = check_connect(a, &to);
		if (error == EINPROGRESS)
			return;
		if (!error) /* a unix socket connects at once */
			break;
	}
	check_finish(a, error);
}

/* A is connected: ask. */
static void check_ask(struct check *a)
{
	char host[SERVER_NAME_LEN + 8], question[CHECK_BYTES];
	const struct addr *to = &a->list->addrs[a->tried - 1];
	size_t n;
	int error;

	if (addr_is_inet(to)) /* the server's name, as configured, with the port of the check */
		snprintf(host, sizeof(host), "%.*s:%u",
			 (int)(strrchr(a->server->name, ':') - a->server->name), a->server->name,
			 a->port ?: ntohs(addr_port(to)));
	else
		strcpy(host, "localhost");
	n = a->agent ? 0 : check_question(a->forward->conf, host, question);
	a->asked = true;
	error = n && send(a->source.fd, question, n, MSG_NOSIGNAL) != (ssize_t)n ? errno ?: EIO : 0;
	error = error ?: -loop_watch(a->checks->loop, &a->source, EPOLLIN | EPOLLRDHUP, true);
	if (error)
		check_try_next(a, error);
}

/* Some of the answer has come. */
static void check_hear(struct check *a)
{
	ssize_t n = recv(a->source.fd, a->answer + a->got, CHECK_BYTES - a->got, 0);
	enum check_verdict verdict;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		check_try_next(a, errno);
		return;
	}
	a->got += (size_t)n;
	a->answer[a->got] = '\0';
	if (a->agent && (!n || strchr(a->answer, '\n') || a->got == CHECK_BYTES)) {
		check_finish_agent(a);
		return;
	}
	if (a->agent)
		return;
	verdict = check_judge(a->forward->conf, a->answer, a->got, !n && !a->udp, a->why);
	if (verdict == CHECK_GOOD)
		check_finish(a, 0);
	else if (verdict == CHECK_BAD && a->tried < a->list->n)
		check_try_next(a, EBADMSG);
	else if (verdict == CHECK_BAD)
		check_finish(a, EBADMSG);
}

static void check_on_answer(struct source *source, uint32_t events)
{
	struct check *a = container_of(source, struct check, source);
	int error;

	if (a->done)
		return;
	error = !a->asked || events & EPOLLERR ? tcp_take_error(source->fd) : 0;
	if (error)
		check_try_next(a, error);
	else if (!a->answer)
		check_finish(a, 0);
	else if (!a->asked)
		check_ask(a);
	else
		check_hear(a);
}

/* The time for the address of A is over. */
static void check_on_late(struct check *a)
{
	bool last = a->tried >= a->list->n;

	if (a->asked && last)
		snprintf(a->why, sizeof(a->why), a->got ? "answers otherwise" : "no answer");
	if (last && a->tried)
		check_finish(a, ETIMEDOUT);
	else
		check_try_next(a, ETIMEDOUT);
}

/* --- all of them --- */

/*
 * Add a check of M, a server of F.  Its late_ms is 0, so the check begins after this.  There is no
 * check without memory, and none of a name without an address: the look-ups report such a name.
 */
static void check_add(struct checks *c, struct forward *f, const struct member *m, bool agent)
{
	struct check *a = m->list->n ? malloc(sizeof(*a)) : NULL;
	in_port_t port = agent               ? (in_port_t)f->conf->check_agent :
			 m->conf->check_port ?:
					       (in_port_t)f->conf->check_port;
	bool talks = agent || check_talks(f->conf);
	char *answer = a && talks ? calloc(1, CHECK_BYTES + 1) : NULL;

	if (!a || (talks && !answer)) {
		free(a);
		return;
	}
	*a = (struct check){ .checks = c,
			     .forward = f,
			     .server = server_get(m->server),
			     .list = addr_list_get(m->list),
			     .source = { .handle = check_on_answer, .fd = -1 },
			     .port = port,
			     .udp = f->conf->listen.udp && !port,
			     .agent = agent,
			     .answer = answer };
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
			check_add(c, f, &ss->members[i], false);
			if (f->conf->check_agent)
				check_add(c, f, &ss->members[i], true);
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
		free(a->answer);
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
			check_on_late(a);
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

struct checks *checks_open(struct loop *loop, struct forwards *forwards, struct shared *shared)
{
	struct checks *c = allocated(calloc(1, sizeof(*c)));

	c->shared = shared;
	c->loop = loop;
	c->forwards = forwards;
	return c;
}
