// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation: what has come is looked at (MSG_PEEK) until the hello is whole; then its
 * forward is known, and the bytes are carried as all others.  To look again costs as much as has
 * come, so the socket is told how much is wanted at least (SO_RCVLOWAT): a client that sends byte by
 * byte does not make us look byte by byte.  Unix sockets do not know that in epoll.
 *
 * Nothing but a hello that was understood gets to a server: whoever sends anything else might have
 * been meant for another one.
 */
#include "relay/session_hello.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"

SYSCALLS_ALLOWED(SYSCALL(sendto));

enum { ALERT_DECODE_ERROR = 50, ALERT_UNRECOGNIZED_NAME = 112 };

static bool refuse(struct session *s, enum cause cause, const char *name, const char *reason)
{
	const uint8_t alert[] = {
		21, 3, 1, 0, 2, /* fatal */ 2, *name ? ALERT_UNRECOGNIZED_NAME : ALERT_DECODE_ERROR
	};
	char text[ADDR_STRLEN];

	send(s->sides[CLIENT].fd, alert, sizeof(alert), MSG_DONTWAIT | MSG_NOSIGNAL);
	log_cause(cause, LOG_NOTICE, "session %llu: reset: TLS hello of %s to forward %s: %s%s",
		  (unsigned long long)s->id, client_addr_text(&s->client, text, sizeof(text)),
		  forward_name(s->forward->conf), reason, name);
	return session_reset(s, cause);
}

/* It is whole. */
static bool route(struct session *s, const struct tls_hello *h)
{
	struct told *told = realloc(s->told, sizeof(*told) + strlen(h->name) + 1);
	struct forward *f;

	if (!told)
		return session_reset(s, CAUSE_NO_MEMORY);
	s->told = told;
	strcpy(told->server_name, h->name);
	if (s->told->lowat)
		tcp_set_lowat(s->sides[CLIENT].fd, 1);
	f = forward_route(s->forward, h);
	if (!f)
		return refuse(s, CAUSE_NAME_UNKNOWN, h->name,
			      h->name[0] ? "no section, and no upstream, for " :
					   "it has no name, and there is no upstream for that");
	s->forward = f;
	s->tcp = session_peer(s)->sa.sa_family != AF_UNIX &&
		 !upstreams_are_unix(&f->conf->upstream);
	return true;
}

bool session_hello_look(struct session *s, bool ended)
{
	bool is_unix = session_peer(s)->sa.sa_family == AF_UNIX;
	int fd = s->sides[CLIENT].fd, r;
	uint8_t buf[TLS_HELLO_WIRE_MAX];
	size_t need = 1;
	struct tls_hello h;
	ssize_t n;

	if (!s->forward->conf->hellos)
		return true;
	n = tcp_recv(fd, buf, sizeof(buf), MSG_PEEK);
	if (n < 0 && errno != EAGAIN)
		return session_reset(s, tcp_cause(CLIENT, errno));
	if (!n) { /* a check of the port, mostly: nobody has lost anything */
		session_finish(s);
		return false;
	}
	r = tls_hello_parse(buf, n < 0 ? 0 : (size_t)n, &h, &need);
	if (!r)
		return route(s, &h);
	if (r == -E2BIG || n == sizeof(buf))
		return refuse(s, CAUSE_HELLO_LARGE, "", "larger than 16 KiB");
	if (r != -EAGAIN)
		return refuse(s, CAUSE_HELLO_BAD, "", "it is none, or cannot be read");
	if (ended)
		return refuse(s, CAUSE_HELLO_BAD, "", "the stream ended before it was whole");
	if (s->worker->loop.now_ms >= s->told->due_ms)
		return refuse(s, CAUSE_HELLO_LATE, "", "not whole within hello-timeout");
	/* to set it tells of what is there once more if the buffer is nearly full */
	if (n > 0 && !is_unix && s->told->lowat != (int)((size_t)n + need)) {
		s->told->lowat = (int)((size_t)n + need);
		tcp_set_lowat(fd, s->told->lowat);
	}
	return false;
}
