// SPDX-License-Identifier: BSD-2-Clause
/* All of this runs on the thread of the session's worker. */
#include "relay/udp/udp_proof.h"

#include "base/log.h"

void udp_proof_begin(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;

	TAILQ_INSERT_TAIL(&u->sessions, s, in_worker);
	u->unproven = u->unproven ?: s;
	u->n_unproven++;
}

void udp_list_remove(struct udp_session *s)
{
	struct udp_worker *u = s->worker->udp;

	u->n_unproven -= s->state != UDP_PROVEN;
	if (u->unproven == s)
		u->unproven = TAILQ_NEXT(s, in_worker);
	TAILQ_REMOVE(&u->sessions, s, in_worker);
}

void udp_proof_give(struct udp_session *s)
{
	if (s->state != UDP_ANSWERED)
		return;
	udp_list_remove(s);
	udp_session_set_state(s, UDP_PROVEN);
	TAILQ_INSERT_HEAD(&s->worker->udp->sessions, s, in_worker);
	clients_proven(&s->worker->shared->clients, &s->client.sa, true);
}

bool udp_proof_seen(const struct udp_session *s)
{
	return s->state == UDP_PROVEN ||
	       (s->state == UDP_ANSWERED && udp_all_datagrams(s, CLIENT) > s->asked);
}

bool udp_proof_is_given(struct udp_session *s)
{
	if (udp_proof_seen(s))
		udp_proof_give(s);
	return s->state == UDP_PROVEN;
}

bool udp_proof_of_address(struct udp_session *s)
{
	return udp_proof_is_given(s) ||
	       clients_proven(&s->worker->shared->clients, &s->client.sa, false);
}

/*
 * A client that subscribes once sends no second datagram, and so gets only the first bytes of the
 * stream.  Only a counter would show that, so say it in the log.
 */
static void udp_proof_say_limited(struct udp_session *s)
{
	char text[ADDR_STRLEN];

	log_cause(CAUSE_REPLY_LIMIT, LOG_WARNING,
		  "forward %s: answers to %s beyond max-reply-factor are dropped: its address is "
		  "not proven until it sends a datagram after an answer",
		  forward_name(s->forward->conf), client_addr_text(&s->client, text, sizeof(text)));
}

bool udp_proof_allows(struct udp_session *s, const struct udp_message *m)
{
	uint64_t factor = s->forward->conf->max_reply_factor;
	uint64_t headers = s->peer.sa.sa_family == AF_INET ? 28 : 48; /* of IP and UDP */
	uint64_t in = s->copied[CLIENT].bytes + udp_grafted(s, CLIENT).bytes +
		      headers * udp_all_datagrams(s, CLIENT);
	uint64_t out = s->copied[UPSTREAM].bytes + m->len +
		       headers * (s->copied[UPSTREAM].datagrams + udp_datagrams(m));

	if (!factor || s->state == UDP_PROVEN || out <= factor * in || udp_proof_of_address(s))
		return true;
	udp_proof_say_limited(s);
	return false;
}
