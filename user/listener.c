// SPDX-License-Identifier: BSD-2-Clause
#include "listener.h"

#include <errno.h>
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

#include "admission.h"
#include "listen_socket.h"
#include "log.h"
#include "session.h"
#include "syscall_filter.h"

#define PAUSE_MS 50
/*
 * accept(2) makes a socket and a descriptor before it looks whether there is a connection, so the
 * last call, which finds none, costs nearly as much as one that succeeds.  A listener begins with
 * one connection an event; when so many events in a row had all it asked for, it asks for twice as
 * many; when one had less, for half.
 */
#define ACCEPTS_PER_EVENT 64
#define ACCEPT_STREAK 8

SYSCALLS_NEEDED(
	SYSCALL(setsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_ATTACH_REUSEPORT_CBPF)),
	SYSCALL(accept4),
	SYSCALL(close),
	SYSCALL(unlink), /* at the end: unix sockets */
	SYSCALL(unlinkat));

struct listen_fd {
	const struct addr *addr;
	unsigned int forward;
	unsigned int worker;
	bool shared;
	int fd;
};

struct listen_fds {
	struct listen_fd *fds;
	size_t n;
};

/* --- binding --- */

/* Port 0: all workers must listen on the port that the kernel chose for the first. */
static void learn_port(struct endpoint *e, struct addr *a, int fd)
{
	if (listen_socket_learn_port(a, fd) && e->n_addrs == 1)
		addr_format((struct sockaddr *)&a->ss, a->len, e->text, sizeof(e->text));
}

static int bind_address(struct listen_fds *l, const struct config *c, unsigned int forward,
			struct endpoint *e, struct addr *a)
{
	bool shared = !addr_is_inet(a);
	int r = listen_socket_make_room(&c->forwards[forward], a), fd = -1;

	for (unsigned int w = 0; !r && w < c->workers; w++) {
		if (!shared || w == 0) {
			r = listen_socket_open(&c->forwards[forward], a, true, &fd);
			if (r)
				break;
			learn_port(e, a, fd);
		}
		l->fds[l->n++] = (struct listen_fd){ a, forward, w, shared, fd };
	}
	return r;
}

int listeners_bind(const struct config *c, struct listen_fds **ret, char *err, size_t errlen)
{
	struct listen_fds *l = calloc(1, sizeof(*l));
	char text[ADDR_STRLEN];
	size_t n = 0;
	int r = -ENOMEM;

	for (size_t i = 0; i < c->n_forwards; i++)
		n += c->forwards[i].listen.n_addrs;
	if (l)
		l->fds = calloc(n * c->workers ?: 1, sizeof(*l->fds));
	if (!l || !l->fds) {
		snprintf(err, errlen, "out of memory");
		goto fail;
	}
	for (unsigned int i = 0; i < c->n_forwards; i++) {
		struct endpoint *e = &c->forwards[i].listen;

		for (size_t j = 0; j < e->n_addrs; j++) {
			r = bind_address(l, c, i, e, &e->addrs[j]);
			if (!r)
				continue;
			addr_format((struct sockaddr *)&e->addrs[j].ss, e->addrs[j].len, text,
				    sizeof(text));
			snprintf(err, errlen, "cannot listen on %s: %s", text, strerror(-r));
			goto fail;
		}
	}
	*ret = l;
	return 0;
fail:
	listeners_unbind(l);
	return r;
}

void listeners_unbind(struct listen_fds *l)
{
	if (!l)
		return;
	for (size_t i = 0; i < l->n; i++) {
		const struct sockaddr_un *un = (const struct sockaddr_un *)&l->fds[i].addr->ss;

		if (l->fds[i].shared && l->fds[i].worker)
			continue;
		if (l->fds[i].fd >= 0)
			close(l->fds[i].fd);
		if (l->fds[i].shared && un->sun_path[0] && unlink(un->sun_path) && errno != ENOENT)
			log_info("%s stays: %s; the next start will replace it", un->sun_path,
				 strerror(errno));
	}
	free(l->fds);
	free(l);
}

/* --- steering --- */

/*
 * A program of the SO_REUSEPORT group picks a socket by its place there, which is the worker's
 * number: they were bound in that order.  At random, since a hash of the addresses is 0 for some
 * devices' packets.  A handshake is between its listener and the client from the SYN on; what is
 * picked anew (the last ACK with SYN cookies) is accepted by any of them.
 */
void listeners_steer(struct listen_fds *l, unsigned int active)
{
	struct sock_filter pick[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(SKF_AD_OFF + SKF_AD_RANDOM)),
		BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, active),
		BPF_STMT(BPF_RET | BPF_A, 0),
	};
	const struct sock_fprog prog = { sizeof(pick) / sizeof(pick[0]), pick };

	for (size_t i = 0; i < l->n; i++) {
		const struct listen_fd *f = &l->fds[i];

		if (f->worker || f->shared)
			continue;
		if (setsockopt(f->fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &prog, sizeof(prog)))
			log_limited(LOG_WARNING, "new connections go to all workers: %s",
				    strerror(errno));
	}
}

/* --- accepting --- */

static void pause_accepting(struct listener *ls, enum cause cause)
{
	struct worker *w = ls->worker;

	if (!ls->paused) { /* count pauses, not the looks whether they are over */
		count_add(&w->stats.errors[cause], 1);
		log_limited(LOG_WARNING, "accepting is paused: %s", cause_name(cause));
	}
	ls->paused = true;
	loop_watch(&w->loop, &ls->source, 0, false);
	timer_set(&w->loop, &ls->resume, w->loop.now_ms + PAUSE_MS);
}

/* Of the workers that all watch one unix socket, only one is woken at a time. */
static int start_accepting(struct listener *ls)
{
	uint32_t events = EPOLLIN | (ls->slot->shared ? (uint32_t)EPOLLEXCLUSIVE : 0);

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

static bool is_allowed(struct listener *ls, const struct sockaddr *client, socklen_t len)
{
	const struct forward_conf *fc = &ls->worker->shared->config->forwards[ls->slot->forward];
	struct stats *stats = &ls->worker->stats;
	char text[ADDR_STRLEN];

	if (acl_allows(&fc->acl, client))
		return true;
	count_add(&stats->errors[CAUSE_DENIED], 1);
	count_add(&stats->forwards[ls->slot->forward].denied, 1);
	log_limited(LOG_NOTICE, "refused %s: forward %s does not allow it",
		    addr_format(client, len, text, sizeof(text)), forward_name(fc));
	return false;
}

/* A client over its limit learns it at once, and is not left to wait behind its own sessions. */
static bool admit_client(struct listener *ls, const struct sockaddr *client, socklen_t len)
{
	const struct shared *sh = ls->worker->shared;
	char text[ADDR_STRLEN];
	unsigned int most;
	bool all;

	if (admission_enter_client(sh->admission, ls->slot->forward, client, &most, &all))
		return true;
	count_add(&ls->worker->stats.errors[CAUSE_CLIENT_LIMIT], 1);
	addr_format(client, len, text, sizeof(text));
	if (all)
		log_limited(LOG_WARNING, "refused %s: it has %u sessions "
			    "(--max-sessions-per-client)", text, most);
	else
		log_limited(LOG_WARNING, "refused %s: it has %u sessions of forward %s "
			    "(max-sessions-per-client)", text, most,
			    forward_name(&sh->config->forwards[ls->slot->forward]));
	return false;
}

static void turn_away(struct listener *ls, int fd)
{
	session_arm_reset(fd);
	close(fd);
	admission_cancel(ls->worker->shared->admission, ls->slot->forward);
}

/* False: no more for now. */
static bool accept_one(struct listener *ls)
{
	struct worker *w = ls->worker;
	struct sockaddr_storage ss = { .ss_family = AF_UNIX };
	struct admission *admission = w->shared->admission;
	socklen_t len = sizeof(ss);
	enum cause full;
	int fd, r;

	if (!worker_have_spare(w)) {
		pause_accepting(ls, CAUSE_NO_DESCRIPTOR);
		return false;
	}
	if (!admission_enter(admission, ls->slot->forward, &full)) {
		pause_accepting(ls, full);
		return false;
	}
	fd = accept4(ls->source.fd, (struct sockaddr *)&ss, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		int error = errno;

		admission_cancel(admission, ls->slot->forward);
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
	    !admit_client(ls, (struct sockaddr *)&ss, len)) {
		turn_away(ls, fd);
		return true;
	}
	r = session_open(w, ls->slot->forward, fd, (struct sockaddr *)&ss);
	if (r) {
		admission_leave(admission, ls->slot->forward, (struct sockaddr *)&ss);
		session_arm_reset(fd);
		close(fd);
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
		if (!accept_one(ls)) {
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

int listeners_start(struct listen_fds *l, struct worker *w, struct listener **ret)
{
	*ret = NULL;
	for (size_t i = 0; i < l->n; i++) {
		struct listener *ls;
		int r;

		if (l->fds[i].worker != w->index)
			continue;
		ls = calloc(1, sizeof(*ls));
		if (!ls)
			return -ENOMEM;
		ls->source = (struct source){ .handle = on_accept, .fd = l->fds[i].fd };
		ls->resume.fire = on_resume;
		ls->worker = w;
		ls->slot = &l->fds[i];
		ls->burst = 1;
		ls->next = *ret;
		*ret = ls;
		r = start_accepting(ls);
		if (r)
			return r;
	}
	return 0;
}

void listeners_stop(struct listener *list)
{
	for (struct listener *ls = list; ls; ls = ls->next) {
		int i = 0;

		while (i++ < LISTEN_BACKLOG && accept_one(ls))
			;
		timer_cancel(&ls->worker->loop, &ls->resume);
		loop_watch(&ls->worker->loop, &ls->source, 0, false);
		if (!ls->slot->shared) {
			close(ls->source.fd);
			ls->slot->fd = -1;
		}
	}
}

void listeners_free(struct listener *list)
{
	while (list) {
		struct listener *next = list->next;

		free(list);
		list = next;
	}
}
