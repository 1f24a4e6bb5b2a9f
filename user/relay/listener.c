// SPDX-License-Identifier: BSD-2-Clause
#include "relay/listener.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/syscalls_needed.h"
#include "base/advice.h"
#include "daemon/session_log.h"
#include "relay/limits.h"
#include "config/config.h"
#include "relay/session.h"

#define PAUSE_MS 50
/* A listener that ends takes what waits for it, but not more than may wait in a backlog. */
#define LAST_ACCEPTS 4096
/*
 * accept(2) makes a socket and a descriptor before it looks whether there is a connection, so the
 * last call, which finds none, costs nearly as much as one that succeeds.  A listener begins with
 * one connection an event; when so many events in a row had all it asked for, it asks for twice as
 * many; when one had less, for half.
 */
#define ACCEPTS_PER_EVENT 64
#define ACCEPT_STREAK 8

SYSCALLS_NEEDED(
	SYSCALL(accept4),
	SYSCALL(close));

/* What an operator can do about a pause. */
static const char *advice_pause(enum cause cause)
{
	switch (cause) {
	case CAUSE_NO_DESCRIPTOR:
		return " (raise RLIMIT_NOFILE, LimitNOFILE= of the unit, or lower --max-sessions)";
	case CAUSE_NO_MEMORY:
		return " (the machine has none left, or TCP none of its own: net.ipv4.tcp_mem)";
	case CAUSE_SESSION_LIMIT:
		return " (raise --max-sessions, or see by `culvert sessions` who has them)";
	case CAUSE_FORWARD_LIMIT:
		return " (raise its max-sessions, or see by `culvert sessions` who has them)";
	default:
		return "";
	}
}

static void pause_until(struct listener *ls, enum cause cause, uint64_t due_ms)
{
	struct worker *w = ls->worker;

	if (!ls->paused) { /* count pauses, not the looks whether they are over */
		count_add(&w->stats.errors[cause], 1);
		log_limited(LOG_WARNING, "forward %s: accepting is paused, clients wait: %s%s",
			    forward_name(ls->forward->conf), cause_name(cause),
			    advice_pause(cause));
	}
	ls->paused = true;
	loop_watch(&w->loop, &ls->source, 0, false);
	timer_set(&w->loop, &ls->resume, due_ms);
}

static void pause_accepting(struct listener *ls, enum cause cause)
{
	pause_until(ls, cause, ls->worker->loop.now_ms + PAUSE_MS);
}

/* Of the workers that all watch one unix socket, only one is woken at a time. */
static int start_accepting(struct listener *ls)
{
	uint32_t events = EPOLLIN | (ls->on->shared ? (uint32_t)EPOLLEXCLUSIVE : 0);

	return loop_watch(&ls->worker->loop, &ls->source, events, true);
}

static void on_resume(struct timer *t)
{
	struct listener *ls = (struct listener *)((char *)t - offsetof(struct listener, resume));

	if (start_accepting(ls))
		timer_set(&ls->worker->loop, &ls->resume, ls->worker->loop.now_ms + PAUSE_MS);
}

static enum cause accept_cause(int error)
{
	if (error == EMFILE || error == ENFILE)
		return CAUSE_NO_DESCRIPTOR;
	return error == ENOMEM || error == ENOBUFS ? CAUSE_NO_MEMORY : CAUSE_ACCEPT_FAILED;
}

static void log_refused(const struct listener *ls, const struct sockaddr *client, enum cause why)
{
	session_log_refused(ls->worker->shared->session_log, forward_name(ls->forward->conf),
			    client, ls->worker->loop.now_ms, why);
}

static bool is_allowed(struct listener *ls, const struct sockaddr *client, socklen_t len)
{
	const struct forward_conf *fc = ls->forward->conf;
	struct worker *w = ls->worker;
	char text[ADDR_STRLEN];

	if (acl_allows(&fc->acl, client))
		return true;
	count_add(&w->stats.errors[CAUSE_DENIED], 1);
	count_add(&forward_stats(ls->forward, w->index)->denied, 1);
	log_refused(ls, client, CAUSE_DENIED);
	log_limited(LOG_NOTICE, "refused %s: forward %s does not allow it",
		    addr_format(client, len, text, sizeof(text)), forward_name(fc));
	return false;
}

static bool receives_header(const struct listener *ls)
{
	return ls->forward->conf->proxy_protocol & PROXY_RECEIVE;
}

/* One that is a proxy will say first whose session it is. */
static bool admit_client(struct listener *ls, const struct sockaddr *client)
{
	struct worker *w = ls->worker;
	enum cause why;

	if (receives_header(ls) ||
	    admission_enter_client(w->shared->admission, ls->forward, client, &why))
		return true;
	count_add(&w->stats.errors[why], 1);
	log_refused(ls, client, why);
	return false;
}

/* Before accept(2).  WAITING: a client does, for sure.  False: none can be had for now. */
static bool may_accept(struct listener *ls, bool waiting)
{
	struct worker *w = ls->worker;
	uint64_t due_ms;
	enum cause full;

	if (!worker_have_spare(w)) {
		pause_accepting(ls, CAUSE_NO_DESCRIPTOR);
		return false;
	}
	if (!admission_enter(w->shared->admission, ls->forward, &full)) {
		pause_accepting(ls, full);
		return false;
	}
	if (bucket_take(&ls->forward->accepts, 1, w->loop.now_ms, &due_ms))
		return true;
	admission_cancel(w->shared->admission, ls->forward);
	if (waiting) /* else epoll says so if one does, and nobody is made to wait for nothing */
		pause_until(ls, CAUSE_ACCEPT_RATE, due_ms);
	return false;
}

/* No client came, or none that may have a session. */
static void cancel(struct listener *ls)
{
	bucket_give_back(&ls->forward->accepts, 1); /* first: the forward may be freed then */
	admission_cancel(ls->worker->shared->admission, ls->forward);
}

static void turn_away(struct listener *ls, int fd)
{
	session_arm_reset(fd);
	close(fd);
	cancel(ls);
}

/* False: no more for now. */
static bool accept_one(struct listener *ls, bool waiting)
{
	struct worker *w = ls->worker;
	struct sockaddr_storage ss = { .ss_family = AF_UNIX };
	struct admission *admission = w->shared->admission;
	socklen_t len = sizeof(ss);
	int fd, r;

	if (!may_accept(ls, waiting))
		return false;
	fd = accept4(ls->source.fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		int error = errno;

		cancel(ls);
		if (error == EAGAIN)
			return false;
		/* accept(2): errors of the connection itself are passed on; they are not ours */
		if (error == ECONNABORTED || error == EINTR || error == EPROTO ||
		    error == ENETDOWN || error == EHOSTUNREACH || error == ENETUNREACH)
			return true;
		pause_accepting(ls, accept_cause(error));
		return false;
	}
	if (!is_allowed(ls, (struct sockaddr *)&ss, len) ||
	    !admit_client(ls, (struct sockaddr *)&ss)) {
		turn_away(ls, fd);
		return true;
	}
	r = session_open(w, ls->forward, fd, (struct sockaddr *)&ss);
	if (r) {
		if (receives_header(ls))
			admission_cancel(admission, ls->forward);
		else
			admission_leave(admission, ls->forward, (struct sockaddr *)&ss);
		session_arm_reset(fd);
		close(fd);
		log_refused(ls, (struct sockaddr *)&ss, accept_cause(-r));
		if (ls->paused) /* a pause is counted once, but each client that is lost */
			count_add(&w->stats.errors[accept_cause(-r)], 1);
		pause_accepting(ls, accept_cause(-r));
		return false;
	}
	ls->paused = false;
	return true;
}

static void on_accept(struct source *source, uint32_t events)
{
	struct listener *ls =
		(struct listener *)((char *)source - offsetof(struct listener, source));

	(void)events;
	for (unsigned int i = 0; i < ls->burst; i++) {
		if (!accept_one(ls, i == 0)) {
			ls->burst = (ls->burst + 1) / 2;
			ls->streak = 0;
			return;
		}
	}
	if (++ls->streak < ACCEPT_STREAK || ls->burst >= ACCEPTS_PER_EVENT)
		return;
	ls->burst *= 2;
	ls->streak = 0;
}

struct listener *listener_new(struct worker *w, struct listening *on, struct forward *f)
{
	struct listener *ls = calloc(1, sizeof(*ls));

	if (!ls)
		return NULL;
	ls->source = (struct source){ .handle = on_accept, .fd = on->fds[w->index] };
	ls->resume.fire = on_resume;
	ls->worker = w;
	ls->on = on;
	ls->forward = f;
	ls->burst = 1;
	return ls;
}

void listener_start(struct listener *ls)
{
	struct worker *w = ls->worker;

	ls->next = w->listeners;
	w->listeners = ls;
	on_resume(&ls->resume);
}

struct listener *listener_find(const struct worker *w, const struct listening *on)
{
	struct listener *ls = w->listeners;

	while (ls && ls->on != on)
		ls = ls->next;
	return ls;
}

void listener_end(struct listener *ls)
{
	struct worker *w = ls->worker;
	struct listener **at = &w->listeners;
	int i = 0;

	/* who waits at systemd's socket is served when culvert is back */
	while (!ls->on->given && i++ < LAST_ACCEPTS && accept_one(ls, true))
		;
	timer_cancel(&w->loop, &ls->resume);
	loop_watch(&w->loop, &ls->source, 0, false);
	if (!ls->on->shared) {
		close(ls->source.fd);
		ls->on->fds[w->index] = -1;
	}
	while (*at != ls)
		at = &(*at)->next;
	*at = ls->next;
	ls->next = w->ended;
	w->ended = ls;
}

static void free_list(struct listener **list)
{
	while (*list) {
		struct listener *ls = *list;

		*list = ls->next;
		free(ls);
	}
}

void listeners_reap(struct worker *w)
{
	free_list(&w->ended);
}

void listeners_free(struct worker *w)
{
	free_list(&w->ended);
	free_list(&w->listeners);
}
