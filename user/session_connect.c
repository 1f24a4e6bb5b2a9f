// SPDX-License-Identifier: BSD-2-Clause
#include "session_connect.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "advice.h"
#include "log.h"
#include "proxy_use.h"
#include "session_flow.h"
#include "session_header.h"
#include "syscall_filter.h"
#include "tcp.h"
#include "upstream_socket.h"

/*
 * A connect that could not even begin (no descriptor, full unix backlog) is tried again this soon.
 */
#define RETRY_MS 20
/*
 * While the upstream is silent for longer than this, the client is watched for RST.  Most upstreams
 * answer sooner, and then the client is given to epoll once, with what is really wanted of it.
 */
#define CONNECT_QUIET_MS 20

SYSCALLS_NEEDED(
	SYSCALL(connect),
	SYSCALL(close),
	SYSCALL(getsockopt, SYSCALL_ARG(1, SOL_SOCKET), SYSCALL_ARG(2, SO_ERROR)),
	SYSCALL(setsockopt, SYSCALL_ARG(1, IPPROTO_TCP), SYSCALL_ARG(2, TCP_DEFER_ACCEPT)));

static enum cause connect_cause(int error)
{
	switch (error) {
	case ECONNREFUSED:
	case ENOENT:
		return CAUSE_CONNECT_REFUSED;
	case ETIMEDOUT:
		return CAUSE_CONNECT_TIMEOUT;
	case ENETUNREACH:
	case EHOSTUNREACH:
		return CAUSE_CONNECT_UNREACHABLE;
	default:
		return CAUSE_CONNECT_FAILED;
	}
}

/* Accepted sockets inherit theirs from the listener. */
static void set_options(const struct session *s, int fd)
{
	const struct forward_conf *fc = forward_of(s);
	int r = tcp_set_session_options(fd, fc->nodelay, fc->keepalive_s);

	if (r)
		log_limited(LOG_WARNING, "session %llu: no keepalive for the upstream: %s",
			    (unsigned long long)s->id, strerror(-r));
}

/*
 * A client that has spoken already will have its bytes sent as soon as the upstream answers, so the
 * ACK of the handshake can travel with them: one segment less.  tcp_rcv_synsent_state_process()
 * holds it back, for 200 ms at most, when it finds TCP_DEFER_ACCEPT on a socket that connects.
 * Where the upstream speaks first this must not be done: it would wait for that ACK.  An upstream
 * that is sent a PROXY header gets the ACK with that, whoever speaks first.  Returns 0, or the errno
 * of a client that is gone.
 */
static int spare_an_ack(const struct session *s, int fd)
{
	int seconds = 1;
	char c;
	ssize_t n = tcp_peek(s->sides[CLIENT].fd, &c, 1, 0);

	if (n < 0 && errno != EAGAIN)
		return errno;
	if (n > 0 || forward_of(s)->proxy_protocol & PROXY_SEND)
		setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds));
	return 0;
}

static void retry_later(struct session *s, enum cause cause)
{
	count_add(&s->worker->stats.errors[cause], 1);
	s->retry_ms = s->worker->loop.now_ms + RETRY_MS;
}

/* Most clients have spoken by now: to look at once saves a round through epoll. */
static void connected(struct session *s)
{
	s->retry_ms = 0;
	if (!session_header_send(s)) {
		if (s->state == SESSION_CONNECTING)
			retry_later(s, CAUSE_NO_MEMORY);
		return;
	}
	s->state = SESSION_OPEN;
	session_flows_start(s);
	if (s->state == SESSION_OPEN)
		session_flow_run(s, CLIENT, false);
}

static int open_socket(struct session *s, const struct addr *a)
{
	return upstream_socket(forward_of(s), s->forward->stock, &s->client.sa, a);
}

/*
 * Begin to connect to the current address.  0: under way, done, or to be tried again; else errno.
 */
static int connect_begin(struct session *s)
{
	const struct addr *a = &upstream_of(s)->addrs[s->upstream];
	struct source *side = &s->sides[UPSTREAM];
	int fd, r;

	s->retry_ms = 0;
	fd = open_socket(s, a);
	if ((fd == -EMFILE || fd == -ENFILE) && worker_spend_spare(s->worker))
		fd = open_socket(s, a);
	if (fd == -EAGAIN) {
		retry_later(s, CAUSE_NO_SOCKET);
		return 0;
	}
	if (fd < 0) {
		if (fd != -EMFILE && fd != -ENFILE && fd != -ENOMEM && fd != -ENOBUFS)
			return -fd;
		/* idle pipes are the only descriptors that can be spared */
		pool_trim(&s->worker->pool);
		retry_later(s, fd == -EMFILE || fd == -ENFILE ? CAUSE_NO_DESCRIPTOR
							      : CAUSE_NO_MEMORY);
		return 0;
	}
	if (addr_is_inet(a)) {
		set_options(s, fd);
		r = spare_an_ack(s, fd);
		if (r) {
			close(fd);
			session_reset(s, session_cause(CLIENT, r));
			return 0;
		}
	}
	side->fd = fd;
	if (!connect(fd, (const struct sockaddr *)&a->ss, a->len)) {
		connected(s);
		return 0;
	}
	if (errno == EINPROGRESS)
		return 0;
	if (errno == EAGAIN && !addr_is_inet(a)) { /* the listener's backlog is full */
		session_close_side(s, UPSTREAM, false);
		s->retry_ms = s->worker->loop.now_ms + RETRY_MS;
		return 0;
	}
	return errno;
}

/* The current address has failed with ERROR: try the others, in order. */
static void connect_next(struct session *s, int error)
{
	char text[ADDR_STRLEN];

	while (error) {
		const struct addr *a = &upstream_of(s)->addrs[s->upstream];

		/*
		 * it may answer just now, and a FIN would tell it of an empty stream that was
		 * complete
		 */
		session_close_side(s, UPSTREAM, true);
		s->header_out = 0;
		log_limited(LOG_WARNING, "session %llu, forward %s: cannot connect to %s: %s%s",
			    (unsigned long long)s->id, forward_name(forward_of(s)),
			    addr_format((const struct sockaddr *)&a->ss, a->len, text,
					sizeof(text)),
			    upstream_socket_error(error), advice_connect(error));
		if (++s->upstream >= upstream_of(s)->n_addrs) {
			session_reset(s, connect_cause(error));
			return;
		}
		s->connect_due_ms = s->worker->loop.now_ms + forward_of(s)->connect_timeout_ms;
		error = connect_begin(s);
	}
}

void session_connect_answered(struct session *s, uint32_t events)
{
	socklen_t len = sizeof(int);
	int error = 0;

	if (events & (EPOLLERR | EPOLLHUP) &&
	    getsockopt(s->sides[UPSTREAM].fd, SOL_SOCKET, SO_ERROR, &error, &len))
		error = errno;
	if (error)
		connect_next(s, error);
	else
		connected(s);
}

void session_connect(struct session *s)
{
	s->connect_due_ms = s->worker->loop.now_ms + forward_of(s)->connect_timeout_ms;
	connect_next(s, connect_begin(s));
}

bool session_connect_is_quiet(const struct session *s)
{
	return s->worker->loop.now_ms < s->born_ms + CONNECT_QUIET_MS;
}

uint64_t session_connect_due(const struct session *s)
{
	uint64_t due = s->connect_due_ms;

	if (s->retry_ms && s->retry_ms < due)
		due = s->retry_ms;
	if (session_connect_is_quiet(s) && s->born_ms + CONNECT_QUIET_MS < due)
		due = s->born_ms + CONNECT_QUIET_MS;
	return due;
}

void session_connect_timer(struct session *s)
{
	uint64_t now = s->worker->loop.now_ms;

	if (now >= s->connect_due_ms)
		connect_next(s, ETIMEDOUT);
	else if (s->retry_ms && now >= s->retry_ms && s->sides[UPSTREAM].fd >= 0)
		connected(s);
	else if (s->retry_ms && now >= s->retry_ms)
		connect_next(s, connect_begin(s));
}
