// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Receiving.  A header may share a segment with the payload after it, and the carrier must get all
 * payload.  So the daemon peeks (MSG_PEEK) until the header is whole, and then reads its bytes
 * alone.  Sockmap never meets a half-read skb: a flow enters the kernel only when its receive queue
 * was seen empty (sockmap_enter()).
 *
 * A part of a header stays in the socket, and level-triggered epoll would report it for ever: so
 * epoll reports each arrival once (EPOLLET).  SO_RCVLOWAT would save some looks.  But epoll ignores
 * it on unix sockets, and it would have to be undone.  There are few looks, since a header has
 * PROXY_PROTOCOL_MAX bytes at most, and a time limit.
 *
 * Sending.  The header goes out as soon as the upstream has answered, before any flow exists.  TCP
 * takes a few dozen bytes of a new connection whole, unless memory is short: then the session is
 * reset.
 *
 * Hellos.  The daemon peeks (MSG_PEEK) until the hello is whole.  Then the forward is known, and
 * the bytes are carried as all others.  The cost of a look grows with the bytes that have come.  So
 * SO_RCVLOWAT tells the socket how many bytes are needed: a client that sends byte by byte does not
 * cause a look for each byte.  On unix sockets epoll ignores SO_RCVLOWAT.
 *
 * Only a hello that was understood gets to a server: for anything else the right server is not
 * known.
 */
#include "relay/session_header.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/minmax.h"
#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"
#include "relay/admission.h"

SYSCALLS_ALLOWED(SYSCALL(sendto), SYSCALL(getsockname));

enum { POSTGRES_REQUEST = 8 }; /* bytes of a request of PostgreSQL */

_Static_assert(PROXY_PROTOCOL_MAX + 2 * POSTGRES_REQUEST <= UINT16_MAX, "session.header_in");
_Static_assert(PROXY_PROTOCOL_WRITE_MAX + POSTGRES_REQUEST <= UINT8_MAX, "session.header_out");

/* --- PROXY headers: receiving --- */

int session_header_expect(struct session *s)
{
	const struct forward_conf *fc = s->forward->conf;

	bool receives = fc->proxy_protocol & PROXY_RECEIVE;

	if (!receives && !fc->hellos) {
		session_set_state(s, SESSION_CONNECTING);
		return 0;
	}
	s->told = calloc(1, sizeof(*s->told) + 1);
	if (!s->told) {
		if (!receives) /* die() has to count its client out */
			session_set_state(s, SESSION_CONNECTING);
		return -ENOMEM;
	}
	s->told->peer = s->client;
	s->told->admitted = !receives;
	s->told->due_ms = s->worker->loop.now_ms +
			  (receives ? fc->proxy_timeout_ms : fc->hello_timeout_ms);
	return 0;
}

static bool header_refuse(struct session *s, enum cause cause, const char *reason)
{
	char text[ADDR_STRLEN];

	log_cause(cause, LOG_WARNING, "session %llu: reset: PROXY header of %s to forward %s: %s",
		  (unsigned long long)s->id, client_addr_text(&s->told->peer, text, sizeof(text)),
		  forward_name(s->forward->conf), reason);
	return session_reset(s, cause);
}

/*
 * The client of S is known.  NAMED: by a header.  Without a name it is the connection's own: a proxy
 * that asks for itself, or, where the header may be missing, any client.
 */
static bool header_admit(struct session *s, bool named)
{
	const struct forward_conf *fc = s->forward->conf;
	enum cause why = (named || fc->proxy_in) && !acl_allows(&fc->acl_behind, &s->client.sa) ?
				 CAUSE_DENIED :
				 admission_enter_client(s->worker->shared, s->forward, &s->client,
							false);

	s->told->due_ms = s->worker->loop.now_ms + fc->hello_timeout_ms;
	if (why == CAUSE_DENIED)
		count_add(&forward_stats(s->forward, s->worker->index)->denied, 1);
	if (why != CAUSE_NONE)
		return session_reset(s, why);
	s->told->admitted = true;
	return true;
}

/* Read the header, which was seen whole, and no byte more.  False: S is reset. */
static bool header_take(struct session *s, const struct proxy_header *h, uint8_t *buf)
{
	ssize_t n = tcp_recv(s->sides[CLIENT].fd, buf, h->size, 0);

	if (n != (ssize_t)h->size)
		return session_reset(s, tcp_cause(CLIENT, n < 0 ? errno : EIO));
	s->header_in = (uint16_t)h->size;
	s->told->header = *h;
	if (h->has_addresses)
		s->client = h->source;
	return header_admit(s, h->has_addresses);
}

bool session_header_read(struct session *s, bool ended)
{
	uint8_t buf[PROXY_PROTOCOL_MAX];
	struct proxy_header h;
	const char *reason;
	ssize_t n;
	int r;

	if (s->told->admitted) /* no header is expected, or it has come */
		return true;
	n = tcp_recv(s->sides[CLIENT].fd, buf, sizeof(buf), MSG_PEEK);
	r = n < 0 ? -errno : proxy_protocol_parse(buf, (size_t)n, &h, &reason);
	if (n >= 0 && !r)
		return header_take(s, &h, buf);
	if (n < 0 && r != -EAGAIN)
		return session_reset(s, tcp_cause(CLIENT, -r));
	if (s->forward->conf->proxy_in && !(n > 0 && proxy_protocol_begins(buf, (size_t)n)) &&
	    (r != -EAGAIN || (n >= 0 && (ended || !n)) || s->worker->loop.now_ms >= s->told->due_ms))
		return header_admit(s, false);
	if (r != -EAGAIN)
		return header_refuse(s, CAUSE_HEADER_BAD, reason);
	if (n >= 0 && (ended || !n))
		return header_refuse(s, CAUSE_HEADER_BAD,
				     n ? "the stream ended within it" :
					 "the stream ended before it");
	if (s->worker->loop.now_ms >= s->told->due_ms)
		return header_refuse(s, CAUSE_HEADER_LATE, "not whole within proxy-timeout");
	return false;
}

/* --- PROXY headers: sending --- */

bool session_header_send(struct session *s)
{
	unsigned int how = s->forward->conf->proxy_protocol;
	struct proxy_header h = { .has_addresses = s->client.sa.sa_family != AF_UNIX,
				  .source = s->client };
	socklen_t len = sizeof(h.destination);
	uint8_t buf[PROXY_PROTOCOL_WRITE_MAX];
	size_t size;
	ssize_t n;

	s->header_out = 0; /* another daemon may have written one to an upstream of its own */
	if (!(how & PROXY_SEND))
		return true;
	if (s->told && s->told->header.size)
		h = s->told->header;
	else if (h.has_addresses && getsockname(s->sides[CLIENT].fd, &h.destination.sa, &len))
		return session_reset(s, tcp_cause(CLIENT, errno));
	h.version = how & PROXY_SEND_V1 ? 1 : 2;
	size = proxy_protocol_write(&h, buf);
	n = TEMP_FAILURE_RETRY(send(s->sides[UPSTREAM].fd, buf, size, MSG_DONTWAIT | MSG_NOSIGNAL));
	if (n == (ssize_t)size) {
		s->header_out = (uint8_t)size;
		return true;
	}
	/* no room on a socket that nothing was written to: memory is short */
	return session_reset(s, tcp_cause(UPSTREAM, n < 0 && errno != EAGAIN ? errno : ENOMEM));
}

/* --- TLS hellos --- */

enum { ALERT_DECODE_ERROR = 50, ALERT_UNRECOGNIZED_NAME = 112 };

static bool hello_refuse(struct session *s, enum cause cause, const char *name, const char *reason)
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

/* S goes to F, which serves it from now on. */
static bool hello_enter(struct session *s, struct forward *f)
{
	if (s->told->lowat)
		tcp_set_lowat(s->sides[CLIENT].fd, 1);
	s->forward = f;
	s->tcp = session_peer(s)->sa.sa_family != AF_UNIX &&
		 !upstreams_are_unix(&f->conf->upstream);
	return true;
}

/* H is whole: S goes to the forward that it names. */
static bool hello_route(struct session *s, const struct tls_hello *h)
{
	struct told *told = realloc(s->told, sizeof(*told) + strlen(h->name) + 1);
	struct forward *f;

	if (!told)
		return session_reset(s, CAUSE_NO_MEMORY);
	s->told = told;
	strcpy(told->server_name, h->name);
	f = forward_route(s->forward, h);
	if (f)
		return hello_enter(s, f);
	return hello_refuse(s, CAUSE_NAME_UNKNOWN, h->name,
			    h->name[0] ? "no section, and no upstream, for " :
					 "it names no server, and the forward has no upstream for "
					 "that");
}

/* S does not speak TLS, or not soon enough. */
static bool hello_lacks(struct session *s, enum cause cause, const char *reason)
{
	struct forward *f = forward_route(s->forward, NULL);

	return f ? hello_enter(s, f) : hello_refuse(s, cause, "", reason);
}

/* --- PostgreSQL: a request for TLS goes before the hello --- */

static const uint8_t postgres_tls[POSTGRES_REQUEST] = { 0, 0, 0, 8, 4, 210, 22, 47 };
static const uint8_t postgres_gss[POSTGRES_REQUEST] = { 0, 0, 0, 8, 4, 210, 22, 48 };

/* Take a request, which is the N bytes of BUF.  False: there is none; or S is reset. */
static bool postgres_take(struct session *s, const uint8_t *buf, size_t n)
{
	int fd = s->sides[CLIENT].fd;
	bool tls = n == POSTGRES_REQUEST && !memcmp(buf, postgres_tls, n);
	uint8_t request[POSTGRES_REQUEST];

	/* a client that has sent more has not waited for the answer: it is none of PostgreSQL */
	if (s->told->postgres ||
	    (!tls && (n != POSTGRES_REQUEST || s->answers_out || memcmp(buf, postgres_gss, n))))
		return false;
	if (tcp_recv(fd, request, n, 0) != (ssize_t)n ||
	    send(fd, tls ? "S" : "N", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1)
		return session_reset(s, CAUSE_CLIENT_RESET);
	s->header_in += POSTGRES_REQUEST;
	s->answers_out++;
	s->told->postgres = tls ? POSTGRES_CLIENT : POSTGRES_NOT;
	return true;
}

bool session_postgres_ask(struct session *s)
{
	if (!s->told || s->told->postgres != POSTGRES_CLIENT)
		return false;
	s->told->postgres = POSTGRES_SERVER;
	s->told->due_ms = s->worker->loop.now_ms + s->forward->conf->connect_timeout_ms;
	s->header_out += POSTGRES_REQUEST;
	if (send(s->sides[UPSTREAM].fd, postgres_tls, sizeof(postgres_tls),
		 MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(postgres_tls))
		session_reset(s, tcp_cause(UPSTREAM, errno));
	return true;
}

bool session_postgres_hear(struct session *s)
{
	char answer = 0;
	ssize_t n = tcp_recv(s->sides[UPSTREAM].fd, &answer, 1, 0);

	if (n < 0 && errno == EAGAIN) {
		if (s->worker->loop.now_ms >= s->told->due_ms)
			session_reset(s, CAUSE_CONNECT_TIMEOUT);
		return false;
	}
	if (n == 1 && answer == 'S') {
		s->told->postgres = POSTGRES_NOT;
		s->answers_in = 1;
		return true;
	}
	log_cause(CAUSE_SERVER_NO_TLS, LOG_WARNING,
		  "session %llu, forward %s: the server of PostgreSQL %s",
		  (unsigned long long)s->id, forward_name(s->forward->conf),
		  n == 1 ? "speaks no TLS" : "has not answered a request for TLS");
	return session_reset(s, n < 0 ? tcp_cause(UPSTREAM, errno) : CAUSE_SERVER_NO_TLS);
}

bool session_hello_read(struct session *s, bool ended)
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
	if (!n) { /* mostly a check of the port: nobody has lost anything */
		session_finish(s);
		return false;
	}
	if (n == POSTGRES_REQUEST && postgres_take(s, buf, (size_t)n))
		return false;
	if (s->ending)
		return false;
	r = n > 0 && n < POSTGRES_REQUEST && !memcmp(buf, postgres_tls, smaller((size_t)n, 7)) ?
		    -EAGAIN :
		    tls_hello_parse(buf, n < 0 ? 0 : (size_t)n, &h, &need);
	if (!r)
		return hello_route(s, &h);
	if (r == -E2BIG || n == sizeof(buf))
		return hello_refuse(s, CAUSE_HELLO_LARGE, "", "larger than 16 KiB");
	if (r != -EAGAIN)
		return hello_lacks(s, CAUSE_HELLO_BAD, "not a TLS hello, or malformed");
	if (ended)
		return hello_refuse(s, CAUSE_HELLO_BAD, "", "the stream ended before it was whole");
	if (s->worker->loop.now_ms >= s->told->due_ms && n < 0) /* the server is to speak first */
		return hello_lacks(s, CAUSE_HELLO_LATE, "not whole within hello-timeout");
	if (s->worker->loop.now_ms >= s->told->due_ms)
		return hello_refuse(s, CAUSE_HELLO_LATE, "", "not whole within hello-timeout");
	/* only if changed: with a nearly full buffer each call reports the same bytes again */
	if (n > 0 && !is_unix && s->told->lowat != (int)((size_t)n + need)) {
		s->told->lowat = (int)((size_t)n + need);
		tcp_set_lowat(fd, s->told->lowat);
	}
	return false;
}
