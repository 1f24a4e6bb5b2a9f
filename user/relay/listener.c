// SPDX-License-Identifier: BSD-2-Clause
#include "relay/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/minmax.h"
#include "base/socket_set.h"
#include "base/syscalls_allowed.h"
#include "relay/session_log.h"
#include "datapath/tcp.h"
#include "datapath/udp.h"
#include "relay/admission.h"
#include "relay/session_life.h"
#include "relay/session_syn.h"
#include "relay/udp/udp_life.h"

#define BACKLOG 4096

#define PAUSE_MS 50
#define SHAPE_MS 60000 /* knowledge of servers expires */
/*
 * accept(2) makes a socket and a descriptor before it looks whether there is a connection.  So a
 * call that finds none costs nearly as much as one that succeeds.  So a listener accepts one
 * connection at the first event.  If each call at an event found a connection, the listener accepts
 * twice as many at the next event, up to ACCEPTS_PER_EVENT; otherwise it begins with one again.
 */
#define ACCEPTS_PER_EVENT 64

/*
 * The receive buffer of a socket of UDP.  Thousands of flows return from the packet programs at
 * once when routes have changed, and after a start.
 */
#define UDP_ROOM (4 << 20)

SYSCALLS_ALLOWED(
	SYSCALL(accept4), SYSCALL(close),
	SYSCALL(fcntl, SYSCALL_ARG(1, F_DUPFD_CLOEXEC)), /* systemd's, for an added forward */
	SYSCALL(unlink), /* unix sockets */
	SYSCALL(unlinkat));

/* --- accepting --- */

static void pause_until(struct listener *ls, enum cause cause, uint64_t due_ms)
{
	struct worker *w = ls->worker;

	if (!ls->paused) { /* a listener that goes on pausing counts once */
		count_add(&w->stats.errors[cause], 1);
		log_cause(cause, LOG_WARNING, "forward %s: accepting is paused, clients wait",
			  forward_name(ls->forward->conf));
	}
	ls->paused = true;
	loop_watch(&w->loop, &ls->source, 0, false);
	if (!w->resume.prev || due_ms < w->resume.due_ms)
		timer_set(&w->loop, &w->resume, due_ms);
}

/* EPOLLEXCLUSIVE: a client at a socket that all workers watch does not wake all of them. */
static void start_accepting(struct listener *ls)
{
	struct loop *l = &ls->worker->loop;

	if (loop_watch(l, &ls->source, EPOLLIN | (uint32_t)EPOLLEXCLUSIVE, true))
		pause_until(ls, CAUSE_NO_MEMORY, l->now_ms + PAUSE_MS); /* epoll has no memory */
}

/*
 * The earliest pause is over: all listeners accept again.  If the pause of a listener is longer,
 * its next client makes it pause again.
 */
static void on_resume(struct timer *t)
{
	struct worker *w = container_of(t, struct worker, resume);
	struct listener *ls;

	LIST_FOREACH(ls, &w->listeners, in_worker)
		if (!ls->on->udp)
			start_accepting(ls);
}

/* Undo may_accept(): no client came, or the client may have no session. */
static void cancel(struct listener *ls)
{
	bucket_give_back(&ls->forward->accepts, 1);
	admission_leave(ls->worker->shared, ls->forward, NULL);
}

/*
 * Begin the session of CLIENT, whose socket is FD.  admission_enter() has counted the session in.
 * CAUSE_NONE; or the cause of a refusal, and the session is counted out again.
 */
static enum cause begin_session(struct listener *ls, int fd, const union client_addr *client)
{
	struct shared *shared = ls->worker->shared;
	struct forward *f = ls->forward;
	/* the header of a proxy will name the client */
	bool is_proxy = f->conf->proxy_protocol & PROXY_RECEIVE;
	enum cause why = CAUSE_NONE;

	if (!admission_allows(ls->worker, f, client))
		why = CAUSE_DENIED;
	else if (!is_proxy)
		why = admission_enter_client(shared, f, client, true);
	if (why != CAUSE_NONE) {
		cancel(ls);
		return why;
	}
	if (!session_open(ls->worker, f, fd, client, addr_port(&ls->on->addr)))
		return CAUSE_NONE;
	admission_leave(shared, f, is_proxy ? NULL : client);
	return CAUSE_NO_MEMORY;
}

/*
 * Count a session in before accept(2).  WAITING: epoll has reported a client, so if there is no
 * room the listener pauses.  False: do not accept now.
 */
static bool may_accept(struct listener *ls, bool waiting)
{
	struct worker *w = ls->worker;
	uint64_t due_ms = w->loop.now_ms + PAUSE_MS;
	enum cause why;

	do {
		why = admission_enter_at_rate(w->shared, ls->forward, w->loop.now_ms, &due_ms);
	} while (why != CAUSE_NONE && waiting && session_syn_give_way(w->shared, ls->forward, why));
	if (why != CAUSE_NONE && waiting) /* else epoll reports the next client, if there is one */
		pause_until(ls, why, due_ms);
	return why == CAUSE_NONE;
}

/* False: stop accepting for now. */
static bool accept_one(struct listener *ls, bool waiting)
{
	struct worker *w = ls->worker;
	union client_addr client = { .sa.sa_family = AF_UNIX };
	socklen_t len = sizeof(client);
	enum cause why;
	int fd;

	if (!may_accept(ls, waiting))
		return false;
	fd = accept4(ls->source.fd, &client.sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0) {
		if (errno != EAGAIN)
			pause_until(ls, tcp_cause_of_shortage(errno, CAUSE_ACCEPT_FAILED),
				    w->loop.now_ms + PAUSE_MS);
		cancel(ls);
		return false;
	}
	ls->paused = false;
	why = begin_session(ls, fd, &client);
	if (why == CAUSE_NONE)
		return true;
	tcp_arm_reset(fd);
	close(fd);
	count_add(&w->stats.errors[why], 1);
	if (why == CAUSE_NO_MEMORY) /* other causes were logged with more detail */
		log_cause(why, LOG_WARNING, "forward %s: a client is reset",
			  forward_name(ls->forward->conf));
	session_log_refused(w->shared->session_log, ls->forward, &client, why);
	return true;
}

static void on_accept(struct source *source, uint32_t events)
{
	struct listener *ls = container_of(source, struct listener, source);

	(void)events;
	for (unsigned int i = 0; i < ls->burst; i++) {
		if (!accept_one(ls, i == 0)) {
			ls->burst = 1;
			return;
		}
	}
	ls->burst = (unsigned int)smaller(2 * ls->burst, ACCEPTS_PER_EVENT);
}

/* --- one worker's side --- */

void listener_start(struct listening *l, struct worker *w)
{
	struct listener *ls = &l->at[w->index];

	ls->source.handle = on_accept;
	ls->worker = w;
	ls->on = l;
	ls->forward = l->forward;
	ls->burst = 1;
	LIST_INSERT_HEAD(&w->listeners, ls, in_worker);
	w->resume.fire = on_resume;
	ls->syn = session_syn_listen(w->shared, ls->forward);
	if (!l->udp) {
		start_accepting(ls);
	} else if (!l->shared || !w->index) { /* one worker serves a shared socket */
		ls->udp = udp_listener_start(w, ls->forward, &l->addr, ls->source.fd);
		ls->source.fd = -1;
	}
}

void listeners_follow_servers(struct worker *w)
{
	uint64_t news = atomic_load_explicit(&w->shared->server_news, memory_order_acquire);
	struct listener *ls;

	LIST_FOREACH(ls, &w->listeners, in_worker)
		if (ls->syn && session_syn_stock(w->shared, ls->forward) != ls->shape.stock)
			w->shape_ms = 0; /* the probe has ended, or the engine has changed */
	if (!w->shared->grafts || (news == w->server_news_seen && w->loop.now_ms < w->shape_ms))
		return;
	w->server_news_seen = news;
	w->shape_ms = w->loop.now_ms + SHAPE_MS;
	LIST_FOREACH(ls, &w->listeners, in_worker)
		if (!ls->on->udp && ls->source.fd >= 0 && addr_is_inet(&ls->on->addr))
			handshake_shape_listener(w->shared, ls->forward, ls->source.fd,
						 w->loop.now_ms, &ls->shape);
}

void listener_becomes(struct listener *ls, struct forward *f)
{
	ls->worker->shape_ms = 0;
	session_syn_leave(ls->worker->shared, ls->syn);
	ls->forward = f;
	ls->syn = session_syn_listen(ls->worker->shared, f);
	if (ls->udp)
		ls->udp->forward = f;
}

void listener_end(struct listener *ls)
{
	struct worker *w = ls->worker;
	int i = 0;

	/*
	 * Clients that wait at systemd's socket are served when culvert is back.  At any other
	 * socket, one full backlog is the limit, since clients may go on coming.
	 */
	while (!ls->on->udp && !ls->on->given && i++ < BACKLOG && accept_one(ls, false))
		;
	loop_watch(&w->loop, &ls->source, 0, false);
	if (ls->udp)
		udp_listener_end(ls->udp);
	ls->udp = NULL;
	if (!ls->on->shared && ls->source.fd >= 0) {
		close(ls->source.fd);
		ls->source.fd = -1;
	}
	session_syn_leave(w->shared, ls->syn);
	LIST_REMOVE(ls, in_worker);
}

void listeners_end(struct worker *w)
{
	while (!LIST_EMPTY(&w->listeners))
		listener_end(LIST_FIRST(&w->listeners));
}

/* --- sockets --- */

static int set_options(int fd, const struct forward_conf *fc, const struct addr *a, bool reuseport)
{
	int family = a->ss.ss_family;
	int r = fc->transparent ? socket_set_transparent(fd, family) : 0;

	if (fc->listen.udp && socket_set(fd, SOL_SOCKET, SO_RCVBUFFORCE, UDP_ROOM))
		socket_set(fd, SOL_SOCKET, SO_RCVBUF, UDP_ROOM);
	/* for UDP, SO_REUSEADDR would let other programs listen at this address */
	if (!fc->listen.udp)
		r = r ?: socket_set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (reuseport)
		r = r ?: socket_set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	/* "[::]:80" beside "0.0.0.0:80" are two listeners, not one in two families */
	if (family == AF_INET6)
		r = r ?: socket_set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	if (fc->listen.udp)
		return r ?: udp_set_listener(fd, a);
	/* before listen(2), so that the first connection inherits them */
	return r ?: tcp_set_session_options(fd, fc->nodelay, fc->keepalive_ms);
}

/* A descriptor, or -errno. */
static int open_socket(const struct forward_conf *fc, const struct addr *a, bool reuseport)
{
	int type = fc->listen.udp ? SOCK_DGRAM : SOCK_STREAM, r = 0;
	int fd = socket(a->ss.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	mode_t mask;

	if (fd < 0)
		return -errno;
	if (addr_is_inet(a))
		r = set_options(fd, fc, a, reuseport);
	/* a unix socket's file is open to all, like a port: its directory says who may reach it */
	mask = umask(0111);
	if (!r && (bind(fd, &a->sa, a->len) || (!fc->listen.udp && listen(fd, BACKLOG))))
		r = -errno;
	umask(mask);
	if (r)
		close(fd);
	return r ?: fd;
}

int listener_sockets(void *unused, const struct forward_conf *fc, struct addr *a, bool joins,
		     unsigned int n, int *fds, char *err, size_t errlen)
{
	socklen_t len = sizeof(a->ss);
	unsigned int i = 0;
	int r = 0;

	(void)unused;
	if (!addr_is_inet(a)) {
		unix_remove_stale((const struct sockaddr_un *)&a->ss, a->len);
	} else if (!joins || addr_takes_any_port(a)) {
		r = open_socket(fc, a, false);
		/* with SO_REUSEPORT the kernel may pick a port that a process of this user has */
		if (r >= 0 && addr_takes_any_port(a))
			getsockname(r, &a->sa, &len);
		if (r >= 0)
			close(r);
	}
	while (r >= 0 && i < n) {
		r = fds[i] = open_socket(fc, a, true);
		i += r >= 0;
	}
	if (r >= 0 && fc->listen.udp) { /* earlier datagrams may be at the wrong socket */
		r = udp_spread(fds[0], a->ss.ss_family, n);
		for (unsigned int k = 0; !r && k < n; k++)
			udp_discard(fds[k]);
	}
	if (r >= 0)
		return 0;
	while (i > 0)
		close(fds[--i]);
	snprintf(err, errlen, "%s%s", strerror(-r), error_hint(HINT_LISTEN, -r));
	return r;
}

/* --- sockets that systemd, or the daemon before this one, has opened --- */

struct given_socket {
	int fd;           /* -1: taken */
	struct addr addr; /* that it is bound to */
	bool udp;
	bool handed; /* by the daemon before this one */
	bool opened; /* a forward listens there */
};

static struct given_socket *given;
static size_t n_given;

/* Is FD of use?  S gets its address and protocol. */
static bool is_useful(int fd, struct given_socket *s)
{
	struct addr *a = &s->addr;
	int only_ipv6 = 1;
	socklen_t len = sizeof(only_ipv6);

	a->len = sizeof(a->ss);
	s->udp = sd_is_socket(fd, AF_UNSPEC, SOCK_DGRAM, -1) > 0;
	if ((!s->udp && sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0) ||
	    getsockname(fd, &a->sa, &a->len))
		return false;
	if (s->udp && (!addr_is_inet(a) || udp_set_listener(fd, a)))
		return false;
	/* to culvert [::] and 0.0.0.0 are two addresses, perhaps of two forwards */
	if (!s->handed && a->ss.ss_family == AF_INET6 && addr_is_any(a) &&
	    !getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_ipv6, &len) && !only_ipv6)
		return false;
	/* accept(2) must not block: another worker, or the client's reset, may be quicker */
	return !fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
}

bool given_put(int fd, bool handed)
{
	struct given_socket s = { .fd = fd, .handed = handed };

	if (!is_useful(fd, &s))
		return false;
	given = allocated(realloc(given, (n_given + 1) * sizeof(*given)));
	given[n_given++] = s;
	return true;
}

int given_take(char *err, size_t errlen, int *ret_store)
{
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names), r = 0;

	for (int i = 0; i < n; i++) {
		int fd = SD_LISTEN_FDS_START + i;

		if (!strcmp(names[i], STORE_NAME)) {
			*ret_store = fd;
		} else if (!r && !given_put(fd, false)) {
			snprintf(err, errlen,
				 "descriptor %d, which systemd has opened for culvert, is of no "
				 "use: it needs ListenStream= with Accept=no, or ListenDatagram=; "
				 "[::] also needs BindIPv6Only=ipv6-only, and a second socket at "
				 "0.0.0.0 for IPv4",
				 fd);
			r = -EINVAL;
		}
		free(names[i]);
	}
	free(names);
	return r;
}

int given_check(char *err, size_t errlen)
{
	char text[ADDR_STRLEN];

	for (const struct given_socket *s = given; s < given + n_given; s++) {
		if (s->opened || s->handed)
			continue;
		addr_format(&s->addr.sa, s->addr.len, text, sizeof(text));
		snprintf(err, errlen,
			 "no forward listens on %s%s, which systemd has opened for "
			 "culvert: \"listen\" and %s= must say the same",
			 text, s->udp ? "/udp" : "", s->udp ? "ListenDatagram" : "ListenStream");
		return -EINVAL;
	}
	return 0;
}

unsigned int given_open(const struct addr *a, bool udp, unsigned int most, int *fds,
			bool *ret_handed)
{
	unsigned int n = 0;

	for (struct given_socket *s = given; s < given + n_given && n < most; s++) {
		if (s->fd < 0 || s->udp != udp || !addr_equal(&s->addr, a))
			continue;
		s->opened = true;
		*ret_handed = s->handed;
		fds[n++] = s->handed ? s->fd : fcntl(s->fd, F_DUPFD_CLOEXEC, 0);
		if (!s->handed)
			break;
		s->fd = -1;
	}
	return n;
}

void given_close_rest(void)
{
	for (struct given_socket *s = given; s < given + n_given; s++)
		if (s->handed && s->fd >= 0) {
			close(s->fd);
			s->fd = -1;
		}
}

/* --- addresses --- */

/* May more sockets listen where FD does? */
static bool is_joinable(int fd)
{
	int joins = 0;
	socklen_t len = sizeof(joins);

	return !getsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &joins, &len) && joins;
}

int listening_open(const struct listening_maker *by, struct forward *f, const struct addr *a,
		   bool joins, unsigned int n, struct listening **ret)
{
	struct listening *l = calloc(1, sizeof(struct listening) + n * sizeof(struct listener));
	char text[ADDR_STRLEN], why[512];
	int fds[WORKERS_MAX], r = 0;
	unsigned int has;
	bool handed = false;

	if (!l)
		return log_complain(-ENOMEM, "out of memory");
	*l = (struct listening){
		.forward = f, .becomes = f, .asked = *a, .addr = *a, .n_workers = n
	};
	l->udp = f->conf->listen.udp;
	has = given_open(a, l->udp, n, fds, &handed);
	l->given = has && !handed;
	l->shared = l->given || !addr_is_inet(a) || (has && !is_joinable(fds[0]));
	if (has < (l->shared ? 1 : n))
		r = by->make(by->arg, f->conf, &l->addr, joins || has, (l->shared ? 1 : n) - has,
			     fds + has, why, sizeof(why));
	if (!r && has && l->udp && !l->shared) /* it may have had another number of workers */
		udp_spread(fds[0], a->ss.ss_family, n);
	if (r) {
		addr_format(&a->sa, a->len, text, sizeof(text));
		free(l);
		return log_complain(r, "forward %s: cannot listen on %s%s: %s",
				    forward_name(f->conf), text, f->conf->listen.udp ? "/udp" : "",
				    why);
	}
	for (unsigned int i = 0; i < n; i++)
		l->at[i].source.fd = fds[l->shared ? 0 : i];
	listening_set_options(l, f->conf);
	*ret = l;
	return 0;
}

void listening_close(struct listening *l)
{
	if (!l)
		return;
	for (unsigned int i = 0; i < (l->shared ? 1 : l->n_workers); i++)
		if (l->at[i].source.fd >= 0)
			close(l->at[i].source.fd);
	if (!addr_is_inet(&l->addr) && !l->given)
		unlink(((const struct sockaddr_un *)&l->addr.ss)->sun_path);
	free(l);
}

void listening_close_all(struct listening_list *list)
{
	while (!LIST_EMPTY(list)) {
		struct listening *l = LIST_FIRST(list);

		LIST_REMOVE(l, in_service);
		listening_close(l);
	}
}

void listening_adopt(const struct listening *l, struct endpoint *e, struct addr *a)
{
	if (!addr_takes_any_port(a))
		return;
	*a = l->addr;
	if (e->n_addrs != 1)
		return;
	addr_format(&a->sa, a->len, e->text, sizeof(e->text));
	if (l->udp)
		strcat(e->text, "/udp");
}

void listening_set_options(struct listening *l, const struct forward_conf *fc)
{
	for (unsigned int i = 0; addr_is_inet(&l->addr) && !l->udp && i < l->n_workers; i++) {
		int fd = l->at[i].source.fd;
		int r = fd < 0 ? 0 : tcp_set_session_options(fd, fc->nodelay, fc->keepalive_ms);

		if (r)
			log_warning("forward %s: accepted connections keep their old options: %s",
				    forward_name(fc), strerror(-r));
	}
}
