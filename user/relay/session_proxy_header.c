// SPDX-License-Identifier: BSD-2-Clause
/*
 * Theory of operation
 *
 * Receiving.  A header may share a segment with the payload behind it, and payload must be left to
 * whatever carries it: so what has come is looked at (MSG_PEEK), and once the header is whole, just
 * its bytes are read.  What is left of the skb that it ended in is no trap for the kernel path: a
 * flow enters that only when its receive queue was seen empty (sockmap_enter()), so user space
 * reads the rest.
 *
 * Waiting for more of a header, epoll is asked to report each arrival once (EPOLLET): what has come
 * stays in the socket, and would be reported for ever otherwise.  SO_RCVLOWAT would save the looks
 * in between, but unix sockets do not know it in epoll, and it would have to be undone.  A header
 * has PROXY_PROTOCOL_MAX bytes at most, and time runs out for it, so there are not many looks.
 *
 * Sending.  The header goes out as soon as the upstream has answered, before any flow exists.  TCP
 * takes a few dozen bytes of a new connection whole, unless memory is short: then the session is
 * reset.
 */
#include "relay/session_proxy_header.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/syscalls_allowed.h"
#include "datapath/tcp.h"
#include "relay/admission.h"

SYSCALLS_ALLOWED(
	SYSCALL(sendto),
	SYSCALL(getsockname));

_Static_assert(PROXY_PROTOCOL_MAX <= UINT16_MAX, "session.header_in");
_Static_assert(PROXY_PROTOCOL_WRITE_MAX <= UINT8_MAX, "session.header_out");

/* --- receiving --- */

int session_proxy_header_expect(struct session *s)
{
	const struct forward_conf *fc = s->forward->conf;

	bool receives = fc->proxy_protocol & PROXY_RECEIVE;

	if (!receives && !fc->hellos) {
		session_set_state(s, SESSION_CONNECTING);
		return 0;
	}
	s->told = calloc(1, sizeof(*s->told) + 1);
	if (!s->told) {
		if (!receives) /* its client is counted in */
			session_set_state(s, SESSION_CONNECTING);
		return -ENOMEM;
	}
	s->told->peer = s->client;
	s->told->admitted = !receives;
	s->told->due_ms = s->worker->loop.now_ms +
			  (receives ? fc->proxy_timeout_ms : fc->hello_timeout_ms);
	return 0;
}

static bool refuse(struct session *s, enum cause cause, const char *reason)
{
	char text[ADDR_STRLEN];

	log_cause(cause, LOG_WARNING, "session %llu: reset: PROXY header of %s to forward %s: %s",
		  (unsigned long long)s->id, client_addr_text(&s->told->peer, text, sizeof(text)),
		  forward_name(s->forward->conf), reason);
	return session_reset(s, cause);
}

/* Read the header, which was seen whole, and no byte more.  False: S is reset. */
static bool take(struct session *s, const struct proxy_header *h, uint8_t *buf)
{
	ssize_t n = tcp_recv(s->sides[CLIENT].fd, buf, h->size, 0);
	enum cause why;

	if (n != (ssize_t)h->size)
		return session_reset(s, tcp_cause(CLIENT, n < 0 ? errno : EIO));
	s->header_in = (uint16_t)h->size;
	s->told->header = *h;
	s->told->due_ms = s->worker->loop.now_ms + s->forward->conf->hello_timeout_ms;
	if (h->has_addresses)
		s->client = h->source;
	why = admission_enter_client(s->worker->shared, s->forward, &s->client.sa, false);
	if (why != CAUSES)
		return session_reset(s, why);
	s->told->admitted = true;
	return true;
}

bool session_proxy_header_look(struct session *s, bool ended)
{
	uint8_t buf[PROXY_PROTOCOL_MAX];
	struct proxy_header h;
	const char *reason;
	ssize_t n;
	int r;

	if (s->told->header.size || !(s->forward->conf->proxy_protocol & PROXY_RECEIVE))
		return true;
	n = tcp_recv(s->sides[CLIENT].fd, buf, sizeof(buf), MSG_PEEK);
	r = n < 0 ? -errno : proxy_protocol_parse(buf, (size_t)n, &h, &reason);
	if (n >= 0 && !r)
		return take(s, &h, buf);
	if (n < 0 && r != -EAGAIN)
		return session_reset(s, tcp_cause(CLIENT, -r));
	if (r != -EAGAIN)
		return refuse(s, CAUSE_HEADER_BAD, reason);
	if (n >= 0 && (ended || !n))
		return refuse(s, CAUSE_HEADER_BAD,
			      n ? "the stream ended within it" : "the stream ended before it");
	if (s->worker->loop.now_ms >= s->told->due_ms)
		return refuse(s, CAUSE_HEADER_LATE, "not whole within proxy-timeout");
	return false;
}

/* --- sending --- */

bool session_proxy_header_send(struct session *s)
{
	unsigned int how = s->forward->conf->proxy_protocol;
	struct proxy_header h = { .has_addresses = s->client.sa.sa_family != AF_UNIX,
				  .source = s->client };
	socklen_t len = sizeof(h.destination);
	uint8_t buf[PROXY_PROTOCOL_WRITE_MAX];
	size_t size;
	ssize_t n;

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
