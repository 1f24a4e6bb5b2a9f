// SPDX-License-Identifier: BSD-2-Clause
#include "relay/udp/udp_copy.h"

#include <errno.h>
#include <sys/epoll.h>

#include "relay/proxy_protocol.h"
#include "relay/session_log.h"
#include "relay/udp/udp_activate.h"
#include "relay/udp/udp_errors.h"
#include "relay/udp/udp_proof.h"
#include "relay/udp/udp_server.h"

static void udp_drop(struct udp_session *s, enum cause why, const struct udp_message *m)
{
	count_add(&s->worker->stats.errors[why], udp_datagrams(m));
}

/* --- from the client --- */

static int udp_send_on(struct udp_session *s, const struct udp_message *m)
{
	struct proxy_header header = { .version = 2, .has_addresses = true, .udp = true };
	uint8_t buf[PROXY_PROTOCOL_WRITE_MAX];
	size_t len = 0;

	if (s->forward->conf->proxy_protocol & PROXY_SEND) {
		header.source = s->client;
		header.destination = s->destination;
		len = proxy_protocol_write(&header, buf);
	}
	return udp_send(s->upstream->source.fd, m, len ? buf : NULL, len);
}

void udp_copy_question(struct udp_session *s, const struct udp_message *m)
{
	int r;

	if (!pace_take(s->pace, CLIENT, m->len)) {
		udp_drop(s, CAUSE_OVER_BANDWIDTH, m);
		return;
	}
	udp_activate_enter(s);
	udp_session_count(s, CLIENT, m);
	r = udp_send_on(s, m);
	if (r == -ECONNREFUSED || r == -EHOSTUNREACH || r == -ENETUNREACH)
		udp_server_unreachable(s, -r);
	else if (r) /* no room; or a firewall does not let it out, say */
		udp_drop(s, CAUSE_SEND_BUFFER, m);
	if (!s->ends)
		udp_activate_wait(s);
}

/* --- from the server --- */

bool udp_copy_is_complete(const struct udp_session *s)
{
	unsigned int n = s->forward->conf->responses;

	return n && s->copied[UPSTREAM].datagrams >= n * s->copied[CLIENT].datagrams;
}

static void udp_copy_answer(struct udp_session *s, struct udp_message *m)
{
	enum cause why = CAUSES;

	s->heard_ms[UPSTREAM] = udp_now(s);
	udp_server_answered(s);
	if (!udp_proof_allows(s, m))
		why = CAUSE_REPLY_LIMIT;
	else if (!pace_take(s->pace, UPSTREAM, m->len))
		why = CAUSE_OVER_BANDWIDTH;
	if (why == CAUSES) {
		m->peer = s->peer;
		m->local = s->local;
		if (!addr_is_any(&s->socket->addr))
			m->local.sa.sa_family = AF_UNSPEC;
		udp_session_count(s, UPSTREAM, m);
		if (udp_send_to(s->socket->source.fd, m))
			why = CAUSE_SEND_BUFFER;
	}
	if (why != CAUSES)
		udp_drop(s, why, m);
}

void udp_copy_answers(struct udp_session *s)
{
	struct udp_batch *b = s->worker->udp->batch;
	uint32_t word = udp_word(s, UPSTREAM);
	int got = udp_receive(b, s->upstream->source.fd);

	if (got < 0) { /* an error of an earlier datagram */
		udp_errors_take(s);
		got = s->ends ? 0 : udp_receive(b, s->upstream->source.fd);
	}
	if (got == UDP_BATCH) /* epoll shall report the rest again */
		loop_watch(&s->worker->loop, &s->upstream->source, EPOLLIN, true);
	for (int i = 0; i < got; i++)
		udp_copy_answer(s, udp_batch_at(b, (unsigned int)i));
	if (got > 0 && udp_copy_is_complete(s))
		udp_session_end(s, SESSION_FINISHED);
	else if (got > 0)
		udp_activate_server(s, word, got < UDP_BATCH);
}
